package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/confine"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// otherHost returns a host whose sessions are restricted more than this process.
func otherHost(t testing.TB, c Config) *Host {
	t.Helper()
	if c.SessionUser != nil && os.Geteuid() != 0 {
		t.Skip("not run: only root can start processes of another user")
	}
	if err := confine.Landlock(); len(c.WritableDirs) > 0 && err != nil {
		t.Skipf("not run: %v", err)
	}
	if c.Isolation == "" {
		c.Isolation = "auto"
	}
	c.Metrics, c.Log = metrics.New(prometheus.NewRegistry()), zerolog.Nop()
	h, err := NewHost(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if dir := h.FIFODir(); dir != "" {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is left", dir)
			}
		}
	})
	return h
}

// TestSessionUserOfARange checks that each session gets one number, keeps it in a new group, and that no other session
// gets it before ReleaseConfinement.
func TestSessionUserOfARange(t *testing.T) {
	testkit.StartsProcesses(t)
	h := otherHost(t, Config{SessionUser: &confine.Account{Text: "64200-64201", UID: 64200, GID: 64200, Last: 64201}})
	group := func(id string) *Group {
		g, err := h.NewGroup(id)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	a, b := group("a"), group("b")
	if a.confinement.uid == b.confinement.uid {
		t.Errorf("both have %d", a.confinement.uid)
	}
	if _, err := h.NewGroup("c"); !strings.Contains(fmt.Sprint(err), "in use") {
		t.Errorf("a third: %v", err)
	}
	made, err := a.MakeChannels([]own.ChannelKind{own.OutPipe, own.InPipe, own.MemFile})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range made {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(a.confinement.dir, fmt.Sprint(m.FileNumber)), &st); err != nil || st.Uid != a.confinement.uid || st.Mode&0o777 != 0o600 {
			t.Errorf("%d: %v, of %d, %o", i, err, st.Uid, st.Mode)
		}
	}
	own.CloseChannels(made)
	a.Unlink(made[0].FileNumber)
	if _, err := os.Lstat(filepath.Join(a.confinement.dir, fmt.Sprint(made[0].FileNumber))); err == nil {
		t.Error("unlinked, but there")
	}
	uid := a.confinement.uid
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := group("a"); again.confinement.uid != uid {
		t.Errorf("it had %d, and has %d", uid, again.confinement.uid)
	} else {
		h.ReleaseConfinement("a") // its group still exists
		if _, err := h.NewGroup("c"); err == nil {
			t.Error("a number of somebody who is there")
		}
		if err := again.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if c := group("c"); c.confinement.uid != uid {
		t.Errorf("%d is free, it has %d", uid, c.confinement.uid)
	}
}

func TestMarkOfAnotherUserDoesNotCount(t *testing.T) {
	testkit.StartsProcesses(t)
	h := otherHost(t, Config{Isolation: "none", SessionUser: &confine.Account{Text: "64200-64201", UID: 64200, GID: 64200, Last: 64201}})
	if !h.markBase.Fits() {
		t.Skip("no marks here: the limit of file locks is low")
	}
	ga, ca := newGroup(t, h)
	gb, cb := newGroup(t, h)
	a, b := openShellIn(t, h, ca), openShellIn(t, h, cb)
	m := testkit.Marker()
	a.run(fmt.Sprintf("(env -i setsid prlimit --locks=%d: sleep %s &)", cb.mark, m))
	testkit.Eventually(t, "it has the other's mark, and no parent", func() bool {
		pids := testkit.Alive(m)
		if len(pids) != 1 || procfs.ReadMark(pids[0]) != cb.mark {
			return false
		}
		p, ok := procfs.Read(pids[0])
		return ok && p.Ppid == h.pid && p.Sid == p.Pid
	})
	if pids := cb.MembersExcept(b.Pid()); len(pids) != 0 {
		t.Errorf("others: %v", pids)
	}
	if err := gb.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(testkit.Alive(m)) != 1 {
		t.Error("another session's end has ended it")
	}
	h.ReleaseConfinement(ga.id)
	if err := ga.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pids := testkit.Alive(m); len(pids) != 0 {
		t.Errorf("%v outlived the session whose user it has", pids)
	}
}

// A process may hide every other sign of its session, but it has the session's user number.
func TestUsersOwnNumberEndsWithItsSession(t *testing.T) {
	testkit.StartsProcesses(t)
	h := otherHost(t, Config{Isolation: "none", SessionUser: &confine.Account{Text: "64200-64201", UID: 64200, GID: 64200, Last: 64201}})
	g, c := newGroup(t, h)
	sh := openShellIn(t, h, c)
	m := testkit.Marker()
	sh.run("env -i setsid prlimit --locks=5: sh -c 'env -i setsid sleep " + m + " >/dev/null 2>&1 & exit 0' >/dev/null 2>&1")
	testkit.Eventually(t, "it has shed all", func() bool {
		pids := testkit.Alive(m)
		if len(pids) != 1 {
			return false
		}
		p, ok := procfs.Read(pids[0])
		return ok && p.Ppid == h.pid && p.Sid == p.Pid
	})
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.ReleaseConfinement(g.id)
	if pids := testkit.Alive(m); len(pids) != 0 {
		t.Errorf("%v outlived its session", pids)
	}
}

func TestMarksCannotBeGuessed(t *testing.T) {
	h := testHost(t, "none")
	g, last := newGroup(t, h)
	near := 0
	for range 20 {
		c := newCell(t, g)
		if c.mark>>32 != h.markBase>>32 {
			t.Errorf("%x is not of instance %x", c.mark, h.markBase)
		}
		if max(c.mark, last.mark)-min(c.mark, last.mark) < 1000 {
			near++
		}
		last = c
	}
	if near > 5 {
		t.Errorf("%d of 20 are next to the one before", near)
	}
	if err := g.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLimitProgramIsOutOfOurGroup: the program that runs as a session's user has a process group of its own, so a KILL for trl's process group does not
// meet it.
func TestLimitProgramIsOutOfOurGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: only root can start processes of another user")
	}
	testkit.StartsProcesses(t)
	asks, err := os.Open(testkit.TestBinary) // TestMain answers
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	real := limitProgram
	limitProgram = func() (int, error) { return int(asks.Fd()), nil }
	defer func() { limitProgram = real }()
	c := &confinement{uid: 65534, gid: 65534}
	if err := c.limitByProgram(1, unix.RLIMIT_NPROC, unix.Rlimit{}); err != nil {
		t.Error(err)
	}
}

// TestLimitProgramIsNoOrphan: the child reaper of a host that is alone leaves the exit code of that program to its caller.
func TestLimitProgramIsNoOrphan(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not run: only root can start processes of another user")
	}
	testkit.StartsProcesses(t)
	otherHost(t, Config{Isolation: "none", Alone: true})
	sleep := exec.Command("sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: unix.SIGKILL}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleep.Wait()
	defer sleep.Process.Kill()
	c := &confinement{uid: 65534, gid: 65534}
	for i := range uint64(300) {
		if err := c.limitByProgram(sleep.Process.Pid, unix.RLIMIT_CORE, unix.Rlimit{Cur: 0, Max: 0}); err != nil {
			t.Fatal("start ", i, ": ", err)
		}
	}
}
