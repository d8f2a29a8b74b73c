package shell

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/metrics"
	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/host"
	"trl/runtime/procfs"
)

func TestMain(m *testing.M) {
	testkit.ActAwkward(nil)
	if err := unprivileged(); err != nil {
		panic(err)
	}
	testkit.Main(m)
}

// generous is how long a test waits for something. A busy machine needs far less.
const generous = 60 * time.Second

// stranger is a user id that no user has.
var stranger = confine.Account{Text: "64123", UID: 64123, GID: 64123}

// newHost opens a host, which ends with the test. It skips the test if this machine lacks something that the configuration needs.
func newHost(t testing.TB, c host.Config) *host.Host {
	t.Helper()
	testkit.StartsProcesses(t)
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
	h, err := host.NewHost(c)
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

func testHost(t testing.TB, isolation string) *host.Host {
	t.Helper()
	return newHost(t, host.Config{Isolation: isolation})
}

// benchHost is testHost in one tier, or skips the benchmark.
func benchHost(b *testing.B, tier string) *host.Host {
	b.Helper()
	isolation := tier
	if tier == "cgroup" {
		isolation = "auto"
	}
	h := testHost(b, isolation)
	if now, why := h.Isolation(); now != tier {
		b.Skip(why)
	}
	return h
}

// cgroupHost is testHost in tier "cgroup", or skips the test.
func cgroupHost(t *testing.T) *host.Host {
	t.Helper()
	h := testHost(t, "auto")
	if tier, why := h.Isolation(); tier != "cgroup" {
		t.Skip("no cgroup of our own (needs root or delegation): ", why)
	}
	return h
}

// openShell opens a shell over a host of this process.
func openShell(h *host.Host, c ShellConfig) (*Shell, error) {
	return (&Base{Keeper: host.Local(h), Metrics: h.Metrics, Log: h.Log}).OpenShell(context.Background(), c)
}

// v1Dirs returns the cgroup v1 directories of a session's limits, by their controller.
func v1Dirs(t testing.TB, s *Shell) map[string]string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.ReadFile(procfs.Path(s.Pid(), "/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	dirs := map[string]string{}
	for _, controller := range []string{"memory", "pids", "cpu"} {
		if dir, _, err := cgroup.FindController(string(mounts), string(self), controller); err == nil && strings.HasSuffix(dir, "/"+s.cfg.ID) {
			dirs[controller] = dir
		}
	}
	return dirs
}

// ownCgroup returns shell text that becomes the cgroup v2 directory of the process that runs it.
func ownCgroup(t testing.TB) string {
	return cgroupMount(t) + "$(sed -n 's/^0:://p' /proc/self/cgroup)"
}

// cgroupOf returns the cgroup v2 directory of a process.
func cgroupOf(t testing.TB, pid int) string {
	t.Helper()
	text, err := os.ReadFile(procfs.Path(pid, "/cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	_, path, _ := strings.Cut("\n"+string(text), "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	return cgroupMount(t) + path
}

func cgroupMount(t testing.TB) string {
	t.Helper()
	dir, path, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(dir, path)
}
