package pool

import (
	"bytes"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/runtime/stream"
)

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// working counts goroutines, but for the few directory threads that a Host keeps for the next child: how many depends on how many
// were asked for at once.
func working() (n int) {
	stacks := make([]byte, 1<<20)
	for one := range bytes.SplitSeq(stacks[:runtime.Stack(stacks, true)], []byte("\n\n")) {
		if !bytes.Contains(one, []byte("(*Host).dirThread(")) {
			n++
		}
	}
	return n
}

// Sessions that were created, used and destroyed leave descriptors and goroutines as they were.
func TestSessionsLeaveNothing(t *testing.T) {
	r := newRig(t, Config{MaxSessions: 16, Retention: -1})
	once := func(shell string) {
		s, err := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: shell, Name: ""})
		if err != nil {
			t.Error(err)
			return
		}
		w := s.Watch()
		defer w.Close()
		if x := run(t, s, protocol.Exec{Command: "sleep 71030 & cat", Stdin: of("in")}); x.Stdout != "in" {
			t.Errorf("%+v", x)
		}
		p, err := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "cat", Stdin: "open"})
		if err != nil {
			t.Error(err)
		} else if _, err := p.Input(stream.Anywhere, []byte("x"), false); err != nil {
			t.Error(err)
		}
		if x := run(t, s, protocol.Exec{Command: "exit 3"}); !x.ShellRestored {
			t.Errorf("%+v", x)
		}
		if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Error(err)
		}
	}
	once("/bin/sh")
	once("/bin/bash")
	fds, goroutines := descriptors(t), working()
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 10 {
				once([]string{"/bin/sh", "/bin/bash"}[i%2])
			}
		})
	}
	all.Wait()
	testkit.Eventually(t, "descriptors and goroutines as before", func() bool {
		return descriptors(t) <= fds && working() <= goroutines
	})
	if n := survivors("sleep 71030"); n != 0 {
		t.Errorf("%d survivors", n)
	}
}

// TestStdinOfWhatNeverRan: a command that could not enter its directory had its stdin already, and gives it back.
func TestStdinOfWhatNeverRan(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	once := func() {
		e := start(t, s, protocol.Exec{Command: "cat", Stdin: of("x"), WorkingDir: "/nonexistent"})
		wait(t, "refusal", e.Done())
		if e.Err() == nil {
			t.Fatal("it ran")
		}
	}
	once()
	fds := descriptors(t)
	for range 10 {
		once()
	}
	testkit.Eventually(t, "descriptors as before", func() bool { return descriptors(t) <= fds })
}

// L2: without descriptors there are typed errors and no half-created session; with them all is as before.
func TestOutOfDescriptors(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = uint64(descriptors(t) + 1)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	_, created := r.Create(t.Context(), me, &protocol.SessionCreate{Shell: "/bin/sh"})
	e, err := s.Exec(&protocol.Exec{Command: "cat", Stdin: of("x")})
	if err == nil {
		select {
		case <-e.Done():
		case <-time.After(generous):
		}
	}
	_, started := s.StartProcess(t.Context(), &protocol.ProcessStart{Command: "true"})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err == nil { // there was room for its stdin
		wait(t, "exec", e.Done())
		if fault := e.Err(); fault != nil {
			err = fault
		} else if e.Exit().ExitCode == nil {
			t.Errorf("exec: %+v", e.Exit())
		}
	}
	if err != nil && protocol.AsError(err).Code != protocol.LimitExceeded {
		t.Errorf("exec: %v", err)
	}
	for what, err := range map[string]error{"session.create": created, "process.start": started} {
		if c := protocol.AsError(err); err == nil || c.Code == protocol.InternalError {
			t.Errorf("%s: %v", what, err)
		}
	}
	if st := r.Stats(); st.ActiveSessions != 1 {
		t.Errorf("%+v", st)
	}
	want(t, s, "echo fine", "fine\n")
	want(t, r.create(protocol.SessionCreate{}), "echo fine", "fine\n")
	if x := run(t, s, protocol.Exec{Command: "cat", Stdin: of("x")}); x.Stdout != "x" {
		t.Errorf("%+v", x)
	}
}
