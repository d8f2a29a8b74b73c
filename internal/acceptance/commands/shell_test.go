package commands

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// D1: Here-documents are the command's, whatever they hold, and end with it.
func TestHereDocumentsEndWithTheirCommand(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		file := filepath.Join(g.Home, "d1")
		for _, x := range []struct{ command, want string }{
			{"cat <<'EOF' > d1\na $b `c` $(d) \\ \" '\n\n  end\nEOF", "a $b `c` $(d) \\ \" '\n\n  end\n"},
			{"cat <<'EOF' > d1\na\nEOF\n", "a\n"},
			{"v=1; cat <<EOF > d1\n$v $((v+1)) $(echo sub) \\$v\nEOF", "1 2 sub $v\n"},
			{"cat <<-EOF > d1\n\tindented\n\t\tmore\n\tEOF", "indented\nmore\n"},
			{"cat <<'A' > d1\ncat <<B\nnested\nB\nA", "cat <<B\nnested\nB\n"},
			{"cat <<A >d1; cat <<B >>d1\nfirst\nA\nsecond\nB", "first\nsecond\n"},
			{"cat > d1 <<EOF\n$(cat <<IN\ninner\nIN\n)\nEOF", "inner\n"},
			{"f() { cat <<EOF > d1\n$1\nEOF\n}\nf arg", "arg\n"},
			{"while read l; do echo \"<$l>\"; done <<'EOF' > d1\none\ntwo\nEOF", "<one>\n<two>\n"},
			{"cat <<'EOF' | tr a-z A-Z > d1\nabc\nEOF", "ABC\n"},
			{"cat <<'EOF' > d1\n" + strings.Repeat("0123456789abcdef\n", 20_000) + "EOF", strings.Repeat("0123456789abcdef\n", 20_000)},
			{"sh <<'EOF' > d1\necho from sh\nEOF", "from sh\n"},
			{"cat <<'EOF' > d1\n__trl_e 1\nexit 3\nEOF", "__trl_e 1\nexit 3\n"},
		} {
			rig.Expect(t, c.Run(s, x.command, object{"timeout_s": 30}), 0, "", "")
			if b, err := os.ReadFile(file); err != nil || string(b) != x.want {
				t.Errorf("%s: %s, want %s (%v)", rig.Brief(x.command), rig.Brief(string(b)), rig.Brief(x.want), err)
			}
			rig.Expect(t, c.Run(s, "echo ok"), 0, "ok\n", "")
		}
	})
}

// D3: What is not finished is a syntax error with the shell's own words, not something that waits for more.
func TestUnfinishedTextIsASyntaxError(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		c.Run(s, "kept=yes")
		for _, command := range []string{
			"echo 'abc", `echo "abc`, "for i in 1", "for i in 1; do", "if true; then echo x", "while :", "case x in", "echo $(", "echo `x", "(", "{ echo a", "f() {", "fi", "done", "}", ")", "esac", ";;", "echo a &&", "echo a |", "&& echo a", "echo ${x", "x=(1", "for", "echo a; echo 'b",
		} {
			if sh == "/bin/sh" && command == "x=(1" {
				continue // the same as in bash, by another name
			}
			start := time.Now()
			r := c.Run(s, command, object{"timeout_s": 30})
			rig.Within(t, command, start, 2*time.Second)
			if r.Num("exit_code") <= 0 || r.Stderr() == "" || r.Yes("timed_out") {
				t.Errorf("%q: %v", command, r)
			}
			if state := c.State(s); state != "IDLE" {
				t.Errorf("%q: state %s", command, state)
			}
			rig.Expect(t, c.Run(s, "echo $kept"), 0, "yes\n", "")
		}
		// The unfinished here-document: shells take it with a warning or without.
		r := c.Run(s, "cat <<EOF\nhello", object{"timeout_s": 30})
		if r.Yes("timed_out") || !strings.HasPrefix(r.Stdout(), "hello") && r.Num("exit_code") == 0 {
			t.Errorf("here-document: %v", r)
		}
		rig.Expect(t, c.Run(s, "echo $kept"), 0, "yes\n", "")
	})
}

