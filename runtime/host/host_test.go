package host

import (
	"bufio"
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
	"trl/runtime/cgroup"
)

func TestIsolation(t *testing.T) {
	testkit.StartsProcesses(t)
	for isolation, tiers := range map[string]string{"none": "none", "auto": "cgroup none", "cgroup": "cgroup", "pidns": "", "": "", "docker": ""} {
		h, err := NewHost(Config{Isolation: isolation, Metrics: metrics.New(prometheus.NewRegistry()), Log: zerolog.Nop()})
		if err != nil {
			if isolation == "auto" || isolation == "none" {
				t.Errorf("%q: %v", isolation, err)
			}
			continue
		}
		tier, why := h.Isolation()
		if !strings.Contains(tiers, tier) || why == "" || strings.Contains(why, "\n") {
			t.Errorf("%q: %s because %s", isolation, tier, why)
		}
		t.Logf("%s: %s, %s", isolation, tier, why)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if err := h.Close(); err != nil {
			t.Error("twice: ", err)
		}
		if _, err := h.NewGroup("s-1"); err == nil {
			t.Error("a group on a closed host")
		}
		if h.root != nil {
			if _, err := os.Stat(h.root.Dir); !os.IsNotExist(err) {
				t.Error("left: ", h.root.Dir)
			}
		}
	}
}

// Close ends every session that exists.
func TestHostCloseEndsAll(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		m := testkit.Marker()
		for range 5 {
			_, c := newGroup(t, h)
			spawnAwkward(t, h, c, "daemon", m)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if pids := testkit.Alive(m); len(pids) > 0 {
			t.Errorf("%v survived", pids)
		}
	})
}

func TestOnlyDeadInstancesAreCleanedUp(t *testing.T) {
	h := testHost(t, "auto")
	if h.root == nil {
		t.Skip("no cgroup of our own (needs root or delegation): ", h.why)
	}
	// Any other trl cleans up in our cgroup when it starts. Therefore the instances of this test run in a cgroup of their own.
	own := filepath.Join(filepath.Dir(h.root.Dir), fmt.Sprintf("trl-test-instances-%d", os.Getpid()))
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.KillLeftover(own); err != nil {
			t.Error(err)
		}
	})
	instance := func(marker string) (c *exec.Cmd, dir string) {
		place := own
		for _, below := range cgroup.Subdirs(own) {
			if cgroup.LeafName.MatchString(filepath.Base(below)) { // an instance has enabled controllers, so own may have no processes
				place = below
			}
		}
		fd, err := unix.Open(place, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		c = exec.Command(testkit.TestBinary, "awkward", "instance", marker)
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := testkit.Start(c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
		if dir, err = bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return c, strings.TrimSuffix(dir, "\n")
	}
	m := testkit.Marker()
	first, dir := instance(m)
	if filepath.Dir(dir) != own {
		t.Fatalf("the instance is in %s, not in %s", dir, own)
	}
	alive := func(n int) func() bool { return func() bool { return len(testkit.Alive(m)) == n } }
	testkit.Eventually(t, "the instance and its session run", alive(2))

	instance(testkit.Marker()) // cleans up when it starts
	if _, err := os.Stat(dir); err != nil || !alive(2)() {
		t.Fatalf("the living instance was hurt: %v", err)
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	if !alive(1)() {
		t.Fatalf("the dead instance has the processes %v, and not its session's alone", testkit.Alive(m))
	}
	instance(testkit.Marker())
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the dead instance's directory: %v", err)
	}
	if pids := testkit.Alive(m); len(pids) > 0 {
		t.Errorf("the dead instance's processes: %v", pids)
	}
}

func TestForeignDirectoriesAreLeftAlone(t *testing.T) {
	h := testHost(t, "auto")
	if h.root == nil {
		t.Skip("no cgroup of our own (needs root or delegation): ", h.why)
	}
	foreign := h.root.Dir[:strings.LastIndexByte(h.root.Dir, '/')] + "/trl-workers.slice"
	if err := os.Mkdir(foreign, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(foreign)
	testHost(t, "cgroup")
	if _, err := os.Stat(foreign); err != nil {
		t.Error(err)
	}
}
