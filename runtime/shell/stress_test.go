package shell

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/procfs"
)

// TestAbortOften repeats the same abort many times, to find races that occur once in hundreds of aborts.
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

// selfLocked tells whether a shell was replaced because it no longer reacted to SIGINT. busybox ash leaves its SIGINT handler by
// longjmp; if it was in glibc's malloc, it then waits for its own lock for ever. A zsh that is interrupted at the end of a loop's turn
// reads its lines and runs none of them: its variable breaks keeps the loop to leave (seen with strace in 3 of 1,500 loops). trl can
// only notice this and replace the shell.
func selfLocked(s *session, r result) bool {
	return (s.Name() == "ash" || s.Name() == "zsh") && r.Signal == "KILL" && r.Restored
}

// TestTimeoutBeforeBegin: on a busy machine a command's timeout may be over before the shell has read the command's line. The command
// must then not run. A stopped shell stands for the busy machine.
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

// TestStateIsThatOfTheLastCommand: the restored state is that of the last command, also if the next command kills the shell and comes
// before the shell has read all lines of the last one.
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

// A signal that reaches a process between its fork and its exec is lost there: the process still catches what its shell does.
func TestCancelMeetsAFork(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		skipDeadlocks(t, s)
		for i := range 150 {
			c := NewCommand("sleep 300")
			done := s.start(c)
			time.Sleep(time.Duration(i%50) * 40 * time.Microsecond)
			// By turns: an abort with INT, and INT for the command's processes alone.
			signalled := i%2 == 0 && (<-c.Signal(syscall.SIGINT)).Processes > 0
			if !signalled {
				c.Cancel(syscall.SIGINT, 2*time.Minute)
			}
			r, forked := s.waitLong(done)
			if r.Signal == "KILL" && s.Name() == "zsh" && forked {
				t.Log("a child of zsh hung in its handler of INT before its exec, and KILL ended it: ", r.Outcome)
				continue
			}
			if r.Signal == "KILL" || !signalled && !r.Cancelled {
				t.Fatalf("%v", r.Outcome)
			}
		}
	})
}

// waitLong is wait. If the command takes long, it logs what still runs, and forked says that all of that is a child of the shell that has called no
// exec.
func (s *session) waitLong(done <-chan result) (r result, forked bool) {
	select {
	case r := <-done:
		return r, false
	case <-time.After(DefaultGrace / 2):
	}
	members := s.proc().scope.MembersExcept(s.Pid())
	forked = len(members) > 0
	for _, pid := range members {
		p, _ := procfs.Read(pid)
		status, _ := os.ReadFile(procfs.Path(pid, "/status"))
		wchan, _ := os.ReadFile(procfs.Path(pid, "/wchan"))
		s.t.Logf("still there: %+v %s\n%s", p, wchan, status)
		forked = forked && p.BeforeExec
	}
	return s.wait(done), forked
}
