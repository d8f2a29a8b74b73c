package survival

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// The moments at which a gateway's death was once noticed.

// TestCrashBeforeTheLineIsRead: the line is sent, the shell has not read it, the gateway dies. What the line names must
// still be there when the shell comes to it.
func TestCrashBeforeTheLineIsRead(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	type run struct{ exec, want string }
	var runs []run
	var stopped []int
	c := g.Dial(t)
	for _, sh := range rig.Shells {
		for _, q := range []struct {
			params object
			want   string
		}{{object{}, "ran\n"}, {object{"env": object{"A": "b"}}, "ran b\n"}, {object{"working_dir": "/usr"}, "ran\n"}, {object{"stdin": "x\n"}, "ran\nx\n"}} {
			s := c.Session(object{"shell": sh})
			shell := c.Info(s).Num("pid")
			c.Run(s, ":")
			stopped = append(stopped, shell)
			if err := syscall.Kill(shell, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run{c.Stream(s, "echo ran $A; cat", q.params).Str("exec_id"), q.want})
		}
	}
	testkit.Eventually(t, "all run", func() bool { return c.Call("system.stats", nil).Num("running") == len(runs) })
	rig.ReplaceGateway(t, g)
	for _, pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	c = g.Dial(t)
	for _, r := range runs {
		rig.Expect(t, c.Call("exec.wait", object{"exec_id": r.exec, "timeout_s": 60}), 0, r.want, "")
	}
}

// TestKeyOutlivesItsRecord: what a request_key started is let go of after the retention time, the key after ten minutes.
func TestKeyOutlivesItsRecord(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t, "--retention", "1s")
	c := g.Dial(t)
	s := c.Session()
	start := object{"session_id": s, "command": "echo x >>starts", "request_key": "p"}
	run := object{"session_id": s, "command": "echo x >>runs", "request_key": "e"}
	stream := object{"session_id": s, "command": "echo x >>streams; seq 1000; echo err >&2", "request_key": "s"}
	open := object{"session_id": s, "command": "echo x >>opens", "request_key": "t", "cols": 80, "rows": 24}
	id, exec, term := c.Call("process.start", start).Str("process_id"), c.Call("exec.run", run).Str("exec_id"), c.Call("term.open", open).Str("term_id")
	st := c.Call("exec.stream", stream)
	data, _ := c.Output(st.Str("stream_id"), 0)
	streamed := func() { // every byte once, or a gap
		t.Helper()
		if again := c.Call("exec.stream", stream); again.Str("exec_id") != st.Str("exec_id") {
			t.Errorf("stream %v, was %v", again, st)
		}
		gap, exit := c.Event("stream.gap"), c.Event("exec.exit")
		if gap.Num("from") != 0 || gap.Num("to") != len(data) || exit.Num("stdout_bytes")+exit.Num("stderr_bytes") != len(data) {
			t.Errorf("gap %v of %d bytes, exit %v", gap, len(data), exit)
		}
	}
	testkit.Eventually(t, "all are let go", func() bool {
		p, e := c.Try("process.info", object{"process_id": id}), c.Try("exec.wait", object{"exec_id": exec})
		return p.Code() == "PROCESS_NOT_FOUND" && e.Code() == "EXEC_NOT_FOUND" && c.Try("exec.wait", object{"exec_id": st.Str("exec_id")}).Code() == "EXEC_NOT_FOUND" &&
			len(c.Call("term.list", object{"session_id": s}).Objs("terminals")) == 0
	})
	streamed()
	rig.ReplaceGateway(t, g)
	c = g.Dial(t)
	if again := c.Call("term.open", open).Str("term_id"); again != term {
		t.Errorf("terminal %s, was %s", again, term)
	}
	if again := c.Call("process.start", start).Str("process_id"); again != id {
		t.Errorf("process %s, was %s", again, id)
	}
	if again := c.Call("exec.run", run).Str("exec_id"); again != exec {
		t.Errorf("exec %s, was %s", again, exec)
	}
	streamed()
	c.Run(s, ":")
	for _, name := range []string{"starts", "runs", "streams", "opens"} {
		if text, _ := os.ReadFile(filepath.Join(g.Home, name)); strings.Count(string(text), "x") != 1 {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// TestKeyOutlivesTheDefaultSession: who names no session is not asked which default one it was, also not by the next gateway.
func TestKeyOutlivesTheDefaultSession(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	run, start := object{"command": "echo x >>runs; echo once", "request_key": "e"}, object{"command": "echo x >>starts", "request_key": "p"}
	x, p := c.Call("exec.run", run), c.Call("process.start", start).Str("process_id")
	c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
	c.Call("session.destroy", object{"session_id": x.Str("session_id")})
	for range 2 {
		if again := c.Call("exec.run", run); again.Str("exec_id") != x.Str("exec_id") || again.Stdout() != "once\n" {
			t.Errorf("%v, was %v", again, x)
		}
		if again := c.Call("process.start", start).Str("process_id"); again != p {
			t.Errorf("process %s, was %s", again, p)
		}
		rig.Expect(t, c.Call("exec.run", object{"command": "cat runs starts"}), 0, "x\nx\n", "")
		rig.ReplaceGateway(t, g)
		c = g.Dial(t)
	}
}

// TestIdleLossOutlivesTheGateway: what was lost with a shell that died while no command ran is told once, by whichever gateway runs the next one.
func TestIdleLossOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/dash"})
	c.Run(s, "f() { :; }")
	if err := syscall.Kill(c.Info(s).Num("pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is put back", func() bool { return strings.Contains(g.Log(), "shell died while idle, restored") })
	rig.ReplaceGateway(t, g)
	c = g.Dial(t)
	for _, told := range []bool{true, false} {
		if r := c.Run(s, ":"); (r["shell_restored"] == true) != told || (r["state_lost"] != nil) != told {
			t.Errorf("told %v: %v", told, r)
		}
	}
}

// TestResultOutlivesTheGateway: it has what the command wrote, and not what its jobs did later.
func TestResultOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	for _, late := range []string{"echo late", "seq 1000000"} { // the ring has both, and not
		s := c.Session(object{"shell": "/bin/bash"})
		x := c.Run(s, "cd $(mktemp -d); mkfifo go; (read x <go; "+late+") & echo hi; seq 10 >&2")
		c.Run(s, "echo >go; wait")
		rig.ReplaceGateway(t, g)
		c = g.Dial(t)
		again := c.Call("exec.wait", object{"exec_id": x.Str("exec_id")})
		rig.Expect(t, again, 0, "hi\n", x.Stderr())
		if end := len("hi\n" + x.Stderr()); again.Num("next_offset") != end || again["truncated"] == true {
			t.Errorf("next offset %d, want %d: %v", again.Num("next_offset"), end, again)
		}
	}
}

// TestStopDuringUpgrade: a stop that comes while one gateway takes over from another is an orderly one.
func TestStopDuringUpgrade(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, 5, 10, 20, 40} {
		g := rig.Gateway(t)
		c := g.Dial(t)
		c.Stream(c.Session(), "sh -c 'trap \"echo term >>$HOME/termed; exit\" TERM; echo up >$HOME/up; while :; do sleep 0.05; done'")
		testkit.Eventually(t, "it runs", func() bool { _, err := os.Stat(filepath.Join(g.Home, "up")); return err == nil })
		if err := syscall.Kill(g.Pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause * time.Millisecond)
		for _, fault := range g.Stop() {
			t.Errorf("TERM %d ms after HUP: %s", pause, fault)
		}
		<-c.Done
		if text, _ := os.ReadFile(filepath.Join(g.Home, "termed")); len(text) == 0 {
			t.Errorf("TERM %d ms after HUP: the command was not told", pause)
		}
	}
}

