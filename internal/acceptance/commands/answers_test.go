package commands

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

	"trl/internal/rig"
	"trl/internal/testkit"
)

// answersAtOnce runs commands that leave a sleeper behind and hold the output, and expects the answer at once.
func answersAtOnce(t *testing.T, commands ...string) {
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		var naps []string
		for _, command := range commands {
			nap, start := rig.Sleeper(), time.Now()
			naps = append(naps, nap)
			command = strings.ReplaceAll(command, "NAP", nap)
			r := c.Run(s, command)
			rig.Within(t, command, start, 2*time.Second)
			rig.Expect(t, r, 0, "hi\n", "")
			for i := 0; r.Num("linger_ms") > 100; i++ { // more than 100 ms are a busy machine's
				if i == 5 {
					t.Errorf("%s: lingered %v ms", command, r["linger_ms"])
					break
				}
				more := rig.Sleeper()
				naps = append(naps, more)
				r = c.Run(s, strings.ReplaceAll(command, nap, more))
			}
			var pids []int
			testkit.Eventually(t, command+" sleeps", func() bool { pids = rig.Running(nap); return len(pids) == 1 }) // setsid and sh may yet have to exec it
			if got := c.Info(s).Ints("background"); !slices.Contains(got, pids[0]) {
				t.Errorf("%s: background %v, running %v", command, got, pids)
			}
			if state := c.State(s); state != "IDLE" {
				t.Errorf("%s: state %s", command, state)
			}
			rig.Expect(t, c.Run(s, "echo next"), 0, "next\n", "")
			if got := rig.Running(nap); !slices.Equal(got, pids) {
				t.Errorf("%s: running %v, before the next command %v", command, got, pids)
			}
		}
		goroutines := g.Metric(t, "go_goroutines")
		c.Call("session.destroy", object{"session_id": s, "force": true})
		testkit.Eventually(t, "goroutines of the holders end", func() bool { return g.Metric(t, "go_goroutines") <= goroutines-1 })
		for _, nap := range naps {
			if left := rig.Running(nap); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})
}

// A1: A job in the background holds the output and does not hold the answer.
func TestBackgroundJobDoesNotHoldTheAnswer(t *testing.T) {
	answersAtOnce(t, "NAP & echo hi", "(NAP &); echo hi", "f() { NAP & }; f; echo hi", "{ NAP | cat; } & echo hi", "nohup NAP 2>/dev/null & echo hi")
	// The answer itself lists it, with the pid that it has.
	rig.EachShell(t, func(t *testing.T, sh string) {
		c, nap := rig.Shared(t, "a").Dial(t), rig.Sleeper()
		r := c.Run(c.Session(object{"shell": sh}), nap+" & echo hi")
		testkit.Eventually(t, "it sleeps", func() bool { return slices.Equal(r.Ints("background"), rig.Running(nap)) })
	})
}

// A2: Nor does one that left the process group and the process session, alone or as a daemon.
func TestDetachedJobDoesNotHoldTheAnswer(t *testing.T) {
	answersAtOnce(t, "setsid sh -c 'NAP' >&1 & echo hi", "setsid sh -c 'setsid NAP & exit' & echo hi", "(setsid NAP 3>&1 4>&2 &); echo hi")
}

// A3: What a process substitution still has to write is in the answer, and in nobody else's.
func TestProcessSubstitutionIsInItsOwnAnswer(t *testing.T) {
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		command := "exec > >(tee -a FILE) 2>&1; seq 3; echo four >&2"
		if sh == "/bin/sh" { // POSIX has a FIFO for it
			command = "rm -f FILE.p; mkfifo FILE.p; tee -a FILE <FILE.p & exec >FILE.p 2>&1; seq 3; echo four >&2"
		}
		const want = "1\n2\n3\nfour\n"
		var answers []string
		// Late writers are waited for until they were quiet for 10 ms. A tee that a busy machine does not let run for so long
		// is later than that, and then its bytes are in the stream; so many times in a row is no accident.
		for range 50 {
			file := filepath.Join(g.Dir, rig.Unique("a3"))
			start := time.Now()
			r := c.Run(s, strings.ReplaceAll(command, "FILE", file))
			rig.Within(t, "it", start, 2*time.Second)
			if r.Num("exit_code") != 0 {
				t.Errorf("exit %v, stderr %q", r["exit_code"], r.Stderr())
			}
			testkit.Eventually(t, "the file", func() bool { b, _ := os.ReadFile(file); return string(b) == want })
			var stream string
			testkit.Eventually(t, "the stream has all", func() bool {
				stream, _ = c.Output(c.Call("exec.attach", object{"exec_id": r.Str("exec_id")}).Str("stream_id"), 0)
				return len(stream) >= len(want)
			})
			if stream != want {
				t.Errorf("stream %q", stream)
			}
			rig.Expect(t, c.Run(s, "echo next"), 0, "next\n", "")
			if b, _ := os.ReadFile(file); string(b) != want {
				t.Errorf("the next command wrote into the file: %q", b)
			}
			if answers = append(answers, r.Stdout()); r.Stdout() == want {
				return
			}
		}
		t.Errorf("answers %q", answers)
	})
}

