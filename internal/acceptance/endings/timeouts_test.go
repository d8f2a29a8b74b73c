package endings

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// E1: a command that ignores TERM gets it when the time is over, and KILL after the grace.
func TestKillFollowsAnIgnoredTerm(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "e")
	c := g.Dial(t)
	rig.BothShells(func(sh string) {
		s := c.Session(object{"shell": sh})
		var r object
		timeout, deaf, loop := 2, rig.Sleeper(), rig.Sleeper()
		for began, there := rig.UniqueFile(g, "began"); !there(); timeout *= 4 { // a longer one if it had not begun in time
			if timeout > 60 {
				t.Fatal("it does not begin")
			}
			start := time.Now()
			trapped, _ := rig.UniqueFile(g, "trapped") // else TERM may come before the trap, on a busy machine
			r = c.Run(s, `(trap 'echo told' TERM; : >`+trapped+`; while :; do `+loop+`; done) & until [ -e `+trapped+` ]; do sleep 0.01; done; `+
				`trap '' TERM INT; echo began; : >`+began+`; `+deaf, object{"timeout_s": timeout})
			rig.Within(t, "timeout and grace", start, time.Duration(timeout+5)*time.Second)
			if !r.Yes("timed_out") || r.Str("timeout_kind") != "hard" || r.Yes("cancelled") || r.Num("exit_code") == 0 || r.Num("timeout_s") != timeout {
				t.Errorf("%v", r)
			}
		}
		timeout /= 4
		if !strings.HasPrefix(r.Stdout(), "began\n") || !strings.Contains(r.Stdout(), "told\n") {
			t.Errorf("stdout %q: TERM did not come, or what it caused is not in the result", r.Stdout())
		}
		if ms := r.Num("duration_ms"); ms < 1000*timeout+4900 {
			t.Errorf("ended after %d ms, before its time and grace were over", ms)
		}
		if left := append(rig.Running(deaf), rig.Running(loop)...); len(left) > 0 {
			t.Errorf("survivors %v", left)
		}
		rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "")
	})
}

// E3: sh → parent → worker with a port, the shape of `npm run dev`. The parent obeys TERM, the worker does not.
func TestTimeoutFreesTheDevServersPort(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "e").Dial(t)
	rig.BothShells(func(sh string) {
		s, port := c.Session(object{"shell": sh}), 0
		// Should the machine be too busy for the worker to start within the timeout, there is nothing to see: once more, longer.
		for timeout := 2; port == 0 && timeout < 60; timeout *= 3 {
			start := time.Now()
			r := c.Run(s, "sh -c '"+rig.ListenCommand("parent", 0)+"; :'", object{"timeout_s": timeout, "kill_grace_s": 1})
			if !r.Yes("timed_out") {
				t.Fatalf("%v", r)
			}
			rig.Within(t, "timeout and grace", start, time.Duration(timeout+5)*time.Second)
			port = rig.PrintedPort(r.Stdout())
		}
		if port == 0 {
			t.Fatal("the worker never listened")
		}
		if rig.SomebodyListens(t, port) {
			t.Errorf("somebody still listens on port %d", port)
		}
	})
}

// E5: a cancel that comes twice, too late, or for nobody harms nobody.
func TestLateAndRepeatedCancelsAreHarmless(t *testing.T) {
	g := rig.Shared(t, "e")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s, other := c.Session(object{"shell": sh}), c.Session(object{"shell": sh})
		job, process, alien := rig.Sleeper(), rig.Sleeper(), rig.Sleeper()
		c.Run(s, job+" &")
		c.Call("process.start", object{"session_id": s, "command": process})
		c.Stream(other, alien)
		bystanders := func() bool {
			return len(rig.Running(job)) == 1 && len(rig.Running(process)) == 1 && len(rig.Running(alien)) == 1
		}
		testkit.Eventually(t, "the bystanders run", bystanders)

		nap := rig.Sleeper()
		x := c.Stream(s, "trap '' TERM; "+nap, object{"kill_grace_s": 0.2})
		testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
		first, second := c.Begin("exec.cancel", object{"exec_id": x.Str("exec_id")}), c.Begin("exec.cancel", object{"exec_id": x.Str("exec_id")})
		if f := c.Answer(first); !f.OK || !f.Data.Yes("cancelled") || f.Data.Str("exec_id") != x.Str("exec_id") {
			t.Errorf("first: %+v", f)
		}
		if f := c.Answer(second); !f.OK {
			t.Errorf("second: %+v", f)
		}
		if _, exit := c.Output(x.Str("stream_id"), 0); !exit.Yes("cancelled") || exit.Yes("timed_out") {
			t.Errorf("%v", exit)
		}

		next := rig.Sleeper()
		y := c.Stream(s, next)
		testkit.Eventually(t, "the next one runs", func() bool { return len(rig.Running(next)) == 1 })
		for _, more := range []object{{}, {"signal": "KILL"}, {"kill_grace_s": 0}} { // too late, and the next one is not meant
			if f := c.Try("exec.cancel", rig.With(object{"exec_id": x.Str("exec_id")}, more)); !f.OK || f.Data.Yes("cancelled") {
				t.Errorf("after the end, %v: %+v", more, f)
			}
		}
		if f := c.Try("exec.cancel", object{"exec_id": "x-nobody"}); f.Code() != "EXEC_NOT_FOUND" {
			t.Errorf("unknown: %+v", f)
		}
		if f := c.Try("exec.cancel", object{"session_id": "s-nobody"}); f.Code() != "SESSION_NOT_FOUND" {
			t.Errorf("unknown session: %+v", f)
		}
		if len(rig.Running(next)) != 1 {
			t.Error("the next command was hit")
		}
		c.Call("exec.cancel", object{"exec_id": y.Str("exec_id"), "kill_grace_s": 0}) // it inherited the trap
		c.Output(y.Str("stream_id"), 0)
		if f := c.Try("exec.cancel", object{"session_id": s}); !f.OK || f.Data.Yes("cancelled") {
			t.Errorf("idle: %+v", f)
		}
		if !bystanders() {
			t.Error("a bystander was hit")
		}
		for _, id := range []string{s, other} {
			c.Call("session.destroy", object{"session_id": id, "force": true})
		}
	})
}