// TestCrashAfterALongLife: what a session's earlier commands held is closed by now, and the numbers of those descriptors
// mean other files. A new gateway must not take one for the other.
func TestCrashAfterALongLife(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	type life struct{ session, exec string }
	lives := map[string]*life{}
	for _, sh := range rig.Shells {
		lives[sh] = &life{session: c.Session(object{"shell": sh})}
	}
	for round := range 3 {
		for sh, l := range lives {
			s := l.session
			c.Run(s, "KEEP="+sh)
			rig.Expect(t, c.Run(s, "cat", object{"stdin": "in\n"}), 0, "in\n", "")
			rig.Expect(t, c.Run(s, "echo $V", object{"env": object{"V": "v"}}), 0, "v\n", "")
			c.Run(s, "sleep 30", object{"timeout_s": 0.05})
			c.Run(s, "(sleep 0.1; echo late) & echo left") // it holds the pipes, and lets go
			p := c.Call("process.start", object{"session_id": s, "command": "cat; echo process", "stdin": "open"}).Str("process_id")
			c.Call("process.input", object{"process_id": p, "data": "x\n", "eof": true})
			c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
			c.Run(s, "kill -9 $$")
			for range 5 {
				c.Run(s, "echo more")
			}
			l.exec = c.Stream(s, "read go; echo went $go $KEEP", object{"interactive_stdin": true}).Str("exec_id")
		}
		rig.ReplaceGateway(t, g)
		c = g.Dial(t)
		for sh, l := range lives {
			c.Call("exec.input", object{"exec_id": l.exec, "data": "on\n", "eof": true})
			if out := c.Call("exec.wait", object{"exec_id": l.exec, "timeout_s": 60}).Stdout(); out != "went on "+sh+"\n" {
				t.Errorf("round %d, %s: %q", round, sh, out)
			}
		}
	}
	if lost := regexp.MustCompile(`"message":"[^"]*\blost\b[^"]*"`).FindAllString(g.Log(), -1); lost != nil { // an id may have the letters, too
		t.Errorf("something was lost: %v", lost)
	}
}

// In a PID namespace whose /proc is that of another, no process could be found: the gateway says so and ends.
func TestProcOfAnotherNamespace(t *testing.T) {
	rig.OnlyRoot(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, rig.Binary, "serve", "--listen", "127.0.0.1:0", "--auth", "none", "--state-dir", filepath.Join(dir, "state"), "--default-dir", dir)
	cmd.WaitDelay = testkit.Patience
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil || err == nil || !strings.Contains(string(out), "/proc belongs to another PID namespace") || strings.Contains(string(out), "listening") {
		t.Errorf("%v, %v: %s", err, ctx.Err(), out)
	}
}
