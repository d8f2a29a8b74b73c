package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"trl/runtime/host"
)

// TestDifferential runs the cases in testdata/differential in each shell twice: through trl, and in the plain shell. Standard output,
// standard error, exit code and the state afterwards must be the same, or the table must name the difference and its reason. A
// known difference that no longer exists is a failure, too. See testdata/differential/README.md.
func TestDifferential(t *testing.T) { // not parallel: the end of another test's Host would kill a plain shell as a process of its session
	h := testHost(t, "auto")
	lines, sequences := readCases(t, "oneliners.txt"), readCases(t, "sequences.txt")
	if len(lines) < 300 || len(sequences) < 50 {
		t.Errorf("%d one-liners and %d sequences: want 300 and 50 at least", len(lines), len(sequences))
	}
	rules, found := readRules(t, "oneliners.txt"), shells(t)
	t.Cleanup(func() {
		for _, r := range rules {
			if len(found) == 4 && !r.used.Load() {
				t.Errorf("a rule that nothing needs any more: %s: %s", r.shells, r.match)
			}
		}
	})
	for name, path := range found {
		d := &differential{host: h, shell: name, path: path, rules: rules}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.plainBase, d.ourBase = d.baselines(t)
			for _, c := range append(slices.Clip(lines), sequences...) {
				t.Run(c.topic+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					d.compare(t, c)
				})
			}
			t.Cleanup(func() {
				t.Logf("%s: %d cases, of which %d differ in a way that the table names", name, len(lines)+len(sequences), d.differ)
			})
		})
	}
}

// differential compares one shell with the plain one.
type differential struct {
	host               *host.Host
	rules              []*rule
	shell, path        string
	plainBase, ourBase []string // the state before any command

	mu     sync.Mutex
	differ int // guarded by mu
}

// aspect is a part of a case's result that is compared.
type aspect string

const (
	aspectOut   aspect = "stdout"
	aspectErr   aspect = "stderr"
	aspectCode  aspect = "code"
	aspectState aspect = "state"

	aspectSkip aspect = "skip" // the case is not run in this shell
)

var aspects = []aspect{aspectOut, aspectErr, aspectCode, aspectState}

// seen is the result of one run of a case.
type seen map[aspect]string

// diffCase is one block of a table.
type diffCase struct {
	topic, name string
	commands    []string
	known       map[string][]aspect // by the shell's name
}

var known = regexp.MustCompile(`^#: ([a-z ]+): ([a-z ]+): (\S.*)$`)

// A rule is a difference that many cases have. Its matches in both standard errors are replaced before they are compared.
type rule struct {
	shells string
	match  *regexp.Regexp
	with   string
	used   atomic.Bool // an unused rule is a failure
}

var ruleForm = regexp.MustCompile(`^#~ ([a-z ]+): s!([^!]+)!([^!]*)!: (\S.*)$`)

// readRules reads the rules at the top of a table.
func readRules(t *testing.T, file string) (rules []*rule) {
	t.Helper()
	text, err := os.ReadFile("testdata/differential/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#~") {
			continue
		}
		m := ruleForm.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("not of the form `#~ SHELLS: s!REGEXP!WITH!: REASON`: %q", line)
		}
		rules = append(rules, &rule{shells: m[1], match: regexp.MustCompile("(?m)" + m[2]), with: m[3]})
	}
	return rules
}

// apply rewrites a shell's standard error.
func (d *differential) apply(text string) string {
	for _, r := range d.rules {
		if slices.Contains(strings.Fields(r.shells), d.shell) && r.match.MatchString(text) {
			r.used.Store(true)
			text = r.match.ReplaceAllString(text, r.with)
		}
	}
	return text
}