// A4: A timeout ends everything that the command started, however it runs it.
func TestTimeoutEndsAllThatTheCommandStarted(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		for i, command := range []string{
			"NAP; true", "NAP & wait", "(NAP)", "NAP | cat",
			"x=$(NAP)", "f() { NAP; true; }; f; true", "eval 'NAP; true'", "while :; do NAP; done", "if NAP; then :; fi", "! NAP || true", "(setsid NAP &); NAP", "nohup NAP >/dev/null",
		} {
			t.Run(command, func(t *testing.T) {
				c := g.Dial(t)
				s := c.Session(object{"shell": sh})
				defer c.Call("session.destroy", object{"session_id": s, "force": true})
				limit := 0.15
				if i < 4 {
					limit = rig.Pick(0.4, 2)
				}
				c.Run(s, "kept=yes")
				mark, begun := rig.UniqueFile(g, "begun")
				for ; !begun(); limit *= 4 { // a longer one if the shell did not begin in time
					if limit > 30 {
						t.Fatal("it does not begin")
					}
					nap, start := rig.Sleeper(), time.Now()
					r := c.Run(s, "echo part; : >"+mark+"; "+strings.ReplaceAll(command, "NAP", nap)+"; echo not reached", object{"timeout_s": limit})
					rig.Within(t, "it", start, time.Duration((limit+1)*float64(time.Second)))
					if left := rig.Running(nap); len(left) > 0 {
						t.Errorf("survivors: %v", left)
					}
					if !r.Yes("timed_out") || r.Str("timeout_kind") != "hard" || r.Yes("cancelled") || r.Stdout() != "part\n" && (begun() || r.Stdout() != "") {
						t.Errorf("result %v", r)
					}
					if took := time.Since(start).Seconds(); took < limit {
						t.Errorf("after %v s already", took)
					}
					if state := c.State(s); state != "IDLE" {
						t.Errorf("state %s", state)
					}
					rig.Expect(t, c.Run(s, "echo $kept"), 0, "yes\n", "")
				}
			})
		}
	})
}

// A5: A command that does not exist is an answer, not something to wait for.
func TestUnknownCommandIsAnsweredAtOnce(t *testing.T) {
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh, "env": object{"PATH": "/usr/bin:/bin"}}) // dash names a directory of PATH that it may not enter instead
		for command, stdout := range map[string]string{"no_such_cmd_xyz": "", "echo a; no_such_cmd_xyz": "a\n", "no_such_cmd_xyz | cat >/dev/null; no_such_cmd_xyz 'x y'": "", "/no/such/cmd_xyz": "", "./no_such_cmd_xyz": ""} {
			start := time.Now()
			r := c.Run(s, command, object{"timeout_s": 50})
			rig.Within(t, command, start, time.Second)
			rig.Expect(t, r, 127, stdout, r.Stderr())
			if !strings.Contains(r.Stderr(), "cmd_xyz") || !strings.Contains(strings.ToLower(r.Stderr()), "not found") && !strings.Contains(r.Stderr(), "No such file") {
				t.Errorf("%s: stderr %q", command, r.Stderr())
			}
		}
	})
}

