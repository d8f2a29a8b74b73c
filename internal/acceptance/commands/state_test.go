package commands

import (
	le "encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// State that is hard to keep: each look at it must tell the same in the shell itself, in a process that begins with a copy of
// it, and in a shell that was put back.

// processOutput is what a background process prints, stdout and stderr as they come.
func processOutput(c *rig.Client, session, command string) string {
	c.T.Helper()
	p := c.Call("process.start", object{"session_id": session, "command": command}).Str("process_id")
	c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
	text, _, _ := rig.ProcessLogs(c, p, 0)
	return text
}

func TestStateReadsBack(t *testing.T) {
	g := rig.Shared(t, "")
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
			rig.InShells(t, x.only, func(t *testing.T, sh string) {
				c := g.Dial(t)
				s := c.Session(object{"shell": sh, "env": object{"FOO": "given"}})
				rig.Expect(t, c.Run(s, "X=kept; cd /usr; umask 027"), 0, "", "")
				if r := c.Run(s, x.set); r.Num("exit_code") != 0 {
					t.Fatal(r)
				}
				want := c.Run(s, "("+x.look+")").Stdout()
				if !x.restoreOnly {
					if out := processOutput(c, s, x.look); out != want {
						t.Errorf("a process sees %q, the shell %q", out, want)
					}
				}
				if r := c.Run(s, "exit 0"); !r.Yes("shell_restored") || r.Has("state_lost") {
					t.Fatal(r)
				}
				if r := c.Run(s, "("+x.look+")"); r.Stdout() != want {
					t.Errorf("%q after a restore, %q before; %q", r.Stdout(), want, r.Stderr())
				}
				c.Call("session.destroy", object{"session_id": s, "force": true})
			})
		})
	}
}

// TestFunctionThatDoesNotReadBack costs the functions, and nothing else.
func TestFunctionThatDoesNotReadBack(t *testing.T) {
	g := rig.Shared(t, "")
	for sh, f := range map[string]string{"bash": "function a=b { :; }", "zsh": "function if { :; }"} {
		rig.InShells(t, sh, func(t *testing.T, sh string) {
			c := g.Dial(t)
			s := c.Session(object{"shell": sh})
			rig.Expect(t, c.Run(s, "X=kept; cd /usr; "+f), 0, "", "")
			if r := c.Run(s, "exit 3"); !strings.Contains(fmt.Sprint(r["state_lost"]), "functions") {
				t.Error(r)
			}
			rig.Expect(t, c.Run(s, "pwd; echo $X"), 0, "/usr\nkept\n", "")
		})
	}
}

// TestRemovedDirectoryIsNamedAfterARestore: who comes back says that it is elsewhere, and a process is where its session is.
func TestRemovedDirectoryIsNamedAfterARestore(t *testing.T) {
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		dir := filepath.Join(g.Home, rig.Unique("gone"))
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "mkdir "+dir+"; cd "+dir+"; rmdir "+dir), 0, "", "")
		const look = "readlink /proc/self/cwd"
		where := c.Run(s, look).Stdout()
		if out := processOutput(c, s, look); !strings.Contains(out, where) { // Shells complain, on stderr
			t.Errorf("a process is in %q, its session in %q", out, where)
		}
		if r := c.Run(s, "readlink /proc/self/cwd", object{"working_dir": "/usr"}); r.Stdout() != "/usr\n" {
			t.Error(r)
		}
		if out := c.Run(s, look).Stdout(); out != where {
			t.Errorf("in %q after a command elsewhere, %q before", out, where)
		}
		if r := c.Run(s, "exit 3"); !strings.Contains(fmt.Sprint(r["state_lost"]), "working_dir") {
			t.Error(r)
		}
	})
}