// E6: what a command wrote before it was ended is in the result. (dash adds its own word about the signal to stderr.)
func TestPartialOutputIsInTheResult(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "e")
	c := g.Dial(t)
	rig.BothShells(func(sh string) {
		s := c.Session(object{"shell": sh})
		wrote, there := rig.UniqueFile(g, "wrote")
		command := "printf part; echo err >&2; : >" + wrote + "; " + rig.Sleeper()
		for timeout := 1; !there(); timeout *= 4 { // a longer one if it had not written in time
			r := c.Run(s, command, object{"timeout_s": timeout})
			if wrote := there(); !r.Yes("timed_out") || r.Yes("cancelled") || wrote && (r.Stdout() != "part" || !strings.HasPrefix(r.Stderr(), "err\n")) || !wrote && timeout > 60 {
				t.Errorf("timeout: %v", r)
				break
			}
		}
		os.Remove(wrote)
		id := c.Begin("exec.run", object{"session_id": s, "command": command})
		testkit.Eventually(t, "it wrote", there)
		c.Call("exec.cancel", object{"session_id": s})
		if r := c.Answer(id).Data; r.Stdout() != "part" || !strings.HasPrefix(r.Stderr(), "err\n") || !r.Yes("cancelled") || r.Yes("timed_out") {
			t.Errorf("cancel: %v", r)
		}
	})
}

// E8: silence has a limit of its own; a command that goes on writing does not meet it.
func TestSilentCommandMeetsItsLimit(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "e")
	c := g.Dial(t)
	rig.BothShells(func(sh string) {
		s, nap := c.Session(object{"shell": sh}), rig.Sleeper()
		wrote, there := rig.UniqueFile(g, "wrote")
		for limit := rig.Pick(1, 3); !there(); limit *= 4 { // a longer one if it had not written in time
			start := time.Now()
			r := c.Run(s, "echo a; : >"+wrote+"; "+nap, object{"no_output_timeout_s": limit})
			rig.Within(t, "the answer", start, time.Duration(limit+1)*time.Second)
			if wrote := there(); !r.Yes("timed_out") || r.Str("timeout_kind") != "no_output" || wrote && r.Stdout() != "a\n" || len(rig.Running(nap)) > 0 || !wrote && limit > 60 {
				t.Errorf("%v", r)
				break
			}
		}
		// In all more than the limit, each silence a twentieth of it.
		rig.Expect(t, c.Run(s, "i=0; while [ $i -lt 24 ]; do i=$((i+1)); printf x; sleep 0.25; done", object{"no_output_timeout_s": 5}), 0, strings.Repeat("x", 24), "")
	})
}

