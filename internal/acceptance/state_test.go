package acceptance

import (
	le "encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// State that is hard to keep: each look at it must tell the same in the shell itself, in a process that begins with a copy of
// it, and in a shell that was put back.

var allShells = []string{"/bin/bash", "/bin/dash", "/usr/bin/zsh", "/bin/busybox"}

// inShells runs f in each of the shells there are here, of those named in only where that is not empty.
func inShells(t *testing.T, only string, f func(t *testing.T, shell string)) {
	for _, sh := range allShells {
		if only != "" && !strings.Contains(only, filepath.Base(sh)) {
			continue
		}
		t.Run(filepath.Base(sh), func(t *testing.T) {
			if _, err := os.Stat(sh); err != nil {
				t.Skip(err)
			}
			f(t, sh)
		})
	}
}

// processOutput is what a background process prints, stdout and stderr as they come.
func (c *client) processOutput(session, command string) string {
	c.t.Helper()
	p := c.call("process.start", object{"session_id": session, "command": command}).str("process_id")
	c.call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
	text, _, _ := processLogs(c, p, 0)
	return text
}

func TestStateReadsBack(t *testing.T) {
	g := shared(t, "")
	const plain = "pwd; umask; echo $X $FOO; sh -c 'echo ${FOO-unset}'"
	for _, x := range []struct {
		only, set, look string
		restoreOnly     bool
	}{
		{"", "cd /usr; cd /tmp", "cd - >/dev/null; pwd", false},
		{"", "unset FOO LANG", "sh -c 'echo ${FOO-unset} ${LANG-unset}'", false},
		{"bash", "export -n FOO", plain, false},
		{"zsh", "typeset +x FOO", plain, false},
		{"bash zsh", "cd() { pushd \"$1\" >/dev/null; }", plain, false},
		{"bash zsh", "cd() { exit 5; }; umask() { exit 6; }", "pwd; echo $X", false},
		{"bash zsh", "trap() { exit 9; }; set() { exit 8; }", plain, false},
		{"", "alias cd='echo no'; alias umask=:", "pwd; echo $X", false},
		{"", "alias export=: unset=: trap=: set=:", plain, false},
		{"bash zsh", "alias builtin='echo no'", plain, false},
		{"bash", "my-func() { echo mine; }; set -o posix", "my-func; " + plain, false},
		{"zsh", "local_ip=1; special_token=2; a_hide=3", "echo $local_ip $special_token $a_hide; " + plain, false},
		{"zsh", "setopt ksharrays; a=(1 2 3)", "echo ${a[0]} ${a[@]}; " + plain, false},
		{"zsh", "emulate sh; a=(1 2 3)", "echo ${a[0]} ${a[@]}; " + plain, false},
		{"zsh", "setopt rcquotes; Y=\"it's\"", "echo $Y; " + plain, false},
		{"bash", "trap 'echo E' ERR; trap 'echo R' RETURN; trap 'echo u' USR1", "trap -p ERR RETURN USR1", true},
		{"", "set -e; umask 077", "umask; echo $X; case $- in *e*) echo e ;; esac", true},
	} {
		t.Run(x.set, func(t *testing.T) {
			inShells(t, x.only, func(t *testing.T, sh string) {
				c := g.dial(t)
				s := c.session(object{"shell": sh, "env": object{"FOO": "given"}})
				expect(t, c.run(s, "X=kept; cd /usr; umask 027"), 0, "", "")
				if r := c.run(s, x.set); r.num("exit_code") != 0 {
					t.Fatal(r)
				}
				want := c.run(s, "("+x.look+")").stdout()
				if !x.restoreOnly {
					if out := c.processOutput(s, x.look); out != want {
						t.Errorf("a process sees %q, the shell %q", out, want)
					}
				}
				if r := c.run(s, "exit 0"); !r.yes("shell_restored") || r.has("state_lost") {
					t.Fatal(r)
				}
				if r := c.run(s, "("+x.look+")"); r.stdout() != want {
					t.Errorf("%q after a restore, %q before; %q", r.stdout(), want, r.stderr())
				}
				c.call("session.destroy", object{"session_id": s, "force": true})
			})
		})
	}
}

// TestFunctionThatDoesNotReadBack costs the functions, and nothing else.
func TestFunctionThatDoesNotReadBack(t *testing.T) {
	g := shared(t, "")
	for sh, f := range map[string]string{"bash": "function a=b { :; }", "zsh": "function if { :; }"} {
		inShells(t, sh, func(t *testing.T, sh string) {
			c := g.dial(t)
			s := c.session(object{"shell": sh})
			expect(t, c.run(s, "X=kept; cd /usr; "+f), 0, "", "")
			if r := c.run(s, "exit 3"); !strings.Contains(fmt.Sprint(r["state_lost"]), "functions") {
				t.Error(r)
			}
			expect(t, c.run(s, "pwd; echo $X"), 0, "/usr\nkept\n", "")
		})
	}
}

// TestRemovedDirectoryIsNamedAfterARestore: who comes back says that it is elsewhere, and a process is where its session is.
func TestRemovedDirectoryIsNamedAfterARestore(t *testing.T) {
	g := shared(t, "")
	inShells(t, "", func(t *testing.T, sh string) {
		dir := filepath.Join(g.home, unique("gone"))
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		expect(t, c.run(s, "mkdir "+dir+"; cd "+dir+"; rmdir "+dir), 0, "", "")
		const look = "readlink /proc/self/cwd"
		where := c.run(s, look).stdout()
		if out := c.processOutput(s, look); !strings.Contains(out, where) { // shells complain, on stderr
			t.Errorf("a process is in %q, its session in %q", out, where)
		}
		if r := c.run(s, "readlink /proc/self/cwd", object{"working_dir": "/usr"}); r.stdout() != "/usr\n" {
			t.Error(r)
		}
		if out := c.run(s, look).stdout(); out != where {
			t.Errorf("in %q after a command elsewhere, %q before", out, where)
		}
		if r := c.run(s, "exit 3"); !strings.Contains(fmt.Sprint(r["state_lost"]), "working_dir") {
			t.Error(r)
		}
	})
}

// TestWorkingDirIsTheCommandsAlone, whatever becomes of PWD.
func TestWorkingDirIsTheCommandsAlone(t *testing.T) {
	g := shared(t, "")
	inShells(t, "", func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		for _, env := range []object{nil, {"PWD": "/var"}, {"PWD": "/nonexistent", "OLDPWD": "/var"}, {"CDPATH": "/usr"}} {
			expect(t, c.run(s, "cd /etc; cd /usr"), 0, "", "")
			more := object{"working_dir": "/tmp"}
			if env != nil {
				more["env"] = env
			}
			if r := c.run(s, "readlink /proc/self/cwd", more); r.stdout() != "/tmp\n" || r.stderr() != "" {
				t.Errorf("%v: %v", env, r)
			}
			expect(t, c.run(s, "pwd; readlink /proc/self/cwd; cd - >/dev/null; pwd"), 0, "/usr\n/usr\n/etc\n", "")
		}
		expect(t, c.run(s, "cd /usr; unset PWD"), 0, "", "")
		c.run(s, ":", object{"working_dir": "/tmp"})
		expect(t, c.run(s, "readlink /proc/self/cwd"), 0, "/usr\n", "")
	})
}

