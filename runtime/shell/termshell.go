package shell

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"trl/runtime/dialect"
	"trl/runtime/own"
)

// How a terminal's shell begins. It has our marks in it: escape sequences around the prompt, the command line and the
// output (OSC 133 as in FinalTerm's protocol, OSC 633 for the command's text), by which clients and we know what runs.
// Each mark bears the terminal's nonce, so that a file that is printed, or a machine at the other end of ssh, cannot
// make one up.

// terminalOnly is what base environments have for commands without a terminal: in one, it goes if it still is that.
var terminalOnly = map[string]string{"NO_COLOR": "1", "GIT_PAGER": "cat"}

// script is what follows the state: back, the variables of a terminal, the request's, and an interactive shell or the command.
func (t *Terminal) script(sp *shellProc, cfg ShellConfig, spec TerminalSpec, named namedShell, back string) (script string, interactive bool, err error) {
	var b strings.Builder
	// The session's options are for its shell, not for these lines: the user would see their trace, or nothing at all.
	call := sp.dialect.Call
	fmt.Fprintf(&b, "{ %s +x +v +e +u; } 2>/dev/null\n%s COLUMNS LINES\n", call("set"), call("unset"))
	b.WriteString(back)
	for name, value := range terminalOnly {
		fmt.Fprintf(&b, "case ${%s-} in %s) %s %s;; esac\n", name, value, call("unset"), name)
	}
	b.WriteString(call("export") + " TERM=xterm-256color COLORTERM=truecolor\n")
	own, err := envAndDirScript(sp.dialect, spec.Env, spec.Dir, t.group.Dir(), t.holdText)
	if err != nil {
		return "", false, err
	}
	b.WriteString(own)
	first, words, err := t.interactive(sp.dialect, cfg, spec, named)
	if err != nil {
		return "", false, err
	}
	if words != nil {
		for i := range words {
			words[i] = dialect.Quote(words[i])
		}
		return b.String() + first + sp.dialect.Call("exec") + " " + strings.Join(words, " ") + "\n", true, nil
	}
	text, err := t.holdAtGate([]byte(sp.dialect.FileText(spec.Text, "")))
	if err != nil {
		return "", false, err
	}
	b.WriteString(t.gateLine(sp.dialect) + sp.dialect.RunLine(t.group.Dir()+"/"+strconv.Itoa(text)) + "\n")
	return b.String(), false, nil
}

// interactive returns the words that start the interactive shell that is asked for: the session's when no command is, or
// a command that is nothing but the name of one that we know, and lines for k to go before. No words: it is any other command.
func (t *Terminal) interactive(k *dialect.Dialect, cfg ShellConfig, spec TerminalSpec, named namedShell) (first string, words []string, err error) {
	path, name := named.path, named.name
	if spec.Text == "" {
		k, _, err := dialect.Of(cfg.Path)
		if err != nil {
			return "", nil, err
		}
		path, name = cfg.Path, k.Name
	}
	switch name {
	case "":
		return "", nil, nil
	case "bash":
		rc, err := t.rc(dialect.MarksBash, spec.Nonce)
		return "", []string{path, "--rcfile", rc, "-i"}, err
	case "fish":
		rc, err := t.rc(dialect.MarksFish, spec.Nonce)
		return "", []string{path, "-i", "-C", "source " + rc}, err
	case "zsh":
		return t.zsh(k, path, spec.Nonce)
	}
	if strings.HasPrefix(filepath.Base(path), "busybox") {
		return "", []string{path, "ash", "-i"}, nil
	}
	return "", []string{path, "-i"}, nil // dash and ash have no hooks to print marks from
}

// A namedShell is a shell that a terminal's command is the name of. The zero value: the command is anything else.
type namedShell struct {
	path, name string // name is that of its kind, or "fish"
}

// findShell finds the shell that a terminal's command is the name of, if it is nothing but one that we know. It is called before
// the shell's turn is taken: the file system may not answer.
func (s *Shell) findShell(text string) (namedShell, error) {
	path := strings.TrimSpace(text)
	if strings.ContainsAny(path, " \t\n'\"\\$`;&|<>(){}*?[]~#") {
		return namedShell{}, nil
	}
	name := filepath.Base(path)
	switch name {
	case "bash", "zsh", "fish":
	default:
		return namedShell{}, nil
	}
	return Ask(Question{Who: s.cfg.ID, Op: OpLookUp, Path: path}, func() (namedShell, error) {
		path, err := exec.LookPath(path)
		if err != nil { // the session's PATH may know it: it is run as it is
			return namedShell{}, nil
		}
		if name != "fish" {
			k, _, err := dialect.Of(path)
			if err != nil {
				return namedShell{}, err
			}
			name = k.Name
		}
		return namedShell{path, name}, nil
	})
}

// OpLookUp is the Op of a PathError about a program whose file system does not answer.
const OpLookUp = "look up"

// rc puts a script of ours where the shell finds it.
func (t *Terminal) rc(text, nonce string) (path string, err error) {
	fd, err := t.holdText([]byte(strings.ReplaceAll(text, "@N@", nonce)))
	return fmt.Sprintf("%s/%d", t.group.Dir(), fd), err
}

// zsh reads its startup files from a directory and from nowhere else, so it gets one. That is the directory of ports, where
// there is one, or one for this start alone, which is removed as the first thing, and by the terminal's end.
func (t *Terminal) zsh(k *dialect.Dialect, path, nonce string) (first string, words []string, err error) {
	dir := t.group.Dir()
	if t.group.UsesFIFOs() {
		rc, err := t.rc(dialect.MarksZsh, nonce)
		if err != nil {
			return "", nil, err
		}
		first = k.Call("export") + " TRL_ZSHENV=" + dialect.Quote(rc) + "\n"
	} else {
		if dir, err = os.MkdirTemp("", "trl-zsh-"); err != nil {
			return "", nil, fmt.Errorf("zsh's startup files: %w", err)
		}
		t.scratch = dir
		text := "command rm -rf -- " + dialect.Quote(dir) + "\n" + strings.ReplaceAll(dialect.MarksZsh, "@N@", nonce)
		if err := os.WriteFile(filepath.Join(dir, own.ZshenvName), []byte(text), 0o600); err != nil {
			return "", nil, fmt.Errorf("zsh's startup files: %w", err)
		}
	}
	export := k.Call("export")
	first += fmt.Sprintf("case ${ZDOTDIR+x} in x) %s TRL_ZDOTDIR=\"$ZDOTDIR\";; esac\n%s ZDOTDIR=%s\n", export, export, dialect.Quote(dir))
	return first, []string{path, "-i"}, nil
}