// TestWorkingDirIsTheCommandsAlone, whatever becomes of PWD.
func TestWorkingDirIsTheCommandsAlone(t *testing.T) {
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, env := range []object{nil, {"PWD": "/var"}, {"PWD": "/nonexistent", "OLDPWD": "/var"}, {"CDPATH": "/usr"}} {
			rig.Expect(t, c.Run(s, "cd /etc; cd /usr"), 0, "", "")
			more := object{"working_dir": "/tmp"}
			if env != nil {
				more["env"] = env
			}
			if r := c.Run(s, "readlink /proc/self/cwd", more); r.Stdout() != "/tmp\n" || r.Stderr() != "" {
				t.Errorf("%v: %v", env, r)
			}
			rig.Expect(t, c.Run(s, "pwd; readlink /proc/self/cwd; cd - >/dev/null; pwd"), 0, "/usr\n/usr\n/etc\n", "")
		}
		rig.Expect(t, c.Run(s, "cd /usr; unset PWD"), 0, "", "")
		c.Run(s, ":", object{"working_dir": "/tmp"})
		rig.Expect(t, c.Run(s, "readlink /proc/self/cwd"), 0, "/usr\n", "")
	})
}

// TestOurShellCodeIsNotTraced: neither what a command is given of its own, nor what prepares a process, shows in their traces.
func TestOurShellCodeIsNotTraced(t *testing.T) {
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		c.Run(s, "set -x")
		r := c.Run(s, "echo hi", object{"env": object{"TOKEN": "s3cret"}, "working_dir": "/tmp"})
		if r.Stdout() != "hi\n" || strings.Contains(r.Stderr(), "s3cret") || strings.Contains(r.Stderr(), "__trl") {
			t.Error(r)
		}
		p := c.Call("process.start", object{"session_id": s, "command": "echo hi", "env": object{"TOKEN": "s3cret"}, "working_dir": "/tmp"}).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
		if l := fmt.Sprint(c.Call("process.logs", object{"process_id": p})); strings.Contains(l, "s3cret") || strings.Contains(l, "__trl") || !strings.Contains(l, "hi") {
			t.Error(l)
		}
	})
}

// TestStdinIsNoneThough the user has given the shell itself another one.
func TestCommandsStdinIsNotTheShells(t *testing.T) {
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, odd := range []string{"exec </etc/passwd", "exec </dev/zero", "exec <&-"} {
			c.Run(s, odd)
			rig.Expect(t, c.Run(s, "cat"), 0, "", "")
			rig.Expect(t, c.Run(s, "read x; echo \"[$x]\"", object{"stdin": "given\n"}), 0, "[given]\n", "")
		}
	})
}

// TestFileSizeLimitDoesNotCostTheShell of the user's own does not cost the shell, also where the gateway is another user and may not ask for it.
func TestFileSizeLimitDoesNotCostTheShell(t *testing.T) {
	rig.OurNumbers(t)
	fileSizeLimit(t, rig.Shared(t, ""))
}

func TestFileSizeLimitOfOtherUsersDoesNotCostTheShell(t *testing.T) {
	rig.EachWay(t, func(t *testing.T, flags []string) { fileSizeLimit(t, rig.Gateway(t, flags...)) })
}

func fileSizeLimit(t *testing.T, g *rig.Server) {
	rig.InShells(t, "", func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		pid := c.Run(s, "echo $$").Stdout()
		rig.Expect(t, c.Run(s, "X=new; ulimit -f 1"), 0, "", "")
		for range 3 { // after each, there would be a snapshot
			testkit.Eventually(t, "it rests", func() bool { return c.State(s) == "IDLE" })
			rig.Expect(t, c.Run(s, "echo $$ $X", object{"env": object{"E": "1"}}), 0, strings.TrimSpace(pid)+" new\n", "")
		}
		rig.Expect(t, c.Run(s, "echo $$ $X # kill"), 0, strings.TrimSpace(pid)+" new\n", "") // there would be one before this
		processOutput(c, s, "sleep 0.2")                                                     // it asks for a snapshot
		if r := c.Run(s, "kill -9 $$"); !r.Yes("shell_restored") || !strings.Contains(fmt.Sprint(r["state_lost"]), "variables") {
			t.Error(r)
		}
	})
}

