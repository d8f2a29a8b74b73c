package acceptance

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// M1: of two who want an idle session's turn at once, on two connections, one gets it and the other is told who has it.
func TestOneOfTwoClientsGetsTheTurn(t *testing.T) {
	g := shared(t, "m")
	eachShell(t, func(t *testing.T, sh string) {
		clients := []*client{g.dial(t), g.dial(t)}
		s := clients[0].session(object{"shell": sh})
		for range pick(20, 500) {
			gate, _ := uniqueFile(g, "gate")
			frames := make([]*frame, 2)
			refused := make(chan int, 2)
			opened := make(chan struct{})
			go func() { // opens the gate for who runs once the other is refused; ends with that
				defer close(opened)
				select {
				case <-refused:
				case <-time.After(patience):
				}
				clients[0].run(clients[0].session(object{"name": "gate", "if_exists": "return"}), ": >"+gate)
			}()
			together(2, func(i int) {
				frames[i] = clients[i].try("exec.run", object{"session_id": s, "when_busy": "reject", "command": "until [ -e " + gate + " ]; do sleep 0.005; done; echo ran", "timeout_s": 50})
				if !frames[i].OK {
					refused <- i
				}
			})
			<-opened
			won, lost := frames[0], frames[1]
			if !won.OK {
				won, lost = lost, won
			}
			if !won.OK || won.Data.stdout() != "ran\n" || lost.code() != "SESSION_BUSY" || lost.Error.Details.str("exec_id") != won.Data.str("exec_id") {
				t.Fatalf("%+v, %+v %+v", won.Data, lost.Data, lost.Error)
			}
		}
	})
}

// M2: who reacts to an event at once, from where it was told, blocks nothing: the next command at IDLE, destroy at the
// start of a command, reset and destroy at its end.
func TestReactingToAnEventBlocksNothing(t *testing.T) {
	g := shared(t, "m")
	eachShell(t, func(t *testing.T, sh string) {
		for round := range pick(5, 100) {
			c := g.dial(t)
			s := c.session(object{"shell": sh})
			c.call("session.watch", object{"session_id": s})
			idle := func() {
				c.await("IDLE", func(f *frame) bool { return f.Event == "session.state" && f.Data.str("to") == "IDLE" })
			}
			first := c.begin("exec.run", object{"session_id": s, "command": "exit 3"})
			c.event("exec.exit")
			second := c.begin("exec.run", object{"session_id": s, "command": "echo next"})
			c.event("exec.started")
			cancel := c.begin("exec.cancel", object{"session_id": s})
			idle()
			third := c.begin("exec.run", object{"session_id": s, "command": "echo at idle"})
			for i, id := range []int{first, second, cancel, third} {
				if f := c.answer(id); !f.OK {
					t.Errorf("request %d: %+v", i, f.Error)
				}
			}
			c.begin("exec.run", object{"session_id": s, "command": "true"})
			c.event("exec.exit")
			if round%2 == 0 {
				c.call("session.reset", object{"session_id": s})
			}
			expect(t, c.run(s, "echo fine"), 0, "fine\n", "")
			running := c.begin("exec.run", object{"session_id": s, "command": sleeper()})
			c.await("RUNNING", func(f *frame) bool {
				return f.Event == "exec.started" && strings.HasPrefix(f.Data.str("command"), "sleep 300")
			})
			destroy := c.begin("session.destroy", object{"session_id": s})
			if f := c.answer(running); !f.OK || !f.Data.yes("cancelled") {
				t.Errorf("%+v", f)
			}
			if f := c.answer(destroy); !f.OK || f.Data.str("state") != "TERMINATED" {
				t.Errorf("%+v", f)
			}
			c.close()
		}
	})
}

