package shell

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/procfs"
	"trl/runtime/stream"
)

// splices reports whether a thread of a process that has variable in its environment waits in splice(2).
func splices(t *testing.T, variable string) bool {
	pids := testkit.PidsWhose("environ", func(text []byte) bool { return slices.Contains(strings.Split(string(text), "\x00"), variable) })
	for _, pid := range pids {
		threads, _ := os.ReadDir(procfs.Path(pid, "/task"))
		for _, thread := range threads {
			call, err := os.ReadFile(procfs.Path(pid, "/task/"+thread.Name()+"/syscall"))
			if errors.Is(err, fs.ErrPermission) { // this machine does not tell
				time.Sleep(time.Second)
				return true
			}
			if strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_SPLICE)) {
				return true
			}
		}
	}
	return false
}

// A command holds the pipe's lock when its input ends. Neither Input nor Cancel waits for the close of the pipe, which does.
func TestEndOfInputToAHeldPipe(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		mark := "HOLDER=" + testkit.Marker()
		c := NewCommand("read x; " + mark + " " + testkit.TestBinary + " awkward hold /proc/self/fd/0")
		c.OpenStdin = true
		done := s.start(c)
		if _, err := c.Input(stream.Anywhere, []byte("x\n"), false); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the command holds the pipe's lock", func() bool { return splices(t, mark) })
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
