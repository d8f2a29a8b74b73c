package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/cgroup"
	"trl/runtime/journal"
	"trl/runtime/procfs"
)

// below makes a cgroup in the scope's.
func below(t *testing.T, c *Scope, name string) string {
	t.Helper()
	dir := filepath.Join(c.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func cgroupHost(t *testing.T) *Host {
	t.Helper()
	h := testHost(t, "auto")
	if tier, why := h.Isolation(); tier != "cgroup" {
		t.Skip("no cgroup of our own (needs root or delegation): ", why)
	}
	return h
}

// newEmptyCheck is what a gateway has of the scope.
func newEmptyCheck(t *testing.T, c *Scope) *EmptyCheck {
	t.Helper()
	list, err := c.OpenPIDList()
	if err != nil {
		t.Fatal(err)
	}
	g := &EmptyCheck{Mark: c.Mark(), List: list, Orphans: -1}
	t.Cleanup(g.Close)
	return g
}

func TestCgroupsBelowACellBelongToIt(t *testing.T) {
	h := cgroupHost(t)
	_, c := newGroup(t, h)
	sh := openShellIn(t, h, c)
	g := newEmptyCheck(t, c)
	if !g.ShellAlone(sh.Pid()) || c.MembersExcept(sh.Pid()) != nil {
		t.Fatal("somebody is in a fresh scope")
	}
	m := marker()
	dir := below(t, c, "x")
	sh.run("sh -c 'echo $$ > " + dir + "/cgroup.procs; exec sleep " + m + "'&")
	testkit.Eventually(t, "it is there", func() bool { return len(cgroup.PidsBelow(dir)) == 1 })
	if g.ShellAlone(sh.Pid()) || g.ShellAlone(0) {
		t.Error("the empty check sees nobody")
	}
	if pids := c.MembersExcept(sh.Pid()); !slices.Equal(pids, cgroup.PidsBelow(dir)) {
		t.Errorf("others: %v, want %v", pids, cgroup.PidsBelow(dir))
	}
	c.Signal(syscall.SIGTERM, sh.Pid())
	testkit.Eventually(t, "TERM has reached it", func() bool { return len(alive(m)) == 0 })
	if pids := c.MembersExcept(sh.Pid()); len(pids) != 0 {
		t.Errorf("others of a scope whose cgroup below is empty: %v", pids)
	}
	if err := unix.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	if !g.ShellAlone(sh.Pid()) {
		t.Error("the empty check asks although there is no cgroup below any more")
	}
}

// What is in a threaded cgroup is in the list of the scope, too.
func TestThreadedCgroupBelowACell(t *testing.T) {
	h := cgroupHost(t)
	_, c := newGroup(t, h)
	sh := openShellIn(t, h, c)
	dir := below(t, c, "x")
	if err := os.WriteFile(filepath.Join(dir, "cgroup.type"), []byte("threaded"), 0); err != nil {
		t.Skip("no threaded cgroups: ", err)
	}
	if pids := c.MembersExcept(sh.Pid()); len(pids) != 0 {
		t.Errorf("others: %v", pids)
	}
	m := marker()
	sh.run("sleep " + m + " & echo $! > " + dir + "/cgroup.threads")
	testkit.Eventually(t, "it runs", func() bool { return len(alive(m)) == 1 })
	if pids := c.MembersExcept(sh.Pid()); !slices.Equal(pids, alive(m)) {
		t.Errorf("others: %v, want %v", pids, alive(m))
	}
}

func TestKillReachesAProcessThatLeftItsCell(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	for name, to := range map[string]string{"below": "$cg/x", "above": "${cg%/*}"} {
		t.Run(name, func(t *testing.T) {
			m := marker()
			cg := strings.TrimSuffix(h.root.Dir, h.root.Path) + "$(sed -n 's/^0:://p' /proc/self/cgroup)"
			p, err := s.StartProcess(ProcessSpec{Text: "cg=" + cg + "; mkdir $cg/x; echo $$ > " + to + "/cgroup.procs; trap '' TERM; exec sleep " + m, Journal: journal.New(1 << 20)})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Release()
			testkit.Eventually(t, "it runs", func() bool { return len(alive(m)) == 1 })
			killed := make(chan error, 1)
			go func() { killed <- p.Kill(t.Context(), 0) }()
			testkit.Eventually(t, "kill returns", func() bool { return len(killed) == 1 })
			if err := <-killed; err != nil || len(alive(m)) != 0 {
				t.Errorf("%v; alive: %v", err, alive(m))
			}
		})
	}
}

// A job is its own command's: what ends a later one leaves it alone.
func TestJobBelowItsCellIsToldAndLeftAlone(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	m := marker()
	cg := strings.TrimSuffix(h.root.Dir, h.root.Path) + "$(sed -n 's/^0:://p' /proc/self/cgroup)"
	o := s.run("cg=" + cg + "; mkdir $cg/x; sh -c \"echo \\$\\$ > $cg/x/cgroup.procs; exec sleep " + m + "\" >/dev/null 2>&1 & while ! grep -q . $cg/x/cgroup.procs; do sleep 0.01; done")
	testkit.Eventually(t, "it runs", func() bool { return len(alive(m)) == 1 })
	if !slices.Equal(o.Background, alive(m)) || len(o.Background) != 1 {
		t.Errorf("told of %v, there is %v", o.Background, alive(m))
	}
	if pids := s.Background(); !slices.Equal(pids, alive(m)) {
		t.Errorf("the session tells of %v", pids)
	}
	stubborn := marker()
	late := NewCommand("sh -c \"trap '' INT TERM; sleep " + stubborn + "; :\"")
	done := s.start(late)
	testkit.Eventually(t, "the later command runs", func() bool { return len(alive(stubborn)) == 2 })
	late.Cancel(syscall.SIGINT, 0)
	<-done
	if len(alive(m)) != 1 {
		t.Error("the end of a later command has ended it")
	}
}

func TestCellsTakeNumbersThatTheSessionLeftFree(t *testing.T) {
	h := cgroupHost(t)
	s := openSession(t, h, "/bin/bash")
	cg := strings.TrimSuffix(h.root.Dir, h.root.Path) + "$(sed -n 's/^0:://p' /proc/self/cgroup)"
	m := marker()
	if o := s.run("cg=" + cg + "; mkdir ${cg%/*}/c{2,3,4,5}; sleep " + m + " >/dev/null 2>&1 &"); o.Code != 0 || len(o.Background) != 1 {
		t.Fatalf("%+v", o)
	}
	if o := s.run("echo next"); o.out != "next\n" || len(o.Background) != 0 {
		t.Errorf("the next command: %+v", o)
	}
	stubborn := marker()
	late := NewCommand("sh -c \"trap '' INT TERM; sleep " + stubborn + "; :\"")
	done := s.start(late)
	testkit.Eventually(t, "the later command runs", func() bool { return len(alive(stubborn)) == 2 })
	late.Cancel(syscall.SIGINT, 0)
	<-done
	if len(alive(m)) != 1 {
		t.Error("the end of a later command has ended the job")
	}
}

// A session of root's can leave its cgroup; it cannot leave the keeper.
func TestWhatLeftItsCgroupEndsWithTheHost(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Geteuid() != 0 {
		t.Skip("not run: only root can leave its cgroup")
	}
	h, err := NewHost(Config{Isolation: "cgroup", Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
	if err != nil {
		t.Skip("no cgroup of our own: ", err)
	}
	defer h.Close()
	testkit.Eventually(t, "what starts now is told from what was there before", func() bool { return procfs.TicksNow() > h.startTicks })
	outside := filepath.Dir(h.root.Dir) + "/cgroup.procs"
	g, c := newGroup(t, h)
	sh := openShellIn(t, h, c)
	m := marker()
	sh.run("sh -c 'echo $$ > " + outside + "; exec env -i setsid prlimit --locks=5: sh -c \"sleep " + m + " & sleep " + m + "\"' >/dev/null 2>&1 &")
	testkit.Eventually(t, "it has shed all", func() bool { return len(alive(m)) == 3 && len(g.Members()) == 1 })
	sh.run("echo $$ > " + outside) // the shell itself, too
	if err := g.Close(t.Context()); err != nil {
		t.Errorf("a shell that left its cgroup: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if pids := alive(m); len(pids) != 0 {
		t.Errorf("%v outlived the host", pids)
	}
}