// A6: Codes and signals are numbers and names in fields of their own.
func TestCodesAndSignalsHaveFieldsOfTheirOwn(t *testing.T) {
	g := rig.Shared(t, "a")
	if err := os.WriteFile(filepath.Join(g.Home, "not_executable"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, x := range []struct {
			command string
			code    int
			signal  string
		}{
			{"sh -c 'exit 3'", 3, ""}, {"(exit 3)", 3, ""}, {"sh -c 'exit 255'", 255, ""}, {"false", 1, ""}, {"false | true", 0, ""}, {"! true", 1, ""}, {"", 0, ""}, {"# nothing", 0, ""},
			{"sh -c 'kill -9 $$'", 137, "KILL"}, {"sh -c 'kill -TERM $$'", 143, "TERM"}, {"sh -c 'kill -SEGV $$'", 139, "SEGV"}, {"(ulimit -c 0; sh -c 'kill -ABRT $$')", 134, "ABRT"}, {"sh -c 'kill -HUP $$'", 129, "HUP"},
			{"./not_executable", 126, ""}, {"/", 126, ""},
		} {
			r := c.Run(s, x.command)
			if r.Num("exit_code") != x.code || r.Str("signal") != x.signal || r.Yes("timed_out") || r.Yes("cancelled") || r.Has("error") || r.Yes("shell_restored") {
				t.Errorf("%s: %v; want %d %s", x.command, r, x.code, x.signal)
			}
			if x.signal == "" && r.Has("signal") {
				t.Errorf("%s: signal %v", x.command, r["signal"])
			}
			_, exit := c.Output(c.Stream(s, x.command).Str("stream_id"), 0)
			if exit.Num("exit_code") != x.code || exit.Str("signal") != x.signal {
				t.Errorf("%s as a stream: %v", x.command, exit)
			}
		}
	})
}

// A7: A timeout and a cancel are flags of their own, which no code of the command's can forge or hide.
func TestTimeoutAndCancelAreFlagsOfTheirOwn(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		check := func(how string, r object, timedOut, cancelled bool) {
			t.Helper()
			if !r.Has("timed_out") || !r.Has("cancelled") || r.Yes("timed_out") != timedOut || r.Yes("cancelled") != cancelled || r.Has("timeout_kind") != timedOut {
				t.Errorf("%s: %v", how, r)
			}
			if r.Num("exit_code") == -1 {
				t.Errorf("%s: exit code -1", how)
			}
		}
		nap := rig.Sleeper()
		stubborn := "sh -c 'trap \"exit 0\" TERM; echo ready; " + nap + " & wait'" // ends well when told to
		for _, command := range []string{nap, "echo ready; " + nap, stubborn} {
			r := c.Run(s, command, object{"timeout_s": 0.5})
			check("timeout of "+command, r, true, false)
			if command != stubborn && r.Num("exit_code") == 0 {
				t.Errorf("timeout of %s: exit 0", command)
			}

			id := c.Begin("exec.run", object{"session_id": s, "command": command})
			testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) > 0 })
			if a := c.Call("exec.cancel", object{"session_id": s}); !a.Yes("cancelled") {
				t.Errorf("cancel: %v", a)
			}
			r = c.Answer(id).Data
			check("cancel of "+command, r, false, true)
			if command != stubborn && r.Num("exit_code") == 0 {
				t.Errorf("cancel of %s: exit 0", command)
			}

			stream := c.Stream(s, command)
			testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) > 0 })
			c.Call("exec.cancel", object{"exec_id": stream.Str("exec_id")})
			_, exit := c.Output(stream.Str("stream_id"), 0)
			check("cancel of the stream "+command, exit, false, true)
			_, exit = c.Output(c.Stream(s, command, object{"timeout_s": 0.3}).Str("stream_id"), 0)
			check("timeout of the stream "+command, exit, true, false)
		}
		for _, code := range []int{124, 125, 128, 130, 137, 143, 255} { // what others use for it
			check(fmt.Sprint("exit code ", code), c.Run(s, fmt.Sprintf("(exit %d)", code), object{"timeout_s": 50}), false, false)
		}
	})
}

