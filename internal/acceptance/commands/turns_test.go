package commands

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// M1: of two who want an idle session's turn at once, on two connections, one gets it and the other is told who has it.
func TestOneOfTwoClientsGetsTheTurn(t *testing.T) {
	g := rig.Shared(t, "m")
	rig.EachShell(t, func(t *testing.T, sh string) {
		clients := []*rig.Client{g.Dial(t), g.Dial(t)}
		s := clients[0].Session(object{"shell": sh})
		for range rig.Pick(20, 500) {
			gate, _ := rig.UniqueFile(g, "gate")
			frames := make([]*rig.Frame, 2)
			refused := make(chan int, 2)
			opened := make(chan struct{})
			go func() { // opens the gate for who runs once the other is refused; ends with that
				defer close(opened)
				select {
				case <-refused:
				case <-time.After(testkit.Patience):
				}
				clients[0].Run(clients[0].Session(object{"name": "gate", "if_exists": "return"}), ": >"+gate)
			}()
			rig.Together(2, func(i int) {
				frames[i] = clients[i].Try("exec.run", object{"session_id": s, "when_busy": "reject", "command": "until [ -e " + gate + " ]; do sleep 0.005; done; echo ran", "timeout_s": 50})
				if !frames[i].OK {
					refused <- i
				}
			})
			<-opened
			won, lost := frames[0], frames[1]
			if !won.OK {
				won, lost = lost, won
			}
			if !won.OK || won.Data.Stdout() != "ran\n" || lost.Code() != "SESSION_BUSY" || lost.Error.Details.Str("exec_id") != won.Data.Str("exec_id") {
				t.Fatalf("%+v, %+v %+v", won.Data, lost.Data, lost.Error)
			}
		}
	})
}

// M2: who reacts to an event at once, from where it was told, blocks nothing: the next command at IDLE, destroy at the
// start of a command, reset and destroy at its end.
func TestReactingToAnEventBlocksNothing(t *testing.T) {
	g := rig.Shared(t, "m")
	rig.EachShell(t, func(t *testing.T, sh string) {
		for round := range rig.Pick(5, 100) {
			c := g.Dial(t)
			s := c.Session(object{"shell": sh})
			c.Call("session.watch", object{"session_id": s})
			idle := func() {
				c.Await("IDLE", func(f *rig.Frame) bool { return f.Event == "session.state" && f.Data.Str("to") == "IDLE" })
			}
			first := c.Begin("exec.run", object{"session_id": s, "command": "exit 3"})
			c.Event("exec.exit")
			second := c.Begin("exec.run", object{"session_id": s, "command": "echo next"})
			c.Event("exec.started")
			cancel := c.Begin("exec.cancel", object{"session_id": s})
			idle()
			third := c.Begin("exec.run", object{"session_id": s, "command": "echo at idle"})
			for i, id := range []int{first, second, cancel, third} {
				if f := c.Answer(id); !f.OK {
					t.Errorf("request %d: %+v", i, f.Error)
				}
			}
			c.Begin("exec.run", object{"session_id": s, "command": "true"})
			c.Event("exec.exit")
			if round%2 == 0 {
				c.Call("session.reset", object{"session_id": s})
			}
			rig.Expect(t, c.Run(s, "echo fine"), 0, "fine\n", "")
			running := c.Begin("exec.run", object{"session_id": s, "command": rig.Sleeper()})
			c.Await("RUNNING", func(f *rig.Frame) bool {
				return f.Event == "exec.started" && strings.HasPrefix(f.Data.Str("command"), "sleep 300")
			})
			destroy := c.Begin("session.destroy", object{"session_id": s})
			if f := c.Answer(running); !f.OK || !f.Data.Yes("cancelled") {
				t.Errorf("%+v", f)
			}
			if f := c.Answer(destroy); !f.OK || f.Data.Str("state") != "TERMINATED" {
				t.Errorf("%+v", f)
			}
			c.Close()
		}
	})
}

