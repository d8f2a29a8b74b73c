package shell

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/host"
	"trl/runtime/journal"
	"trl/runtime/procfs"
	"trl/runtime/saved"
	"trl/runtime/stream"
)

// shells are the shells that this machine has. CI installs all four.
func shells(t testing.TB) map[string]string {
	t.Helper()
	found := map[string]string{}
	for name, path := range map[string]string{"sh": "/bin/sh", "bash": "/bin/bash", "zsh": "/bin/zsh", "ash": ""} {
		if name == "ash" {
			bb, err := exec.LookPath("busybox")
			if err != nil {
				continue
			}
			path = t.TempDir() + "/ash"
			if err := os.Symlink(bb, path); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(path); err == nil {
			found[name] = path
		}
	}
	if found["sh"] == "" || found["bash"] == "" {
		t.Fatal("no sh or no bash on this machine")
	}
	return found
}

// eachShell runs f for each shell, and for sh and bash again in each lower tier.
func eachShell(t *testing.T, f func(t *testing.T, s *session)) {
	h := testHost(t, "auto")
	paths := shells(t)
	for name, path := range paths {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // these tests mostly wait
			f(t, openSession(t, h, path))
		})
	}
	if now, _ := h.Isolation(); now != "none" {
		h := testHost(t, "none")
		for _, name := range []string{"sh", "bash"} {
			t.Run(name+"/none", func(t *testing.T) {
				t.Parallel()
				f(t, openSession(t, h, paths[name]))
			})
		}
	}
}

// session is a Shell with helper methods for tests.
type session struct {
	*Shell
	t testing.TB
}

// StartProcess prepares a process and starts it.
func (s *session) StartProcess(spec ProcessSpec) (*Process, error) {
	p, err := s.PrepareProcess(spec)
	if err == nil {
		p.Start()
	}
	return p, err
}

// onBegun is an EntryWriter that calls a function when a command begins.
type onBegun func(*Command)

func (onBegun) Shell(saved.Shell)                   {}
func (f onBegun) Begun(c *Command, _ saved.Command) { f(c) }
func (onBegun) Compact()                            {}

var sessionCount atomic.Int64

func openSession(t testing.TB, h *host.Host, path string) *session {
	t.Helper()
	id := fmt.Sprintf("s-test%d", sessionCount.Add(1))
	s, err := openShell(h, ShellConfig{ID: id, Path: path, Dir: "/", Restore: true,
		// A directory of PATH that this user may not search changes the messages of dash and ash.
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/", "LANG=C.UTF-8", "TERM=dumb", "TRL_SESSION_ID=" + id}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := s.Close(0)
		s.Forget()
		if err != nil {
			t.Error(err)
		}
	})
	return &session{s, t}
}

// result is an Outcome with its output.
type result struct {
	Outcome
	out, err string
}

// start runs a command on a goroutine of its own.
func (s *session) start(c *Command) <-chan result {
	var mu sync.Mutex // jobs that the command left may write after its end
	var out, errs bytes.Buffer
	if c.Journal == nil {
		c.Journal = journal.New(1 << 20)
	}
	c.Journal.Tap(func(k journal.Stream, p []byte) {
		mu.Lock()
		defer mu.Unlock()
		if k == journal.Stdout {
			out.Write(p)
		} else {
			errs.Write(p)
		}
	})
	done := make(chan result, 1)
	go func() {
		o := s.Run(c)
		mu.Lock()
		defer mu.Unlock()
		done <- result{o, out.String(), errs.String()}
	}()
	return done
}

func (s *session) wait(done <-chan result) result {
	s.t.Helper()
	select {
	case r := <-done:
		return r
	case <-time.After(generous):
		s.t.Fatalf("command did not end")
		panic("unreachable")
	}
}

func (s *session) run(text string) result {
	s.t.Helper()
	return s.wait(s.start(NewCommand(text)))
}

// want runs a command and compares its output.
func (s *session) want(text, out string) {
	s.t.Helper()
	if r := s.run(text); r.out != out || r.Err != nil {
		s.t.Fatalf("%q printed %q, want %q; stderr %q; %v", text, r.out, out, r.err, r.Outcome)
	}
}

