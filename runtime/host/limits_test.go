package host

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/own"
)

// TestBoundBeforeTheFirstInstruction checks that a child runs no instruction before its limits are set.
func TestBoundBeforeTheFirstInstruction(t *testing.T) {
	testkit.StartsProcesses(t)
	if err := canTrace(); err != nil {
		t.Skip("processes cannot be traced here: ", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "ulimit -n"}, &syscall.ProcAttr{
		Files: []uintptr{w.Fd(), w.Fd(), 2}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("read %d, %v", n, err)
	}
	b := &bounds{rlimits: []rlimit{{unix.RLIMIT_NOFILE, 77}}}
	if err := b.applyAfterExec(pid, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(generous)); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(r); string(out) != "77\n" {
		t.Errorf("%q %v", out, err)
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		t.Errorf("%v %v", ws, err)
	}
}

func TestLimitsOfADeadInstanceAreRemoved(t *testing.T) {
	h := testHost(t, "auto")
	y := h.hierarchies["pids"]
	if y == nil || y.Dir == "" {
		t.Skip("no pids controller of v1 that we may use")
	}
	dir := filepath.Join(y.Dir, "trl-1-0badcafe")
	lock := -1
	// Until the instance is locked, another trl that starts at the same time may take it for dead.
	testkit.Eventually(t, "a living instance", func() bool {
		if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
		var err error
		if lock, err = cgroup.LockDir(dir); err != nil {
			return false
		}
		if err = os.Mkdir(dir+"/s-1", 0o755); err != nil {
			unix.Close(lock)
		}
		return err == nil
	})
	m := testkit.Marker()
	child := spawn(t, h, nil, nil, "/bin/sleep", m)
	if err := cgroup.WriteFile(dir+"/s-1", "cgroup.procs", strconv.Itoa(child.Pid())); err != nil {
		t.Fatal(err)
	}
	testHost(t, "auto")
	if _, err := os.Stat(dir); err != nil || len(testkit.Alive(m)) != 1 {
		t.Fatalf("a living instance was hurt: %v", err)
	}
	unix.Close(lock)
	testHost(t, "auto")
	testkit.Eventually(t, "nothing of the dead instance", func() bool { // another trl may be removing it and may not have finished
		_, err := os.Stat(dir)
		return os.IsNotExist(err) && len(testkit.Alive(m)) == 0
	})
}

func TestWhatCannotBeEnforcedIsRefused(t *testing.T) {
	h := testHost(t, "none")
	g, c := newGroup(t, h)
	err := g.Limit(protocol.Limits{OpenFiles: 50, MemoryBytes: 1 << 30})
	if e := (*own.LimitError)(nil); !errors.As(err, &e) || e.Limit != own.LimitMemory || e.Why == "" {
		t.Errorf("%v", err)
	}
	if child := spawn(t, h, c, nil, "/bin/true"); child == nil || g.bounds.Load() != nil {
		t.Error("a refused limit left something behind")
	}
}
