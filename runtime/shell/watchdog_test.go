package shell

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/runtime/stream"
)

// heldUp returns when the holder of the turn is blocked in a call on a pipe. It calls try, which may cause such a call.
func (s *session) heldUp(try func()) {
	s.t.Helper()
	testkit.Eventually(s.t, "a call on a pipe is held up", func() bool {
		try()
		before := s.pipeCalls.Count()
		time.Sleep(200 * time.Millisecond)
		return before%2 == 1 && s.pipeCalls.Count() == before
	})
}

// A command that holds the lock of one of our pipes ends like any other, and the session loses nothing else.
func TestPipeThatIsHeld(t *testing.T) {
	ways := []struct {
		name, mode string
		set        func(c *Command)
		ask        func(c *Command) // called when the run is blocked
		want       func(r result) bool
	}{
		{"cancel", "hold-full", func(c *Command) { c.Grace = time.Minute },
			func(c *Command) { c.Cancel(syscall.SIGTERM, time.Minute) },
			func(r result) bool { return r.Cancelled && r.Code == 128+15 && !strings.Contains(r.out, "two") }},
		{"stdin", "hold", func(c *Command) { c.OpenStdin = true },
			func(c *Command) { c.Cancel(syscall.SIGTERM, time.Second) },
			func(r result) bool { return r.Cancelled && r.Code == 128+9 && r.out == "one\n" }},
		{"signal", "hold-full", func(*Command) {},
			func(c *Command) { c.Signal(syscall.SIGTERM) },
			func(r result) bool { return !r.Cancelled && r.Code == 0 && strings.HasSuffix(r.out, "two\n") }},
		{"timeout", "hold-full", func(c *Command) { c.Timeout, c.Grace = 2*time.Second, time.Minute }, nil,
			func(r result) bool { return r.Timeout == "hard" && r.Code == 128+15 && !strings.Contains(r.out, "two") }},
		{"silence", "hold-full", func(c *Command) { c.NoOutput, c.Grace = time.Second, 0 }, nil,
			func(r result) bool {
				return r.Timeout == "no_output" && r.Code == 128+9 && !strings.Contains(r.out, "two")
			}},
	}
	eachShell(t, func(t *testing.T, s *session) {
		for _, w := range ways {
			s.run("X=" + w.name)
			c := NewCommand("echo one; " + testkit.TestBinary + " awkward " + w.mode + " /proc/self/fd/1; echo two")
			try := func() {}
			if w.name == "stdin" {
				c.Text = strings.Replace(c.Text, "fd/1", "fd/0", 1)
				try = func() {
					if _, err := c.Input(stream.Anywhere, []byte("x"), false); err != nil { // Input must not wait
						t.Fatal(err)
					}
				}
			}
			w.set(c)
			done := s.start(c)
			if w.ask != nil {
				s.heldUp(try)
				w.ask(c)
			}
			if r := s.wait(done); !w.want(r) || r.Died {
				t.Fatalf("%s: %q %v", w.name, r.out, r.Outcome)
			}
			s.want("echo $X", w.name+"\n")
		}
	})
}

// After `exec` the shell itself holds the pipe's lock. Then the session goes on with another shell.
func TestShellThatHoldsItsPipe(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.run("X=kept")
		s.awaitState()
		c := NewCommand("exec " + testkit.TestBinary + " awkward hold-full /proc/self/fd/1")
		done := s.start(c)
		s.heldUp(func() {})
		c.Cancel(syscall.SIGTERM, time.Second)
		r := s.wait(done)
		if !r.Cancelled || !r.Restored || r.Lost != nil {
			t.Errorf("%+v, lost %v", r.Outcome, r.Lost)
		}
		s.want("echo $X", "kept\n")
	})
}

// A shell that is started while a watchdog still kills the session's processes is not killed with them.
func TestWatchdogSparesTheNextShell(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.run("X=kept")
		s.awaitState()
		began := t.TempDir() + "/began"
		c := NewCommand(": >" + began + "; sleep 1000")
		done := s.start(c)
		testkit.Eventually(t, "the command runs", func() bool { _, err := os.Stat(began); return err == nil })
		old := s.proc()
		c.acting.Lock() // as a watchdog does
		_ = old.child.Signal(syscall.SIGKILL)
		<-old.child.Exited()
		for range 20 {
			if time.Sleep(5 * time.Millisecond); s.proc() != old {
				t.Error("another shell has been started")
				break
			}
		}
		s.currentGroup().Signal(syscall.SIGKILL)
		c.acting.Unlock()
		if r := s.wait(done); !r.Restored || r.Lost != nil {
			t.Errorf("%v", r.Outcome)
		}
		s.want("echo $X", "kept\n")
	})
}
