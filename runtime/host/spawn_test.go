package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

func TestStatusOfEachKindOfEnd(t *testing.T) {
	h := testHost(t, "auto")
	for text, want := range map[string]own.Status{
		"exit 0":                 {},
		"exit 7":                 {Code: 7},
		"exit 255":               {Code: 255},
		"kill -9 $$":             {Code: 137, Signal: syscall.SIGKILL},
		"kill -TERM $$; sleep 9": {Code: 143, Signal: syscall.SIGTERM},
	} {
		c := spawn(t, h, nil, nil, "/bin/sh", "-c", text)
		<-c.Exited()
		got := c.Status()
		if got.MaxRSS <= 0 {
			t.Errorf("%s: max rss %d", text, got.MaxRSS)
		}
		if got.CPU, got.MaxRSS = 0, 0; got != want {
			t.Errorf("%s: %+v", text, got)
		}
		if err := c.Signal(syscall.SIGKILL); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("signal after the end: %v", err)
		}
	}
}

func TestSpawnErrors(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		_, c := newGroup(t, h)
		before := len(descriptor.NumbersIn("/proc/self/fd"))
		_, err := c.Spawn(own.Spec{Path: "/no/such", Argv: []string{"x"}})
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no file: %v", err)
		}
		if _, err = c.Spawn(own.Spec{Path: "/etc/passwd", Argv: []string{"x"}}); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("no program: %v", err)
		}
		if _, err = c.Spawn(own.Spec{Path: "/bin/true", Argv: []string{"x"}, Dir: "/no/such"}); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no directory: %v", err)
		}
		testkit.Eventually(t, "no zombie is left", func() bool { return procfs.PeekZombie() == 0 })
		// These children wake the child reaper, which has one descriptor open for a moment.
		testkit.Eventually(t, "no descriptor is left", func() bool { return len(descriptor.NumbersIn("/proc/self/fd")) <= before })
	})
}

// A child has its own process session, no ignored or blocked signals, and only the descriptors that it was given.
func TestChildStartsClean(t *testing.T) {
	h := testHost(t, "auto")
	leak, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // without CLOEXEC, as launchers leak descriptors
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	if err := descriptor.CloseOnExec(); err != nil {
		t.Fatal(err)
	}
	r, w, _ := os.Pipe()
	defer r.Close()
	c := spawn(t, h, nil, w, "/bin/sh", "-c", "cat /proc/self/stat; ls -l /proc/self/fd; grep -E 'Sig(Ign|Blk)' /proc/self/status")
	w.Close()
	text, _ := io.ReadAll(r)
	<-c.Exited()
	p, _ := procfs.ParseStat([]byte(strings.SplitN(string(text), "\n", 2)[0]))
	if p.Sid != c.Pid() || p.Pgrp != c.Pid() {
		t.Errorf("session %d of child %d", p.Sid, c.Pid())
	}
	if n := strings.Count(string(text), " -> "); n > 3 { // descriptors 1 and 2, and 0 for ls's own directory, because 0 was closed
		t.Errorf("descriptors leaked:\n%s", text)
	}
	if procfs.StatusMask(text, "SigIgn:") != 0 || procfs.StatusMask(text, "SigBlk:") != 0 {
		t.Errorf("signals leaked:\n%s", text)
	}
}