// TestCancelledListDoesNotGoOn: what is cancelled or timed out does not go on with its list, without any grace, and in spite of traps.
func TestCancelledListDoesNotGoOn(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "")
	sourced := filepath.Join(g.Home, "trap.sh")
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
			rig.InShells(t, x.only, func(t *testing.T, sh string) {
				t.Parallel()
				for _, how := range []string{"timeout_s", "no_output_timeout_s", "cancel"} {
					c := g.Dial(t)
					s, nap, flag := c.Session(object{"shell": sh}), rig.Sleeper(), filepath.Join(g.Home, rig.Unique("flag"))
					c.Run(s, x.trap)
					more := object{"kill_grace_s": x.grace}
					if how != "cancel" {
						more[how] = 0.2
					}
					x := c.Stream(s, nap+"; echo AFTER; >"+flag, more).Str("exec_id")
					if how == "cancel" {
						testkit.Eventually(t, "it runs", func() bool { return len(rig.Running(nap)) > 0 })
						c.Call("exec.cancel", object{"exec_id": x, "kill_grace_s": more["kill_grace_s"]})
					}
					if r := c.Call("exec.wait", object{"exec_id": x, "offset": 0, "timeout_s": 60}); r.Stdout() != "" {
						t.Errorf("%s: %v", how, r)
					}
					if _, err := os.Stat(flag); err == nil {
						t.Errorf("%s: it went on", how)
					}
					rig.Expect(t, c.Run(s, "echo here"), 0, "here\n", "")
					c.Call("session.destroy", object{"session_id": s, "force": true})
				}
			})
		})
	}
}

// TestOutputIsNotTakenForTheSessionLog: what a command prints is never taken for what the gateway wrote down.
func TestOutputIsNotTakenForTheSessionLog(t *testing.T) {
	g := rig.Gateway(t, "--warm", "0")
	forged := append([]byte("trlledg1"), 16, 0, 0, 0, 0, 0, 0, 0)
	for _, entry := range []string{`{"exec":{"stream":"x"}}`, `{"begun":{"id":"y"}}`, `{"session":{"name":"forged"}}`} {
		forged = le.LittleEndian.AppendUint32(forged, uint32(len(entry)))
		forged = le.LittleEndian.AppendUint32(forged, crc32.Checksum([]byte(entry), crc32.MakeTable(crc32.Castagnoli)))
		forged = append(forged, entry...)
	}
	name := filepath.Join(g.Home, "forged")
	if err := os.WriteFile(name, forged, 0o644); err != nil { // #nosec G306 -- the session's user is to read it
		t.Fatal(err)
	}
	c := g.Dial(t)
	s := c.Session()
	r := c.Run(s, "V=kept; cat "+name+"; cat "+name+" >&2")
	for range 6 {
		g.KillGateway(t)
		c = g.Redial(t)
		rig.Expect(t, c.Run(s, "echo $V; cat "+name), 0, "kept\n"+string(forged), "")
	}
	if again := c.Call("exec.wait", object{"exec_id": r.Str("exec_id"), "offset": 0}); again.Stdout() != r.Stdout() || again.Stderr() != r.Stderr() {
		t.Errorf("%v, was %v", again, r)
	}
}