// readCases reads a table. In oneliners.txt each line is a case. In sequences.txt a case is a block below "--- NAME", and each line of
// it is a command. A line that begins with "> " continues the previous one.
func readCases(t *testing.T, file string) (cases []*diffCase) {
	t.Helper()
	text, err := os.ReadFile("testdata/differential/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var c *diffCase
	topic, number := "", 0
	blocks := file == "sequences.txt"
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		bad := func(why string) { t.Fatalf("%s:%d: %s: %q", file, i+1, why, line) }
		switch {
		case line == "" || strings.HasPrefix(line, "# ") || strings.HasPrefix(line, "#~ "):
		case strings.HasPrefix(line, "=== "):
			topic, number, c = line[4:], 0, nil
		case blocks && strings.HasPrefix(line, "--- "):
			c = &diffCase{topic: topic, name: line[4:], known: map[string][]aspect{}}
			cases = append(cases, c)
		case c == nil && (blocks || line[:2] == "> " || line[:2] == "#:"):
			bad("outside of a case")
		case strings.HasPrefix(line, "#: "):
			m := known.FindStringSubmatch(line)
			if m == nil {
				bad("not of the form `#: SHELLS: ASPECTS: REASON`")
			}
			for _, shell := range strings.Fields(m[1]) {
				for _, a := range strings.Fields(m[2]) {
					if !slices.Contains(append(aspects, aspectSkip), aspect(a)) || dumps[shell] == "" {
						bad("no such shell or aspect")
					}
					c.known[shell] = append(c.known[shell], aspect(a))
				}
			}
		case strings.HasPrefix(line, "> "):
			c.commands[len(c.commands)-1] += "\n" + line[2:]
		default:
			if !blocks {
				number++
				c = &diffCase{topic: topic, name: fmt.Sprint(number), known: map[string][]aspect{}}
				cases = append(cases, c)
			}
			c.commands = append(c.commands, line)
		}
	}
	return cases
}

// dumps are the commands that write a shell's state to the file @F@. They print nothing.
var dumps = map[string]string{
	"bash": `{ \builtin printf '$?=%s\n' "$?"; \builtin set +x; \builtin declare -p; \builtin declare -f; \builtin alias -p; \builtin shopt -p; \builtin set +o; \builtin trap -p; \builtin umask; \builtin ulimit -Sn; \builtin printf 'pwd %s\nargs %s\n' "$PWD" "$*"; } >|@F@ 2>/dev/null`,
	"sh":   `{ \command printf '$?=%s\n' "$?"; \set +x; \set; \export -p; \readonly -p; \command alias; \set +o; \trap; \command umask; \command ulimit -Sn; \command printf 'pwd %s\nargs %s\n' "$PWD" "$*"; } >|@F@ 2>/dev/null`,
	"zsh":  `{ \builtin printf '$?=%s\n' "$?"; \builtin set +x; \builtin typeset; \builtin typeset -f; \builtin alias -L; \builtin set -o; \builtin trap; \builtin umask; \builtin ulimit -Sn; \builtin printf 'pwd %s\nargs %s\n' "$PWD" "$*"; } >|@F@ 2>/dev/null`,
}

func init() { dumps["ash"] = dumps["sh"] }

// volatile matches lines of a state that differ from run to run, or that trl adds.
var volatile = regexp.MustCompile(`__trl|^trap -- - |\b(RANDOM|SRANDOM|SECONDS|EPOCHSECONDS|EPOCHREALTIME|LINENO|PPID|BASHPID|BASH_[A-Z_0-9]+|PIPESTATUS|pipestatus|HISTCMD|TTYIDLE|FUNCNAME|BASHOPTS|SHELLOPTS|TRL_SESSION_ID)=|^(declare [-a-zA-Z]+ _|_|[?#$!*@-]|\?|ZSH_SUBSHELL|.*\b(status|ZSH_EVAL_CONTEXT|funcstack|zsh_eval_context)|.*\bundefined .*|integer 10 readonly ('\$'|!)|readonly -|0)(=|$)`)

// noState is the state if the shell has ended before the dump.
const noState = "none: the shell has ended"