// M4: the end is final, and seen in the event, the list and the info, with one reason; and who lost its shell is not RUNNING.
func TestEndOfASessionIsFinalAndSeen(t *testing.T) {
	g := shared(t, "m")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		for reason, end := range map[string]func(s string){
			"client":       func(s string) { c.call("session.destroy", object{"session_id": s}) },
			"shell_exited": func(s string) { c.run(s, "exit 4") },
			"idle":         nil,
		} {
			create := object{"shell": sh, "on_shell_exit": "terminate"}
			if end == nil {
				create["idle_timeout_s"] = 0.1
			}
			s := c.session(create)
			c.call("session.watch", object{"session_id": s})
			if end != nil {
				end(s)
			}
			e := c.await("the end by "+reason, func(f *frame) bool {
				return f.Event == "session.state" && f.Data.str("session_id") == s && f.Data.str("to") == "TERMINATED"
			})
			if e.Data.str("reason") != reason {
				t.Errorf("%s: event %v", reason, e.Data)
			}
			if i := c.info(s); i.str("state") != "TERMINATED" || i.str("reason") != reason || i.str("terminated_at") == "" || i.has("pid") && i.num("pid") != 0 {
				t.Errorf("%s: info %v", reason, i)
			}
			listed := 0
			for _, o := range c.call("session.list", object{"state": "TERMINATED"}).objs("sessions") {
				if o.str("session_id") == s && o.str("reason") == reason {
					listed++
				}
			}
			if listed != 1 {
				t.Errorf("%s: listed %d times", reason, listed)
			}
			for method, params := range map[string]object{"exec.run": {"command": "echo"}, "process.start": {"command": "echo"}, "session.reset": {}, "session.touch": {}} {
				if f := c.try(method, with(params, object{"session_id": s})); f.code() != "SESSION_TERMINATED" || f.Error.Details.str("reason") != reason {
					t.Errorf("%s after %s: %+v", method, reason, f.Error)
				}
			}
			if state := c.state(s); state != "TERMINATED" {
				t.Errorf("%s, then %s", reason, state)
			}
		}
		// The shell is killed from outside, running and idle, and is to be put back or not.
		for _, on := range []string{"restore", "terminate"} {
			for _, busy := range []bool{true, false} {
				s, nap := c.session(object{"shell": sh, "on_shell_exit": on}), sleeper()
				pid := c.info(s).num("pid")
				request := 0
				if busy {
					request = c.begin("exec.run", object{"session_id": s, "command": nap + "; :"})
					eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				if busy {
					if f := c.answer(request); f.OK && f.Data.has("exit_code") && f.Data.num("exit_code") == 0 {
						t.Errorf("%s: a killed shell's command says 0: %v", on, f.Data)
					}
				}
				what := fmt.Sprintf("%s, busy %v", on, busy)
				if on == "terminate" {
					eventually(t, what, func() bool { return c.state(s) == "TERMINATED" })
					continue
				}
				eventually(t, what, func() bool { i := c.info(s); return i.str("state") == "IDLE" && i.num("pid") != pid })
				expect(t, c.run(s, "echo fine"), 0, "fine\n", "") // which state it has is D5's
			}
		}
	})
}

// M5: a name is taken as long as its session lives and free from then on, with nothing in between.
func TestNameIsFreeWhenItsSessionHasEnded(t *testing.T) {
	g := shared(t, "m")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		name := object{"name": unique("m5"), "shell": sh}
		last := c.session(name)
		for range pick(20, 500) {
			if f := c.try("session.create", name); f.code() != "SESSION_EXISTS" {
				t.Fatalf("%+v", f)
			}
			if s := c.session(name, object{"if_exists": "return"}); s != last {
				t.Fatalf("%s returned, want %s", s, last)
			}
			c.call("session.destroy", object{"session_id": last})
			s := c.session(name)
			if s == last {
				t.Fatal("the same id")
			}
			last = s
		}
		// Also in the middle of an end that takes its time: one or the other, nothing else, and free at the answer.
		c.stream(last, "trap '' TERM; "+sleeper())
		destroy, other := c.begin("session.destroy", object{"session_id": last, "grace_s": 0.3}), g.dial(t)
		eventually(t, "the name is free", func() bool {
			f := other.try("session.create", name)
			if !f.OK && f.code() != "SESSION_EXISTS" {
				t.Errorf("%+v", f.Error)
			}
			return f.OK
		})
		c.answer(destroy)
		c.call("session.destroy", object{"session": name.str("name")})
		c.session(name)
	})
}
