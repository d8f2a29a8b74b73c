package acceptance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// answersAtOnce runs commands that leave a sleeper behind and hold the output, and expects the answer at once.
func answersAtOnce(t *testing.T, commands ...string) {
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		var naps []string
		for _, command := range commands {
			nap, start := sleeper(), time.Now()
			naps = append(naps, nap)
			command = strings.ReplaceAll(command, "NAP", nap)
			r := c.run(s, command)
			within(t, command, start, 2*time.Second)
			expect(t, r, 0, "hi\n", "")
			if r.num("linger_ms") > 100 {
				t.Errorf("%s: lingered %v ms", command, r["linger_ms"])
			}
			var pids []int
			eventually(t, command+" sleeps", func() bool { pids = running(nap); return len(pids) == 1 }) // setsid and sh may yet have to exec it
			if got := c.info(s).ints("background"); !slices.Contains(got, pids[0]) {
				t.Errorf("%s: background %v, running %v", command, got, pids)
			}
			if state := c.state(s); state != "IDLE" {
				t.Errorf("%s: state %s", command, state)
			}
			expect(t, c.run(s, "echo next"), 0, "next\n", "")
			if got := running(nap); !slices.Equal(got, pids) {
				t.Errorf("%s: running %v, before the next command %v", command, got, pids)
			}
		}
		goroutines := g.metric(t, "go_goroutines")
		c.call("session.destroy", object{"session_id": s, "force": true})
		eventually(t, "goroutines of the holders end", func() bool { return g.metric(t, "go_goroutines") <= goroutines-1 })
		for _, nap := range naps {
			if left := running(nap); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})
}

// A1: A job in the background holds the output and does not hold the answer.
func TestBackgroundJobDoesNotHoldTheAnswer(t *testing.T) {
	answersAtOnce(t, "NAP & echo hi", "(NAP &); echo hi", "f() { NAP & }; f; echo hi", "{ NAP | cat; } & echo hi", "nohup NAP 2>/dev/null & echo hi")
	// The answer itself lists it, with the pid that it has.
	eachShell(t, func(t *testing.T, sh string) {
		c, nap := shared(t, "a").dial(t), sleeper()
		r := c.run(c.session(object{"shell": sh}), nap+" & echo hi")
		eventually(t, "it sleeps", func() bool { return slices.Equal(r.ints("background"), running(nap)) })
	})
}

// A2: Nor does one that left the process group and the process session, alone or as a daemon.
func TestDetachedJobDoesNotHoldTheAnswer(t *testing.T) {
	answersAtOnce(t, "setsid sh -c 'NAP' >&1 & echo hi", "setsid sh -c 'setsid NAP & exit' & echo hi", "(setsid NAP 3>&1 4>&2 &); echo hi")
}

// A3: What a process substitution still has to write is in the answer, and in nobody else's.
func TestProcessSubstitutionIsInItsOwnAnswer(t *testing.T) {
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		command := "exec > >(tee -a FILE) 2>&1; seq 3; echo four >&2"
		if sh == "/bin/sh" { // POSIX has a FIFO for it
			command = "rm -f FILE.p; mkfifo FILE.p; tee -a FILE <FILE.p & exec >FILE.p 2>&1; seq 3; echo four >&2"
		}
		const want = "1\n2\n3\nfour\n"
		var answers []string
		// Late writers are waited for until they were quiet for 10 ms. A tee that a busy machine does not let run for so long
		// is later than that, and then its bytes are in the stream; five times in a row is no accident.
		for range 5 {
			file := filepath.Join(g.dir, unique("a3"))
			start := time.Now()
			r := c.run(s, strings.ReplaceAll(command, "FILE", file))
			within(t, "it", start, 2*time.Second)
			if r.num("exit_code") != 0 {
				t.Errorf("exit %v, stderr %q", r["exit_code"], r.stderr())
			}
			eventually(t, "the file", func() bool { b, _ := os.ReadFile(file); return string(b) == want })
			var stream string
			eventually(t, "the stream has all", func() bool {
				stream, _ = c.output(c.call("exec.attach", object{"exec_id": r.str("exec_id")}).str("stream_id"), 0)
				return len(stream) >= len(want)
			})
			if stream != want {
				t.Errorf("stream %q", stream)
			}
			expect(t, c.run(s, "echo next"), 0, "next\n", "")
			if b, _ := os.ReadFile(file); string(b) != want {
				t.Errorf("the next command wrote into the file: %q", b)
			}
			if answers = append(answers, r.stdout()); r.stdout() == want {
				return
			}
		}
		t.Errorf("answers %q", answers)
	})
}