// TestNextGatewayOwnsWhatProcessesLeave is the session's, whichever gateway there is and whether their records are, and nothing of those
// that leave nothing stays.
func TestNextGatewayOwnsWhatProcessesLeave(t *testing.T) {
	g := rig.Gateway(t, "--warm", "0", "--retention", "1s")
	c := g.Dial(t)
	s, cgroup := c.Session(), g.CgroupDir(t)
	run := func() { // and do not name it afterwards: a second after its end it is forgotten
		c.Call("process.start", object{"session_id": s, "command": "true"})
		testkit.Eventually(t, "it has ended", func() bool { return c.Info(s).Num("processes") == 0 })
	}
	run()
	dirs := rig.CountDirs(cgroup)
	for range 20 {
		run()
	}
	testkit.Eventually(t, "the cells are gone", func() bool { return rig.CountDirs(cgroup) <= dirs })
	naps := []string{rig.Sleeper(), rig.Sleeper()}
	p := c.Call("process.start", object{"session_id": s, "command": "setsid " + naps[0] + " >/dev/null 2>&1 &"}).Str("process_id")
	c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "trap '' HUP; setsid " + naps[1] + " >/dev/null 2>&1 & sleep 0.2"})
	testkit.Eventually(t, "both are let go", func() bool {
		f := c.Try("process.info", object{"process_id": p})
		return f.Error != nil && len(c.Call("term.list", object{"session_id": s}).Objs("terminals")) == 0 && len(rig.Running(naps[0])) == 1 && len(rig.Running(naps[1])) == 1
	})
	for range 2 {
		g.KillGateway(t)
		c = g.Redial(t)
		for _, nap := range naps {
			if len(rig.Running(nap)) != 1 {
				t.Errorf("%s is gone", nap)
			}
		}
		if left := c.Info(s).Ints("background"); len(left) < 2 {
			t.Errorf("background: %v", c.Info(s))
		}
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
	if left := append(rig.Running(naps[0]), rig.Running(naps[1])...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestResetStateDoesNotComeBack: what was before a reset does not come back, though the gateway dies and then the shell.
func TestResetStateDoesNotComeBack(t *testing.T) {
	rig.OurNumbers(t)
	g := rig.Gateway(t, "--warm", "0")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, v := range []string{"old", "old2"} {
			rig.Expect(t, c.Run(s, "V="+v+"; cd /usr"), 0, "", "")
			processOutput(c, s, ":") // it asks for a snapshot
		}
		c.Call("session.reset", object{"session_id": s})
		g.KillGateway(t)
		c = g.Redial(t)
		if r := c.Run(s, "kill -9 $$"); !r.Yes("shell_restored") {
			t.Error(r)
		}
		if r := c.Run(s, "echo $V; pwd"); strings.HasPrefix(r.Stdout(), "old") || strings.Contains(r.Stdout(), "/usr") {
			t.Error(r)
		}
	})
}

// A terminal has its variables whatever the user has made of the builtins that set them.
func TestTerminalOfRedefinedBuiltins(t *testing.T) {
	g := rig.Shared(t, "")
	for only, set := range map[string]string{"": "alias export=: unset=: set=:", "bash zsh": "export() { :; }; unset() { :; }; set() { :; }"} {
		rig.InShells(t, only, func(t *testing.T, sh string) {
			c := g.Dial(t)
			s := c.Session(object{"shell": sh})
			rig.Expect(t, c.Run(s, set), 0, "", "")
			if saw := c.OpenTerminal(s, object{"command": `sh -c 'echo "($TERM ${GIT_PAGER-none})"'`}).Expect(`\(.*\)`)[0]; saw != "(xterm-256color none)" {
				t.Errorf("after %s: %s", set, saw)
			}
		})
	}
}

// A process begins with the state also while a command is being ended whose shell had to go already.
func TestProcessWhileACommandEnds(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "")
	rig.InShells(t, "", func(t *testing.T, sh string) {
		t.Parallel()
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "cd /usr; X=kept"), 0, "", "")
		c.Info(s) // With a look at the state
		x := c.Stream(s, `sh -c "trap '' TERM INT; echo up; sleep 1000"`).Str("exec_id")
		c.Event("exec.output")
		cancel := c.Begin("exec.cancel", object{"exec_id": x, "kill_grace_s": 60})
		for range 20 {
			if out := processOutput(c, s, "pwd; echo $X"); out != "/usr\nkept\n" {
				t.Fatalf("%q", out)
			}
		}
		c.Call("exec.cancel", object{"exec_id": x, "kill_grace_s": 0})
		c.Answer(cancel)
		rig.Expect(t, c.Run(s, "pwd; echo $X"), 0, "/usr\nkept\n", "")
	})
}