// If nohup starts trl with more signals ignored and one blocked, trl's children inherit none of that, and trl itself
// still ignores SIGHUP.
func TestIgnoredSignalsAreNotInherited(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Getenv("TRL_TEST_IGNORED") != "" {
		if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		TestChildStartsClean(t)
		return
	}
	c := exec.Command("/bin/sh", "-c", `trap '' HUP INT TSTP TTOU QUIT PIPE USR1; exec nohup "$0" "$@"`,
		testkit.TestBinary, "-test.run=^TestIgnoredSignalsAreNotInherited$", "-test.v")
	c.Env = append(os.Environ(), "TRL_TEST_IGNORED=1")
	if text, err := c.CombinedOutput(); err != nil || !strings.Contains(string(text), "--- PASS") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestPidfdIsReadableAtTheEnd(t *testing.T) {
	h := testHost(t, "auto")
	r, w, _ := os.Pipe()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	c, err := h.Spawn(own.Spec{Path: "/bin/cat", Argv: []string{"cat"}, Files: []*os.File{r, null, null}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	poll := []unix.PollFd{{Fd: int32(c.Pidfd()), Events: unix.POLLIN}}
	if n, _ := unix.Poll(poll, 0); n != 0 {
		t.Error("readable before the end")
	}
	w.Close()
	testkit.Eventually(t, "it is readable", func() bool { n, _ := unix.Poll(poll, 100); return n == 1 })
	<-c.Exited()
	if n, _ := unix.Poll(poll, 0); n != 1 {
		t.Error("not readable any more after the reaping")
	}
	c.Close()
	c.Close()
	if c.Pidfd() != -1 {
		t.Error("pidfd after Close")
	}
}

// Without its own pidfd a child can be signalled, and gives others one, also when it has been reaped.
func TestDroppedPidfd(t *testing.T) {
	h := testHost(t, "auto")
	before := len(descriptor.NumbersIn("/proc/self/fd"))
	c := spawn(t, h, nil, nil, "/bin/sleep", "60")
	c.DropPidfd()
	if now := len(descriptor.NumbersIn("/proc/self/fd")); now > before || c.Pidfd() != -1 {
		t.Errorf("%d descriptors, %d before", now, before)
	}
	ended := func(fd int) bool {
		n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n == 1
	}
	early := c.OpenPidfd()
	defer unix.Close(early)
	if early < 0 || ended(early) {
		t.Error("no pidfd of a child that runs")
	}
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-c.Exited()
	late := c.OpenPidfd()
	defer unix.Close(late)
	if late < 0 || !ended(early) || !ended(late) {
		t.Error("no pidfd of a child that has been reaped")
	}
	if err := c.Signal(syscall.SIGTERM); err != os.ErrProcessDone {
		t.Error(err)
	}
	c.Close()
	if fd := c.OpenPidfd(); fd != -1 {
		t.Error("pidfd after Close")
	}
}

func TestCloseBeforeTheEnd(t *testing.T) {
	h := testHost(t, "auto")
	before := len(descriptor.NumbersIn("/proc/self/fd"))
	c := spawn(t, h, nil, nil, "/bin/sleep", "60")
	c.Close()
	if err := c.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	<-c.Exited()
	if c.Status().Signal != syscall.SIGTERM {
		t.Errorf("%+v", c.Status())
	}
	testkit.Eventually(t, "no descriptor is left", func() bool { return len(descriptor.NumbersIn("/proc/self/fd")) <= before })
}

func TestTwoHundredStartsAndEnds(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		before := len(descriptor.NumbersIn("/proc/self/fd"))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for i := range 50 {
					child, err := c.Spawn(own.Spec{Path: "/bin/sh", Argv: []string{"sh", "-c", "exit " + string(rune('0'+i%8))}})
					if err != nil {
						t.Error(err)
						return
					}
					<-child.Exited()
					if child.Status().Code != i%8 {
						t.Errorf("exit %d: %+v", i%8, child.Status())
					}
					child.Close()
				}
			})
		}
		all.Wait()
		testkit.Eventually(t, "no descriptor is left", func() bool { return len(descriptor.NumbersIn("/proc/self/fd")) <= before })
		if len(h.childReaper.children) > 0 || len(g.children) > 0 {
			t.Errorf("still known: %v %v", h.childReaper.children, g.children)
		}
		if !c.Remove() {
			t.Error("the scope is not empty")
		}
	})
}

func BenchmarkSpawnTrue(b *testing.B) {
	for _, tier := range []string{"cgroup", "none"} {
		b.Run(tier, func(b *testing.B) {
			h := benchHost(b, tier)
			_, c := newGroup(b, h)
			for b.Loop() {
				child, err := c.Spawn(own.Spec{Path: "/bin/true", Argv: []string{"true"}})
				if err != nil {
					b.Fatal(err)
				}
				<-child.Exited()
				child.Close()
			}
		})
	}
	b.Run("os/exec", func(b *testing.B) { // for comparison: the least that a start takes
		for b.Loop() {
			if err := exec.Command("/bin/true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkExitNotice measures the time from the KILL of a process until Exited is closed, while 300 other processes
// are idle.
func BenchmarkExitNotice(b *testing.B) {
	h := testHost(b, "auto")
	_, c := newGroup(b, h)
	for range 300 {
		spawn(b, h, c, nil, "/bin/sleep", "60")
	}
	var total time.Duration
	for b.Loop() {
		child := spawn(b, h, c, nil, "/bin/sleep", "60")
		begin := time.Now()
		_ = child.Signal(syscall.SIGKILL)
		<-child.Exited()
		total += time.Since(begin)
		child.Close()
	}
	b.ReportMetric(float64(total.Microseconds())/float64(b.N), "µs/kill→exited")
}

// A process that is started outside sessions has no mark of theirs, and no other code waits for it.
func TestApart(t *testing.T) {
	h := testHost(t, "none")
	_, c := newGroup(t, h)
	defer testkit.Repeat(func() {
		k, err := c.Spawn(own.Spec{Path: "/bin/true", Argv: []string{"true"}})
		if err != nil {
			t.Error(err)
			return
		}
		<-k.Exited()
		k.Close()
	})()
	for range 300 {
		cmd := exec.Command("/bin/true")
		if err := ForkOutsideSessions(cmd.Start); err != nil {
			t.Fatal(err)
		}
		if m := procfs.ReadMark(cmd.Process.Pid); m>>32 == h.markBase>>32 {
			t.Errorf("it has the mark %x", m)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// A group that closes finds and kills its processes. It does not kill this process, even while this process forks into
// the group and so has its mark.
func TestWeAreOfNoGroup(t *testing.T) {
	eachTier(t, func(t *testing.T, h *Host) {
		g, c := newGroup(t, h)
		giveBack := forkWithMark(c)
		defer giveBack()
		g.walkMarked(func(p procfs.Process, _ *Scope) { t.Errorf("%d is taken for a session's", p.Pid) })
		if _, ok := h.wasOurs(os.Getpid()); ok {
			t.Error("we come out of a session")
		}
	})
}