// D4: Odd and right: run, not refused.
func TestOddSyntaxIsRun(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		type row struct{ command, stdout string }
		rows := []row{
			{`echo "it's" | awk '{ print "<" $1 "'"'"'" ">" }'`, "<it's'>\n"},
			{`echo a/b | sed -e 's/\//"/g' -e "s/a/'/"`, "'\"b\n"},
			{"if true\nthen\n\techo a\nfi\n\n\n# a comment with ' and \" and (\necho b", "a\nb\n"},
			{"echo a \\\n b", "a b\n"}, {"echo $(echo \")\")", ")\n"}, {"case 'a)' in (a\\)) echo y;; esac", "y\n"}, {"echo '#' # '", "#\n"},
			{"f() ( echo sub ); f", "sub\n"}, {"! false && echo y", "y\n"}, {"{ echo a; } 2>&1 | { cat; }", "a\n"}, {": ${x:=`echo \"q\"`}; echo $x", "q\n"},
			{"eval 'echo \"a b\"'", "a b\n"}, {"echo \"$(cat <<'EOF'\nit's (\nEOF\n)\"", "it's (\n"}, {"   \n\t echo a \n  ", "a\n"}, {"echo a;", "a\n"}, {"echo a\r", "a\r\n"}, {"\n", ""}, {"alias q='echo al'\nq", "al\n"},
			{"if :; then echo a; else 'x\n'; fi", "a\n"}, {"for i in 1 2\ndo echo $i\ndone", "1\n2\n"}, {"cd / && pwd; cd - >/dev/null", "/\n"},
		}
		if sh == "/bin/bash" {
			rows = append(rows, row{"return 0 2>/dev/null; echo on", "on\n"}, row{"time cat <<'EOF'\nhi\nEOF", "hi\n"}, row{"[[ 'a(b' =~ \\( ]] && echo y", "y\n"}, row{"x=([a]=1); cat <(echo p) <<< here", "p\n"}, row{"echo $'a\\'b' {1..3} $((2**3))", "a'b 1 2 3 8\n"}, row{"coproc cat; echo hi >&${COPROC[1]}; read x <&${COPROC[0]}; echo $x; kill $COPROC_PID; wait 2>/dev/null; true", "hi\n"}, row{"function g { echo g; }; g", "g\n"}, row{"case x in x) echo 1 ;;& *) echo 2 ;; esac", "1\n2\n"})
		}
		for _, x := range rows {
			r := c.Run(s, x.command, object{"timeout_s": 30})
			if r.Num("exit_code") != 0 || r.Stdout() != x.stdout {
				t.Errorf("%q: exit %v, stdout %q, stderr %q; want %q", x.command, r["exit_code"], r.Stdout(), r.Stderr(), x.stdout)
			}
		}
	})
}