// TestOurShellCodeIsNotTraced: neither what a command is given of its own, nor what prepares a process, shows in their traces.
func TestOurShellCodeIsNotTraced(t *testing.T) {
	g := shared(t, "")
	inShells(t, "", func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		c.run(s, "set -x")
		r := c.run(s, "echo hi", object{"env": object{"TOKEN": "s3cret"}, "working_dir": "/tmp"})
		if r.stdout() != "hi\n" || strings.Contains(r.stderr(), "s3cret") || strings.Contains(r.stderr(), "__trl") {
			t.Error(r)
		}
		p := c.call("process.start", object{"session_id": s, "command": "echo hi", "env": object{"TOKEN": "s3cret"}, "working_dir": "/tmp"}).str("process_id")
		c.call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
		if l := fmt.Sprint(c.call("process.logs", object{"process_id": p})); strings.Contains(l, "s3cret") || strings.Contains(l, "__trl") || !strings.Contains(l, "hi") {
			t.Error(l)
		}
	})
}

// TestStdinIsNoneThough the user has given the shell itself another one.
func TestCommandsStdinIsNotTheShells(t *testing.T) {
	g := shared(t, "")
	inShells(t, "", func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		for _, odd := range []string{"exec </etc/passwd", "exec </dev/zero", "exec <&-"} {
			c.run(s, odd)
			expect(t, c.run(s, "cat"), 0, "", "")
			expect(t, c.run(s, "read x; echo \"[$x]\"", object{"stdin": "given\n"}), 0, "[given]\n", "")
		}
	})
}

// TestFileSizeLimitDoesNotCostTheShell of the user's own does not cost the shell, also where the gateway is another user and may not ask for it.
func TestFileSizeLimitDoesNotCostTheShell(t *testing.T) {
	ourNumbers(t)
	fileSizeLimit(t, shared(t, ""))
}

func TestFileSizeLimitOfOtherUsersDoesNotCostTheShell(t *testing.T) {
	eachWay(t, func(t *testing.T, flags []string) { fileSizeLimit(t, gateway(t, flags...)) })
}