// awaitState returns when the shell has written a snapshot of its present state.
func (s *session) awaitState() {
	s.t.Helper()
	testkit.Eventually(s.t, "the shell has said what its state is", func() bool { s.SnapshotIfDue(); return !s.state.Wanted() && !s.state.Pending() })
}

func (s *session) code(text string, code int) result {
	s.t.Helper()
	r := s.run(text)
	if r.Code != code || r.Err != nil {
		s.t.Fatalf("%q: want code %d; out %q stderr %q; %v", text, code, r.out, r.err, r.Outcome)
	}
	return r
}

func TestStatePersists(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.want("echo first", "first\n")
		for _, c := range []string{"cd /usr", "export K=v1; L=loc", "f() { echo in-f $1; }", "alias zz='echo al'", "umask 027", "set -o noglob"} {
			s.code(c, 0)
		}
		s.want("pwd; echo $K $L; f x; zz; umask; sh -c 'echo $K-$L'; echo *", "/usr\nv1 loc\nin-f x\nal\n"+map[bool]string{true: "027", false: "0027"}[s.Name() == "zsh"]+"\nv1-\n*\n")
		s.code("(exit 3)", 3)
		s.want("echo $?", "3\n")
		if s.Dir() != "/usr" {
			t.Fatalf("dir %q", s.Dir())
		}
	})
}

func TestStreamsAreApart(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		r := s.code("echo out; echo err >&2; printf tail; (exit 42)", 42)
		if r.out != "out\ntail" || r.err != "err\n" {
			t.Fatalf("%q %q", r.out, r.err)
		}
		r = s.run("set -x; echo a; set +x")
		if r.out != "a\n" || strings.Contains(r.err, "__trl") || !strings.Contains(r.err, "echo a") {
			t.Fatalf("%q %q", r.out, r.err)
		}
		s.run("set -x")
		if r = s.run("echo b"); r.out != "b\n" || strings.Contains(r.err, "__trl") || strings.Contains(r.err, "/proc/") {
			t.Fatalf("traces of ours: %q %q", r.out, r.err)
		}
	})
}

// oddTexts are commands that could confuse a shell.
var oddTexts = []string{"echo 'abc", "cat <<EOF\nhello", "}", ")", "if true; then echo x", "fi", "echo $(", "for", "case x in",
	"", "\n", "#", "\\", "'", `"`, "`", "return 7", "break", "continue 9", "exec </nonexistent", "cd /nonexistent", "set -u; echo $nope_; set +u",
	"${", "${x?message}", "echo ${x:?}", ". /nonexistent", "command . /nonexistent", "echo $((1/0))", "echo $((", "<", ">", "|", "&", "&&", ";;",
	"readonly R_=1; R_=2", "unset IFS; IFS=/; echo 1/2", "IFS=0123456789", "PATH=", "exec 3>&- 4>&- 5>&- 9>&-", "exec </dev/null >/dev/null 2>&1", "trap 'echo hi' USR1",
	"shift 99", "getopts", "wait 999999", "kill -0 999999", "eval 'echo $('", "alias e='echo $('", "unalias -a", "local x=1", "f() { return 3; }; f", "printf '%s' \x01\x02\xff", "while", "done", "{", "function"}

func TestAnySyntax(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("X=keep", 0)
		for _, c := range oddTexts {
			odd := NewCommand(c)
			odd.Timeout, odd.Grace = 5*time.Second, time.Second // zsh accepts a lone `while` as a loop
			before := s.wait(s.start(odd))
			if r := s.run("echo $X"); r.out != "keep\n" || before.Died && s.Name() == "bash" {
				t.Fatalf("after %q (%v, lost %v): %q %q %v", c, before.Outcome, before.Lost, r.out, r.err, r.Outcome)
			}
		}
	})
}