// D5: A command that ends its shell has its code, and the session everything it had.
func TestCommandThatEndsItsShellKeepsTheState(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		bash := sh == "/bin/bash"
		for _, x := range []struct {
			command string
			code    int
			changed string // the value of v afterwards
		}{
			{"v=new; exit 7", 7, "new"}, {"v=new; set -e; false; echo no", 1, "new"}, {"exec true", 0, "old"}, {"exec sh -c 'exit 9'", 9, "old"}, {"kill -9 $$", 137, "old"}, {"exit", 0, "old"}, {"set -u; v=new; echo $not_set; exit 4", 0, "new"}, {"(exit 5); exit", 5, "old"}, {"eval 'v=new; exit 3'", 3, "new"},
		} {
			t.Run(x.command, func(t *testing.T) {
				c := g.Dial(t)
				s := c.Session(object{"shell": sh})
				c.Run(s, "cd /usr/share; v=old; export K='a b'; alias al='echo alias'; umask 027; set -f")
				if bash {
					c.Run(s, "f() { echo function; }; shopt -s nullglob; arr=(1 '2 3'); declare -A map=([k]=w)")
				}
				time.Sleep(100 * time.Millisecond) // the snapshot follows the result
				watcher := g.Dial(t)
				watcher.Call("session.watch", object{"session_id": s})
				start := time.Now()
				r := c.Run(s, "echo out; "+x.command)
				rig.Within(t, "it", start, 2*time.Second)
				code := x.code
				if strings.HasPrefix(x.command, "set -u") { // an interactive shell may come through this one
					code = r.Num("exit_code")
				}
				if r.Num("exit_code") != code || r.Stdout() != "out\n" || !r.Yes("shell_restored") && code == x.code {
					t.Errorf("%v", r)
				}
				if x.code == 137 && r.Str("signal") != "KILL" {
					t.Errorf("signal %v", r["signal"])
				}
				if lost := fmt.Sprint(r["state_lost"]); strings.Contains(lost, "variables") || strings.Contains(lost, "working_dir") || strings.Contains(lost, "aliases") || bash && strings.Contains(lost, "functions") {
					t.Errorf("state_lost %s", lost)
				}
				if state := c.State(s); state != "IDLE" {
					t.Errorf("state %s", state)
				}
				rig.Expect(t, c.Run(s, "pwd; echo $v; sh -c 'echo $K'; umask; al; case $- in *f*) echo noglob; esac"), 0, "/usr/share\n"+x.changed+"\na b\n0027\nalias\nnoglob\n", "")
				if bash {
					rig.Expect(t, c.Run(s, "f; shopt -q nullglob && echo nullglob; echo ${arr[1]} ${map[k]}"), 0, "function\nnullglob\n2 3 w\n", "")
				}
				rig.Expect(t, c.Run(s, "false; echo still"), 0, "still\n", "") // errexit does not stay
			})
		}
		t.Run("terminate", func(t *testing.T) {
			c, watcher := g.Dial(t), g.Dial(t)
			s := c.Session(object{"shell": sh, "on_shell_exit": "terminate"})
			watcher.Call("session.watch", object{"session_id": s})
			r := c.Run(s, "echo out; exit 7")
			if r.Num("exit_code") != 7 || r.Stdout() != "out\n" || r.Yes("shell_restored") {
				t.Errorf("%v", r)
			}
			testkit.Eventually(t, "it ends", func() bool { return c.State(s) == "TERMINATED" })
			if info := c.Info(s); info.Str("reason") != "shell_exited" {
				t.Errorf("%v", info)
			}
			if f := c.Try("exec.run", object{"session_id": s, "command": "true"}); f.Code() != "SESSION_TERMINATED" || f.Error.Details.Str("reason") != "shell_exited" {
				t.Errorf("%+v", f)
			}
			e := watcher.Await("TERMINATED", func(f *rig.Frame) bool { return f.Event == "session.state" && f.Data.Str("to") == "TERMINATED" })
			if e.Data.Str("reason") != "shell_exited" {
				t.Errorf("%v", e.Data)
			}
			watcher.Call("system.ping", nil)
			watcher.Mu.Lock()
			defer watcher.Mu.Unlock()
			for _, f := range watcher.Came {
				if f.Data.Str("to") == "TERMINATED" {
					t.Error("TERMINATED came twice")
				}
			}
		})
	})
}

// D7: After a timeout or a cancel the next command's output is its own.
func TestOutputAfterAnAbortIsTheNextCommandsOwn(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, command := range []string{
			"NAP", "NAP | cat", "NAP & wait", "while :; do echo flood; done", "yes", "yes >&2 & yes", "(trap '' TERM; while :; do echo stubborn; sleep 0.05; done)", "sh -c 'trap \"echo late; exit\" TERM; NAP & wait'", "f() { NAP; echo after; }; f; echo after", "trap 'echo trapped' TERM; NAP; trap - TERM",
		} {
			command = strings.ReplaceAll(command, "NAP", rig.Sleeper())
			for range rig.Pick(1, 10) {
				r := c.Run(s, command, object{"timeout_s": 0.1, "kill_grace_s": 0.2, "max_output_bytes": 1000})
				if !r.Yes("timed_out") {
					t.Errorf("%s: %v", command, r)
				}
				rig.Expect(t, c.Run(s, "echo mine; echo mine >&2; sleep 0.02"), 0, "mine\n", "mine\n")

				stream := c.Stream(s, command, object{"kill_grace_s": 0.2})
				time.Sleep(20 * time.Millisecond)
				cancel := c.Begin("exec.cancel", object{"exec_id": stream.Str("exec_id"), "kill_grace_s": 0.2})
				next := c.Begin("exec.run", object{"session_id": s, "command": "echo next; echo next >&2"})
				c.Answer(cancel)
				rig.Expect(t, c.Answer(next).Data, 0, "next\n", "next\n")
				for { // a flood in the stream is nobody's here
					if f := c.Await("exit", func(f *rig.Frame) bool { return f.Data.Str("stream_id") == stream.Str("stream_id") }); f.Event == "exec.exit" {
						if !f.Data.Yes("cancelled") {
							t.Errorf("%s: %v", command, f.Data)
						}
						break
					}
				}
			}
		}
	})
}