// A8: A command of which the end was not seen has not succeeded.
func TestUnseenEndIsNoSuccess(t *testing.T) {
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		unknown := func(how string, r object) {
			t.Helper()
			if r.Num("exit_code") == 0 || !r.Yes("shell_restored") && !r.Has("error") {
				t.Errorf("%s: %v", how, r)
			}
			rig.Expect(t, c.Run(s, "echo usable"), 0, "usable\n", "")
		}
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS} {
			nap := rig.Sleeper()
			shell := c.Info(s).Num("pid")
			stream := c.Stream(s, "echo part; "+nap+"; true")
			testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) == 1 })
			// bash puts off a signal that comes just before it waits; a second one it heeds at once.
			testkit.Eventually(t, "the shell dies", func() bool { return syscall.Kill(shell, signal) != nil || rig.Cmdline(shell) == "" })
			data, exit := c.Output(stream.Str("stream_id"), 0)
			if data != "part\n" {
				t.Errorf("%v: output %q", signal, data)
			}
			unknown(fmt.Sprint("stream, ", signal), exit)
			// Nobody cancelled: what the dead shell was waiting for goes on, is listed, and ends with the session.
			if left := rig.Running(nap); !slices.Equal(exit.Ints("background"), left) {
				t.Errorf("%v: background %v, running %v", signal, exit["background"], left)
			}
		}
		shell := c.Info(s).Num("pid")
		id := c.Begin("exec.run", object{"session_id": s, "command": ": >a8; while :; do :; done"})
		testkit.Eventually(t, "it runs", func() bool { return os.Remove(filepath.Join(g.Home, "a8")) == nil })
		if err := syscall.Kill(shell, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		unknown("run", c.Answer(id).Data)
		// The command itself ends the shell in the middle, or closes whatever it finds.
		unknown("kill -9", c.Run(s, "echo a; kill -9 $$; true"))
		c.Run(s, `for f in /proc/$$/fd/*; do n=${f##*/}; case $n in 0|1|2) ;; *) eval "exec $n>&-" 2>/dev/null || :; esac; done; echo a`, object{"timeout_s": 20})
		rig.Expect(t, c.Run(s, "echo usable"), 0, "usable\n", "")
		for range 20 {
			r := c.Run(s, "sh -c 'kill -9 $PPID'; true")
			unknown("killed by a child", r)
		}
	})
}

// A9: exec.exit comes once, last, and after every byte.
func TestExitComesOnceAfterEveryByte(t *testing.T) {
	g := rig.Shared(t, "a")
	rig.EachShell(t, func(t *testing.T, sh string) {
		for _, command := range []string{
			"seq 1 50000; echo e >&2; printf tail", "true", "(until [ -e GO ]; do sleep 0.05; done; echo late; echo later >&2) & echo hi", "no_such_cmd_xyz", "echo a; exit 7", "echo a; kill -9 $$", "i=0; while [ $i -lt 200 ]; do echo $i; echo $i >&2; i=$((i+1)); done",
		} {
			t.Run(command, func(t *testing.T) {
				c, watcher := g.Dial(t), g.Dial(t)
				s := c.Session(object{"shell": sh})
				watcher.Call("session.watch", object{"session_id": s})
				proceed, _ := rig.UniqueFile(g, "go")
				stream := c.Stream(s, strings.ReplaceAll(command, "GO", proceed))
				id := stream.Str("stream_id")
				data, exit := c.Output(id, 0)
				if exit.Str("exec_id") != stream.Str("exec_id") {
					t.Errorf("exit %v of %v", exit, stream)
				}
				if total := exit.Num("stdout_bytes") + exit.Num("stderr_bytes"); total != len(data) {
					t.Errorf("%d bytes came, %d were written", len(data), total)
				}
				watched, _ := watcher.Output(id, 0)
				if watched != data {
					t.Errorf("the watcher got %s, the caller %s", rig.Brief(watched), rig.Brief(data))
				}
				// What comes late is in the stream, and no event follows the last.
				late := strings.Contains(command, "late")
				if late {
					if err := os.WriteFile(proceed, nil, 0o600); err != nil {
						t.Fatal(err)
					}
					testkit.Eventually(t, "late output is in the stream", func() bool {
						b, _ := c.Output(c.Call("exec.attach", object{"exec_id": stream.Str("exec_id"), "offset": len(data)}).Str("stream_id"), len(data))
						return b == "late\nlater\n" || b == "later\nlate\n" // two pipes
					})
				}
				c.Run(s, "sleep 0.1") // a round through everything, so that what was on its way has come
				watcher.Call("system.ping", nil)
				for _, who := range []*rig.Client{c, watcher} {
					who.Mu.Lock()
					for _, f := range who.Came {
						if f.Data.Str("stream_id") == id && f.Event != "exec.started" { // that one is the watcher's, and came first
							t.Errorf("after exec.exit: %s %v", f.Event, f.Data)
						}
					}
					who.Mu.Unlock()
				}
			})
		}
	})
}