// An error in a subshell ends only the subshell. The report comes after all of the command.
func TestErrorsInSubshells(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("readonly R=1", 0)
		for _, c := range []string{": ${x:?}", ": ${x?}", "R=2", ". /nonexistent", "shift 99", "set -o bad", ": $((1/0))", "eval 'echo $('", "eval 'if'", "exec /nonexistent", "unset R", "return 3", "exit 4"} {
			for _, w := range []string{"(%s)", ": $(%s)", ": | %s", "(:; (%s))", "(%s) & wait", "f() (%s); f", "command eval '(%s)'"} {
				if strings.Contains(w, "'") && (strings.Contains(c, "'") || s.Name() == "ash") || s.Name() == "zsh" && strings.HasPrefix(w, ": |") {
					continue // the text would have quotes in quotes; or ash handles `command` wrongly; or zsh runs the last command of a pipeline itself
				}
				text := fmt.Sprintf(w, c) + "; sleep 0.01; echo END"
				cmd := NewCommand(text)
				cmd.Timeout = 20 * time.Second
				if r := s.wait(s.start(cmd)); r.out != "END\n" || r.Died || len(r.Background) > 0 {
					t.Fatalf("%q: %q %q %v", text, r.out, r.err, r.Outcome)
				}
				if r := s.run("echo alive"); r.out != "alive\n" || r.err != "" || r.Code != 0 {
					t.Fatalf("after %q: %q %q %v", text, r.out, r.err, r.Outcome)
				}
			}
		}
	})
}

func TestLargeText(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		word := strings.Repeat("x", 1<<20-100)
		s.want("w='"+word+"'; echo ${#w}", fmt.Sprintln(len(word)))
		s.code("unset w", 0)
	})
}

func TestExactOutput(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for _, n := range []int{0, 1, 32767, 32768, 32769, 65536, 70000, 1 << 20} {
			r := s.run(fmt.Sprintf("head -c %d /dev/zero; head -c %d /dev/zero >&2", n, n/3))
			if len(r.out) != n || len(r.err) != n/3 {
				t.Fatalf("%d: %d %d", n, len(r.out), len(r.err))
			}
		}
	})
}

// oddStates leave the shell in a state in which our functions and variables could be hidden.
var oddStates = []string{"echo() { :; }", "printf() { :; }", "alias exec=false eval=false printf=false case=false", "set -e", "set +e; set -u", "set -n; set +n", "set -C",
	"exec() { :; }", "eval() { :; }", "trap() { :; }", "cd() { :; }", "set() { :; }", "readonly() { :; }", "command() { :; }", "alias command=false unset=false", "unalias -a",
	"readonly __trl_n=5", "__trl_r=7; readonly __trl_r", "unset -f __trl_e", "__trl_e() { :; }", "unset __trl_c __trl_p", "__trl_p=x", "set -t", "set -et", "set +e", "set -o noglob; PS4='$(echo x)'; set -x", "set +x; set +f"}

func TestHostileNames(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for _, c := range oddStates {
			s.run(c)
			if r := s.run("/bin/echo alive"); r.out != "alive\n" {
				t.Fatalf("after %q: %q %q %v", c, r.out, r.err, r.Outcome)
			}
		}
		if s.Name() == "bash" {
			for _, c := range []string{"trap 'echo dbg' DEBUG", "trap - DEBUG", "trap 'echo err' ERR; false", "set -T; trap 'echo ret' RETURN", "shopt -s failglob; echo /nope*", "shopt -s extdebug", "enable -n printf", "enable printf", "set -o posix", "set +o posix", "shopt -s lastpipe nullglob dotglob", "PROMPT_COMMAND='echo p'; PS1='x '; PS0=y", "TMOUT=1", "exec 255>&-"} {
				s.run(c)
				if r := s.run("/bin/echo alive"); r.out != "alive\n" && !strings.Contains(r.out, "alive\n") {
					t.Fatalf("after %q: %q %q %v", c, r.out, r.err, r.Outcome)
				}
			}
		}
	})
}

