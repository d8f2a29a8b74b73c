package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
)

// Rss is the gateway's resident memory in bytes. Peak is the largest since the last call of Peak or Rss.
func (g *Server) Rss(t testing.TB) int { t.Helper(); g.Peak(t); return g.Status(t, "VmRSS") << 10 }

func (g *Server) Peak(t testing.TB) int {
	t.Helper()
	peak := g.Status(t, "VmHWM") << 10
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.Serving(t)), []byte("5"), 0); err != nil { // 5: reset VmHWM, proc(5)
		t.Fatal(err)
	}
	return peak
}

// Status returns a number from /proc/PID/status.
func (g *Server) Status(t testing.TB, key string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.Serving(t)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == key+":" {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// BusyThreads returns how many threads of the gateway run, or are in a system call other than those in which Go's idle threads wait.
func (g *Server) BusyThreads(t testing.TB) (n int) {
	t.Helper()
	all, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", g.Serving(t)))
	if err != nil || len(all) == 0 {
		t.Fatal("no threads: ", err)
	}
	idle := []string{strconv.Itoa(unix.SYS_FUTEX), strconv.Itoa(unix.SYS_EPOLL_PWAIT), strconv.Itoa(unix.SYS_NANOSLEEP)}
	for _, path := range all {
		b, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if number, _, _ := strings.Cut(string(b), " "); !slices.Contains(idle, number) {
			n++
		}
	}
	return n
}

// Fds returns how many descriptors keeper and gateway have open.
func (g *Server) Fds(t testing.TB) int {
	t.Helper()
	if g.Cmd == nil {
		return FdsOf(t, g.Pid)
	}
	return FdsOf(t, g.Pid) + FdsOf(t, g.Serving(t))
}

func FdsOf(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// FdKinds counts the open descriptors of pid by kind.
func FdKinds(pid int) map[string]int {
	all := map[string]int{}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		to, _ := os.Readlink(fd)
		all[strings.TrimRight(to, "0123456789]")]++
	}
	return all
}

// Descriptor waits until all descriptors of pid whose target begins with kind are of one file. It returns the path in /proc of one.
func Descriptor(t testing.TB, pid int, kind string) (path string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d has one %s", pid, kind), func() bool {
		files := map[string]bool{}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, kind) {
				files[to], path = true, fd
			}
		}
		return len(files) == 1
	})
	return path
}

// Metric returns the sum of those series of /metrics with this name whose labels contain each of with (`state="IDLE"`).
func (g *Server) Metric(t testing.TB, name string, with ...string) (sum float64) {
	t.Helper()
	found := false
series:
	for line := range strings.Lines(g.Owner().Get(t, "/metrics")) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		labels, isOurs := strings.CutPrefix(series, name)
		if !ok || !isOurs || labels != "" && labels[0] != '{' {
			continue
		}
		if strings.HasSuffix(series, "}") || labels == "" {
			found = true
		}
		for _, w := range with {
			if !strings.Contains(labels, w) {
				continue series
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		sum += v
	}
	if !found {
		t.Fatalf("no series %s in /metrics", name)
	}
	return sum
}

// CgroupDir is the directory of the gateway's own cgroup; "" if it has none.
func (g *Server) CgroupDir(t testing.TB) string {
	t.Helper()
	testkit.Eventually(t, "it has logged that it listens", func() bool { return strings.Contains(g.Log(), `"listening"`) })
	for line := range strings.Lines(g.Log()) {
		var l struct{ Message, Isolation, Why string }
		if json.Unmarshal([]byte(line), &l) == nil && l.Message == "listening" {
			dir, _ := strings.CutPrefix(l.Why, "cgroup v2 at ")
			if l.Isolation != "cgroup" {
				return ""
			}
			if _, err := os.Stat(dir); err != nil {
				t.Fatalf("%q: %v", l.Why, err)
			}
			return dir
		}
	}
	t.Fatal("the log does not tell the isolation")
	return ""
}

// Counts returns the numbers that must return to their baseline.
func (g *Server) Counts(t testing.TB, cgroup string) [7]int {
	t.Helper()
	return [7]int{int(g.Metric(t, "go_goroutines")), FdsOf(t, g.Pid), FdsOf(t, g.Serving(t)), childrenOf(g.Pid) + ZombiesOf(g.Pid), CountDirs(cgroup), CountFiles(g.Dir), len(g.Processes())}
}

func (g *Server) AwaitBaseline(t testing.TB, cgroup string, before [7]int) {
	t.Helper()
	var after [7]int
	defer func() {
		t.Logf("goroutines, descriptors of keeper and gateway, children, cgroups, files, processes: %v before, %v after", before, after)
		if t.Failed() {
			t.Logf("keeper's descriptors: %v\ngateway's: %v", FdKinds(g.Pid), FdKinds(g.GatewayPid()))
		}
	}()
	testkit.Eventually(t, "all is as before", func() bool {
		if after = g.Counts(t, cgroup); g.Metric(t, "trl_warm_shells") < 4 {
			return false
		}
		for i := range after {
			if after[i] > before[i] {
				return false
			}
		}
		return true
	})
}

// CountDirs counts the directories below dir.
func CountDirs(dir string) (n int) {
	if dir != "" {
		_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				n++
			}
			return nil // entries that disappear meanwhile are not counted
		})
	}
	return n
}

// CountFiles counts the files, pipes and sockets below dir.
func CountFiles(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return nil
	})
	return n
}

// ZombiesOf counts the zombies with this parent; childrenOf counts its other children.
func ZombiesOf(parent int) (n int) { z, _ := childCounts(parent); return z }

func childrenOf(parent int) (n int) { _, c := childCounts(parent); return c }

func childCounts(parent int) (zombies, others int) {
	for _, pid := range testkit.Pids() {
		if state, of, _, ok := ProcStat(pid); ok && of == parent {
			if state == 'Z' {
				zombies++
			} else {
				others++
			}
		}
	}
	return zombies, others
}
