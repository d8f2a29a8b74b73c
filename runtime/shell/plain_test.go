package shell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
)

// ours matches what no message of a shell may show: trl's paths and the names of its functions.
var ours = regexp.MustCompile(`/proc/|/dev/shm|/run/|__trl|trl-`)

// A plainCase is a command with its expected stdout and stderr, joined, for each shell. "" means that the shell is not tested.
type plainCase struct {
	text                 string
	bash, dash, ash, zsh string
	code                 [4]int
}

// A shell's messages are the same as at its prompt or with -c. dash and ash also name the eval.
var plainCases = []plainCase{
	{"nosuch", "bash: nosuch: command not found", "sh: 1: eval: nosuch: not found", "ash: eval: nosuch: not found", "zsh: command not found: nosuch", [4]int{127, 127, 127, 127}},
	{"\n\nnosuch", "bash: nosuch: command not found", "sh: 3: eval: nosuch: not found", "*nosuch: not found", "zsh: command not found: nosuch", [4]int{127, 127, 127, 127}},
	{"echo $0", "bash", "sh", "ash", "zsh", [4]int{}},
	{"echo 'abc", "bash: eval: line 1: unexpected EOF while looking for matching `''", "sh: 1: eval: Syntax error: Unterminated quoted string", "*syntax error: unterminated quoted string", "zsh: unmatched '", [4]int{2, 2, 2, 1}},
	{"\nif", "bash: eval: line 3: syntax error: unexpected end of file", "*Syntax error: end of file unexpected (expecting \"then\")", "*syntax error: unexpected end of file (expecting \"then\")", "zsh: parse error near `if'", [4]int{2, 2, 2, 1}},
	{"echo *nomatch*", "*nomatch*", "*nomatch*", "*nomatch*", "zsh: no matches found: *nomatch*", [4]int{0, 0, 0, 1}},
	{"echo $((1/0))", "bash: 1/0: division by 0 (error token is \"0\")", "*division by zero*", "*divide by zero", "zsh: division by zero", [4]int{1, 2, 2, 1}},
	{"f() { nosuch; }; f", "bash: nosuch: command not found", "*nosuch: not found", "*nosuch: not found", "f: command not found: nosuch", [4]int{127, 127, 127, 127}},
	{"cd /nosuch", "bash: cd: /nosuch: No such file or directory", "sh: 1: cd: can't cd to /nosuch", "*can't cd to /nosuch*", "cd: no such file or directory: /nosuch", [4]int{1, 2, 2, 1}},
	{"echo >/nosuch/x", "bash: /nosuch/x: No such file or directory", "*cannot create /nosuch/x: Directory nonexistent", "*can't create /nosuch/x*", "zsh: no such file or directory: /nosuch/x", [4]int{1, 2, 1, 1}},
	{"set -x; echo hi; { set +x; } 2>/dev/null", "hi\n++ echo hi", "hi\n+ echo hi", "hi\n+ echo hi", "hi\n+(eval):1> echo hi", [4]int{}},
	{"echo a\\", "a\\", "a\\", "a\\", "a", [4]int{}},
	{"cat <<X\nhello", "*hello*", "hello", "hello", "hello", [4]int{}},
	{"\necho $LINENO", "2", "", "", "2", [4]int{}},
	{"return 7; echo on", "on\nbash: return: can only `return' from a function or sourced script", "", "", "", [4]int{0, 7, 7, 7}},
	{"set -u; echo $nope_; echo on", "bash: nope_: unbound variable", "*nope_: parameter not set", "*nope_: parameter not set", "zsh: nope_: parameter not set", [4]int{1, 2, 2, 1}},
	{"set +u; set -k", "", "", "", "", [4]int{0, 2, 2, 0}},
	{"echo ok; set +k", "", "", "", "", [4]int{0, 2, 2, 0}},
	{"return 300", "", "", "", "", [4]int{2, 44, 44, 44}},
	{"return -1", "", "", "", "", [4]int{2, 2, 2, 255}},
}

func TestSpeaksAsThePlainShell(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		name := s.Name()
		for _, c := range plainCases {
			want, code := map[string]string{"bash": c.bash, "dash": c.dash, "ash": c.ash, "zsh": c.zsh}[name], c.code[map[string]int{"bash": 0, "dash": 1, "ash": 2, "zsh": 3}[name]]
			r := s.run(c.text)
			got := strings.TrimSpace(strings.TrimSpace(r.out) + "\n" + strings.TrimSpace(r.err))
			got = strings.TrimSpace(strings.TrimSuffix(got, "\nzsh: exit 1"))
			matches := got == want || want == ""
			if strings.HasPrefix(want, "*") || strings.HasSuffix(want, "*") {
				matches = strings.Contains(got, strings.Trim(want, "*"))
			}
			if !matches || r.Code != code {
				t.Errorf("%q: printed %q, code %d; want %q, code %d", c.text, got, r.Code, want, code)
			}
			if found := ours.FindString(r.err); found != "" {
				t.Errorf("%q: %q is trl's own: %q", c.text, found, r.err)
			}
		}
	})
}