// M4: the end is final, and seen in the event, the list and the info, with one reason; and who lost its shell is not RUNNING.
func TestEndOfASessionIsFinalAndSeen(t *testing.T) {
	g := rig.Shared(t, "m")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		for reason, end := range map[string]func(s string){
			"client":       func(s string) { c.Call("session.destroy", object{"session_id": s}) },
			"shell_exited": func(s string) { c.Run(s, "exit 4") },
			"idle":         func(s string) { c.Call("session.update", object{"session_id": s, "idle_timeout_s": 0.1}) },
		} {
			s := c.Session(object{"shell": sh, "on_shell_exit": "terminate"})
			c.Call("session.watch", object{"session_id": s})
			end(s)
			e := c.Await("the end by "+reason, func(f *rig.Frame) bool {
				return f.Event == "session.state" && f.Data.Str("session_id") == s && f.Data.Str("to") == "TERMINATED"
			})
			if e.Data.Str("reason") != reason {
				t.Errorf("%s: event %v", reason, e.Data)
			}
			if i := c.Info(s); i.Str("state") != "TERMINATED" || i.Str("reason") != reason || i.Str("terminated_at") == "" || i.Has("pid") && i.Num("pid") != 0 {
				t.Errorf("%s: info %v", reason, i)
			}
			listed := 0
			for _, o := range c.Call("session.list", object{"state": "TERMINATED"}).Objs("sessions") {
				if o.Str("session_id") == s && o.Str("reason") == reason {
					listed++
				}
			}
			if listed != 1 {
				t.Errorf("%s: listed %d times", reason, listed)
			}
			for method, params := range map[string]object{"exec.run": {"command": "echo"}, "process.start": {"command": "echo"}, "session.reset": {}, "session.touch": {}} {
				if f := c.Try(method, rig.With(params, object{"session_id": s})); f.Code() != "SESSION_TERMINATED" || f.Error.Details.Str("reason") != reason {
					t.Errorf("%s after %s: %+v", method, reason, f.Error)
				}
			}
			if state := c.State(s); state != "TERMINATED" {
				t.Errorf("%s, then %s", reason, state)
			}
		}
		// The shell is killed from outside, running and idle, and is to be put back or not.
		for _, on := range []string{"restore", "terminate"} {
			for _, busy := range []bool{true, false} {
				s, nap := c.Session(object{"shell": sh, "on_shell_exit": on}), rig.Sleeper()
				pid := c.Info(s).Num("pid")
				request := 0
				if busy {
					request = c.Begin("exec.run", object{"session_id": s, "command": nap + "; :"})
					testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if busy {
					if f := c.Answer(request); f.OK && f.Data.Has("exit_code") && f.Data.Num("exit_code") == 0 {
						t.Errorf("%s: a killed shell's command says 0: %v", on, f.Data)
					}
				}
				what := fmt.Sprintf("%s, busy %v", on, busy)
				if on == "terminate" {
					testkit.Eventually(t, what, func() bool { return c.State(s) == "TERMINATED" })
					continue
				}
				testkit.Eventually(t, what, func() bool { i := c.Info(s); return i.Str("state") == "IDLE" && i.Num("pid") != pid })
				rig.Expect(t, c.Run(s, "echo fine"), 0, "fine\n", "") // which state it has is D5's
			}
		}
	})
}

// M5: a name is taken as long as its session lives and free from then on, with nothing in between.
func TestNameIsFreeWhenItsSessionHasEnded(t *testing.T) {
	g := rig.Shared(t, "m")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		name := object{"name": rig.Unique("m5"), "shell": sh}
		last := c.Session(name)
		for range rig.Pick(20, 500) {
			if f := c.Try("session.create", name); f.Code() != "SESSION_EXISTS" {
				t.Fatalf("%+v", f)
			}
			if s := c.Session(name, object{"if_exists": "return"}); s != last {
				t.Fatalf("%s returned, want %s", s, last)
			}
			c.Call("session.destroy", object{"session_id": last})
			s := c.Session(name)
			if s == last {
				t.Fatal("the same id")
			}
			last = s
		}
		// Also in the middle of an end that takes its time: one or the other, nothing else, and free at the answer.
		c.Stream(last, "trap '' TERM; "+rig.Sleeper())
		destroy, other := c.Begin("session.destroy", object{"session_id": last, "grace_s": 0.3}), g.Dial(t)
		testkit.Eventually(t, "the name is free", func() bool {
			f := other.Try("session.create", name)
			if !f.OK && f.Code() != "SESSION_EXISTS" {
				t.Errorf("%+v", f.Error)
			}
			return f.OK
		})
		c.Answer(destroy)
		c.Call("session.destroy", object{"session": name.Str("name")})
		c.Session(name)
	})
}