// D9: What one command sets, the next has.
func TestStateLastsFromCommandToCommand(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "cd /tmp; export A=1; f(){ echo f; }; alias ll='echo aliased'; B=2; umask 077; set -f; trap 'echo usr' USR1"), 0, "", "")
		rig.Expect(t, g.Dial(t).Run(s, "pwd; echo $A; f"), 0, "/tmp\n1\nf\n", "") // from another connection
		rig.Expect(t, c.Run(s, "ll; echo $B; umask; echo *; sh -c 'echo $A$B'; kill -USR1 $$"), 0, "aliased\n2\n0077\n*\n1\nusr\n", "")
		// As a stream, by turns with run: one mechanism.
		data, _ := c.Output(c.Stream(s, "A=3; cd /usr; f; pwd").Str("stream_id"), 0)
		if data != "f\n/usr\n" {
			t.Errorf("stream: %q", data)
		}
		r := c.Run(s, "sh -c 'echo $A'; unset B; unalias ll; set +f; set -- x 'y z'; false")
		rig.Expect(t, r, 1, "3\n", "")
		if r.Str("working_dir") != "/usr" {
			t.Errorf("working_dir %v", r["working_dir"])
		}
		rig.Expect(t, c.Run(s, "echo $? $# \"$2\" ${B-unset}; cd ..; pwd; cd -"), 0, "1 2 y z unset\n/\n/usr\n", "")
		// Descriptors and jobs, too, and what was for one command only is gone.
		rig.Expect(t, c.Run(s, "exec 7>"+g.Home+"/d9; "+rig.Sleeper()+" & job=$!"), 0, "", "")
		rig.Expect(t, c.Run(s, "echo seven >&7; exec 7>&-; cat "+g.Home+"/d9; kill $job && echo killed; wait $job 2>/dev/null; echo $?"), 0, "seven\nkilled\n143\n", "")
		rig.Expect(t, c.Run(s, "pwd; echo $T $A", object{"env": object{"T": "t", "A": nil}, "working_dir": "/etc"}), 0, "/etc\nt\n", "")
		rig.Expect(t, c.Run(s, "pwd; echo ${T-none} $A"), 0, "/usr\nnone 3\n", "")
	})
}

// D10: The directory is gone: an error where there is one, and nowhere else.
func TestRemovedDirectoryIsAnErrorOnlyWhereItMatters(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "v=1; mkdir -p d/e; cd d/e; rmdir ../e"), 0, "", "")
		rig.Expect(t, c.Run(s, "echo ok $v"), 0, "ok 1\n", "")
		if r := c.Run(s, "ls nothing_here"); r.Num("exit_code") == 0 {
			t.Errorf("%v", r)
		}
		data, exit := c.Output(c.Stream(s, "echo streamed").Str("stream_id"), 0)
		if data != "streamed\n" || exit.Num("exit_code") != 0 {
			t.Errorf("stream: %q %v", data, exit)
		}
		rig.Expect(t, c.Run(s, "pwd", object{"working_dir": "/usr"}), 0, "/usr\n", "")
		if state := c.State(s); state != "IDLE" {
			t.Errorf("state %s", state)
		}
		if f := c.Try("exec.run", object{"session_id": s, "command": "pwd", "working_dir": g.Home + "/d/e"}); f.Code() != "WORKING_DIR_NOT_FOUND" {
			t.Errorf("%+v", f)
		}
		r := c.Run(s, "exit 3") // and the shell has to be put back
		if r.Num("exit_code") != 3 || !r.Yes("shell_restored") {
			t.Errorf("%v", r)
		}
		rig.Expect(t, c.Run(s, "echo ok $v; cd /; pwd"), 0, "ok 1\n/\n", "")
	})
}