func TestStdin(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.want("cat; read x; echo rc=$?", "rc=1\n")
		given := bytes.Repeat([]byte("$'\"`\\\x00\xff\n"), 300_000)
		c := NewCommand("cat")
		c.Stdin = given
		if r := s.wait(s.start(c)); r.out != string(given) {
			t.Fatalf("%d bytes of %d", len(r.out), len(given))
		}
		c = NewCommand("read a; echo got-$a; sort")
		c.OpenStdin = true
		done := s.start(c)
		for _, p := range []string{"first\n", "b\na\n"} {
			if _, err := c.Input(stream.Anywhere, []byte(p), false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Input(stream.Anywhere, nil, true); err != nil {
			t.Fatal(err)
		}
		if r := s.wait(done); r.out != "got-first\na\nb\n" {
			t.Fatalf("%q %q", r.out, r.err)
		}
		if _, err := c.Input(stream.Anywhere, []byte("x"), false); err != stream.ErrStdinClosed {
			t.Fatal(err)
		}
		s.want("echo ok", "ok\n")
	})
}

// busyTexts do not end by themselves.
var busyTexts = []string{"sleep 300", "sleep 300; echo AFTER", "sleep 300 | cat", "while :; do :; done", "while :; do sleep 0.01; done", "(while :; do :; done)", "sleep 300 & wait", "echo $(sleep 300)",
	"f() { g; }; g() { while :; do sleep 300; echo AFTER; done; }; f", "eval 'eval \"sleep 300; echo AFTER\"'", "until sleep 300; do echo AFTER; done",
	"mkfifo $FIFO; read x <$FIFO; echo AFTER", "trap '' TERM; sleep 300; echo AFTER", "sh -c 'trap \"\" TERM; sleep 300'", "setsid sleep 300", "(setsid sleep 300 &) ; sleep 300", "set -e; sleep 300; echo AFTER"}

func TestAbortKeepsState(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for i, text := range busyTexts {
			if s.Name() == "zsh" && strings.HasPrefix(text, "set -e") {
				continue // SIGINT ends a zsh with errexit; TestShellThatDies shows that it is restored
			}
			if s.Name() == "bash" && strings.HasPrefix(text, "mkfifo") {
				text = "f() { " + text + "; }; f" // outside of functions, no signal ends bash's wait for the other end of a FIFO
			}
			fifo := fmt.Sprintf("%s/fifo%d", t.TempDir(), i)
			s.code("cd /usr; KEEP=yes"+fmt.Sprint(i)+"; FIFO="+fifo, 0)
			var r result
			for timeout := 200 * time.Millisecond; r.out == "" && timeout < generous/4; timeout *= 4 { // on a busy machine it may be over before the shell has begun
				c := NewCommand("KEEP2=" + fmt.Sprint(i) + "; echo part; " + text)
				c.Grace = 300 * time.Millisecond
				c.Timeout = timeout
				r = s.wait(s.start(c))
			}
			// bash handles signals between commands: an echo that has been parsed still runs, later commands do not.
			out := strings.TrimSuffix(r.out, "\n\n") + strings.Repeat("\n", strings.Count(r.out, "\n\n"))
			if r.Timeout != "hard" || out != "part\n" || r.Cancelled || r.Err != nil {
				t.Fatalf("%q: %q %q %v", text, r.out, r.err, r.Outcome)
			}
			if r.Died && !strings.HasPrefix(text, "set -e") && !selfLocked(s, r) { // with errexit the shell may exit because its child died; its EXIT trap then saves the state
				t.Errorf("%q cost the shell: %v", text, r.Outcome)
			}
			if r.Died && selfLocked(s, r) {
				continue
			}
			s.run("set +e; trap - TERM")
			s.want("pwd; echo $KEEP $KEEP2", fmt.Sprintf("/usr\nyes%d %d\n", i, i))
			if m := s.group.Members(); len(m) != 1 {
				t.Fatalf("%q left %v", text, m)
			}
		}
	})
}

// An aborted shell may report before the process that it waited for has ended. That process can still write all its output, here
// more than a pipe holds, and is not killed for it.
func TestLastWordsOfACancelledCommand(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for range 5 {
			c := NewCommand(`bash -c 'trap "" INT; trap "printf %0300000d 0; exit 0" TERM; echo go; while :; do :; done'`)
			c.Grace = time.Minute
			done := s.start(c)
			for c.Journal.Size() == 0 {
				time.Sleep(time.Millisecond)
			}
			c.Cancel(syscall.SIGTERM, time.Minute)
			if r := s.wait(done); len(r.out) != len("go\n")+300000 || r.Duration > 30*time.Second || !r.Cancelled {
				t.Fatalf("%d bytes, %v", len(r.out), r.Outcome)
			}
		}
	})
}