// stateDiff returns the lines that are only in the state or only in base, the state before any command. It always returns $?.
func stateDiff(text, dir string, base []string) string {
	if text == "" {
		return noState
	}
	count := map[string]int{}
	for _, l := range base {
		count[l]--
	}
	now := stateLines(text, dir)
	for _, l := range now {
		count[l]++
	}
	var differ []string
	for _, l := range now[1:] {
		if count[l] > 0 {
			count[l]--
			differ = append(differ, "+"+l)
		}
	}
	for _, l := range base[1:] {
		if count[l] < 0 {
			count[l]++
			differ = append(differ, "-"+l)
		}
	}
	differ = slices.DeleteFunc(differ, func(l string) bool { return volatile.MatchString(l[1:]) }) // filtered last, because most lines are also in base
	slices.Sort(differ)                                                                            // sorted, because functions can have equal lines
	return now[0] + "\n" + strings.Join(differ, "\n")
}

func stateLines(text, dir string) []string {
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(text, dir, "DIR"), "\n"), "\n")
}

// place makes the directory of a case anew, with the same files for both runs.
func (d *differential) place(t *testing.T, dir, script string) {
	t.Helper()
	err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir+"/sub", 0o755))
	for name, text := range map[string]string{d.shell: script, "one.txt": "alpha\nbeta\ngamma\n", "two.txt": "2\n", "lib": "LIB=read; echo in lib: $#\n", "sub/x": "x\n"} {
		err = errors.Join(err, os.WriteFile(dir+"/"+name, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func environment(dir string) []string {
	return []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + dir, "LANG=C.UTF-8", "TERM=dumb"}
}

// plain runs the script in the plain shell. The script's file has the shell's name, so that $0 and messages have that name.
func (d *differential) plain(t *testing.T, dir, script string) (out, errs string, code int) {
	t.Helper()
	for range 3 {
		if out, errs, code = d.plainOnce(t, dir, script); code != 128+int(syscall.SIGSEGV) { // zsh 5.9 crashes now and then at the end of a pipeline
			break
		}
	}
	return out, errs, code
}

func (d *differential) plainOnce(t *testing.T, dir, script string) (out, errs string, code int) {
	t.Helper()
	d.place(t, dir, script)
	ctx, cancel := context.WithTimeout(context.Background(), generous)
	defer cancel()
	args := map[string][]string{"bash": {"--norc", "-O", "expand_aliases"}, "zsh": {"-f"}}[d.shell]
	c := exec.CommandContext(ctx, d.path, append(args, d.shell)...)
	var o, e bytes.Buffer
	c.Dir, c.Env, c.Stdout, c.Stderr = dir, environment(dir), &o, &e
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c.WaitDelay = generous
	if err := host.ForkOutsideSessions(c.Start); err != nil {
		t.Fatalf("plain %s: %v", d.shell, err)
	}
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("plain %s: %v", d.shell, err)
	}
	ws := c.ProcessState.Sys().(syscall.WaitStatus)
	code = ws.ExitStatus()
	if ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	return o.String(), e.String(), code
}

// dump is the command that writes the state to file.
func (d *differential) dump(file string) string {
	return strings.ReplaceAll(dumps[d.shell], "@F@", file)
}

// plainly runs a case in the plain shell, with the dump of the state as one more command. If the shell does not reach the dump, or if
// the dump could change the output or the code, the case also runs without it.
func (d *differential) plainly(t *testing.T, place casePlace, c *diffCase) seen {
	t.Helper()
	script := strings.Join(c.commands, "\n")
	out, errs, code := d.plain(t, place.dir, script+"\n"+d.dump(place.state))
	text, _ := os.ReadFile(place.state) // none if the shell has ended before
	codeBefore, _, ok := strings.Cut(strings.TrimPrefix(string(text), "$?="), "\n")
	if ok && code < 128 && !seesDump.MatchString(script) { // code < 128 because a bash may crash at its end after bad syntax
		_, err := fmt.Sscan(codeBefore, &code)
		if err != nil {
			t.Fatalf("plain %s: state %.100q: %v", d.shell, text, err)
		}
	} else {
		out, errs, code = d.plain(t, place.dir, script)
	}
	return seen{aspectOut: out, aspectErr: d.apply(errs), aspectCode: fmt.Sprint(code), aspectState: stateDiff(string(text), place.dir, d.plainBase)}
}

// seesDump matches the text of cases whose output or code may depend on later commands.
var seesDump = regexp.MustCompile(`trap|set -|history`)

// casePlace has the paths of a case.
type casePlace struct {
	dir   string // the shell's directory, which place makes
	state string // the file that dump writes
}

func newCasePlace(t *testing.T) casePlace {
	top := t.TempDir()
	return casePlace{dir: top + "/dir", state: top + "/state"}
}

// open opens a session of trl for one case.
func (d *differential) open(t *testing.T, dir string) *session {
	t.Helper()
	id := fmt.Sprintf("s-diff%d", sessionCount.Add(1))
	s, err := openShell(d.host, ShellConfig{ID: id, Path: d.path, Dir: dir, Restore: true, Env: append(environment(dir), "TRL_SESSION_ID="+id)})
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

func (d *differential) ours(t *testing.T, place casePlace, c *diffCase) seen {
	t.Helper()
	d.place(t, place.dir, strings.Join(c.commands, "\n"))
	s := d.open(t, place.dir)
	var out, errs strings.Builder
	var last result
	for _, text := range c.commands {
		command := NewCommand(text)
		command.Timeout, command.Grace = generous/3, time.Second
		last = s.wait(s.start(command))
		out.WriteString(last.out)
		errs.WriteString(last.err)
		if last.Err != nil || last.Timeout != "" {
			t.Errorf("%q: %v", text, last.Outcome)
		}
	}
	_ = os.Remove(place.state)
	if r := s.run(d.dump(place.state)); r.Err != nil {
		t.Errorf("the session is of no use afterwards: %v", r.Outcome)
	}
	text, err := os.ReadFile(place.state)
	if err != nil {
		t.Errorf("the session is of no use afterwards: %v", err)
	}
	return seen{aspectOut: out.String(), aspectErr: d.apply(errs.String()), aspectCode: fmt.Sprint(last.Code), aspectState: stateDiff(string(text), place.dir, d.ourBase)}
}

// baselines returns the states of the plain shell and of trl's shell before any command.
func (d *differential) baselines(t *testing.T) (plain, ours []string) {
	t.Helper()
	place := newCasePlace(t)
	d.plain(t, place.dir, "\n"+d.dump(place.state))
	text, err := os.ReadFile(place.state)
	if err != nil {
		t.Fatal(err)
	}
	plain = stateLines(string(text), place.dir)
	s := d.open(t, place.dir)
	s.run("")
	_ = os.Remove(place.state)
	s.run(d.dump(place.state))
	if text, err = os.ReadFile(place.state); err != nil {
		t.Fatal(err)
	}
	return plain, stateLines(string(text), place.dir)
}

// lineNumber matches the line number in a message. In the plain shell a sequence is one script. In trl each line of it is a command
// that begins with line 1, so the numbers differ.
var lineNumber = regexp.MustCompile(`(?m)^((?:bash|ash|sh|zsh): ?(?:line )?)\d+`)

func (d *differential) compare(t *testing.T, c *diffCase) {
	if slices.Contains(c.known[d.shell], aspectSkip) {
		return
	}
	place := newCasePlace(t)
	plain, ours := d.plainly(t, place, c), d.ours(t, place, c)
	if len(c.commands) > 1 {
		for _, s := range []seen{plain, ours} {
			s[aspectErr] = lineNumber.ReplaceAllString(s[aspectErr], "${1}N")
		}
	}
	if plain[aspectState] == noState { // nothing to compare with
		ours[aspectState] = plain[aspectState]
	}
	differs := false
	for _, a := range aspects {
		named := slices.Contains(c.known[d.shell], a)
		switch same := plain[a] == ours[a]; {
		case !same && !named:
			t.Errorf("%s: %q\n%s, plain: %.2000q\n%s, trl:   %.2000q", d.shell, c.commands, a, plain[a], a, ours[a])
		case same && named:
			t.Errorf("%s: %q\n%s does not differ any more, as the table says it does: %q", d.shell, c.commands, a, plain[a])
		}
		differs = differs || named
	}
	if differs {
		d.mu.Lock()
		d.differ++
		d.mu.Unlock()
	}
}