// A11: Many sessions at once: every command has its result.
func TestManySessionsAtOnceGetTheirResults(t *testing.T) {
	g := rig.Shared(t, "a")
	const sessions = 50
	rounds := rig.Pick(10, 100)
	var clients []*rig.Client
	for range 5 {
		clients = append(clients, g.Dial(t))
	}
	before := g.Metric(t, "trl_execs_total")
	var good atomic.Int64
	rig.Together(sessions, func(i int) {
		c := clients[i%len(clients)]
		s := c.Session(object{"shell": rig.Shells[i/len(clients)%2]})
		for range rounds {
			if r := c.Run(s, "true"); r.Num("exit_code") == 0 && r.Stdout() == "" && r.Stderr() == "" && !r.Yes("shell_restored") {
				good.Add(1)
			} else {
				t.Errorf("session %d: %v", i, r)
			}
		}
		c.Call("session.destroy", object{"session_id": s})
	})
	if n := int(good.Load()); n != sessions*rounds {
		t.Errorf("%d of %d are well", n, sessions*rounds)
	}
	if n := int(g.Metric(t, "trl_execs_total") - before); n != sessions*rounds {
		t.Errorf("the metric counts %d, want %d", n, sessions*rounds)
	}
}

// A12: The first command works at once, warm or cold, whatever lies about in the home directory.
func TestFirstCommandWorksAtOnce(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Gateway(t, "--warm", "0")
	for _, rc := range []string{".bashrc", ".profile", ".bash_profile", ".shrc", ".env"} {
		if err := os.WriteFile(filepath.Join(g.Home, rc), []byte("sleep 3; echo noise; echo noise >&2\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rig.EachShell(t, func(t *testing.T, sh string) {
		for name, g := range map[string]*rig.Server{"cold": g, "warm": rig.Shared(t, "a")} {
			c := g.Dial(t)
			rig.Together(20, func(int) {
				start := time.Now()
				rig.Expect(t, c.Run(c.Session(object{"shell": sh}), "echo first", object{"timeout_s": 50}), 0, "first\n", "")
				rig.Within(t, name+" create and first command", start, 2*time.Second)
			})
			// Nobody has to wait for the answer to session.create.
			rig.Together(10, func(int) {
				name := rig.Unique("a12")
				conn := g.Dial(t)
				made := conn.Begin("session.create", object{"name": name, "shell": sh})
				first := conn.Begin("exec.run", object{"session": name, "command": "echo first; x=1"})
				second := conn.Begin("exec.run", object{"session": name, "command": "echo second $x"})
				if f := conn.Answer(made); !f.OK {
					t.Errorf("create: %+v", f.Error)
				}
				for id, want := range map[int]string{first: "first\n", second: "second 1\n"} {
					if f := conn.Answer(id); !f.OK {
						t.Errorf("%s: %+v", want, f.Error)
					} else {
						rig.Expect(t, f.Data, 0, want, "")
					}
				}
			})
		}
		// An rc file that the client asks for is slow: creation waits, or the command does; it is not lost.
		c, start := rig.Shared(t, "rc", "--allow-env", "ENV,BASH_ENV").Dial(t), time.Now()
		s := c.Session(object{"shell": sh, "env": object{"ENV": g.Home + "/.env", "BASH_ENV": g.Home + "/.env"}})
		rig.Expect(t, c.Run(s, "echo first", object{"timeout_s": 50}), 0, "first\n", "")
		rig.Within(t, "slow rc file", start, 5*time.Second)
	})
	t.Run("default session", func(t *testing.T) { // made by its first command, of which several come at once
		var firsts atomic.Int64
		rig.Together(10, func(i int) {
			c := g.Dial(t)
			r := c.Call("exec.run", object{"command": "n=$((n+1)); echo $n"})
			if r.Stdout() == "1\n" {
				firsts.Add(1)
			}
			if r.Num("exit_code") != 0 {
				t.Errorf("%v", r)
			}
		})
		if firsts.Load() != 1 {
			t.Errorf("%d sessions were made", firsts.Load())
		}
	})
}