func TestCancelSparesEarlierJobs(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		r := s.code("sleep 301 & echo hi", 0)
		if r.out != "hi\n" || len(r.Background) != 1 {
			t.Fatalf("%q %v", r.out, r.Outcome)
		}
		job := r.Background[0]
		c := NewCommand("sleep 302 & sleep 303")
		done := s.start(c)
		for len(s.group.Members()) < 4 {
			time.Sleep(time.Millisecond)
		}
		c.Cancel(syscall.SIGTERM, time.Minute)
		if r := s.wait(done); !r.Cancelled || r.Timeout != "" || r.Signal != "TERM" || r.Code != 143 {
			t.Fatalf("%v", r.Outcome)
		}
		if b := s.Background(); len(b) != 1 || b[0] != job {
			t.Fatalf("%v, want %d", b, job)
		}
		s.want("echo ok", "ok\n")
	})
}

func TestShellThatDies(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("cd /usr; X=keep; export Y='ex p'; alias zz='echo al'; umask 027; f() { echo F; }; trap 'echo usr' USR1", 0)
		for _, c := range []struct {
			text string
			code int
			z    string
		}{{"Z=1; exit 7", 7, "1"}, {"Z=2; set -e; false; echo no", 1, "2"}, {"Z=3; kill -9 $$", 137, "2"}, {"exec sh -c 'exit 9'", 9, "2"}, {"Z=4; g() { exit 5; }; g", 5, ""}} {
			r := s.code(c.text, c.code)
			if !r.Died || !r.Restored {
				t.Fatalf("%q: %v", c.text, r.Outcome)
			}
			if s.Name() == "dash" || s.Name() == "ash" {
				if !strings.Contains(fmt.Sprint(r.Lost), "functions") {
					t.Fatalf("%q: lost %v", c.text, r.Lost)
				}
				s.run("f() { echo F; }")
			}
			um := "0027"
			if s.Name() == "zsh" {
				um = "027"
			}
			s.want("pwd; echo $X $Y; f; zz; umask; sh -c 'echo $Y'", "/usr\nkeep ex p\nF\nal\n"+um+"\nex p\n")
			if c.z != "" {
				s.want("echo $Z", c.z+"\n")
			}
			s.want("kill -USR1 $$; :", "usr\n")
			s.SnapshotIfDue()
		}
	})
}

func TestOwnDirAndEnv(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("cd /usr; export V=old; W=plain; U=u", 0)
		c := NewCommand("pwd; echo $V $W ${U-unset}; sh -c 'echo $W'; cd /etc")
		v, w := "ne'w", "b"
		c.Env, c.Dir = map[string]*string{"V": &v, "W": &w, "U": nil}, "/tmp"
		if r := s.wait(s.start(c)); r.out != "/tmp\nne'w b unset\nb\n" || r.Dir != "/usr" {
			t.Fatalf("%q %q %v", r.out, r.err, r.Outcome)
		}
		s.want("pwd; echo $V $W $U; sh -c 'echo $V-$W-$U'", "/usr\nold plain u\nold--\n")
		c = NewCommand("exit 3")
		c.Env, c.Dir = map[string]*string{"V": &v}, "/tmp"
		if r := s.wait(s.start(c)); r.Code != 3 || !r.Restored {
			t.Fatalf("%v", r.Outcome)
		}
		s.want("pwd; echo $V", "/usr\nold\n")
		c = NewCommand("pwd")
		c.Dir = "/no/such"
		if r := s.wait(s.start(c)); !os.IsNotExist(r.Err) {
			t.Fatalf("%v", r.Outcome)
		}
		s.want("echo ok", "ok\n")
	})
}

