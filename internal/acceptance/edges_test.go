package acceptance

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
)

// The moments at which a gateway's death was once noticed.

// TestCrashBeforeTheLineIsRead: the line is sent, the shell has not read it, the gateway dies. What the line names must
// still be there when the shell comes to it.
func TestCrashBeforeTheLineIsRead(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	type run struct{ exec, want string }
	var runs []run
	var stopped []int
	c := g.dial(t)
	for _, sh := range shells {
		for _, q := range []struct {
			params object
			want   string
		}{{object{}, "ran\n"}, {object{"env": object{"A": "b"}}, "ran b\n"}, {object{"working_dir": "/usr"}, "ran\n"}, {object{"stdin": "x\n"}, "ran\nx\n"}} {
			s := c.session(object{"shell": sh})
			shell := c.info(s).num("pid")
			c.run(s, ":")
			stopped = append(stopped, shell)
			if err := syscall.Kill(shell, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run{c.stream(s, "echo ran $A; cat", q.params).str("exec_id"), q.want})
		}
	}
	eventually(t, "all run", func() bool { return c.call("system.stats", nil).num("running") == len(runs) })
	sKill(t, g)
	for _, pid := range stopped {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	c = g.dial(t)
	for _, r := range runs {
		expect(t, c.call("exec.wait", object{"exec_id": r.exec, "timeout_s": 30}), 0, r.want, "")
	}
}

// TestKeyOutlivesItsRecord: what a request_key started is let go of after the retention time, the key after ten minutes.
func TestKeyOutlivesItsRecord(t *testing.T) {
	t.Parallel()
	g := gateway(t, "--retention", "1s")
	c := g.dial(t)
	s := c.session()
	start := object{"session_id": s, "command": "echo x >>starts", "request_key": "p"}
	run := object{"session_id": s, "command": "echo x >>runs", "request_key": "e"}
	stream := object{"session_id": s, "command": "echo x >>streams; seq 1000; echo err >&2", "request_key": "s"}
	open := object{"session_id": s, "command": "echo x >>opens", "request_key": "t", "cols": 80, "rows": 24}
	id, exec, term := c.call("process.start", start).str("process_id"), c.call("exec.run", run).str("exec_id"), c.call("term.open", open).str("term_id")
	st := c.call("exec.stream", stream)
	data, _ := c.output(st.str("stream_id"), 0)
	streamed := func() { // every byte once, or a gap
		t.Helper()
		if again := c.call("exec.stream", stream); again.str("exec_id") != st.str("exec_id") {
			t.Errorf("stream %v, was %v", again, st)
		}
		gap, exit := c.event("stream.gap"), c.event("exec.exit")
		if gap.num("from") != 0 || gap.num("to") != len(data) || exit.num("stdout_bytes")+exit.num("stderr_bytes") != len(data) {
			t.Errorf("gap %v of %d bytes, exit %v", gap, len(data), exit)
		}
	}
	eventually(t, "all are let go", func() bool {
		p, e := c.try("process.info", object{"process_id": id}), c.try("exec.wait", object{"exec_id": exec})
		return p.code() == "PROCESS_NOT_FOUND" && e.code() == "EXEC_NOT_FOUND" && c.try("exec.wait", object{"exec_id": st.str("exec_id")}).code() == "EXEC_NOT_FOUND" &&
			len(c.call("term.list", object{"session_id": s}).objs("terminals")) == 0
	})
	streamed()
	sKill(t, g)
	c = g.dial(t)
	if again := c.call("term.open", open).str("term_id"); again != term {
		t.Errorf("terminal %s, was %s", again, term)
	}
	if again := c.call("process.start", start).str("process_id"); again != id {
		t.Errorf("process %s, was %s", again, id)
	}
	if again := c.call("exec.run", run).str("exec_id"); again != exec {
		t.Errorf("exec %s, was %s", again, exec)
	}
	streamed()
	c.run(s, ":")
	for _, name := range []string{"starts", "runs", "streams", "opens"} {
		if text, _ := os.ReadFile(filepath.Join(g.home, name)); strings.Count(string(text), "x") != 1 {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// TestKeyOutlivesTheDefaultSession: who names no session is not asked which default one it was, also not by the next gateway.
func TestKeyOutlivesTheDefaultSession(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.dial(t)
	run, start := object{"command": "echo x >>runs; echo once", "request_key": "e"}, object{"command": "echo x >>starts", "request_key": "p"}
	x, p := c.call("exec.run", run), c.call("process.start", start).str("process_id")
	c.call("process.wait", object{"process_id": p, "until": object{"exit": true}})
	c.call("session.destroy", object{"session_id": x.str("session_id")})
	for range 2 {
		if again := c.call("exec.run", run); again.str("exec_id") != x.str("exec_id") || again.stdout() != "once\n" {
			t.Errorf("%v, was %v", again, x)
		}
		if again := c.call("process.start", start).str("process_id"); again != p {
			t.Errorf("process %s, was %s", again, p)
		}
		expect(t, c.call("exec.run", object{"command": "cat runs starts"}), 0, "x\nx\n", "")
		sKill(t, g)
		c = g.dial(t)
	}
}

// TestIdleLossOutlivesTheGateway: what was lost with a shell that died while no command ran is told once, by whichever gateway runs the next one.
func TestIdleLossOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.dial(t)
	s := c.session(object{"shell": "/bin/dash"})
	c.run(s, "f() { :; }")
	if err := syscall.Kill(c.info(s).num("pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is put back", func() bool { return strings.Contains(g.log(), "shell died while idle, restored") })
	sKill(t, g)
	c = g.dial(t)
	for _, told := range []bool{true, false} {
		if r := c.run(s, ":"); (r["shell_restored"] == true) != told || (r["state_lost"] != nil) != told {
			t.Errorf("told %v: %v", told, r)
		}
	}
}

// TestResultOutlivesTheGateway: it has what the command wrote, and not what its jobs did later.
func TestResultOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.dial(t)
	for _, late := range []string{"echo late", "seq 1000000"} { // the ring has both, and not
		s := c.session(object{"shell": "/bin/bash"})
		x := c.run(s, "cd $(mktemp -d); mkfifo go; (read x <go; "+late+") & echo hi; seq 10 >&2")
		c.run(s, "echo >go; wait")
		sKill(t, g)
		c = g.dial(t)
		again := c.call("exec.wait", object{"exec_id": x.str("exec_id")})
		expect(t, again, 0, "hi\n", x.stderr())
		if end := len("hi\n" + x.stderr()); again.num("next_offset") != end || again["truncated"] == true {
			t.Errorf("next offset %d, want %d: %v", again.num("next_offset"), end, again)
		}
	}
}

// TestStopDuringUpgrade: a stop that comes while one gateway takes over from another is an orderly one.
func TestStopDuringUpgrade(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, 5, 10, 20, 40} {
		g := gateway(t)
		c := g.dial(t)
		c.stream(c.session(), "sh -c 'trap \"echo term >>$HOME/termed; exit\" TERM; echo up >$HOME/up; while :; do sleep 0.05; done'")
		eventually(t, "it runs", func() bool { _, err := os.Stat(filepath.Join(g.home, "up")); return err == nil })
		if err := syscall.Kill(g.pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause * time.Millisecond)
		for _, fault := range g.stop() {
			t.Errorf("TERM %d ms after HUP: %s", pause, fault)
		}
		<-c.done
		if text, _ := os.ReadFile(filepath.Join(g.home, "termed")); len(text) == 0 {
			t.Errorf("TERM %d ms after HUP: the command was not told", pause)
		}
	}
}

// TestCrashAfterALongLife: what a session's earlier commands held is closed by now, and the numbers of those descriptors
// mean other files. A new gateway must not take one for the other.
func TestCrashAfterALongLife(t *testing.T) {
	t.Parallel()
	g := gateway(t)
	c := g.dial(t)
	type life struct{ session, exec string }
	lives := map[string]*life{}
	for _, sh := range shells {
		lives[sh] = &life{session: c.session(object{"shell": sh})}
	}
	for round := range 3 {
		for sh, l := range lives {
			s := l.session
			c.run(s, "KEEP="+sh)
			expect(t, c.run(s, "cat", object{"stdin": "in\n"}), 0, "in\n", "")
			expect(t, c.run(s, "echo $V", object{"env": object{"V": "v"}}), 0, "v\n", "")
			c.run(s, "sleep 30", object{"timeout_s": 0.05})
			c.run(s, "(sleep 0.1; echo late) & echo left") // it holds the pipes, and lets go
			p := c.call("process.start", object{"session_id": s, "command": "cat; echo process", "stdin": "open"}).str("process_id")
			c.call("process.input", object{"process_id": p, "data": "x\n", "eof": true})
			c.call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 30})
			c.run(s, "kill -9 $$")
			for range 5 {
				c.run(s, "echo more")
			}
			l.exec = c.stream(s, "read go; echo went $go $KEEP", object{"interactive_stdin": true}).str("exec_id")
		}
		sKill(t, g)
		c = g.dial(t)
		for sh, l := range lives {
			c.call("exec.input", object{"exec_id": l.exec, "data": "on\n", "eof": true})
			if out := c.call("exec.wait", object{"exec_id": l.exec, "timeout_s": 30}).stdout(); out != "went on "+sh+"\n" {
				t.Errorf("round %d, %s: %q", round, sh, out)
			}
		}
	}
	if lost := regexp.MustCompile(`"message":"[^"]*\blost\b[^"]*"`).FindAllString(g.log(), -1); lost != nil { // an id may have the letters, too
		t.Errorf("something was lost: %v", lost)
	}
}

// In a PID namespace whose /proc is that of another, no process could be found: the gateway says so and ends.
func TestProcOfAnotherNamespace(t *testing.T) {
	uRoot(t)
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "serve", "--listen", "127.0.0.1:0", "--auth", "none", "--state-dir", filepath.Join(dir, "state"), "--default-dir", dir)
	cmd.WaitDelay = patience
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil || err == nil || !strings.Contains(string(out), "/proc is that of another PID namespace") || strings.Contains(string(out), "listening") {
		t.Errorf("%v, %v: %s", err, ctx.Err(), out)
	}
}