// D12: One at a time, in order; or a refusal that names what runs.
func TestCommandsRunOneAtATimeInOrder(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		gate := filepath.Join(g.Home, rig.Unique("d12"))
		wait := "until [ -e " + gate + " ]; do sleep 0.02; done; "
		begin := func(command string, more ...object) int {
			return c.Begin("exec.run", rig.With(object{"session_id": s, "command": command}, rig.With(more...)))
		}
		first := begin(wait + "n=0; log=first")
		testkit.Eventually(t, "it runs", func() bool { return c.Info(s).Has("current_exec") })
		running := c.Info(s).Obj("current_exec").Str("id")
		var queued []int
		for i := range 40 {
			queued = append(queued, begin(fmt.Sprintf("echo begin; n=$((n+1)); log=\"$log %d\"; sleep 0.001; echo $n end", i)))
		}
		testkit.Eventually(t, "40 wait", func() bool { return c.Info(s).Num("queue_length") == 40 }) // two connections have no common order
		other := g.Dial(t)
		for _, params := range []object{{"when_busy": "reject"}} {
			f := other.Try("exec.run", rig.With(object{"session_id": s, "command": "echo no"}, params))
			if f.Code() != "SESSION_BUSY" || f.Error.Details.Str("exec_id") != running {
				t.Errorf("%v: %+v, running %s", params, f.Error, running)
			}
		}
		for range 24 {
			other.Begin("exec.stream", object{"session_id": s, "command": "log=\"$log .\""})
		}
		testkit.Eventually(t, "64 wait", func() bool { return c.Info(s).Num("queue_length") == 64 })
		f := g.Dial(t).Try("exec.run", object{"session_id": s, "command": "echo no"})
		if f.Code() != "SESSION_BUSY" || f.Error.Details.Str("exec_id") != running {
			t.Errorf("the 65th: %+v", f.Error)
		}
		if state := c.State(s); state != "RUNNING" {
			t.Errorf("state %s", state)
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		rig.Expect(t, c.Answer(first).Data, 0, "", "")
		for i, id := range queued {
			r := c.Answer(id).Data
			rig.Expect(t, r, 0, fmt.Sprintf("begin\n%d end\n", i+1), "")
			if r.Num("queued_ms") <= 0 {
				t.Errorf("queued_ms %v", r["queued_ms"])
			}
		}
		want := "first"
		for i := range queued {
			want += fmt.Sprint(" ", i)
		}
		rig.Expect(t, c.Run(s, "echo $log"), 0, want+strings.Repeat(" .", 24)+"\n", "")
	})
}

// D13: A reset gives the same session a fresh shell, however stuck the old one is.
func TestResetReplacesAStuckShell(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		for _, stuck := range []string{"NAP", "trap '' TERM INT HUP; (trap '' TERM; NAP); while :; do NAP; done", "read x </dev/zero", "while :; do :; done", "setsid NAP & (setsid NAP &) ; kill -STOP $$"} {
			t.Run(stuck, func(t *testing.T) {
				t.Parallel()
				c := g.Dial(t)
				s := c.Session(object{"shell": sh, "working_dir": "/usr", "env": object{"MADE": "with"}})
				nap := rig.Sleeper()
				c.Run(s, "cd /; v=1; export MADE=changed; "+nap+" & true")
				id := c.Begin("exec.run", object{"session_id": s, "command": strings.ReplaceAll(stuck, "NAP", nap)})
				waiting := c.Begin("exec.run", object{"session_id": s, "command": "echo waiting"})
				testkit.Eventually(t, "it runs", func() bool { return c.Info(s).Has("current_exec") })
				time.Sleep(100 * time.Millisecond)
				old, start := c.Info(s).Num("pid"), time.Now()
				r := c.Call("session.reset", object{"session_id": s})
				rig.Within(t, "reset", start, 6*time.Second)
				if r.Str("session_id") != s || r.Num("pid") == old || c.State(s) != "IDLE" {
					t.Errorf("%v, state %s", r, c.State(s))
				}
				if left := rig.Running(nap); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				if f := c.Answer(id); f.OK && !f.Data.Yes("cancelled") && f.Data.Num("exit_code") == 0 {
					t.Errorf("what was running: %+v", f)
				}
				c.Answer(waiting) // whatever became of it, it is told
				rig.Expect(t, c.Run(s, "pwd; echo ${v-none} $MADE"), 0, "/usr\nnone with\n", "")
			})
		}
	})
}