// E9: which timeout is in force, and that the result says so.
func TestResultNamesTheTimeoutInForce(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "e").Dial(t)
	s := c.Session(object{"timeout_s": 1})
	if r := c.Run(s, rig.Sleeper()); !r.Yes("timed_out") || r.Str("timeout_kind") != "hard" || r.Num("timeout_s") != 1 {
		t.Errorf("the session's: %v", r)
	}
	r := c.Run(s, "sleep 1.2; echo slept", object{"timeout_s": 0})
	if rig.Expect(t, r, 0, "slept\n", ""); r.Has("timeout_s") {
		t.Errorf("none: %v", r)
	}
	if r := c.Run(s, "sleep 1.2; echo slept", object{"timeout_s": 1e9}); r.Stdout() != "slept\n" || r.Num("timeout_s") != 86400 {
		t.Errorf("clamped: %v", r)
	}
	if r := c.Run(c.Session(), "echo"); r.Has("timeout_s") {
		t.Errorf("no default: %v", r)
	}
	for _, bad := range []any{-1, -0.001, "5", true} {
		if f := c.Try("exec.run", object{"session_id": s, "command": "echo", "timeout_s": bad}); f.Code() != "INVALID_PARAMS" || f.Error.Details.Str("field") != "timeout_s" {
			t.Errorf("%v: %+v", bad, f)
		}
	}
}

// E10: the session's timeout is for its commands, not for what runs beside them.
func TestSessionTimeoutIsNotForProcesses(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "e")
	c := g.Dial(t)
	rig.BothShells(func(sh string) {
		s := c.Session(object{"shell": sh, "timeout_s": 1})
		job, there := rig.UniqueFile(g, "job")
		p := c.Call("process.start", object{"session_id": s, "command": "sleep 2; echo done; exit 7"}).Str("process_id")
		for r := (object{"timed_out": true}); r.Yes("timed_out"); { // on a busy machine, before it had left the job
			r = c.Run(s, "(sleep 2; : >"+job+") &")
		}
		if r := c.Run(s, rig.Sleeper()); !r.Yes("timed_out") { // the default is in force
			t.Errorf("%v", r)
		}
		if w := c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}}); !w.Yes("met") || w.Num("exit_code") != 7 {
			t.Errorf("%v", w)
		}
		if i := c.Call("process.info", object{"process_id": p}); i.Yes("timed_out") || i.Num("output_bytes") != 5 {
			t.Errorf("%v", i)
		}
		testkit.Eventually(t, "the job ends by itself", there)
	})
}

// E11: a process that KILL does not end is not said to be gone. The only safe way into that state is the freezer of
// cgroup v1: what is frozen there dies when it is thawed.
func TestProcessThatSurvivesKillIsNotCalledGone(t *testing.T) {
	const freezer = "/sys/fs/cgroup/freezer"
	dir := filepath.Join(freezer, fmt.Sprintf("trl-acceptance-%d", os.Getpid()))
	if _, err := os.Stat(freezer + "/cgroup.procs"); err != nil {
		t.Skip("no cgroup v1 freezer here")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	write := func(file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0); err != nil {
			t.Error(err)
		}
	}
	thaw := func() { write("freezer.state", "THAWED") }
	g := rig.Gateway(t)
	t.Cleanup(func() { // before the gateway's end
		thaw()
		testkit.Eventually(t, "the freezer is empty", func() bool { return syscall.Rmdir(dir) == nil })
	})
	c := g.Dial(t)
	s, nap := c.Session(), rig.Sleeper()
	run := c.Begin("exec.run", object{"session_id": s, "command": "echo part; " + nap})
	testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
	write("cgroup.procs", strconv.Itoa(rig.Running(nap)[0]))
	write("freezer.state", "FROZEN")
	testkit.Eventually(t, "it is frozen", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return strings.TrimSpace(string(b)) == "FROZEN"
	})
	c.Call("exec.cancel", object{"session_id": s, "kill_grace_s": 0.1})
	r := c.Answer(run).Data
	if !r.Yes("kill_failed") || !r.Yes("cancelled") || r.Stdout() != "part\n" || r.Has("exit_code") && r.Num("exit_code") == 0 {
		t.Errorf("%v", r)
	}
	if n := len(rig.Running(nap)); n != 1 {
		t.Fatalf("%d run: it was not frozen", n)
	}
	if state := c.State(s); state != "RUNNING" {
		t.Errorf("state %s while something of it lives", state)
	}
	if f := c.Try("exec.run", object{"session_id": s, "command": "echo"}); f.Code() != "SESSION_TERMINATED" {
		t.Errorf("%+v", f)
	}
	if g.Metric(t, "trl_kill_failed_total") == 0 || g.Metric(t, "trl_execs_total", `"cancelled"`) != 1 {
		t.Error("not counted")
	}
	if !slices.ContainsFunc(strings.Split(g.Log(), "\n"), func(line string) bool {
		return strings.Contains(line, s) && strings.Contains(line, `"level":"error"`)
	}) {
		t.Error("no line in the log for a person who must act")
	}
	rig.Expect(t, c.Run(c.Session(), "echo others"), 0, "others\n", "")
	thaw()
	testkit.Eventually(t, "the session ends when nothing of it is left", func() bool { return c.State(s) == "TERMINATED" })
	if left := rig.Running(nap); len(left) > 0 {
		t.Errorf("TERMINATED, and %v lives", left)
	}
}
