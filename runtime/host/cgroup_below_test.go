package host

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/cgroup"
	"trl/runtime/procfs"
)

// below makes a cgroup in the scope's cgroup.
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

// newEmptyCheck returns the EmptyCheck that a gateway would have for the scope.
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
	m := testkit.Marker()
	dir := below(t, c, "x")
	sh.run("sh -c 'echo $$ > " + dir + "/cgroup.procs; exec sleep " + m + "'&")
	testkit.Eventually(t, "it is there", func() bool { return len(cgroup.PidsBelow(dir)) == 1 && len(testkit.Alive(m)) == 1 }) // after its exec
	if g.ShellAlone(sh.Pid()) || g.ShellAlone(0) {
		t.Error("the empty check sees nobody")
	}
	if pids := c.MembersExcept(sh.Pid()); !slices.Equal(pids, cgroup.PidsBelow(dir)) {
		t.Errorf("others: %v, want %v", pids, cgroup.PidsBelow(dir))
	}
	c.Signal(syscall.SIGTERM, sh.Pid())
	testkit.Eventually(t, "TERM has reached it", func() bool { return len(testkit.Alive(m)) == 0 })
	testkit.Eventually(t, "the scope whose cgroup below is empty has no others", func() bool { return len(c.MembersExcept(sh.Pid())) == 0 })
	if err := unix.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	if !g.ShellAlone(sh.Pid()) {
		t.Error("the empty check asks although there is no cgroup below any more")
	}
}

// The scope's list also contains the processes of a threaded cgroup.
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
	m := testkit.Marker()
	sh.run("sleep " + m + " & echo $! > " + dir + "/cgroup.threads")
	testkit.Eventually(t, "it runs", func() bool { return len(testkit.Alive(m)) == 1 })
	if pids := c.MembersExcept(sh.Pid()); !slices.Equal(pids, testkit.Alive(m)) {
		t.Errorf("others: %v, want %v", pids, testkit.Alive(m))
	}
}

// A session of root's can leave its cgroup, but its processes still end with the host.
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
	m := testkit.Marker()
	sh.run("sh -c 'echo $$ > " + outside + "; exec env -i setsid prlimit --locks=5: sh -c \"sleep " + m + " & sleep " + m + "\"' >/dev/null 2>&1 &")
	testkit.Eventually(t, "it has shed all", func() bool { return len(testkit.Alive(m)) == 3 && len(g.Members()) == 1 })
	sh.run("echo $$ > " + outside) // the shell leaves its cgroup too
	if err := g.Close(t.Context()); err != nil {
		t.Errorf("a shell that left its cgroup: %v", err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if pids := testkit.Alive(m); len(pids) != 0 {
		t.Errorf("%v outlived the host", pids)
	}
}
