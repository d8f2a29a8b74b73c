package shell

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"
	"trl/runtime/stream"
)

// A command holds the pipe's lock when its input ends. Neither Input nor Cancel waits for the close of the pipe, which does.
func TestEndOfInputToAHeldPipe(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		c := NewCommand("read x; " + testkit.TestBinary + " awkward hold /proc/self/fd/0")
		c.OpenStdin = true
		done := s.start(c)
		if _, err := c.Input(stream.Anywhere, []byte("x\n"), false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // nothing shows that it holds the lock
		if _, err := c.Input(stream.Anywhere, nil, true); err != nil {
			t.Fatal(err)
		}
		s.heldUp(func() {})
		over := make(chan struct{})
		go func() { // ends at once, or with the command; waited for below
			defer close(over)
			if _, err := c.Input(stream.Anywhere, nil, false); !errors.Is(err, stream.ErrStdinClosed) {
				t.Error(err)
			}
			c.Cancel(syscall.SIGTERM, 0)
		}()
		select {
		case <-over:
		case <-time.After(testkit.Patience / 4): // less than AwkwardLife
			t.Error("it waits for the command")
			_ = s.proc().child.Signal(syscall.SIGKILL)
			s.currentGroup().Signal(syscall.SIGKILL)
			<-over
		}
		if r := s.wait(done); !r.Cancelled {
			t.Errorf("%v", r.Outcome)
		}
	})
}