func fileSizeLimit(t *testing.T, g *server) {
	inShells(t, "", func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		pid := c.run(s, "echo $$").stdout()
		expect(t, c.run(s, "X=new; ulimit -f 1"), 0, "", "")
		for range 3 { // after each, there would be a snapshot
			eventually(t, "it rests", func() bool { return c.state(s) == "IDLE" })
			expect(t, c.run(s, "echo $$ $X", object{"env": object{"E": "1"}}), 0, strings.TrimSpace(pid)+" new\n", "")
		}
		expect(t, c.run(s, "echo $$ $X # kill"), 0, strings.TrimSpace(pid)+" new\n", "") // there would be one before this
		c.processOutput(s, "sleep 0.2")                                                  // it asks for a snapshot
		if r := c.run(s, "kill -9 $$"); !r.yes("shell_restored") || !strings.Contains(fmt.Sprint(r["state_lost"]), "variables") {
			t.Error(r)
		}
	})
}

// TestCancelledListDoesNotGoOn: what is cancelled or timed out does not go on with its list, without any grace, and in spite of traps.
func TestCancelledListDoesNotGoOn(t *testing.T) {
	g := shared(t, "")
	sourced := filepath.Join(g.home, "trap.sh")
	if err := os.WriteFile(sourced, []byte("trap 'echo a' INT\n"), 0o644); err != nil { // #nosec G306 -- the session's user is to read it
		t.Fatal(err)
	}
	for _, x := range []struct {
		only, trap string
		grace      float64
	}{
		{"", ":", 0}, {"", ":", 5},
		{"dash busybox zsh", "trap 'echo a; echo b' INT", 5}, {"dash busybox zsh", "trap '' HUP \\\nINT", 5}, {"dash busybox zsh", "trap : int", 5},
		{"dash busybox zsh", "trap 'echo a' 2", 5}, {"dash busybox zsh", ". " + sourced, 5}, {"dash busybox", "t=trap; $t '' INT", 5},
		{"zsh", "TRAPINT() { echo t; }", 5}, {"bash", "trap '' 40", 5}, {"bash", "trap 'echo a' 40", 5},
	} {
		t.Run(fmt.Sprint(x.trap, x.grace), func(t *testing.T) {
			inShells(t, x.only, func(t *testing.T, sh string) {
				for _, how := range []string{"timeout_s", "no_output_timeout_s", "cancel"} {
					c := g.dial(t)
					s, nap, flag := c.session(object{"shell": sh}), sleeper(), filepath.Join(g.home, unique("flag"))
					c.run(s, x.trap)
					more := object{"kill_grace_s": x.grace}
					if how != "cancel" {
						more[how] = 0.2
					}
					x := c.stream(s, nap+"; echo AFTER; >"+flag, more).str("exec_id")
					if how == "cancel" {
						eventually(t, "it runs", func() bool { return len(running(nap)) > 0 })
						c.call("exec.cancel", object{"exec_id": x, "kill_grace_s": more["kill_grace_s"]})
					}
					if r := c.call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60}); r.stdout() != "" {
						t.Errorf("%s: %v", how, r)
					}
					if _, err := os.Stat(flag); err == nil {
						t.Errorf("%s: it went on", how)
					}
					expect(t, c.run(s, "echo here"), 0, "here\n", "")
					c.call("session.destroy", object{"session_id": s, "force": true})
				}
			})
		})
	}
}

// TestOutputIsNotTakenForTheSessionLog: what a command prints is never taken for what the gateway wrote down.
func TestOutputIsNotTakenForTheSessionLog(t *testing.T) {
	g := gateway(t, "--warm", "0")
	forged := append([]byte("trlledg1"), 16, 0, 0, 0, 0, 0, 0, 0)
	for _, entry := range []string{`{"exec":{"stream":"x"}}`, `{"begun":{"id":"y"}}`, `{"session":{"name":"forged"}}`} {
		forged = le.LittleEndian.AppendUint32(forged, uint32(len(entry)))
		forged = le.LittleEndian.AppendUint32(forged, crc32.Checksum([]byte(entry), crc32.MakeTable(crc32.Castagnoli)))
		forged = append(forged, entry...)
	}
	name := filepath.Join(g.home, "forged")
	if err := os.WriteFile(name, forged, 0o644); err != nil { // #nosec G306 -- the session's user is to read it
		t.Fatal(err)
	}
	c := g.dial(t)
	s := c.session()
	r := c.run(s, "V=kept; cat "+name+"; cat "+name+" >&2")
	for range 6 {
		g.killGateway(t)
		c = g.redial(t)
		expect(t, c.run(s, "echo $V; cat "+name), 0, "kept\n"+string(forged), "")
	}
	if again := c.call("exec.wait", object{"exec_id": r.str("exec_id"), "offset": 0}); again.stdout() != r.stdout() || again.stderr() != r.stderr() {
		t.Errorf("%v, was %v", again, r)
	}
}