// A4: A timeout ends everything that the command started, however it runs it.
func TestTimeoutEndsAllThatTheCommandStarted(t *testing.T) {
	t.Parallel() // it mostly waits
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		for i, command := range []string{
			"NAP; true", "NAP & wait", "(NAP)", "NAP | cat",
			"x=$(NAP)", "f() { NAP; true; }; f; true", "eval 'NAP; true'", "while :; do NAP; done", "if NAP; then :; fi", "! NAP || true", "(setsid NAP &); NAP", "nohup NAP >/dev/null",
		} {
			t.Run(command, func(t *testing.T) {
				c := g.dial(t)
				s := c.session(object{"shell": sh})
				defer c.call("session.destroy", object{"session_id": s, "force": true})
				limit := 0.15
				if i < 4 {
					limit = pick(0.4, 2)
				}
				c.run(s, "kept=yes")
				nap, start := sleeper(), time.Now()
				r := c.run(s, "echo part; "+strings.ReplaceAll(command, "NAP", nap)+"; echo not reached", object{"timeout_s": limit})
				within(t, "it", start, time.Duration((limit+1)*float64(time.Second)))
				if left := running(nap); len(left) > 0 {
					t.Errorf("survivors: %v", left)
				}
				if !r.yes("timed_out") || r.str("timeout_kind") != "hard" || r.yes("cancelled") || r.stdout() != "part\n" {
					t.Errorf("result %v", r)
				}
				if took := time.Since(start).Seconds(); took < limit {
					t.Errorf("after %v s already", took)
				}
				if state := c.state(s); state != "IDLE" {
					t.Errorf("state %s", state)
				}
				expect(t, c.run(s, "echo $kept"), 0, "yes\n", "")
			})
		}
	})
}

// A5: A command that does not exist is an answer, not something to wait for.
func TestUnknownCommandIsAnsweredAtOnce(t *testing.T) {
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh, "env": object{"PATH": "/usr/bin:/bin"}}) // dash names a directory of PATH that it may not enter instead
		for command, stdout := range map[string]string{"no_such_cmd_xyz": "", "echo a; no_such_cmd_xyz": "a\n", "no_such_cmd_xyz | cat >/dev/null; no_such_cmd_xyz 'x y'": "", "/no/such/cmd_xyz": "", "./no_such_cmd_xyz": ""} {
			start := time.Now()
			r := c.run(s, command, object{"timeout_s": 50})
			within(t, command, start, time.Second)
			expect(t, r, 127, stdout, r.stderr())
			if !strings.Contains(r.stderr(), "cmd_xyz") || !strings.Contains(strings.ToLower(r.stderr()), "not found") && !strings.Contains(r.stderr(), "No such file") {
				t.Errorf("%s: stderr %q", command, r.stderr())
			}
		}
	})
}

