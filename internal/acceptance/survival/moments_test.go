package survival

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// The moments at which a gateway may die that TestWorksWhileGatewaysDie meets by chance, each made to last.

// TestEndThatWasNotLoggedIsReported: a process or a terminal has ended, but somebody holds up its last output when the gateway dies.
func TestEndThatWasNotLoggedIsReported(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	for _, path := range rig.Shells {
		for what, work := range map[string]string{
			"process": "yes >&2 & sleep 0.2; exit 3", "copy": "f && exit 3", "terminal": "yes & sleep 0.2; exit 3",
		} {
			t.Run(filepath.Base(path)+" "+what, func(t *testing.T) {
				c := g.Dial(t)
				s := c.Session(object{"shell": path})
				rig.Expect(t, c.Run(s, "V=kept"), 0, "", "")
				if what == "copy" {
					rig.Expect(t, c.Run(s, "f() { yes >&2 & sleep 0.2; }"), 0, "", "")
				}
				taken := make(chan struct{})
				slow := g.DialPaced(t, func(int) { <-taken })
				t.Cleanup(func() { close(taken) }) // before the connection's end, which waits for that
				var started object
				if what == "terminal" {
					started = c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": work, "on_slow": "skip"})
					slow.Begin("term.attach", object{"term_id": started.Str("term_id"), "mode": "view", "on_slow": "block"})
				} else {
					started = c.Call("process.start", object{"session_id": s, "command": work})
					slow.Begin("process.logs", object{"process_id": started.Str("process_id"), "follow": true, "on_slow": "block"})
				}
				testkit.Eventually(t, "it has ended", func() bool { state, _, _, ok := rig.ProcStat(started.Num("pid")); return !ok || state == 'Z' }) // a copy is for its shell to reap
				g.KillGateway(t)
				c = g.Redial(t)
				rig.Expect(t, c.Run(s, "echo $V"), 0, "kept\n", "")
				if what != "terminal" {
					r := c.Call("process.wait", object{"process_id": started.Str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
					if r.Num("exit_code") != 3 {
						t.Errorf("%v", r)
					}
				} else {
					testkit.Eventually(t, "its exit code is told", func() bool {
						all := c.Call("term.list", object{"session_id": s}).Objs("terminals")
						return len(all) == 1 && all[0].Str("state") == "exited" && all[0].Num("exit_code") == 3
					})
				}
				c.Call("session.destroy", object{"session_id": s, "force": true})
			})
		}
	}
}

// TestNextGatewayFinishesAReset: what a gateway had begun to replace, the next one replaces.
func TestNextGatewayFinishesAReset(t *testing.T) {
	rig.OurNumbers(t)
	dir := t.TempDir()
	hold, sh := filepath.Join(dir, "hold"), filepath.Join(dir, "bash")
	if err := os.WriteFile(sh, []byte("#!/bin/sh\nwhile [ -e '"+hold+"' ]; do sleep 0.01; done\nexec /bin/bash \"$@\"\n"), 0o700); err != nil { // #nosec G306 -- is to be run
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil { // #nosec G302 -- the session's user is to enter it
		t.Fatal(err)
	}
	g := rig.Gateway(t, "--warm", "0", "--shells", sh, "--default-shell", sh)
	c := g.Dial(t)
	s, nap := c.Session(), rig.Sleeper()
	rig.Expect(t, c.Run(s, "V=gone; cd /"), 0, "", "")
	p := c.Call("process.start", object{"session_id": s, "command": "trap '' TERM; " + nap + "; :"}).Str("process_id")
	testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Begin("session.reset", object{"session_id": s})
	testkit.Eventually(t, "the next shell starts", func() bool {
		return len(rig.Running(nap)) == 0 && slices.ContainsFunc(testkit.Pids(), func(pid int) bool { return strings.HasPrefix(rig.Cmdline(pid), "/bin/sh "+sh+" ") })
	})
	for range 2 {
		g.KillGateway(t)
		c = g.Redial(t)
	}
	x := c.Stream(s, "echo $V$PWD").Str("exec_id")
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	home, err := filepath.EvalSymlinks(g.Home)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60}); r.Num("exit_code") != 0 || r.Stdout() != home+"\n" {
		t.Errorf("%v", r)
	}
	if i := c.Call("process.info", object{"process_id": p}); i.Str("state") != "exited" {
		t.Errorf("%v", i)
	}
}

// TestUsageIsReportedByTheNextGateway: what a command used, and what the kernel killed of it, is told whichever gateway hears of its end.
func TestUsageIsReportedByTheNextGateway(t *testing.T) {
	g := rig.Gateway(t, "--warm", "0")
	dir := t.TempDir()
	for _, path := range rig.Shells {
		for _, limits := range []object{{}, memoryLimit} {
			t.Run(fmt.Sprint(filepath.Base(path), limits), func(t *testing.T) {
				c := g.Dial(t)
				s := c.Session(object{"shell": path})
				if r := c.Run(s, ":"); !r.Has("usage") {
					t.Skip("needs a cgroup")
				}
				if limits.Has("memory_bytes") {
					if len(c.Limits(limits)) == 0 {
						t.Skip("needs a memory controller")
					}
					s = c.Session(object{"shell": path, "limits": limits})
				}
				begun, flag := filepath.Join(dir, rig.Unique("begun")), filepath.Join(dir, rig.Unique("flag"))
				work := "t=0; while [ $t -lt 20 ]; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; read -r stat </proc/$$/stat; set -- $stat; t=${14}; done; "
				if limits.Has("memory_bytes") {
					work += "head -c 200m /dev/zero | tail; "
				}
				rig.Expect(t, c.Run(s, "cd /"), 0, "", "") // an unlimited one is measured from the end of the command before
				x := c.Stream(s, work+">"+begun+"; until [ -e "+flag+" ]; do sleep 0.01; done").Str("exec_id")
				testkit.Eventually(t, "the work is done", func() bool { _, err := os.Stat(begun); return err == nil })
				g.KillGateway(t)
				c = g.Redial(t)
				if err := os.WriteFile(flag, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				r := c.Call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
				if r.Yes("oom_killed") != limits.Has("memory_bytes") || r.Num("exit_code") != 0 || r.Obj("usage").Num("cpu_ms") < 150 {
					t.Errorf("%v", r)
				}
				if r = c.Run(s, ":"); r.Yes("oom_killed") || r.Obj("usage").Num("cpu_ms") > 100 {
					t.Errorf("the next one: %v", r)
				}
			})
		}
	}
}

// TestNextGatewayKnowsWhyACommandEnded: a gateway dies after it has told a command to end and before it hears that it has: the next one
// knows why it did.
func TestNextGatewayKnowsWhyACommandEnded(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	for _, path := range rig.Shells {
		for _, why := range []string{"timed_out", "cancelled"} {
			t.Run(filepath.Base(path)+" "+why, func(t *testing.T) {
				c := g.Dial(t)
				s := c.Session(object{"shell": path})
				pid, err := strconv.Atoi(strings.TrimSpace(c.Run(s, "V=kept; echo $$").Stdout()))
				if err != nil {
					t.Fatal(err)
				}
				name := filepath.Join(g.Home, filepath.Base(path)+why)
				q := object{"session_id": s, "command": fmt.Sprintf("sh -c 'trap \"echo >%[1]s.told\" TERM; echo >%[1]s.ready; until [ -e %[1]s.go ]; do sleep 0.01; done'", name), "kill_grace_s": 60}
				there := func(end string) func() bool {
					return func() bool { _, err := os.Stat(name + end); return err == nil }
				}
				var x string
				if why == "cancelled" {
					x = c.Call("exec.stream", q).Str("exec_id")
					testkit.Eventually(t, "it has its trap", there(".ready"))
					c.Begin("exec.cancel", object{"exec_id": x})
				}
				for timeout := 1; why == "timed_out" && timeout < 60 && !there(".told")(); timeout *= 5 { // a longer one if the trap came too late
					x = c.Call("exec.stream", rig.With(q, object{"timeout_s": timeout})).Str("exec_id")
					testkit.Eventually(t, "its time is over", func() bool {
						return there(".told")() || !c.Call("exec.wait", object{"exec_id": x, "timeout_s": 0.1}).Yes("running")
					})
				}
				testkit.Eventually(t, "it was told to end", there(".told"))
				g.Freeze(t)
				if err := os.WriteFile(name+".go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, "the shell waits for its next line", func() bool {
					children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
					text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
					return len(children) == 0 && strings.HasPrefix(string(text), "0 ")
				})
				g.KillGateway(t)
				c = g.Redial(t)
				if r := c.Call("exec.wait", object{"exec_id": x, "timeout_s": 60}); !r.Yes(why) || r.Num("exit_code") != 143 || r.Yes("timed_out") && r.Yes("cancelled") {
					t.Errorf("%v", r)
				}
				rig.Expect(t, c.Run(s, "echo $V"), 0, "kept\n", "")
			})
		}
	}
}

// TestProcessTimeoutIsKeptByTheNextGateway: likewise a process, which ends in its own way when its time is over.
func TestProcessTimeoutIsKeptByTheNextGateway(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	s, name := c.Session(), filepath.Join(g.Home, "time")
	there := func() bool { _, err := os.Stat(name + ".told"); return err == nil }
	command := fmt.Sprintf("trap 'echo >%[1]s.told' TERM; until [ -e %[1]s.go ]; do sleep 0.01; done; exit 3", name)
	var p object
	for timeout := 1; timeout < 60 && !there(); timeout *= 5 { // a longer one if the trap came too late
		p = c.Call("process.start", object{"session_id": s, "timeout_s": timeout, "command": command})
		testkit.Eventually(t, "its time is over", func() bool {
			return there() || c.Call("process.info", object{"process_id": p.Str("process_id")}).Str("state") == "exited"
		})
	}
	testkit.Eventually(t, "it was told to end", there)
	g.Freeze(t)
	if err := os.WriteFile(name+".go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it has ended", func() bool { _, _, _, ok := rig.ProcStat(p.Num("pid")); return !ok })
	g.KillGateway(t)
	c = g.Redial(t)
	c.Call("process.wait", object{"process_id": p.Str("process_id"), "until": object{"exit": true}, "timeout_s": 60})
	if i := c.Call("process.info", object{"process_id": p.Str("process_id")}); !i.Yes("timed_out") || i.Num("exit_code") != 3 {
		t.Errorf("%v", i)
	}
}

// TestNextGatewaySeparatesJobsFromTheNextCommand: a gateway dies when it has parted the shell from what a command left behind, and has not said so
// yet. What stays is told, and what it prints is not the next command's; what has gone meanwhile is in nobody's way.
func TestNextGatewaySeparatesJobsFromTheNextCommand(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	for name, stays := range map[string]bool{"stays": true, "has gone": false} {
		t.Run(name, func(t *testing.T) {
			c := g.Dial(t)
			s := c.Session(object{"shell": "/bin/bash"})
			pid, err := strconv.Atoi(strings.TrimSpace(c.Run(s, "echo $$").Stdout()))
			if err != nil {
				t.Fatal(err)
			}
			flag, nap := filepath.Join(g.Home, rig.Unique("go")), rig.Sleeper()
			job := "(until [ -e " + flag + " ]; do sleep 0.01; done; echo late) & "
			// The shell stops itself when it is to put back what was the command's own.
			stop := "__trl_o_V='kill -STOP $$'; echo now" // what puts V back
			if !stays {
				job = nap + " & "
			}
			x := c.Stream(s, job+stop, object{"env": object{"V": "own"}}).Str("exec_id")
			testkit.Eventually(t, "the shell has stopped", func() bool { state, _, _, _ := rig.ProcStat(pid); return state == 'T' })
			g.KillGateway(t)
			defer syscall.Kill(pid, syscall.SIGCONT)
			c = g.Redial(t)
			c.Call("session.list", object{})
			if !stays {
				for _, nap := range rig.Running(nap) {
					_ = syscall.Kill(nap, syscall.SIGKILL)
				}
				testkit.Eventually(t, "it has gone", func() bool { return len(rig.Running(nap)) == 0 })
				g.KillGateway(t) // the next one meets it so
				c = g.Redial(t)
				c.Call("session.list", object{})
			}
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			r := c.Call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60})
			if rig.Expect(t, r, 0, "now\n", ""); len(r.Ints("background")) > 0 != stays {
				t.Errorf("%v", r)
			}
			next := c.Stream(s, "sleep 0.2; echo next").Str("exec_id")
			if err := os.WriteFile(flag, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			rig.Expect(t, c.Call("exec.wait", object{"exec_id": next, "offset": 0, "timeout_s": 60}), 0, "next\n", "")
			if stays {
				w := &worker{Again: rig.Again{G: g}, ctx: t.Context()}
				want("stream", w.follow("exec", x, 9), "now\nlate\n")
			}
		})
	}
}