func TestLateOutputIsItsOwn(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		now := filepath.Join(t.TempDir(), "now")
		c := NewCommand("(until [ -e " + now + " ]; do sleep 0.01; done; echo late) & echo hi")
		r := s.wait(s.start(c))
		if r.out != "hi\n" {
			t.Fatalf("%q", r.out)
		}
		s.want(": >"+now+"; sleep 0.3; echo two", "two\n") // the input comes during the sleep or later
		rd, err := c.Journal.Attach(3, journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer rd.Close()
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if ch, err := rd.Next(ctx); err != nil || string(ch.Data) != "late\n" {
			t.Fatalf("%q %v", ch.Data, err)
		}
		if _, err := rd.Next(ctx); err != io.EOF {
			t.Fatal(err)
		}
	})
}

// A log that takes no more output is logged once, and no output is lost.
func TestBrokenOutputLogIsTold(t *testing.T) {
	h := testHost(t, "auto")
	var said strings.Builder
	h.Log = zerolog.New(zerolog.SyncWriter(&said))
	s := openSession(t, h, "/bin/bash")
	s.want("echo whole", "whole\n")
	for _, fd := range s.pipes.Log().Fds() {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_GROW); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s.want("seq 3", "1\n2\n3\n")
	}
	if n := strings.Count(said.String(), "takes no more output"); n != 1 {
		t.Errorf("told %d times: %s", n, said.String())
	}
}

func TestNoOutputTimeout(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		const out = "1\n2\n3\n"
		var r result
		for silence := 1500 * time.Millisecond; r.out != out && silence < generous/4; silence *= 3 { // a busy machine may be silent for longer
			c := NewCommand("for i in 1 2 3; do echo $i; sleep 0.1; done; sleep 300")
			c.NoOutput = silence
			r = s.wait(s.start(c))
		}
		if r.Timeout != "no_output" || r.out != out {
			t.Fatalf("%q %v", r.out, r.Outcome)
		}
	})
}

func TestBackgroundProcess(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.code("cd /usr; V=shellvar; f() { echo from-f; }", 0)
		j := journal.New(1 << 20)
		p, err := s.StartProcess(ProcessSpec{Text: "pwd; echo $V; f; read x; echo got $x; exit 5", Journal: j, OpenStdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Input(stream.Anywhere, []byte("line\n"), true); err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Exited():
		case <-time.After(generous):
			t.Fatal("process did not end")
		}
		rd, _ := j.Attach(0, journal.Options{})
		defer rd.Close()
		ch, err := rd.Next(context.Background())
		if string(ch.Data) != "/usr\nshellvar\nfrom-f\ngot line\n" || err != nil || p.Status().Code != 5 {
			t.Fatalf("%q %v %v", ch.Data, err, p.Status())
		}
		p, err = s.StartProcess(ProcessSpec{Text: "trap '' TERM; setsid sleep 300 & sleep 300 & wait; sleep 300", Journal: journal.New(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		s.want("echo ok", "ok\n")
		ctx, cancel := context.WithTimeout(context.Background(), generous)
		defer cancel()
		if err := p.Kill(ctx, 100*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		if m := s.group.Members(); len(m) != 1 || p.Status().Signal == 0 {
			t.Fatalf("left %v; %v", m, p.Status())
		}
		s.want("echo $V", "shellvar\n")
	})
}

// TestRunsWhenWrittenDown: a process or a terminal does not run before Start, so its entry is written first.
func TestRunsWhenWrittenDown(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		flag := filepath.Join(t.TempDir(), "ran")
		ran := func() bool { _, err := os.Stat(flag); return err == nil }
		waits := func(pid int) {
			testkit.Eventually(t, "it waits, or has run", func() bool {
				text, _ := os.ReadFile(procfs.Path(pid, "/syscall"))
				call, _, asleep := strings.Cut(string(text), " ")                                                                      // otherwise the text is "running"
				return ran() || asleep && (call == strconv.Itoa(unix.SYS_READ) || call == "7" || call == strconv.Itoa(unix.SYS_PPOLL)) // ash polls
			})
			if ran() {
				t.Error("it ran before it was told of")
			}
		}
		runs := func(what string, exited <-chan struct{}) {
			select {
			case <-exited:
			case <-time.After(generous):
				t.Fatal(what, "did not end")
			}
			if !ran() {
				t.Error(what, "never ran")
			}
			_ = os.Remove(flag)
		}
		process := func(what string) {
			p, err := s.PrepareProcess(ProcessSpec{Text: ": >" + flag, Journal: journal.New(1 << 20)})
			if err != nil {
				t.Fatal(what, err)
			}
			waits(p.Pid())
			p.Start()
			runs(what, p.Exited())
			p.Release()
		}
		process("process")
		s.code("f() { :; }", 0)
		process("process, with a function")
		term, err := s.PrepareTerminal(TerminalSpec{Text: ": >" + flag, Cols: 80, Rows: 24, Journal: journal.New(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		waits(term.Pid())
		term.Start()
		runs("terminal", term.Exited())
		term.Release()
	})
}

func TestNoDescriptorsLeak(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		s.want("ls /proc/self/fd | tr '\\n' ' '", "0 1 2 3 ")
		s.want("sh -c 'read pid rest </proc/self/stat; ls /proc/$pid/fd' | tr '\\n' ' '", "0 1 2 ")
	})
}

// skipDeadlocks skips the test for ash. busybox leaves its SIGINT handler by longjmp. If it was in the C library with a lock held, it
// then waits for its own lock, until a timeout or a cancel replaces it.
func skipDeadlocks(t *testing.T, s *session) {
	if s.Name() == "ash" {
		t.Skip("busybox may lock itself up when it gets SIGINT")
	}
}

// TestSignalAtTheEnds: a signal may come before a command has begun, while the shell still reads its lines, or just after its end.
// Neither the shell nor the next command is lost.
func TestSignalAtTheEnds(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		skipDeadlocks(t, s)
		for range 20 {
			fresh := openSession(t, s.b.Keeper.(host.LocalKeeper).Host, s.cfg.Path)
			pid, c := fresh.Pid(), NewCommand("echo said")
			done := fresh.start(c)
			for i := range 20 {
				c.Signal(syscall.SIGINT)
				time.Sleep(time.Duration(i) * 20 * time.Microsecond)
			}
			fresh.wait(done)
			if fresh.want("echo ok", "ok\n"); fresh.Pid() != pid {
				t.Fatal("it is another shell")
			}
		}
	})
}

