package acceptance

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// What a session of a test runs may be this binary, as a program whose port tells whether it is there.
//
//	ePort is the port that listens says, once it listens on it.
//	eListen("listen") listens; "http" answers too; "deaf" ignores TERM; "parent" starts a deaf one and waits for it.
func init() {
	what := os.Getenv("TRL_ACCEPTANCE_CHILD")
	switch what {
	case "":
		return
	case "parent":
		worker := exec.Command(os.Args[0])
		worker.Env = append(os.Environ(), "TRL_ACCEPTANCE_CHILD=deaf")
		worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
		if err := worker.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	case "deaf":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	}
	port := os.Getenv("TRL_ACCEPTANCE_PORT")
	if port == "" {
		port = "0"
	}
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("listening on %d.\n", l.Addr().(*net.TCPAddr).Port)
	if what == "http" {
		err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "fine") }))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}
}

// listenCommand is a command that runs this binary as what; see init. port 0 takes a free one.
func listenCommand(what string, port int) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	p := ""
	if port > 0 {
		p = "TRL_ACCEPTANCE_PORT=" + strconv.Itoa(port) + " "
	}
	return p + "TRL_ACCEPTANCE_CHILD=" + what + " " + self
}

// printedPort reads what a listener printed; 0 when it has not yet.
func printedPort(output string) (port int) {
	_, _ = fmt.Sscanf(output, "listening on %d.", &port)
	return port
}

// portIsFree: nobody has this port.
func portIsFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// bothShells runs f under both shells at once: for tests that mostly wait.
func bothShells(f func(shell string)) { together(len(shells), func(i int) { f(shells[i]) }) }

// uniqueFile is a path in the gateway's home that nothing else uses, and what waits for it.
func uniqueFile(g *server, name string) (path string, there func() bool) {
	path = filepath.Join(g.home, fmt.Sprintf("%s.%d", name, sleepers.Add(1)))
	return path, func() bool { _, err := os.Stat(path); return err == nil }
}

// E1: a command that ignores TERM gets it when the time is over, and KILL after the grace.
func TestKillFollowsAnIgnoredTerm(t *testing.T) {
	t.Parallel()
	g := shared(t, "e")
	c := g.dial(t)
	bothShells(func(sh string) {
		s, deaf, loop, start := c.session(object{"shell": sh}), sleeper(), sleeper(), time.Now()
		trapped, _ := uniqueFile(g, "trapped") // else TERM may come before the trap, on a busy machine
		r := c.run(s, `(trap 'echo told' TERM; : >`+trapped+`; while :; do `+loop+`; done) & until [ -e `+trapped+` ]; do sleep 0.01; done; `+
			`trap '' TERM INT; echo began; `+deaf, object{"timeout_s": 2})
		within(t, "timeout and grace", start, 7*time.Second)
		if !r.yes("timed_out") || r.str("timeout_kind") != "hard" || r.yes("cancelled") || r.num("exit_code") == 0 || r.num("timeout_s") != 2 {
			t.Errorf("%v", r)
		}
		if !strings.HasPrefix(r.stdout(), "began\n") || !strings.Contains(r.stdout(), "told\n") {
			t.Errorf("stdout %q: TERM did not come, or what it caused is not in the result", r.stdout())
		}
		if ms := r.num("duration_ms"); ms < 6900 {
			t.Errorf("ended after %d ms, before its time and grace were over", ms)
		}
		if left := append(running(deaf), running(loop)...); len(left) > 0 {
			t.Errorf("survivors %v", left)
		}
		expect(t, c.run(s, "echo ok"), 0, "ok\n", "")
	})
}

// E3: sh → parent → worker with a port, the shape of `npm run dev`. The parent obeys TERM, the worker does not.
func TestTimeoutFreesTheDevServersPort(t *testing.T) {
	t.Parallel()
	c := shared(t, "e").dial(t)
	bothShells(func(sh string) {
		s, port := c.session(object{"shell": sh}), 0
		// Should the machine be too busy for the worker to start within the timeout, there is nothing to see: once more, longer.
		for timeout := 2; port == 0 && timeout < 60; timeout *= 3 {
			start := time.Now()
			r := c.run(s, "sh -c '"+listenCommand("parent", 0)+"; :'", object{"timeout_s": timeout, "kill_grace_s": 1})
			if !r.yes("timed_out") {
				t.Fatalf("%v", r)
			}
			within(t, "timeout and grace", start, time.Duration(timeout+5)*time.Second)
			port = printedPort(r.stdout())
		}
		if port == 0 {
			t.Fatal("the worker never listened")
		}
		if !portIsFree(port) {
			t.Errorf("port %d is still taken", port)
		}
	})
}