// The user can use descriptors from 3 on.
func TestDescriptorsAreTheUsers(t *testing.T) {
	h := testHost(t, "auto")
	s := openSession(t, h, shells(t)["bash"])
	lock := t.TempDir() + "/lock"
	for fd := 9; fd <= 12; fd++ {
		s.want(fmt.Sprintf("exec %d>%s; flock %[1]d && echo locked; echo in >&%[1]d; cat %[2]s", fd, lock), "locked\nin\n")
		s.want(fmt.Sprintf("echo more >&%d; cat %s", fd, lock), "in\nmore\n")
		c := NewCommand(fmt.Sprintf("cat; echo stdin >&%d", fd))
		c.Stdin = []byte("given\n")
		if r := s.wait(s.start(c)); r.out != "given\n" || r.err != "" {
			t.Errorf("%q %q", r.out, r.err)
		}
		s.want(fmt.Sprintf("exec %d>&-; cat %s", fd, lock), "in\nmore\nstdin\n")
	}
	s.want("KEPT=1; for i in $(seq 3 60); do eval \"exec $i>&-\"; done; echo done", "done\n")
	s.want("echo $KEPT; nosuch; :", "1\n")
	s.want("cat; read x; echo $?", "1\n")
	pid := s.Pid()
	s.want("KEPT=2; for i in $(seq 61 253) 255; do eval \"exec $i>&-\"; done; echo done", "done\n")
	s.want("echo $KEPT", "2\n")
	if s.Pid() != pid {
		t.Error("that cost the shell")
	}
	// This command closes the script channel. If bash dies before it has reported the command, the result says so, and the command's
	// changes of the state are lost.
	closed := s.run("KEPT=3; exec 254>&-; echo done")
	if closed.out != "done\n" {
		t.Errorf("%q", closed.out)
	}
	r := s.run("echo $KEPT")
	told := slices.Contains(r.Lost, "variables") || closed.Died && closed.Restored
	if s.Pid() == pid || r.out != "3\n" && !told {
		t.Errorf("%q, lost %v, the shell died %v; docs/hard/state.md says that descriptor 254 costs the shell", r.out, r.Lost, closed.Died)
	}
}

// A user's traps run only for the user's commands, and each command gets the status of the previous one as $?.
func TestTrapsOfTheUser(t *testing.T) {
	h := testHost(t, "auto")
	for _, sh := range []string{"bash", "zsh"} {
		t.Run(sh, func(t *testing.T) {
			if shells(t)[sh] == "" {
				t.Skip("no " + sh)
			}
			s := openSession(t, h, shells(t)[sh])
			log := t.TempDir() + "/log"
			count := func(what string, want int) {
				t.Helper()
				s.want("trap - ERR DEBUG; cat "+log+" 2>/dev/null | grep -c "+what, fmt.Sprintln(want))
				s.run("rm -f " + log)
			}
			s.run("trap 'echo ERR >>" + log + "' ERR")
			s.run("false")
			s.run("echo status-$? >>" + log + "; true")
			s.run("trap -p ERR >>" + log + "; true")
			count("^ERR", 1)
			s.run("trap 'echo ERR >>" + log + "' ERR; false")
			s.run("echo status-$? >>" + log)
			count("status-1", 1)
			if sh != "bash" {
				return
			}
			s.run("trap 'echo DBG >>" + log + "' DEBUG")
			s.run("true")
			s.run("false; true; (exit 3)")
			s.run("echo status-$? >>" + log)
			s.run("trap - DEBUG; grep -c status-3 " + log + " >>" + log)
			// The trap runs for the user's 5 commands, and for our two commands that remove the trap after each of the 4 earlier lines.
			s.want("grep -c DBG "+log, "13\n")
			s.run("rm -f " + log + "; set -T; trap 'echo RET >>" + log + "' RETURN; f() { :; }; f")
			s.run("true")
			s.want("f; trap - RETURN; set +T; grep -c RET "+log, "2\n")
			pid := s.Pid()
			s.run("set -T; trap 'echo RET >>" + log + "' RETURN; trap 'echo D >>" + log + "' DEBUG; trap 'echo I' INT")
			c := NewCommand("f() { sleep 300; echo AFTER; }; while :; do f; done; echo AFTER")
			c.Timeout, c.Grace = time.Millisecond, generous/4
			if r := s.wait(s.start(c)); r.out != "" || s.Pid() != pid {
				t.Errorf("an abort costs the shell, or does not abort: %q %v", r.out, r.Outcome)
			}
			s.want("trap -p RETURN DEBUG INT | wc -l; echo $-", "3\nhiBT\n")
		})
	}
}