// A6: Codes and signals are numbers and names in fields of their own.
func TestCodesAndSignalsHaveFieldsOfTheirOwn(t *testing.T) {
	g := shared(t, "a")
	if err := os.WriteFile(filepath.Join(g.home, "not_executable"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		for _, x := range []struct {
			command string
			code    int
			signal  string
		}{
			{"sh -c 'exit 3'", 3, ""}, {"(exit 3)", 3, ""}, {"sh -c 'exit 255'", 255, ""}, {"false", 1, ""}, {"false | true", 0, ""}, {"! true", 1, ""}, {"", 0, ""}, {"# nothing", 0, ""},
			{"sh -c 'kill -9 $$'", 137, "KILL"}, {"sh -c 'kill -TERM $$'", 143, "TERM"}, {"sh -c 'kill -SEGV $$'", 139, "SEGV"}, {"(ulimit -c 0; sh -c 'kill -ABRT $$')", 134, "ABRT"}, {"sh -c 'kill -HUP $$'", 129, "HUP"},
			{"./not_executable", 126, ""}, {"/", 126, ""},
		} {
			r := c.run(s, x.command)
			if r.num("exit_code") != x.code || r.str("signal") != x.signal || r.yes("timed_out") || r.yes("cancelled") || r.has("error") || r.yes("shell_restored") {
				t.Errorf("%s: %v; want %d %s", x.command, r, x.code, x.signal)
			}
			if x.signal == "" && r.has("signal") {
				t.Errorf("%s: signal %v", x.command, r["signal"])
			}
			_, exit := c.output(c.stream(s, x.command).str("stream_id"), 0)
			if exit.num("exit_code") != x.code || exit.str("signal") != x.signal {
				t.Errorf("%s as a stream: %v", x.command, exit)
			}
		}
	})
}

// A7: A timeout and a cancel are flags of their own, which no code of the command's can forge or hide.
func TestTimeoutAndCancelAreFlagsOfTheirOwn(t *testing.T) {
	t.Parallel() // it mostly waits
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		check := func(how string, r object, timedOut, cancelled bool) {
			t.Helper()
			if !r.has("timed_out") || !r.has("cancelled") || r.yes("timed_out") != timedOut || r.yes("cancelled") != cancelled || r.has("timeout_kind") != timedOut {
				t.Errorf("%s: %v", how, r)
			}
			if r.num("exit_code") == -1 {
				t.Errorf("%s: exit code -1", how)
			}
		}
		nap := sleeper()
		stubborn := "sh -c 'trap \"exit 0\" TERM; echo ready; " + nap + " & wait'" // ends well when told to
		for _, command := range []string{nap, "echo ready; " + nap, stubborn} {
			r := c.run(s, command, object{"timeout_s": 0.5})
			check("timeout of "+command, r, true, false)
			if command != stubborn && r.num("exit_code") == 0 {
				t.Errorf("timeout of %s: exit 0", command)
			}

			id := c.begin("exec.run", object{"session_id": s, "command": command})
			eventually(t, "it runs", func() bool { return len(running(nap)) > 0 })
			if a := c.call("exec.cancel", object{"session_id": s}); !a.yes("cancelled") {
				t.Errorf("cancel: %v", a)
			}
			r = c.answer(id).Data
			check("cancel of "+command, r, false, true)
			if command != stubborn && r.num("exit_code") == 0 {
				t.Errorf("cancel of %s: exit 0", command)
			}

			stream := c.stream(s, command)
			eventually(t, "it runs", func() bool { return len(running(nap)) > 0 })
			c.call("exec.cancel", object{"exec_id": stream.str("exec_id")})
			_, exit := c.output(stream.str("stream_id"), 0)
			check("cancel of the stream "+command, exit, false, true)
			_, exit = c.output(c.stream(s, command, object{"timeout_s": 0.3}).str("stream_id"), 0)
			check("timeout of the stream "+command, exit, true, false)
		}
		for _, code := range []int{124, 125, 128, 130, 137, 143, 255} { // what others use for it
			check(fmt.Sprint("exit code ", code), c.run(s, fmt.Sprintf("(exit %d)", code), object{"timeout_s": 50}), false, false)
		}
	})
}

