package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// forever is longer than any test.
const forever = time.Hour

// soon runs f. If f hangs, soon calls release and fails the test.
func soon(t *testing.T, what string, release func(), f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(generous / 2):
		release()
		<-done
		t.Fatalf("%s waits for a session that hangs", what)
	}
}

// begins starts a process of c in dir. The channel gets the error of the start.
func begins(h *Host, c *Scope, dir string) <-chan error {
	end := make(chan error, 1)
	go func() {
		child, err := c.Spawn(own.Spec{Path: "/bin/true", Argv: []string{"true"}, Dir: dir})
		if err == nil {
			child.Close()
		}
		end <- err
	}()
	return end
}

func TestDirectoryThatDoesNotAnswer(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		h.chdirTimeout = forever
		dir, answer := testkit.DeadMount(t)
		defer answer()
		g, c := newGroup(t, h)
		first := begins(h, c, dir)
		testkit.Eventually(t, "it has asked", func() bool { return len(h.chdirSlots) == 1 })
		soon(t, "another session", answer, func() {
			other, oc := newGroup(t, h)
			<-spawn(t, h, oc, nil, "/bin/true").Exited()
			if err := <-begins(h, oc, "/tmp"); err != nil {
				t.Error(err)
			}
			if err := other.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		soon(t, "its own end", answer, func() {
			if err := g.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		select {
		case err := <-first:
			t.Error("it had an answer: ", err)
		default:
		}
		answer()
		if err := <-first; err == nil {
			t.Error("it was started")
		}
	})
}

// No caller waits for longer than chdirTimeout, and at most one thread per session waits for a directory.
func TestPatienceWithADirectory(t *testing.T) {
	h := testHost(t, "auto")
	h.chdirTimeout = 20 * time.Millisecond
	dir, answer := testkit.DeadMount(t)
	defer answer()
	g, c := newGroup(t, h)
	for range 3 {
		for _, err := range []error{<-begins(h, c, dir), g.Enterable(dir)} {
			e, ok := errors.AsType[*fs.PathError](err)
			if !ok || e.Op != "chdir" || e.Path != dir || e.Err != unix.ETIMEDOUT {
				t.Errorf("%#v", err)
			}
		}
	}
	if n := len(h.chdirSlots); n != 1 {
		t.Errorf("%d threads", n)
	}
	for range maxChdirThreads - 1 { // these stand for the threads of other sessions
		h.chdirSlots <- struct{}{}
	}
	other, err := h.NewGroup("s-other")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Enterable(dir); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("one more than %d: %v", maxChdirThreads, err)
	}
	for range maxChdirThreads - 1 {
		<-h.chdirSlots
	}
	answer()
	testkit.Eventually(t, "its thread is given back", func() bool { return len(h.chdirSlots) == 0 })
	h.chdirTimeout = forever
	if err := <-begins(h, c, "/tmp"); err != nil {
		t.Error(err)
	}
}

// A child gets a directory of its own, and no thread of ours stays there.
func TestDirectoryOfAChild(t *testing.T) {
	dirs := []string{t.TempDir()}
	if dir, err := os.MkdirTemp("/dev/shm", "trl-test-"); err == nil { // on no disk, so openCached normally does not open it
		t.Cleanup(func() { _ = os.Remove(dir) })
		dirs = append(dirs, dir)
	}
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		for n := range 40 {
			dir := dirs[n%len(dirs)]
			r, w, _ := os.Pipe()
			child, err := c.Spawn(own.Spec{Path: "/bin/pwd", Argv: []string{"pwd"}, Dir: dir, Files: []*os.File{nil, w}})
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			var text [4096]byte
			n, _ := r.Read(text[:])
			r.Close()
			<-child.Exited()
			child.Close()
			if got := string(text[:n]); got != dir+"\n" {
				t.Errorf("%q", got)
			}
		}
		testkit.Eventually(t, "all threads have left it", func() bool {
			for _, tid := range descriptor.NumbersIn("/proc/self/task") {
				if now, err := os.Readlink(procfs.Path(os.Getpid(), fmt.Sprintf("/task/%d/cwd", tid))); err == nil && slices.Contains(dirs, now) {
					return false
				}
			}
			return true
		})
	})
}

// freezer freezes the cgroup that contains the sessions' cgroups, so that a process which starts there does not get to
// its exec.
func freezer(t *testing.T, h *Host) (thaw func()) {
	t.Helper()
	if h.root == nil {
		t.Skip("no cgroup of our own (needs root or delegation)")
	}
	if err := cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "1"); err != nil {
		t.Skip(err)
	}
	before := debug.SetGCPercent(-1) // see CollectBetweenForks
	runtime.GC()
	t.Cleanup(func() { debug.SetGCPercent(before) })
	thaw = func() { _ = cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "0") }
	t.Cleanup(thaw)
	return thaw
}

// hanging reports whether a fork into the group is under way and does not end by itself.
func hanging(g *Group) bool {
	if g.forkMu.TryLock() {
		g.forkMu.Unlock()
		return false
	}
	entries, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.events"))
	return string(entries) == "populated 1\nfrozen 1\n"
}

func TestCloseOfASessionWhoseForkHangs(t *testing.T) {
	h := testHost(t, "auto")
	h.forkTimeout = forever
	g, c := newGroup(t, h)
	thaw := freezer(t, h)
	first := begins(h, c, "/")
	testkit.Eventually(t, "the fork hangs", func() bool { return hanging(g) })
	soon(t, "its own end", thaw, func() {
		if err := g.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	<-first
}

func TestForkThatHangsIsKilled(t *testing.T) {
	h := testHost(t, "auto")
	h.forkTimeout = 50 * time.Millisecond
	_, c := newGroup(t, h)
	thaw := freezer(t, h)
	soon(t, "its own start", thaw, func() {
		if err := <-begins(h, c, "/"); !errors.Is(err, unix.ETIMEDOUT) {
			t.Error(err)
		}
	})
	thaw()
	h.slowForks.mu.Lock()
	h.forkTimeout = forever // on a busy machine a start may take longer than the short timeout
	h.slowForks.mu.Unlock()
	if err := <-begins(h, c, "/"); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
}

func TestSessionThatFreezesItself(t *testing.T) {
	h := testHost(t, "auto")
	if h.root == nil {
		t.Skip("no cgroup of our own (needs root or delegation)")
	}
	h.forkTimeout = forever
	g, c := newGroup(t, h)
	if err := cgroup.WriteFile(g.dir, "cgroup.freeze", "1"); err != nil {
		t.Skip(err)
	}
	soon(t, "its own start", func() { _ = cgroup.WriteFile(g.dir, "cgroup.freeze", "0") }, func() {
		if err := <-begins(h, c, "/"); err != nil {
			t.Error(err)
		}
	})
}

// The collector stops all threads. Without CollectBetweenForks it would wait for the thread that forks.
func TestForkThatHangsWhileGarbageIsCollected(t *testing.T) {
	h := testHost(t, "auto")
	freezer(t, h)()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.AwkwardLife)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "awkward", "garbage", testkit.Marker())
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second // a process that it forked may hold its stdout
	text, err := cmd.Output()
	if want := unix.ETIMEDOUT.Error() + " <nil>\n"; err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("%q, %v", text, err)
	}
}