// `env` sets a variable that has attributes: during the command its value is a plain string, and afterwards it is as before. A
// read-only variable is refused with a message, and nothing else changes.
func TestEnvOfVariablesWithAttributes(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		one, two := "1", "hello world"
		s.run("readonly R=r; V=old")
		for range 3 {
			c := NewCommand("echo ran")
			c.Env = map[string]*string{"A": &one, "R": &two, "V": &two}
			if r := s.wait(s.start(c)); r.out != "" || r.Code == 0 || !strings.Contains(r.err, "R") || !strings.Contains(strings.ReplaceAll(r.err, "-", ""), "read") || ours.MatchString(r.err) {
				t.Fatalf("%q %q %v", r.out, r.err, r.Outcome)
			}
			s.want("echo $R $V ${A-unset}", "r old unset\n")
		}
		if name := s.Name(); name != "bash" && name != "zsh" {
			return
		}
		s.run("typeset -i N=5; typeset -a L; L=(a b)")
		c := NewCommand("echo $N $L; sh -c 'echo $N'")
		c.Env = map[string]*string{"N": &two, "L": &two}
		if r := s.wait(s.start(c)); r.out != "hello world hello world\nhello world\n" {
			t.Fatalf("%q %q %v", r.out, r.err, r.Outcome)
		}
		s.want("N=2+3; echo $N ${#L[@]}", "5 2\n")
		if s.Name() != "bash" {
			return
		}
		s.run("TARGET=target; declare -n REF=TARGET")
		c = NewCommand("echo $REF $TARGET")
		c.Env = map[string]*string{"REF": &one}
		if r := s.wait(s.start(c)); r.out != "1 target\n" {
			t.Fatalf("%q %q %v", r.out, r.err, r.Outcome)
		}
		s.want("REF=new; echo $TARGET", "new\n")
	})
}

// A gateway may ask for the last report when an error has just dropped a report. What repeats that report still finds the status.
func TestQuestionKeepsTheStatus(t *testing.T) {
	eachShell(t, func(t *testing.T, s *session) {
		for _, traps := range []bool{false, true} {
			if traps = traps && s.p.dialect.HidesTraps; traps {
				s.run("trap : DEBUG ERR RETURN; set -e")
			}
			for _, status := range []int{0, 7} {
				tag := fmt.Sprintf("t%v%d", traps, status)
				s.p.send(fmt.Sprintf("z() { return %d; }; z&&:\n", status))
				s.p.send(fmt.Sprintf(s.p.dialect.LastReport+"\n", tag))
				s.p.send(s.p.report(s.p.dialect.ResendCall, tag))
				if r, ok := s.p.awaitVerb('e', tag, time.Now().Add(testkit.Patience)); !ok || r.Val != status {
					t.Errorf("traps %v: reported %d of %d, %v", traps, r.Val, status, ok)
				}
			}
		}
	})
}

// A state with a read-only PWD is restored with its directory, and nothing is lost.
func TestReadonlyPWDIsPutBack(t *testing.T) {
	h := testHost(t, "auto")
	for _, sh := range []string{"bash", "sh"} {
		s := openSession(t, h, shells(t)[sh])
		s.run("cd /usr; readonly PWD; X=1")
		if r := s.run("exit 3"); len(r.Lost) > 0 || r.Dir != "/usr" {
			t.Errorf("%s: lost %v, in %s", sh, r.Lost, r.Dir)
		}
		s.want("echo $X", "1\n")
	}
}

// A directory may have a name like the kernel's name for a removed one (" (deleted)").
func TestDirectoryCalledDeleted(t *testing.T) {
	h := testHost(t, "auto")
	s := openSession(t, h, shells(t)["sh"])
	dir := t.TempDir() + "/x (deleted)"
	var st unix.Stat_t
	if err := unix.Stat(t.TempDir(), &st); err != nil || st.Nlink < 2 {
		t.Skip("this file system does not count the links of a directory: ", err)
	}
	s.run("mkdir '" + dir + "'; cd '" + dir + "'")
	if got := s.Dir(); got != dir {
		t.Errorf("in %q, want %q", got, dir)
	}
	s.run("rmdir '" + dir + "'")
	if got := s.Dir(); got != dir {
		t.Errorf("removed: in %q, want %q", got, dir)
	}
	gone := strings.TrimSuffix(dir, " (deleted)")
	s.run("mkdir '" + dir + "' " + gone + "; cd " + gone + "; rmdir " + gone)
	if got := s.Dir(); got != gone {
		t.Errorf("removed, beside the other one: in %q, want %q", got, gone)
	}
}