// TestEndsBeforeTheNextGatewayAreReported: processes and terminals end while nobody looks, all at once: the next gateway hears of it while it
// still brings them back. (To be seen with GOFLAGS=-race.)
func TestEndsBeforeTheNextGatewayAreReported(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	s, flag, nap := c.Session(), filepath.Join(g.Home, "go"), rig.Sleeper()
	work := "until [ -e " + flag + " ]; do sleep 0.01; done; " + "exit 3"
	for range 20 {
		c.Call("process.start", object{"session_id": s, "command": work})
	}
	for range 5 {
		c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": work})
	}
	c.Call("process.start", object{"session_id": s, "command": nap})
	g.Freeze(t)
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all have ended", func() bool {
		return !slices.ContainsFunc(testkit.Pids(), func(pid int) bool {
			state, _, _, ok := rig.ProcStat(pid)
			return ok && state != 'Z' && strings.Contains(rig.Cmdline(pid), flag)
		})
	})
	g.KillGateway(t)
	c = g.Redial(t)
	testkit.Eventually(t, "all ends are told", func() bool {
		i := c.Info(s)
		return i.Num("processes") == 1 && i.Num("terminals") == 0
	})
	for what, n := range map[string]int{"process": 21, "term": 5} {
		all := c.Call(what+".list", object{"session_id": s}).Objs(map[string]string{"process": "processes", "term": "terminals"}[what])
		if len(all) != n {
			t.Errorf("%d %s", len(all), what)
		}
		for _, x := range all {
			if x.Str("state") == "exited" && x.Num("exit_code") != 3 {
				t.Errorf("%v", x)
			}
		}
	}
}

// TestLastCommandIsKeptByTheNextGateway: what a session tells of its last command is what it told before its gateway died, in which directory it is, too,
// whether or not that has been written anew since.
func TestLastCommandIsKeptByTheNextGateway(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	c := g.Dial(t)
	s := c.Session()
	c.Run(s, "cd /usr; (exit 4)")
	for _, more := range []string{"", ": " + strings.Repeat("x", 100<<10)} {
		if more != "" {
			c.Run(s, more)
		}
		want := c.Info(s).Obj("last_exec")
		c.Stream(s, "sleep 100")
		waits := c.Stream(s, ":").Str("exec_id")
		g.KillGateway(t)
		c = g.Redial(t)
		if got := c.Info(s).Obj("last_exec"); want.Str("command") == "" || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%.300v, was %.300v", got, want)
		}
		c.Call("exec.cancel", object{"exec_id": waits})
		if x := c.Call("exec.wait", object{"exec_id": waits, "timeout_s": 60}); x.Str("working_dir") != "/usr" {
			t.Errorf("%v", x)
		}
		c.Call("exec.cancel", object{"session_id": s})
	}
}
