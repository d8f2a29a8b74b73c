package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// The moments at which a gateway may die that TestWorksWhileGatewaysDie meets by chance, each made to last.

// TestEndThatWasNotLoggedIsReported: a process or a terminal has ended, but somebody holds up its last output when the gateway dies.
func TestEndThatWasNotLoggedIsReported(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	for _, path := range shells {
		for what, work := range map[string]string{
			"process": "yes >&2 & sleep 0.2; exit 3", "copy": "f && exit 3", "terminal": "yes & sleep 0.2; exit 3",
		} {
			t.Run(filepath.Base(path)+" "+what, func(t *testing.T) {
				c := g.dial(t)
				s := c.session(object{"shell": path})
				expect(t, c.run(s, "V=kept"), 0, "", "")
				if what == "copy" {
					expect(t, c.run(s, "f() { yes >&2 & sleep 0.2; }"), 0, "", "")
				}
				taken := make(chan struct{})
				slow := g.dialPaced(t, func(int) { <-taken })
				t.Cleanup(func() { close(taken) }) // before the connection's end, which waits for that
				var started object
				if what == "terminal" {
					started = c.call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": work, "on_slow": "skip"})
					slow.begin("term.attach", object{"term_id": started.str("term_id"), "mode": "view", "on_slow": "block"})
				} else {
					started = c.call("process.start", object{"session_id": s, "command": work})
					slow.begin("process.logs", object{"process_id": started.str("process_id"), "follow": true, "on_slow": "block"})
				}
				eventually(t, "it has ended", func() bool { state, _, _, ok := procStat(started.num("pid")); return !ok || state == 'Z' }) // a copy is for its shell to reap
				g.killGateway(t)
				c = g.redial(t)
				expect(t, c.run(s, "echo $V"), 0, "kept\n", "")
				if what != "terminal" {
					r := c.call("process.wait", object{"process_id": started.str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
					if r.num("exit_code") != 3 {
						t.Errorf("%v", r)
					}
				} else {
					eventually(t, "its exit code is told", func() bool {
						all := c.call("term.list", object{"session_id": s}).objs("terminals")
						return len(all) == 1 && all[0].str("state") == "exited" && all[0].num("exit_code") == 3
					})
				}
				c.call("session.destroy", object{"session_id": s, "force": true})
			})
		}
	}
}

// TestNextGatewayFinishesAReset: what a gateway had begun to replace, the next one replaces.
func TestNextGatewayFinishesAReset(t *testing.T) {
	ourNumbers(t)
	dir := t.TempDir()
	hold, sh := filepath.Join(dir, "hold"), filepath.Join(dir, "bash")
	if err := os.WriteFile(sh, []byte("#!/bin/sh\nwhile [ -e '"+hold+"' ]; do sleep 0.01; done\nexec /bin/bash \"$@\"\n"), 0o700); err != nil { // #nosec G306 -- is to be run
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // #nosec G302 -- the session's user is to enter it
		t.Fatal(err)
	}
	g := gateway(t, "--warm", "0", "--shells", sh, "--default-shell", sh)
	c := g.dial(t)
	s, nap := c.session(), sleeper()
	expect(t, c.run(s, "V=gone; cd /"), 0, "", "")
	p := c.call("process.start", object{"session_id": s, "command": "trap '' TERM; " + nap + "; :"}).str("process_id")
	eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.begin("session.reset", object{"session_id": s})
	eventually(t, "the next shell starts", func() bool {
		return len(running(nap)) == 0 && slices.ContainsFunc(pids(), func(pid int) bool { return strings.HasPrefix(cmdline(pid), "/bin/sh "+sh+" ") })
	})
	for range 2 {
		g.killGateway(t)
		c = g.redial(t)
	}
	x := c.stream(s, "echo $V$PWD").str("exec_id")
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	home, err := filepath.EvalSymlinks(g.home)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60}); r.num("exit_code") != 0 || r.stdout() != home+"\n" {
		t.Errorf("%v", r)
	}
	if i := c.call("process.info", object{"process_id": p}); i.str("state") != "exited" {
		t.Errorf("%v", i)
	}
}