// E5: a cancel that comes twice, too late, or for nobody harms nobody.
func TestLateAndRepeatedCancelsAreHarmless(t *testing.T) {
	g := shared(t, "e")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s, other := c.session(object{"shell": sh}), c.session(object{"shell": sh})
		job, process, alien := sleeper(), sleeper(), sleeper()
		c.run(s, job+" &")
		c.call("process.start", object{"session_id": s, "command": process})
		c.stream(other, alien)
		bystanders := func() bool {
			return len(running(job)) == 1 && len(running(process)) == 1 && len(running(alien)) == 1
		}
		eventually(t, "the bystanders run", bystanders)

		nap := sleeper()
		x := c.stream(s, "trap '' TERM; "+nap, object{"kill_grace_s": 0.2})
		eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
		first, second := c.begin("exec.cancel", object{"exec_id": x.str("exec_id")}), c.begin("exec.cancel", object{"exec_id": x.str("exec_id")})
		if f := c.answer(first); !f.OK || !f.Data.yes("cancelled") || f.Data.str("exec_id") != x.str("exec_id") {
			t.Errorf("first: %+v", f)
		}
		if f := c.answer(second); !f.OK {
			t.Errorf("second: %+v", f)
		}
		if _, exit := c.output(x.str("stream_id"), 0); !exit.yes("cancelled") || exit.yes("timed_out") {
			t.Errorf("%v", exit)
		}

		next := sleeper()
		y := c.stream(s, next)
		eventually(t, "the next one runs", func() bool { return len(running(next)) == 1 })
		for _, more := range []object{{}, {"signal": "KILL"}, {"kill_grace_s": 0}} { // too late, and the next one is not meant
			if f := c.try("exec.cancel", with(object{"exec_id": x.str("exec_id")}, more)); !f.OK || f.Data.yes("cancelled") {
				t.Errorf("after the end, %v: %+v", more, f)
			}
		}
		if f := c.try("exec.cancel", object{"exec_id": "x-nobody"}); f.code() != "EXEC_NOT_FOUND" {
			t.Errorf("unknown: %+v", f)
		}
		if f := c.try("exec.cancel", object{"session_id": "s-nobody"}); f.code() != "SESSION_NOT_FOUND" {
			t.Errorf("unknown session: %+v", f)
		}
		if len(running(next)) != 1 {
			t.Error("the next command was hit")
		}
		c.call("exec.cancel", object{"exec_id": y.str("exec_id"), "kill_grace_s": 0}) // it inherited the trap
		c.output(y.str("stream_id"), 0)
		if f := c.try("exec.cancel", object{"session_id": s}); !f.OK || f.Data.yes("cancelled") {
			t.Errorf("idle: %+v", f)
		}
		if !bystanders() {
			t.Error("a bystander was hit")
		}
		for _, id := range []string{s, other} {
			c.call("session.destroy", object{"session_id": id, "force": true})
		}
	})
}

// E6: what a command wrote before it was ended is in the result. (dash adds its own word about the signal to stderr.)
func TestPartialOutputIsInTheResult(t *testing.T) {
	t.Parallel()
	g := shared(t, "e")
	c := g.dial(t)
	bothShells(func(sh string) {
		s := c.session(object{"shell": sh})
		wrote, there := uniqueFile(g, "wrote")
		command := "printf part; echo err >&2; : >" + wrote + "; " + sleeper()
		if r := c.run(s, command, object{"timeout_s": 1}); r.stdout() != "part" || !strings.HasPrefix(r.stderr(), "err\n") || !r.yes("timed_out") || r.yes("cancelled") {
			t.Errorf("timeout: %v", r)
		}
		os.Remove(wrote)
		id := c.begin("exec.run", object{"session_id": s, "command": command})
		eventually(t, "it wrote", there)
		c.call("exec.cancel", object{"session_id": s})
		if r := c.answer(id).Data; r.stdout() != "part" || !strings.HasPrefix(r.stderr(), "err\n") || !r.yes("cancelled") || r.yes("timed_out") {
			t.Errorf("cancel: %v", r)
		}
	})
}

// E8: silence has a limit of its own; a command that goes on writing does not meet it.
func TestSilentCommandMeetsItsLimit(t *testing.T) {
	t.Parallel()
	c := shared(t, "e").dial(t)
	bothShells(func(sh string) {
		s, nap, start := c.session(object{"shell": sh}), sleeper(), time.Now()
		limit := pick(1, 3)
		r := c.run(s, "echo a; "+nap, object{"no_output_timeout_s": limit})
		within(t, "the answer", start, time.Duration(limit+1)*time.Second)
		if !r.yes("timed_out") || r.str("timeout_kind") != "no_output" || r.stdout() != "a\n" || len(running(nap)) > 0 {
			t.Errorf("%v", r)
		}
		// In all more than the limit, each silence a tenth of it.
		expect(t, c.run(s, "for i in 1 2 3 4 5 6 7 8 9 0; do printf x; sleep 0.25; done", object{"no_output_timeout_s": 2}), 0, "xxxxxxxxxx", "")
	})
}