// TestInterruptAtOnce: INT has its effect also if the shell has not read the command yet.
func TestInterruptAtOnce(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		skipDeadlocks(t, s)
		pid := s.Pid()
		for i := range 20 {
			c := NewCommand("while :; do :; done")
			if i%2 == 1 {
				s.SetEntryWriter(onBegun(func(begun *Command) {
					if begun == c {
						c.Signal(syscall.SIGINT)
					}
				}))
			} else {
				c.Signal(syscall.SIGINT)
			}
			s.wait(s.start(c))
			if s.want("echo ok", "ok\n"); s.Pid() != pid {
				t.Fatal("it is another shell")
			}
		}
	})
}

// TestLateLine: the channel has no room for the command's line for about 100 ms, until the first check for a wedged shell. This
// shell has not reported because it has not got the line, so it must not count as wedged.
func TestLateLine(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for late := 90 * time.Millisecond; late < 102*time.Millisecond; late += 1500 * time.Microsecond {
			c := NewCommand("sleep 0.02; kill -9 $$")
			pid, script := s.proc().child.Pid(), s.proc().script
			s.SetEntryWriter(onBegun(func(*Command) {
				began := time.Now()
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				testkit.Eventually(t, "it has stopped", func() bool { p, _ := procfs.Read(pid); return p.State == 'T' })
				for {
					if _, err := unix.Write(script, []byte(":\n")); err != nil {
						break
					}
				}
				time.AfterFunc(late-time.Since(began), func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
			}))
			if r := s.wait(s.start(c)); r.Code != 137 {
				t.Fatalf("late by %v: %v", late, r.Outcome)
			}
		}
	})
}

