package dialect

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trl/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// TestOf: a shell is known by the name of the file behind its path.
func TestOf(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		file, link string // link: the name that leads to the file
		name       string // of the dialect; empty: there is none
		argv       string
	}{
		{"bash", "", "bash", "bash"},
		{"bash-5.2", "sh", "bash", "bash"},
		{"dash", "sh", "dash", "sh"},
		{"dash", "", "dash", "dash"},
		{"ash", "", "dash", "ash"},
		{"busybox", "sh", "ash", "ash"},
		{"busybox.static", "", "ash", "ash"},
		{"zsh", "", "zsh", "zsh"},
		{"zsh-5.9", "sh", "zsh", "zsh"},
		{"fish", "", "", ""},
		{"bashful", "", "", ""},
		{"python3", "bash", "", ""},
	} {
		at := filepath.Join(dir, strings.ReplaceAll(t.Name()+c.file+c.link, "/", "-"))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(at, c.file)
		err := os.WriteFile(path, nil, 0o755)
		if c.link != "" {
			err = errors.Join(err, os.Symlink(c.file, filepath.Join(at, c.link)))
			path = filepath.Join(at, c.link)
		}
		if err != nil {
			t.Fatal(err)
		}
		k, argv, err := Of(path)
		var none *ErrNoAdapter
		switch {
		case c.name == "" && (!errors.As(err, &none) || none.Path != path):
			t.Errorf("%s: %v", path, err)
		case c.name != "" && (err != nil || k.Name != c.name || !slices.Equal(argv, []string{c.argv})):
			t.Errorf("%s: %+v, %v, %v", path, k, argv, err)
		}
	}
	if _, _, err := Of(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{"": `''`, "a b": `'a b'`, "it's": `'it'\''s'`, "'": `''\'''`, "$x\n\\": "'$x\n\\'"} {
		if got := Quote(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// TestTextsThatSetTraps: a text that may set a trap for the abort signal is found. Some others may be found, too.
func TestTextsThatSetTraps(t *testing.T) {
	for _, c := range []struct {
		text                 string
		trapsINT, trapsAbort bool // for SIGINT, and for bash's abort signal
	}{
		{"trap 'echo x' INT", true, false},
		{"trap 'echo x' sigint", true, false},
		{"trap 'echo x' 2", true, false},
		{"trap \"echo x\" TERM 2", true, false},
		{"trap - TERM\necho 2", false, false},
		{"trap 'a\nb' INT", true, false},
		{"TRAPINT() { :; }", true, false},
		{"trap : 40", false, true},
		{"trap : SIGRTMIN+6", false, true},
		{"trap : rtmin+6", false, true},
		{"echo INT 2 40", false, false},
		{"trap : TERM", false, false},
		{"", false, false},
	} {
		for name, want := range map[string]bool{"dash": c.trapsINT, "ash": c.trapsINT, "zsh": c.trapsINT, "bash": c.trapsAbort} {
			if got := Dialects[name].SetsTrap.MatchString(c.text); got != want {
				t.Errorf("%s: %q sets a trap: %v", name, c.text, got)
			}
		}
	}
	for text, want := range map[string]bool{"trap -- 'x' INT": true, "trap -- 'x' SIGINT\n": true, "TRAPINT () {": true, "trap -- 'x' TERM": false, "x='INT": false} {
		if got := Dialects["zsh"].SnapshotHasTrap.MatchString(text); got != want {
			t.Errorf("the snapshot %q has a trap: %v", text, got)
		}
	}
	for text, want := range map[string]bool{"trap x": true, ". file": true, ".\tfile": true, "source x": true, "eval x": true, "echo .x": false, "ls": false} {
		if got := MayTrap(text); got != want {
			t.Errorf("%q may trap: %v", text, got)
		}
	}
}

// TestLines: what a shell is sent for a command whose text is in file 7.
func TestLines(t *testing.T) {
	for name, want := range map[string]struct{ file, line, begin, text string }{
		"bash": {"echo it's", `\builtin eval "${-:$((LINENO=1,0)):0}$(<"$f")"`, `__trl_b 7&&\builtin :;`, `\builtin eval "${-:$((LINENO=__trl_l,0)):0}$__trl_t$__trl_m"`},
		"zsh":  {"echo it's", `\builtin eval "$(<"$f")"`, "", `\builtin eval "$(<"$__trl_p/7")"`},
		"dash": {`\eval 'echo it'\''s' <in` + "\n", `\command . "$f"`, "", `\command . "$__trl_p/7"`},
		"ash":  {`\eval 'echo it'\''s' <in` + "\n", `\. "$f"`, "", `\. "$__trl_p/7"`},
	} {
		k := Dialects[name]
		if got := k.FileText("echo it's", " <in"); got != want.file {
			t.Errorf("%s: file %q", name, got)
		}
		if got := k.RunLine("$f"); got != want.line {
			t.Errorf("%s: line %q", name, got)
		}
		if got := string(k.AppendBegin([]byte("x"), 7)); got != "x"+want.begin {
			t.Errorf("%s: begin %q", name, got)
		}
		if got := string(k.AppendText([]byte("x"), 7)); got != "x"+want.text {
			t.Errorf("%s: text %q", name, got)
		}
	}
}

func TestCalls(t *testing.T) {
	for name, want := range map[string][3]string{
		"bash": {`\builtin cd`, `\builtin unset`, `\builtin export`},
		"zsh":  {`\builtin cd`, `\builtin unset`, `\builtin export`},
		"dash": {`\command cd`, `\unset`, `\export`},
		"ash":  {`\command cd`, `\unset`, `\export`},
	} {
		k := Dialects[name]
		if got := [3]string{k.Call("cd"), k.Call("unset"), k.Call("export")}; got != want {
			t.Errorf("%s: %q", name, got)
		}
		if got := CdLine(k, "/a b"); got != want[0]+` -- '/a b' >/dev/null` {
			t.Errorf("%s: %q", name, got)
		}
		if got := EnvScript(k, map[string]*string{"A": nil}); got != want[1]+" -v A\n" {
			t.Errorf("%s: %q", name, got)
		}
		value := "it's"
		if got := EnvScript(k, map[string]*string{"A": &value}); got != want[2]+` A='it'\''s'`+"\n" {
			t.Errorf("%s: %q", name, got)
		}
		unset := string(UnsetSpawnEnv(k, []string{"A=1", "B=x=y"}))
		if strings.Count(unset, want[1]+" -v A\n") != 1 || strings.Count(unset, want[1]+" -v B\n") != 1 || strings.Contains(unset, "special") != (name == "zsh") {
			t.Errorf("%s: %q", name, unset)
		}
	}
}

// TestEntries: a listing is split where a line ends outside of quotes.
func TestEntries(t *testing.T) {
	for text, want := range map[string][]string{
		"":                            nil,
		"a=1\nb=2\n":                  {"a=1", "b=2"},
		"a='x\ny'\nb=2\n":             {"a='x\ny'", "b=2"},
		"a='it'\\''s\n'\nb=\"\n\"\n":  {"a='it'\\''s\n'", "b=\"\n\""},
		"a=\"x\\\"\ny\"\nb=2\n":       {"a=\"x\\\"\ny\"", "b=2"},
		"a='\\'\nb=2\n":               {"a='\\'", "b=2"},
		"a=x\\\ny\nb=2\n":             {"a=x\\\ny", "b=2"},
		"\n\na=1\n":                   {"a=1"},
		"a=1\nwithout a line end=...": {"a=1"},
	} {
		if got := entries(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestPosixScript: a script of a state assigns before it makes read-only, has none of our variables, and none of the options of how trl runs a shell.
func TestPosixScript(t *testing.T) {
	section := func(name, text string) string { return EndMark + " " + name + "\n" + text }
	raw := "A='1\n2'\nOLDPWD='/old'\nPPID='1'\n_='x'\n__trl_p='/p'\n" +
		section("export", "export A='1\n2'\n") + section("umask", "0022\n") + section("pwd", "/it's\n") + section("trap", "trap -- 'echo x' TERM\n") +
		section("set", "set -o errexit\nset +o monitor\nset -o interactive\n") + section("readonly", "readonly A='1\n2'\nreadonly PPID='1'\nreadonly __trl_x\n") +
		section("alias", "ll='ls -l'\nalias la='ls -a'\n")
	got := string(PosixScript([]byte(raw)))
	rest := got
	for _, line := range []string{
		"A='1\n2'\n", "export A='1\n2'\n", "umask 0022\n", `\command cd -- '/it'\''s'`, "OLDPWD='/old'\n", "trap -- 'echo x' TERM\n", "set -o errexit\n", "readonly A='1\n2'\n",
		`\alias ll='ls -l'` + "\n", `\alias la='ls -a'` + "\n",
	} {
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			t.Errorf("%q is missing, or too early", line)
			continue
		}
		rest = after
	}
	for _, none := range []string{"PPID", "__trl_p", "__trl_x", "monitor", "interactive", "_='x'"} {
		if strings.Contains(got, none) {
			t.Errorf("%s is in it", none)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestListedScript: the traps, which are printed first, are restored last.
func TestListedScript(t *testing.T) {
	raw := "trap -- 'echo \"\n\"' INT\ntrap -- : TERM\n" + EndMark + " state\nA=1\n"
	if got, want := string(ListedScript([]byte(raw))), "A=1\n\\builtin trap -- 'echo \"\n\"' INT\n\\builtin trap -- : TERM\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := string(ListedScript([]byte("A=1\n"))); got != "A=1\n" {
		t.Errorf("without a mark: %q", got)
	}
}

// TestWithEnvAndDir: every variable is refused or saved before any is changed, and all that is done before the command is undone after it.
func TestWithEnvAndDir(t *testing.T) {
	value := "v"
	for name, k := range Dialects {
		before, after := WithEnvAndDir(k, map[string]*string{"A": &value, "B": nil}, "/dir", "/complaints")
		refused, changed := strings.LastIndex(before, ">/complaints; "), strings.Index(before, EnvScript(k, map[string]*string{"A": &value}))
		if refused < 0 || changed < refused || !strings.Contains(before, CdLine(k, "/dir")+" 2>/complaints\n") {
			t.Errorf("%s: before:\n%s", name, before)
		}
		for _, saved := range []string{"__trl_o_A", "__trl_o_B", "__trl_d", "__trl_w"} {
			if !strings.Contains(before, saved) || !strings.Contains(after, saved) {
				t.Errorf("%s: %s is not saved, or not restored", name, saved)
			}
		}
		if before, after := WithEnvAndDir(k, nil, "", "/complaints"); before != "" || after != "" {
			t.Errorf("%s: for nothing: %q, %q", name, before, after)
		}
	}
}

func TestScriptArgs(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string][]string{
		"bash": {"bash", "--norc", "--noprofile", "-c", "x", "bash"},
		"zsh":  {"zsh", "-f", "-c", "x", "zsh"},
		"dash": {"dash", "-c", "x", "dash"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if got, err := ScriptArgs(path, "x"); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := ScriptArgs(filepath.Join(dir, "none"), "x"); err == nil {
		t.Error("a shell that does not exist has arguments")
	}
}
