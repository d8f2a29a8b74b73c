package runtime

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
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

// Close ends every session that is left.
func TestHostCloseEndsAll(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		m := marker()
		for range 5 {
			_, c := newGroup(t, h)
			spawnAwkward(t, h, c, "daemon", m)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if pids := alive(m); len(pids) > 0 {
			t.Errorf("%v survived", pids)
		}
	})
}

func TestOnlyDeadInstancesAreCleanedUp(t *testing.T) {
	if tier, why := testHost(t, "auto").Isolation(); tier != "cgroup" {
		t.Skip("no cgroup of our own (needs root or delegation): ", why)
	}
	m := marker()
	other := exec.Command(testBinary, "awkward", "instance", m)
	out, _ := other.StdoutPipe()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir = strings.TrimSuffix(dir, "\n")
	testkit.Eventually(t, "its session runs", func() bool { return len(alive(m)) == 2 })

	testHost(t, "cgroup")
	if _, err := os.Stat(dir); err != nil || len(alive(m)) != 2 {
		t.Fatalf("the living instance was hurt: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	if pids := alive(m); len(pids) != 1 {
		t.Fatalf("left by the instance: %v", pids)
	}
	testHost(t, "cgroup")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the dead instance's directory: %v", err)
	}
	if pids := alive(m); len(pids) > 0 {
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

func TestFindCgroup(t *testing.T) {
	const (
		hybrid  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:3 - cgroup2 cgroup2 rw\n"
		unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"
		bound   = "30 23 0:26 /docker/ab /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
		blank   = `30 23 0:26 / /mnt/a\040b\134c rw - cgroup2 cgroup2 rw` + "\n"
		v1      = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	)
	for _, c := range []struct{ mounts, self, dir, path string }{
		{hybrid, "9:pids:/x\n0::/\n", "/sys/fs/cgroup/unified", "/"},
		{hybrid, "0::/system.slice/trl.service\n", "/sys/fs/cgroup/unified/system.slice/trl.service", "/system.slice/trl.service"},
		{unified, "0::/user.slice\n", "/sys/fs/cgroup/user.slice", "/user.slice"},
		{bound, "0::/docker/ab/c\n", "/sys/fs/cgroup/c", "/docker/ab/c"},
		{bound, "0::/docker/abc\n", "", ""},
		{bound + unified, "0::/docker/abc\n", "/sys/fs/cgroup/docker/abc", "/docker/abc"},
		{unified, "0::/../../x\n", "", ""},
		{blank, "0::/x\n", `/mnt/a b\c/x`, "/x"},
		{v1, "9:cpu:/\n", "", ""},
		{v1, "9:cpu:/\n0::/\n", "", ""},
	} {
		dir, path, err := cgroup.Find(c.mounts, c.self)
		if c.dir == "" {
			if err == nil {
				t.Errorf("%q %q: %s", c.mounts, c.self, dir)
			}
		} else if dir != c.dir || path != c.path || err != nil {
			t.Errorf("%q %q: %q %q %v", c.mounts, c.self, dir, path, err)
		}
	}
}