// E9: which timeout is in force, and that the result says so.
func TestResultNamesTheTimeoutInForce(t *testing.T) {
	t.Parallel()
	c := shared(t, "e").dial(t)
	s := c.session(object{"timeout_s": 1})
	if r := c.run(s, sleeper()); !r.yes("timed_out") || r.str("timeout_kind") != "hard" || r.num("timeout_s") != 1 {
		t.Errorf("the session's: %v", r)
	}
	r := c.run(s, "sleep 1.2; echo slept", object{"timeout_s": 0})
	if expect(t, r, 0, "slept\n", ""); r.has("timeout_s") {
		t.Errorf("none: %v", r)
	}
	if r := c.run(s, "sleep 1.2; echo slept", object{"timeout_s": 1e9}); r.stdout() != "slept\n" || r.num("timeout_s") != 86400 {
		t.Errorf("clamped: %v", r)
	}
	if r := c.run(c.session(), "echo"); r.has("timeout_s") {
		t.Errorf("no default: %v", r)
	}
	for _, bad := range []any{-1, -0.001, "5", true} {
		if f := c.try("exec.run", object{"session_id": s, "command": "echo", "timeout_s": bad}); f.code() != "INVALID_PARAMS" || f.Error.Details.str("field") != "timeout_s" {
			t.Errorf("%v: %+v", bad, f)
		}
	}
}

// E10: the session's timeout is for its commands, not for what runs beside them.
func TestSessionTimeoutIsNotForProcesses(t *testing.T) {
	t.Parallel()
	g := shared(t, "e")
	c := g.dial(t)
	bothShells(func(sh string) {
		s := c.session(object{"shell": sh, "timeout_s": 1})
		job, there := uniqueFile(g, "job")
		p := c.call("process.start", object{"session_id": s, "command": "sleep 2; echo done; exit 7"}).str("process_id")
		c.run(s, "(sleep 2; : >"+job+") &")
		if r := c.run(s, sleeper()); !r.yes("timed_out") { // the default is in force
			t.Errorf("%v", r)
		}
		if w := c.call("process.wait", object{"process_id": p, "until": object{"exit": true}}); !w.yes("met") || w.num("exit_code") != 7 {
			t.Errorf("%v", w)
		}
		if i := c.call("process.info", object{"process_id": p}); i.yes("timed_out") || i.num("output_bytes") != 5 {
			t.Errorf("%v", i)
		}
		eventually(t, "the job ends by itself", there)
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
	g := gateway(t)
	t.Cleanup(func() { // before the gateway's end
		thaw()
		eventually(t, "the freezer is empty", func() bool { return syscall.Rmdir(dir) == nil })
	})
	c := g.dial(t)
	s, nap := c.session(), sleeper()
	run := c.begin("exec.run", object{"session_id": s, "command": "echo part; " + nap})
	eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
	write("cgroup.procs", strconv.Itoa(running(nap)[0]))
	write("freezer.state", "FROZEN")
	eventually(t, "it is frozen", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "freezer.state"))
		return strings.TrimSpace(string(b)) == "FROZEN"
	})
	c.call("exec.cancel", object{"session_id": s, "kill_grace_s": 0.1})
	r := c.answer(run).Data
	if !r.yes("kill_failed") || !r.yes("cancelled") || r.stdout() != "part\n" || r.has("exit_code") && r.num("exit_code") == 0 {
		t.Errorf("%v", r)
	}
	if n := len(running(nap)); n != 1 {
		t.Fatalf("%d run: it was not frozen", n)
	}
	if state := c.state(s); state != "RUNNING" {
		t.Errorf("state %s while something of it lives", state)
	}
	if f := c.try("exec.run", object{"session_id": s, "command": "echo"}); f.code() != "SESSION_TERMINATED" {
		t.Errorf("%+v", f)
	}
	if g.metric(t, "trl_kill_failed_total") == 0 || g.metric(t, "trl_execs_total", `"cancelled"`) != 1 {
		t.Error("not counted")
	}
	if !slices.ContainsFunc(strings.Split(g.log(), "\n"), func(line string) bool {
		return strings.Contains(line, s) && strings.Contains(line, `"level":"error"`)
	}) {
		t.Error("no line in the log for a person who must act")
	}
	expect(t, c.run(c.session(), "echo others"), 0, "others\n", "")
	thaw()
	eventually(t, "the session ends when nothing of it is left", func() bool { return c.state(s) == "TERMINATED" })
	if left := running(nap); len(left) > 0 {
		t.Errorf("TERMINATED, and %v lives", left)
	}
}