// TestNextGatewayOwnsWhatProcessesLeave is the session's, whichever gateway there is and whether their records are, and nothing of those
// that leave nothing stays.
func TestNextGatewayOwnsWhatProcessesLeave(t *testing.T) {
	g := gateway(t, "--warm", "0", "--retention", "1s")
	c := g.dial(t)
	s, cgroup := c.session(), g.cgroupDir(t)
	c.processOutput(s, "true")
	dirs := countDirs(cgroup)
	for range 20 {
		c.processOutput(s, "true")
	}
	eventually(t, "the cells are gone", func() bool { return countDirs(cgroup) <= dirs })
	naps := []string{sleeper(), sleeper()}
	p := c.call("process.start", object{"session_id": s, "command": "setsid " + naps[0] + " >/dev/null 2>&1 &"}).str("process_id")
	c.call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "trap '' HUP; setsid " + naps[1] + " >/dev/null 2>&1 & sleep 0.2"})
	eventually(t, "both are let go", func() bool {
		f := c.try("process.info", object{"process_id": p})
		return f.Error != nil && len(c.call("term.list", object{"session_id": s}).objs("terminals")) == 0
	})
	for range 2 {
		g.killGateway(t)
		c = g.redial(t)
		for _, nap := range naps {
			if len(running(nap)) != 1 {
				t.Errorf("%s is gone", nap)
			}
		}
		if left := c.info(s).ints("background"); len(left) < 2 {
			t.Errorf("background: %v", c.info(s))
		}
	}
	c.call("session.destroy", object{"session_id": s, "force": true})
	if left := append(running(naps[0]), running(naps[1])...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestResetStateDoesNotComeBack: what was before a reset does not come back, though the gateway dies and then the shell.
func TestResetStateDoesNotComeBack(t *testing.T) {
	ourNumbers(t)
	g := gateway(t, "--warm", "0")
	eachShell(t, func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		for _, v := range []string{"old", "old2"} {
			expect(t, c.run(s, "V="+v+"; cd /usr"), 0, "", "")
			c.processOutput(s, ":") // it asks for a snapshot
		}
		c.call("session.reset", object{"session_id": s})
		g.killGateway(t)
		c = g.redial(t)
		if r := c.run(s, "kill -9 $$"); !r.yes("shell_restored") {
			t.Error(r)
		}
		if r := c.run(s, "echo $V; pwd"); strings.HasPrefix(r.stdout(), "old") || strings.Contains(r.stdout(), "/usr") {
			t.Error(r)
		}
	})
}

// A terminal has its variables whatever the user has made of the builtins that set them.
func TestTerminalOfRedefinedBuiltins(t *testing.T) {
	g := shared(t, "")
	for only, set := range map[string]string{"": "alias export=: unset=: set=:", "bash zsh": "export() { :; }; unset() { :; }; set() { :; }"} {
		inShells(t, only, func(t *testing.T, sh string) {
			c := g.dial(t)
			s := c.session(object{"shell": sh})
			expect(t, c.run(s, set), 0, "", "")
			if saw := c.openTerminal(s, object{"command": `sh -c 'echo "($TERM ${GIT_PAGER-none})"'`}).expect(`\(.*\)`)[0]; saw != "(xterm-256color none)" {
				t.Errorf("after %s: %s", set, saw)
			}
		})
	}
}

// A process begins with the state also while a command is being ended whose shell had to go already.
func TestProcessWhileACommandEnds(t *testing.T) {
	g := shared(t, "")
	inShells(t, "", func(t *testing.T, sh string) {
		c := g.dial(t)
		s := c.session(object{"shell": sh})
		expect(t, c.run(s, "cd /usr; X=kept"), 0, "", "")
		c.info(s) // with a look at the state
		x := c.stream(s, `sh -c "trap '' TERM INT; echo up; sleep 1000"`).str("exec_id")
		c.event("exec.output")
		cancel := c.begin("exec.cancel", object{"exec_id": x, "kill_grace_s": 60})
		for range 20 {
			if out := c.processOutput(s, "pwd; echo $X"); out != "/usr\nkept\n" {
				t.Fatalf("%q", out)
			}
		}
		c.call("exec.cancel", object{"exec_id": x, "kill_grace_s": 0})
		c.answer(cancel)
		expect(t, c.run(s, "pwd; echo $X"), 0, "/usr\nkept\n", "")
	})
}