// D14: Housekeeping is never seen: not by traces, traps or $?, not as a command, not as a process.
func TestHousekeepingIsNeverSeen(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c, watcher := g.Dial(t), g.Dial(t)
		s := c.Session(object{"shell": sh})
		watcher.Call("session.watch", object{"session_id": s})
		settle := func() { time.Sleep(80 * time.Millisecond) } // the snapshot comes 50 ms after a result; let it
		var ran []string
		run := func(command string) object {
			t.Helper()
			ran = append(ran, command)
			r := c.Run(s, command)
			settle()
			return r
		}
		run("set -x")
		for _, command := range []string{"echo a", "echo b", "set +x"} {
			if r := run(command); strings.TrimLeft(r.Stderr(), "+") != " "+command+"\n" { // bash repeats the + for each level of dot
				t.Errorf("trace of %s: %q", command, r.Stderr())
			}
		}
		rig.Expect(t, run("set -v"), 0, "", "")
		rig.Expect(t, run("echo b"), 0, "b\n", run("echo b").Stderr())
		if r := run("set +v"); strings.Contains(r.Stderr(), "__trl") {
			t.Errorf("set -v: %q", r.Stderr())
		}
		rig.Expect(t, run("(exit 42)"), 42, "", "")
		rig.Expect(t, run("echo $?"), 0, "42\n", "")
		rig.Expect(t, run(": some word"), 0, "", "")
		rig.Expect(t, run(rig.Sleeper()+" & job=$!"), 0, "", "")
		rig.Expect(t, run("[ $! = $job ] && kill $! && echo same"), 0, "same\n", "")
		if sh == "/bin/bash" {
			rig.Expect(t, run(`trap 'echo "D:$BASH_COMMAND"' DEBUG; true; true`), 0, "D:true\nD:true\n", "")
			if r := run("true; trap - DEBUG"); strings.Contains(r.Stdout()+r.Stderr(), "trl") {
				t.Errorf("DEBUG trap: %q %q", r.Stdout(), r.Stderr())
			}
			rig.Expect(t, run(`PROMPT_COMMAND='echo prompt'; PS0=ps0; PS1=ps1; trap 'echo err' ERR`), 0, "", "")
			rig.Expect(t, run("true"), 0, "", "")
			rig.Expect(t, run("history; if fc -l 2>/dev/null | grep trl; then :; fi"), 0, "", "")
			rig.Expect(t, run("trap - ERR; unset PROMPT_COMMAND PS0 PS1; echo $SHLVL $BASH_SUBSHELL ${FUNCNAME-none}"), 0, run("echo $SHLVL").Stdout()[:1]+" 0 none\n", "")
		}
		if r := run("env; set | grep -i '^trl\\|^__trl' | grep -v '^TRL_SESSION_ID=' | cut -d= -f1"); strings.Contains(r.Stdout(), "__trl_n\n__trl_n") || strings.Contains(strings.ReplaceAll(c.Run(s, "env").Stdout(), "TRL_SESSION_ID", ""), "TRL_") {
			t.Errorf("environment: %s", r.Stdout())
		}
		ran = append(ran, "env")
		// Nothing was run that is not ours.
		if n := c.Info(s).Num("commands_run"); n != len(ran) {
			t.Errorf("commands_run %d, want %d", n, len(ran))
		}
		var seen int
		watcher.Call("system.ping", nil)
		testkit.Eventually(t, "all starts are seen", func() bool {
			watcher.Mu.Lock()
			defer watcher.Mu.Unlock()
			seen = 0
			for _, f := range watcher.Came {
				if f.Event == "exec.started" {
					seen++
					if !slices.Contains(ran, f.Data.Str("command")) {
						t.Fatalf("not ours: %v", f.Data)
					}
				}
			}
			return seen >= len(ran)
		})
		if seen != len(ran) {
			t.Errorf("%d commands were seen, %d run", seen, len(ran))
		}
		pid := c.Info(s).Num("pid")
		testkit.Eventually(t, "an idle shell has no children", func() bool {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
			return err != nil || strings.TrimSpace(string(b)) == ""
		})
	})
}