// A8: A command of which the end was not seen has not succeeded.
func TestUnseenEndIsNoSuccess(t *testing.T) {
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		unknown := func(how string, r object) {
			t.Helper()
			if r.num("exit_code") == 0 || !r.yes("shell_restored") && !r.has("error") {
				t.Errorf("%s: %v", how, r)
			}
			expect(t, c.run(s, "echo usable"), 0, "usable\n", "")
		}
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS} {
			nap := sleeper()
			shell := c.info(s).num("pid")
			stream := c.stream(s, "echo part; "+nap+"; true")
			eventually(t, "it runs", func() bool { return len(running(nap)) == 1 })
			// bash puts off a signal that comes just before it waits; a second one it heeds at once.
			eventually(t, "the shell dies", func() bool { return syscall.Kill(shell, signal) != nil || cmdline(shell) == "" })
			data, exit := c.output(stream.str("stream_id"), 0)
			if data != "part\n" {
				t.Errorf("%v: output %q", signal, data)
			}
			unknown(fmt.Sprint("stream, ", signal), exit)
			// Nobody cancelled: what the dead shell was waiting for goes on, is listed, and ends with the session.
			if left := running(nap); !slices.Equal(exit.ints("background"), left) {
				t.Errorf("%v: background %v, running %v", signal, exit["background"], left)
			}
		}
		shell := c.info(s).num("pid")
		id := c.begin("exec.run", object{"session_id": s, "command": ": >a8; while :; do :; done"})
		eventually(t, "it runs", func() bool { return os.Remove(filepath.Join(g.home, "a8")) == nil })
		if err := syscall.Kill(shell, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		unknown("run", c.answer(id).Data)
		// The command itself ends the shell in the middle, or closes whatever it finds.
		unknown("kill -9", c.run(s, "echo a; kill -9 $$; true"))
		c.run(s, `for f in /proc/$$/fd/*; do n=${f##*/}; case $n in 0|1|2) ;; *) eval "exec $n>&-" 2>/dev/null || :; esac; done; echo a`, object{"timeout_s": 20})
		expect(t, c.run(s, "echo usable"), 0, "usable\n", "")
		for range 20 {
			r := c.run(s, "sh -c 'kill -9 $PPID'; true")
			unknown("killed by a child", r)
		}
	})
}

// A9: exec.exit comes once, last, and after every byte.
func TestExitComesOnceAfterEveryByte(t *testing.T) {
	g := shared(t, "a")
	eachShell(t, func(t *testing.T, sh string) {
		for _, command := range []string{
			"seq 1 50000; echo e >&2; printf tail", "true", "(sleep 0.3; echo late; sleep 0.3; echo later >&2) & echo hi", "no_such_cmd_xyz", "echo a; exit 7", "echo a; kill -9 $$", "i=0; while [ $i -lt 200 ]; do echo $i; echo $i >&2; i=$((i+1)); done",
		} {
			t.Run(command, func(t *testing.T) {
				c, watcher := g.dial(t), g.dial(t)
				s := c.session(object{"shell": sh})
				watcher.call("session.watch", object{"session_id": s})
				stream := c.stream(s, command)
				id := stream.str("stream_id")
				data, exit := c.output(id, 0)
				if exit.str("exec_id") != stream.str("exec_id") {
					t.Errorf("exit %v of %v", exit, stream)
				}
				if total := exit.num("stdout_bytes") + exit.num("stderr_bytes"); total != len(data) {
					t.Errorf("%d bytes came, %d were written", len(data), total)
				}
				watched, _ := watcher.output(id, 0)
				if watched != data {
					t.Errorf("the watcher got %s, the caller %s", brief(watched), brief(data))
				}
				// What comes late is in the stream, and no event follows the last.
				late := strings.Contains(command, "late")
				if late {
					eventually(t, "late output is in the stream", func() bool {
						b, _ := c.output(c.call("exec.attach", object{"exec_id": stream.str("exec_id"), "offset": len(data)}).str("stream_id"), len(data))
						return b == "late\nlater\n"
					})
				}
				c.run(s, "sleep 0.1") // a round through everything, so that what was on its way has come
				watcher.call("system.ping", nil)
				for _, who := range []*client{c, watcher} {
					who.mu.Lock()
					for _, f := range who.came {
						if f.Data.str("stream_id") == id && f.Event != "exec.started" { // that one is the watcher's, and came first
							t.Errorf("after exec.exit: %s %v", f.Event, f.Data)
						}
					}
					who.mu.Unlock()
				}
			})
		}
	})
}