// TestShortChannel: the kernel gives an ordinary user with a thousand pipes only short ones (fs.pipe-user-pages-soft). They lose no
// line and mix up none.
func TestShortChannel(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		short := func() {
			testkit.Eventually(t, "it has read all", func() bool { return s.proc().unread() == 0 })
			if _, err := unix.FcntlInt(uintptr(s.proc().script), unix.F_SETPIPE_SZ, os.Getpagesize()); err != nil {
				t.Fatal(err)
			}
		}
		short()
		for i := range 60 {
			v := strconv.Itoa(i)
			if err := s.Setup("", map[string]*string{"SET": &v}); err != nil {
				t.Fatal(err)
			}
			if r := s.code("kept="+v+"; echo $SET; (exit 3)", 3); r.out != v+"\n" {
				t.Fatalf("%d: %q", i, r.out)
			}
			s.snapshot(s.proc())
			if r := s.code("echo $kept", 0); r.out != v+"\n" {
				t.Fatalf("%d: kept %q", i, r.out)
			}
			if i%20 == 10 {
				s.code("kill -9 $$", 137)
				short()
			}
		}
	})
}

// A shell that rests holds less, and the next command finds everything as it was.
func TestRest(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		c := NewCommand("x=1; f() { echo $x; }; echo first")
		c.Journal = journal.New(1 << 20)
		s.wait(s.start(c))
		s.Rest()
		if s.pipes != nil {
			t.Error("it still has the pipes of the last command")
		}
		s.want("f", "1\n")
		s.Rest()
		s.Rest()
		slow := NewCommand("while :; do sleep 0.05; done")
		done := s.start(slow)
		testkit.Eventually(t, "it runs", func() bool { return len(s.currentGroup().Members()) > 1 })
		s.Rest() // something else has the shell
		slow.Cancel(syscall.SIGTERM, generous/4)
		if r := s.wait(done); r.Code == 0 || r.Died {
			t.Errorf("%v", r.Outcome)
		}
		s.Rest()
		p, err := s.StartProcess(ProcessSpec{Text: "f; echo $x", Journal: journal.New(1 << 20)})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Exited()
		s.want("f; exit 3", "1\n") // the shell is replaced
		s.Rest()
		s.want("echo $x", "1\n")
	})
}

// Only so many idle shells stay ready; the others are told to rest.
func TestManyReadyShells(t *testing.T) {
	h := testHost(t, "auto")
	b := &Base{Keeper: host.Local(h), Metrics: h.Metrics, Log: h.Log, MostReady: 2}
	const shells = 5
	var all []*session
	var told [shells]bool
	for i := range shells {
		s, err := b.OpenShell(context.Background(), ShellConfig{ID: fmt.Sprintf("ready%d-%d", os.Getpid(), i), Path: "/bin/sh", Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(0); err != nil {
				t.Error(err)
			}
			s.Forget()
		}()
		s.OnWake(func() { told[i] = true })
		all = append(all, &session{s, t})
	}
	for i, s := range all {
		s.want(fmt.Sprintf("x=%d", i), "")
	}
	for i, s := range all {
		if rests := i < shells-b.MostReady; told[i] != rests {
			t.Errorf("shell %d was told to rest: %v", i, told[i])
		}
		s.state.Skip() // no snapshot is due
		if again := s.Idle(0); told[i] != (again == 0 && s.pipes == nil) {
			t.Errorf("shell %d: %v, %v", i, again, s.pipes)
		}
	}
	all[0].want("echo $x", "0\n")
	if !told[3] || told[4] {
		t.Error("not the one that was idle for longest")
	}
	for i, s := range all {
		s.want("echo $x", fmt.Sprintln(i))
		if err := s.Close(0); err != nil {
			t.Error(err)
		}
	}
	if n := b.ready.all.Len(); n != 0 {
		t.Errorf("%d closed shells are in the list", n)
	}
}

// A Wake is not lost, whoever waits.
func TestWakes(t *testing.T) {
	p, err := stream.NewPoller()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for range 2000 {
		go p.Wake()
		for end := time.Now().Add(generous); !p.Woken(); {
			p.Wait(nil, -1)
			if time.Now().After(end) {
				t.Fatal("lost")
			}
		}
	}
	start := time.Now()
	for p.Wait(nil, 50*time.Millisecond); time.Since(start) < 50*time.Millisecond; { // a wake of the past does not end it again and again
		p.Wait(nil, time.Until(start.Add(50*time.Millisecond)))
	}
	p.Rest()
	p.Wake()
	if p.Wait(nil, -1); !p.Woken() {
		t.Error("a Wake of a Poller that rests is lost")
	}
}
