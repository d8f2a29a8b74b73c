package shell

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
)

// TestAbortOften: the same abort many times over, for the race that one in hundreds loses.
func TestAbortOften(t *testing.T) {
	n := 10
	if testkit.Soak {
		n = 500
	}
	eachShell(t, func(t *testing.T, s *session) {
		for i := range n {
			s.code(fmt.Sprintf("KEEP=%d", i), 0)
			for _, text := range []string{"while :; do :; done", "sleep 300", "f() { sleep 300; f; }; f"} {
				c := NewCommand(text)
				c.Timeout = time.Duration(1+i%7) * time.Millisecond
				r := s.wait(s.start(c))
				if r.Timeout != "hard" || r.Died && !selfLocked(s, r) {
					t.Fatalf("%d %q: %v", i, text, r.Outcome)
				}
				if r.Died {
					s.code(fmt.Sprintf("KEEP=%d", i), 0)
				}
				s.want("echo $KEEP", fmt.Sprintln(i))
			}
		}
	})
}

// selfLocked: busybox ash jumps out of its SIGINT handler wherever it is, and when that is inside of glibc's malloc it
// waits for its own lock for ever after. A zsh that is interrupted in its first milliseconds of a loop can go deaf to
// SIGINT, seen once in some hundreds. trl can only notice, and put another shell in their place.
func selfLocked(s *session, r result) bool {
	return (s.Name() == "ash" || s.Name() == "zsh") && r.Signal == "KILL" && r.Restored
}

// TestTimeoutBeforeBegin: on a busy machine a command's time may be over before its shell has read a word of it. It must
// not run then as if nothing had been. A stopped shell is as busy as can be.
func TestTimeoutBeforeBegin(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("KEEP=yes", 0)
		for range 5 {
			if err := s.proc().child.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			c := NewCommand("f() { sleep 300; echo AFTER; }; f; echo AFTER")
			c.Timeout = time.Millisecond
			started := s.start(c)
			for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); time.Sleep(time.Millisecond) {
			}
			if err := s.proc().child.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			r := s.wait(started)
			if r.Timeout != "hard" || r.out != "" || r.Died && !selfLocked(s, r) {
				t.Fatalf("%q %q %v", r.out, r.err, r.Outcome)
			}
			s.want("echo $KEEP", "yes\n")
		}
	})
}

// TestStateIsThatOfTheLastCommand: also when the next one, which kills the shell, comes before the shell has read all that
// belongs to it.
func TestStateIsThatOfTheLastCommand(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for i := range 40 {
			s.code("v="+strconv.Itoa(i), 0)
			if r := s.run("kill -9 $$"); !r.Restored {
				t.Fatalf("%+v", r.Outcome)
			}
			s.want("echo $v", strconv.Itoa(i)+"\n")
		}
	})
}