// D15: A retry with the same key gets the first one's result, and nothing happens twice.
func TestRetryWithAKeyRunsNothingTwice(t *testing.T) {
	g := rig.Shared(t, "d")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		keys := rig.Unique("d15")
		key := func(k string) object { return object{"request_key": keys + k} }
		const command = "n=$((n+1)); echo $n; sleep 0.2; (exit 5)"
		lost := g.Dial(t) // its connection breaks before the answer
		lost.Begin("exec.run", rig.With(object{"session_id": s, "command": command}, key("lost")))
		testkit.Eventually(t, "it runs, or has run", func() bool { i := c.Info(s); return i.Has("current_exec") || i.Has("last_exec") })
		lost.Close()
		r := c.Run(s, command, key("lost")) // joins it
		rig.Expect(t, r, 5, "1\n", "")
		again := c.Run(s, command, key("lost")) // gets the stored one
		rig.Expect(t, again, 5, "1\n", "")
		if again.Str("exec_id") != r.Str("exec_id") {
			t.Errorf("%v, then %v", r["exec_id"], again["exec_id"])
		}
		rig.Expect(t, c.Run(s, "echo $n"), 0, "1\n", "")
		rig.Expect(t, c.Run(s, command, key("another")), 5, "2\n", "")
		rig.Expect(t, c.Run(s, command), 5, "3\n", "")
		if f := c.Try("exec.run", rig.With(object{"session_id": s, "command": "other"}, key("lost"))); f.Code() != "INVALID_PARAMS" {
			t.Errorf("other params: %+v", f)
		}
		// Many at once are one; for what begins a session or a process, too.
		var sessions, ids atomic.Value
		rig.Together(20, func(i int) {
			conn := g.Dial(t)
			if r := conn.Run(s, "m=$((m+1)); echo $m", key("many")); r.Stdout() != "1\n" {
				t.Errorf("%v", r)
			}
			id := conn.Session(object{"shell": sh}, key("create"))
			if !sessions.CompareAndSwap(nil, id) && sessions.Load() != id {
				t.Errorf("sessions %v and %v", sessions.Load(), id)
			}
			p := conn.Call("process.start", rig.With(object{"session_id": s, "command": "echo started >>d15"}, key("start"))).Str("process_id")
			if !ids.CompareAndSwap(nil, p) && ids.Load() != p {
				t.Errorf("processes %v and %v", ids.Load(), p)
			}
		})
		c.Call("process.wait", object{"process_id": ids.Load(), "until": object{"exit": true}})
		rig.Expect(t, c.Run(s, "cat d15; rm d15; echo $m"), 0, "started\n1\n", "")
		// The stream's stored result is its output, once more.
		first := c.Stream(s, "k=$((k+1)); echo $k", key("stream"))
		data, _ := c.Output(first.Str("stream_id"), 0)
		second := g.Dial(t)
		st := second.Stream(s, "k=$((k+1)); echo $k", key("stream"))
		replay, _ := second.Output(st.Str("stream_id"), 0)
		if data != "1\n" || replay != data || st.Str("exec_id") != first.Str("exec_id") {
			t.Errorf("%q, then %q", data, replay)
		}
	})
}