// A11: Many sessions at once: every command has its result.
func TestManySessionsAtOnceGetTheirResults(t *testing.T) {
	g := shared(t, "a")
	const sessions = 50
	rounds := pick(10, 100)
	var clients []*client
	for range 5 {
		clients = append(clients, g.dial(t))
	}
	before := g.metric(t, "trl_execs_total")
	var good atomic.Int64
	together(sessions, func(i int) {
		c := clients[i%len(clients)]
		s := c.session(object{"shell": shells[i/len(clients)%2]})
		for range rounds {
			if r := c.run(s, "true"); r.num("exit_code") == 0 && r.stdout() == "" && r.stderr() == "" && !r.yes("shell_restored") {
				good.Add(1)
			} else {
				t.Errorf("session %d: %v", i, r)
			}
		}
		c.call("session.destroy", object{"session_id": s})
	})
	if n := int(good.Load()); n != sessions*rounds {
		t.Errorf("%d of %d are well", n, sessions*rounds)
	}
	if n := int(g.metric(t, "trl_execs_total") - before); n != sessions*rounds {
		t.Errorf("the metric counts %d, want %d", n, sessions*rounds)
	}
}

// A12: The first command works at once, warm or cold, whatever lies about in the home directory.
func TestFirstCommandWorksAtOnce(t *testing.T) {
	t.Parallel() // it mostly waits
	g := gateway(t, "--warm", "0")
	for _, rc := range []string{".bashrc", ".profile", ".bash_profile", ".shrc", ".env"} {
		if err := os.WriteFile(filepath.Join(g.home, rc), []byte("sleep 3; echo noise; echo noise >&2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	eachShell(t, func(t *testing.T, sh string) {
		for name, g := range map[string]*server{"cold": g, "warm": shared(t, "a")} {
			c := g.dial(t)
			together(20, func(int) {
				start := time.Now()
				expect(t, c.run(c.session(object{"shell": sh}), "echo first", object{"timeout_s": 10}), 0, "first\n", "")
				within(t, name+" create and first command", start, 2*time.Second)
			})
			// Nobody has to wait for the answer to session.create.
			together(10, func(int) {
				name := unique("a12")
				conn := g.dial(t)
				made := conn.begin("session.create", object{"name": name, "shell": sh})
				first := conn.begin("exec.run", object{"session": name, "command": "echo first; x=1"})
				second := conn.begin("exec.run", object{"session": name, "command": "echo second $x"})
				if f := conn.answer(made); !f.OK {
					t.Errorf("create: %+v", f.Error)
				}
				for id, want := range map[int]string{first: "first\n", second: "second 1\n"} {
					if f := conn.answer(id); !f.OK {
						t.Errorf("%s: %+v", want, f.Error)
					} else {
						expect(t, f.Data, 0, want, "")
					}
				}
			})
		}
		// An rc file that the client asks for is slow: creation waits, or the command does; it is not lost.
		c, start := shared(t, "rc", "--allow-env", "ENV,BASH_ENV").dial(t), time.Now()
		s := c.session(object{"shell": sh, "env": object{"ENV": g.home + "/.env", "BASH_ENV": g.home + "/.env"}})
		expect(t, c.run(s, "echo first", object{"timeout_s": 10}), 0, "first\n", "")
		within(t, "slow rc file", start, 5*time.Second)
	})
	t.Run("default session", func(t *testing.T) { // made by its first command, of which several come at once
		var firsts atomic.Int64
		together(10, func(i int) {
			c := g.dial(t)
			r := c.call("exec.run", object{"command": "n=$((n+1)); echo $n"})
			if r.stdout() == "1\n" {
				firsts.Add(1)
			}
			if r.num("exit_code") != 0 {
				t.Errorf("%v", r)
			}
		})
		if firsts.Load() != 1 {
			t.Errorf("%d sessions were made", firsts.Load())
		}
	})
}
