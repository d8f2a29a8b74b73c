package host

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
	if tier, why := testHost(t, "auto").Isolation(); tier != "cgroup" {
		t.Skip("no cgroup of our own (needs root or delegation): ", why)
	}
	m := testkit.Marker()
	other := exec.Command(testkit.TestBinary, "awkward", "instance", m)
	out, _ := other.StdoutPipe()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir = strings.TrimSuffix(dir, "\n")
	testkit.Eventually(t, "its session runs", func() bool { return len(testkit.Alive(m)) == 2 })

	testHost(t, "cgroup")
	if _, err := os.Stat(dir); err != nil || len(testkit.Alive(m)) != 2 {
		t.Fatalf("the living instance was hurt: %v", err)
	}
	_ = other.Process.Kill()
	_ = other.Wait()
	if len(testkit.Alive(m)) == 0 {
		t.Log("another trl on this machine has just cleaned up")
	}
	testHost(t, "cgroup")
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
