package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/confine"
	"trl/runtime/journal"
	"trl/runtime/procfs"
)

// stranger is a number that is nobody's.
var stranger = confine.Account{Text: "64123", UID: 64123, GID: 64123}

// otherHost is a host whose sessions are not as free as we are.
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

// passable makes a directory that every user may write to, and get to.
func passable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "trl-test-")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// TestEveryShellOfAnotherUser: what a shell opens it opens by name, in each kind of shell, and its state comes back.
func TestEveryShellOfAnotherUser(t *testing.T) {
	testkit.StartsProcesses(t)
	h := otherHost(t, Config{SessionUser: &stranger})
	for name, path := range shells(t) {
		t.Run(name, func(t *testing.T) {
			if name == "ash" { // its link is in a directory of ours
				dir := passable(t)
				if err := os.Rename(path, filepath.Join(dir, "ash")); err != nil {
					t.Fatal(err)
				}
				path = filepath.Join(dir, "ash")
			}
			s := openSession(t, h, path)
			run := func(text, stdin, want string) {
				t.Helper()
				c := NewCommand(text)
				c.Stdin = []byte(stdin)
				if r := s.wait(s.start(c)); r.out != want || r.Err != nil {
					t.Errorf("%s: %q, want %q; %v", text, r.out, want, r.Outcome)
				}
			}
			run("v=kept; cd /usr; id -u", "", "64123\n")
			run("cat; echo $v", "in\n", "in\nkept\n")
			run("cat", strings.Repeat("x", 1<<20), strings.Repeat("x", 1<<20))
			run("echo a >/dev/stdout; pwd", "", "a\n/usr\n")
			run("kill -9 $$", "", "")
			run("echo $v; pwd; cat", "again", "kept\n/usr\nagain")
		})
	}
}

// TestSessionUserOfARange: one number a session, kept through a new group, and not given out again before ReleaseConfinement.
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
	made, err := a.MakeChannels([]ChannelKind{OutPipe, InPipe, MemFile})
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range made {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(a.confinement.dir, fmt.Sprint(m.FileNumber)), &st); err != nil || st.Uid != a.confinement.uid || st.Mode&0o777 != 0o600 {
			t.Errorf("%d: %v, of %d, %o", i, err, st.Uid, st.Mode)
		}
	}
	CloseChannels(made)
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
		h.ReleaseConfinement("a") // its group is there still
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

func TestParseAccount(t *testing.T) {
	for text, want := range map[string]confine.Account{
		"64123":       {Text: "64123", UID: 64123, GID: 64123},
		"64123:7":     {Text: "64123:7", UID: 64123, GID: 7},
		"64123-64125": {Text: "64123-64125", UID: 64123, GID: 64123, Last: 64125},
	} {
		if a, err := confine.ParseAccount(text, true); err != nil || a.UID != want.UID || a.GID != want.GID || a.Last != want.Last || a.Text != text {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
	for _, text := range []string{"", "root", "0", "0:0", "0-5", "5-4", "4294967295", "1-4294967295", "1:x", "no-such-user-1", "-5", "5-"} {
		if a, err := confine.ParseAccount(text, true); err == nil {
			t.Errorf("%q: %+v", text, a)
		}
	}
	if a, err := confine.ParseAccount("5-6", false); err == nil {
		t.Errorf("a range: %+v", a)
	}
	if a, err := confine.ParseAccount("nobody", false); err == nil && (a.Name != "nobody" || a.UID == 0) {
		t.Errorf("nobody: %+v", a)
	}
	env := stranger.Environment(5, []string{"A=b", "HOME=/h"})
	if want := []string{"A=b", "HOME=/h", "USER=5", "LOGNAME=5"}; !slices.Equal(env, want) {
		t.Errorf("%q, want %q", env, want)
	}
}

// BenchmarkCommandBySession is BenchmarkCommand, by what the session is.
func BenchmarkCommandBySession(b *testing.B) {
	for _, way := range []struct {
		name string
		c    Config
	}{{"plain", Config{}}, {"user", Config{SessionUser: &stranger}}, {"fenced", Config{WritableDirs: []string{"/tmp"}}}} {
		for _, sh := range []string{"sh", "bash"} {
			for what, stdin := range map[string]string{"": "", "+stdin": "x\n"} {
				b.Run(way.name+"/"+sh+what, func(b *testing.B) {
					s := openSession(b, otherHost(b, way.c), shells(b)[sh])
					for b.Loop() {
						c := NewCommand(":")
						c.Journal, c.Stdin = journal.New(1<<20), []byte(stdin)
						if o := s.Run(c); o.Code != 0 || o.Err != nil {
							b.Fatal(o)
						}
					}
				})
			}
			b.Run(way.name+"/"+sh+"+start", func(b *testing.B) {
				h := otherHost(b, way.c)
				for b.Loop() {
					s := openSession(b, h, shells(b)[sh])
					if err := s.Close(0); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
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
	m := marker()
	a.run(fmt.Sprintf("(env -i setsid prlimit --locks=%d: sleep %s &)", cb.mark, m))
	testkit.Eventually(t, "it has the other's mark, and no parent", func() bool {
		pids := alive(m)
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
	if len(alive(m)) != 1 {
		t.Error("another session's end has ended it")
	}
	h.ReleaseConfinement(ga.id)
	if err := ga.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if pids := alive(m); len(pids) != 0 {
		t.Errorf("%v outlived the session whose user it has", pids)
	}
}

// Whatever it hides, it has the number.
func TestUsersOwnNumberEndsWithItsSession(t *testing.T) {
	testkit.StartsProcesses(t)
	h := otherHost(t, Config{Isolation: "none", SessionUser: &confine.Account{Text: "64200-64201", UID: 64200, GID: 64200, Last: 64201}})
	g, c := newGroup(t, h)
	sh := openShellIn(t, h, c)
	m := marker()
	sh.run("env -i setsid prlimit --locks=5: sh -c 'env -i setsid sleep " + m + " >/dev/null 2>&1 & exit 0' >/dev/null 2>&1")
	testkit.Eventually(t, "it has shed all", func() bool {
		pids := alive(m)
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
	if pids := alive(m); len(pids) != 0 {
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