// TestUsageIsReportedByTheNextGateway: what a command used, and what the kernel killed of it, is told whichever gateway hears of its end.
func TestUsageIsReportedByTheNextGateway(t *testing.T) {
	g := gateway(t, "--warm", "0")
	dir := t.TempDir()
	for _, path := range shells {
		for _, limits := range []object{{}, memoryLimit} {
			t.Run(fmt.Sprint(filepath.Base(path), limits), func(t *testing.T) {
				c := g.dial(t)
				s := c.session(object{"shell": path})
				if r := c.run(s, ":"); !r.has("usage") {
					t.Skip("needs a cgroup")
				}
				if limits.has("memory_bytes") {
					if len(c.limits(limits)) == 0 {
						t.Skip("needs a memory controller")
					}
					s = c.session(object{"shell": path, "limits": limits})
				}
				begun, flag := filepath.Join(dir, unique("begun")), filepath.Join(dir, unique("flag"))
				work := "t=0; while [ $t -lt 20 ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read -r stat </proc/$$/stat; set -- $stat; t=${14}; done; "
				if limits.has("memory_bytes") {
					work += "head -c 200m /dev/zero | tail; "
				}
				expect(t, c.run(s, "cd /"), 0, "", "") // an unlimited one is measured from the end of the command before
				x := c.stream(s, work+">"+begun+"; until [ -e "+flag+" ]; do sleep 0.01; done").str("exec_id")
				eventually(t, "the work is done", func() bool { _, err := os.Stat(begun); return err == nil })
				g.killGateway(t)
				c = g.redial(t)
				if err := os.WriteFile(flag, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				r := c.call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
				if r.yes("oom_killed") != limits.has("memory_bytes") || r.num("exit_code") != 0 || r.obj("usage").num("cpu_ms") < 150 {
					t.Errorf("%v", r)
				}
				if r = c.run(s, ":"); r.yes("oom_killed") || r.obj("usage").num("cpu_ms") > 100 {
					t.Errorf("the next one: %v", r)
				}
			})
		}
	}
}

// TestNextGatewayKnowsWhyACommandEnded: a gateway dies after it has told a command to end and before it hears that it has: the next one
// knows why it did.
func TestNextGatewayKnowsWhyACommandEnded(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	for _, path := range shells {
		for _, why := range []string{"timed_out", "cancelled"} {
			t.Run(filepath.Base(path)+" "+why, func(t *testing.T) {
				c := g.dial(t)
				s := c.session(object{"shell": path})
				pid, err := strconv.Atoi(strings.TrimSpace(c.run(s, "V=kept; echo $$").stdout()))
				if err != nil {
					t.Fatal(err)
				}
				name := filepath.Join(g.home, filepath.Base(path)+why)
				q := object{"session_id": s, "command": fmt.Sprintf("sh -c 'trap \"echo >%[1]s.told\" TERM; echo >%[1]s.ready; until [ -e %[1]s.go ]; do sleep 0.01; done'", name), "kill_grace_s": 60}
				if why == "timed_out" {
					q["timeout_s"] = 1
				}
				x := c.call("exec.stream", q).str("exec_id")
				there := func(end string) func() bool {
					return func() bool { _, err := os.Stat(name + end); return err == nil }
				}
				if why == "cancelled" {
					eventually(t, "it has its trap", there(".ready"))
					c.begin("exec.cancel", object{"exec_id": x})
				}
				eventually(t, "it was told to end", there(".told"))
				g.freeze(t)
				if err := os.WriteFile(name+".go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the shell waits for its next line", func() bool {
					children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
					text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
					return len(children) == 0 && strings.HasPrefix(string(text), "0 ")
				})
				g.killGateway(t)
				c = g.redial(t)
				if r := c.call("exec.wait", object{"exec_id": x, "timeout_s": 60}); !r.yes(why) || r.num("exit_code") != 143 || r.yes("timed_out") && r.yes("cancelled") {
					t.Errorf("%v", r)
				}
				expect(t, c.run(s, "echo $V"), 0, "kept\n", "")
			})
		}
	}
}

// TestProcessTimeoutIsKeptByTheNextGateway: likewise a process, which ends in its own way when its time is over.
func TestProcessTimeoutIsKeptByTheNextGateway(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	s, name := c.session(), filepath.Join(g.home, "time")
	there := func() bool { _, err := os.Stat(name + ".told"); return err == nil }
	p := c.call("process.start", object{"session_id": s, "timeout_s": 1, "command": fmt.Sprintf("trap 'echo >%[1]s.told' TERM; until [ -e %[1]s.go ]; do sleep 0.01; done; exit 3", name)})
	eventually(t, "it was told to end", there)
	g.freeze(t)
	if err := os.WriteFile(name+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { _, _, _, ok := procStat(p.num("pid")); return !ok })
	g.killGateway(t)
	c = g.redial(t)
	c.call("process.wait", object{"process_id": p.str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
	if i := c.call("process.info", object{"process_id": p.str("process_id")}); !i.yes("timed_out") || i.num("exit_code") != 3 {
		t.Errorf("%v", i)
	}
}

// TestNextGatewaySeparatesJobsFromTheNextCommand: a gateway dies when it has parted the shell from what a command left behind, and has not said so
// yet. What stays is told, and what it prints is not the next command's; what has gone meanwhile is in nobody's way.
func TestNextGatewaySeparatesJobsFromTheNextCommand(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	for name, stays := range map[string]bool{"stays": true, "has gone": false} {
		t.Run(name, func(t *testing.T) {
			c := g.dial(t)
			s := c.session(object{"shell": "/bin/bash"})
			pid, err := strconv.Atoi(strings.TrimSpace(c.run(s, "echo $$").stdout()))
			if err != nil {
				t.Fatal(err)
			}
			flag, nap := filepath.Join(g.home, unique("go")), sleeper()
			job := "(until [ -e " + flag + " ]; do sleep 0.01; done; echo late) & "
			// The shell stops itself when it is to put back what was the command's own.
			stop := "__trl_o_V='kill -STOP $$'; echo now" // what puts V back
			if !stays {
				job = nap + " & "
			}
			x := c.stream(s, job+stop, object{"env": object{"V": "own"}}).str("exec_id")
			eventually(t, "the shell has stopped", func() bool { state, _, _, _ := procStat(pid); return state == 'T' })
			g.killGateway(t)
			defer syscall.Kill(pid, syscall.SIGCONT)
			c = g.redial(t)
			c.call("session.list", object{})
			if !stays {
				for _, nap := range running(nap) {
					_ = syscall.Kill(nap, syscall.SIGKILL)
				}
				eventually(t, "it has gone", func() bool { return len(running(nap)) == 0 })
				g.killGateway(t) // the next one meets it so
				c = g.redial(t)
				c.call("session.list", object{})
			}
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			r := c.call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
			if expect(t, r, 0, "now\n", ""); len(r.ints("background")) > 0 != stays {
				t.Errorf("%v", r)
			}
			next := c.stream(s, "sleep 0.2; echo next").str("exec_id")
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			expect(t, c.call("exec.wait", object{"exec_id": next, "offset": 0, "timeout_s": 60}), 0, "next\n", "")
			if stays {
				w := &worker{again: again{g: g}, ctx: t.Context()}
				want("stream", w.follow("exec", x, 9), "now\nlate\n")
			}
		})
	}
}

// TestEndsBeforeTheNextGatewayAreReported: processes and terminals end while nobody looks, all at once: the next gateway hears of it while it
// still brings them back. (To be seen with GOFLAGS=-race.)
func TestEndsBeforeTheNextGatewayAreReported(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	s, flag, nap := c.session(), filepath.Join(g.home, "go"), sleeper()
	work := "until [ -e " + flag + " ]; do sleep 0.01; done; " + "exit 3"
	for range 20 {
		c.call("process.start", object{"session_id": s, "command": work})
	}
	for range 5 {
		c.call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": work})
	}
	c.call("process.start", object{"session_id": s, "command": nap})
	g.freeze(t)
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all have ended", func() bool {
		return !slices.ContainsFunc(pids(), func(pid int) bool {
			state, _, _, ok := procStat(pid)
			return ok && state != 'Z' && strings.Contains(cmdline(pid), flag)
		})
	})
	g.killGateway(t)
	c = g.redial(t)
	eventually(t, "all ends are told", func() bool {
		i := c.info(s)
		return i.num("processes") == 1 && i.num("terminals") == 0
	})
	for what, n := range map[string]int{"process": 21, "term": 5} {
		all := c.call(what+".list", object{"session_id": s}).objs(map[string]string{"process": "processes", "term": "terminals"}[what])
		if len(all) != n {
			t.Errorf("%d %s", len(all), what)
		}
		for _, x := range all {
			if x.str("state") == "exited" && x.num("exit_code") != 3 {
				t.Errorf("%v", x)
			}
		}
	}
}

// TestLastCommandIsKeptByTheNextGateway: what a session tells of its last command is what it told before its gateway died, in which directory it is, too,
// whether or not that has been written anew since.
func TestLastCommandIsKeptByTheNextGateway(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	c := g.dial(t)
	s := c.session()
	c.run(s, "cd /usr; (exit 4)")
	for _, more := range []string{"", ": " + strings.Repeat("x", 100<<10)} {
		if more != "" {
			c.run(s, more)
		}
		want := c.info(s).obj("last_exec")
		c.stream(s, "sleep 100")
		waits := c.stream(s, ":").str("exec_id")
		g.killGateway(t)
		c = g.redial(t)
		if got := c.info(s).obj("last_exec"); want.str("command") == "" || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%.300v, was %.300v", got, want)
		}
		c.call("exec.cancel", object{"exec_id": waits})
		if x := c.call("exec.wait", object{"exec_id": waits, "timeout_s": 60}); x.str("working_dir") != "/usr" {
			t.Errorf("%v", x)
		}
		c.call("exec.cancel", object{"session_id": s})
	}
}
