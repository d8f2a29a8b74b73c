package shell

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/namedshell"
	"trl/runtime/own"
	"trl/runtime/stream"
	"trl/runtime/terminal"
)

// This file starts a terminal's shell. The shell prints our marks: escape sequences around the prompt, the command line and the
// output (OSC 133 as in FinalTerm's protocol, OSC 633 for the command's text). Clients and trl learn from them what runs. Each
// mark has the terminal's nonce, so that a printed file or a machine at the other end of ssh cannot forge one.

// script returns the lines after the state: back, a terminal's variables, the request's variables and directory, and the start of an
// interactive shell or of the command.
func (t *Terminal) script(sp *shellProc, cfg ShellConfig, spec TerminalSpec, named namedshell.Shell, back string) (script string, interactive bool, err error) {
	var b strings.Builder
	// The session's options must not apply to these lines: with set -x the user would see their trace, and set -e could end them.
	call := sp.dialect.Call
	fmt.Fprintf(&b, "{ %s +x +v +e +u; } 2>/dev/null\n%s COLUMNS LINES\n", call("set"), call("unset"))
	b.WriteString(back)
	for name, value := range dialect.NotInTerminals {
		fmt.Fprintf(&b, "case ${%s-} in %s) %s %s;; esac\n", name, value, call("unset"), name)
	}
	b.WriteString(call("export") + " TERM=xterm-256color COLORTERM=truecolor\n")
	own, err := envAndDirScript(sp.dialect, spec.Env, spec.Dir, t.files.Group.Dir(), t.files.HoldText)
	if err != nil {
		return "", false, err
	}
	b.WriteString(own)
	first, words, err := t.interactive(sp.dialect, cfg, spec, named, false)
	if err != nil {
		return "", false, err
	}
	if words != nil {
		for i := range words {
			words[i] = dialect.Quote(words[i])
		}
		return b.String() + first + sp.dialect.Call("exec") + " " + strings.Join(words, " ") + "\n", true, nil
	}
	text, err := t.files.HoldAtGate([]byte(sp.dialect.FileText(spec.Text, "")))
	if err != nil {
		return "", false, err
	}
	b.WriteString(gateLine(sp.dialect, &t.files) + sp.dialect.RunLine(t.files.Group.Dir()+"/"+strconv.Itoa(text)) + "\n")
	return b.String(), false, nil
}

// direct returns the arguments and the variables of an interactive shell that starts by itself, because the session's shell still has the state with
// which it started. This saves the start of the shell that would read the state. argv is nil if such a shell is needed; env is then that shell's.
func (t *Terminal) direct(sp *shellProc, cfg ShellConfig, spec TerminalSpec, named namedshell.Shell, state string, gone bool, lost []string) (argv, env []string, err error) {
	zsh := named.Name == "zsh" || spec.Text == "" && sp.dialect.Name == "zsh" // its first lines are for a shell
	readsFile := slices.ContainsFunc(cfg.Env, func(kv string) bool { return strings.HasPrefix(kv, "BASH_ENV=") })
	if state != "" || gone || len(lost) > 0 || spec.Dir != "" || zsh || readsFile || spec.Text != "" && !filepath.IsAbs(named.Path) {
		return nil, cfg.Env, nil
	}
	if _, argv, err = t.interactive(sp.dialect, cfg, spec, named, !t.files.Group.UsesFIFOs()); argv == nil {
		return nil, cfg.Env, err
	}
	return argv, dialect.MergeEnv(dialect.TerminalEnv(cfg.Env), spec.Env), nil
}

// interactive returns the words that start an interactive shell, and lines that k runs before. The shell is the session's if the
// request has no command, or the shell that the command names. For any other command the words are nil. inherits: the words are those of the first
// process, which may inherit its startup file.
func (t *Terminal) interactive(k *dialect.Dialect, cfg ShellConfig, spec TerminalSpec, named namedshell.Shell, inherits bool) (first string, words []string, err error) {
	path, name := named.Path, named.Name
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
		startup := t.rc
		if inherits {
			startup = t.inheritedRC
		}
		rc, err := startup(dialect.MarksBash, spec.Nonce)
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
	return "", []string{path, "-i"}, nil // dash and ash have no hooks that could print marks
}

// rc puts a startup script with the nonce into a file and returns the path by which the shell opens it.
func (t *Terminal) rc(text, nonce string) (path string, err error) {
	fd, err := t.files.HoldText([]byte(strings.ReplaceAll(text, "@N@", nonce)))
	return fmt.Sprintf("%s/%d", t.files.Group.Dir(), fd), err
}

// inheritedRC is rc for a bash that inherits the file as descriptor 3, and closes it first. The keeper then need not hold the file before bash starts.
func (t *Terminal) inheritedRC(text, nonce string) (path string, err error) {
	t.startup = "\\exec 3<&-\n" + strings.ReplaceAll(text, "@N@", nonce)
	return "/proc/self/fd/3", nil
}

// startupFile returns the startup file that the first process inherits, nil if it inherits none.
func (t *Terminal) startupFile() (*os.File, error) {
	if t.startup == "" {
		return nil, nil
	}
	fd, err := descriptor.Memfd("rc")
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "rc")
	if err = descriptor.WriteMemfd(fd, []byte(t.startup)); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// StartWarmTerminal starts a bash in advance, for the first terminal of a shell that has no session yet. It does nothing if that terminal would start otherwise.
func (s *Shell) StartWarmTerminal() error {
	<-s.turn
	defer s.giveTurn()
	p, group := s.proc(), s.currentGroup()
	if p == nil {
		return ErrShellGone
	}
	t := &Terminal{files: stream.HeldFiles{Owner: "terminal", Group: group}}
	argv, env, err := t.direct(p, s.cfg, TerminalSpec{}, namedshell.Shell{}, "", false, nil)
	if err != nil || t.startup == "" {
		return err
	}
	w, err := terminal.StartWarm(group, s.streamLogs, own.Spec{Path: argv[0], Argv: argv, Env: env, Dir: s.Dir(), TTY: true})
	if err == nil {
		s.warmTerminal.Store(w)
	}
	return err
}

// EndWarmTerminal ends a terminal that will not be asked for.
func (s *Shell) EndWarmTerminal() { s.warmTerminal.Swap(nil).End() }

// zsh returns what interactive does, for zsh. zsh reads its startup files only from a directory. That is the session's FIFO
// directory, if it has one. Otherwise it is a directory for this start alone; zsh removes it first, and the terminal's end does, too.
func (t *Terminal) zsh(k *dialect.Dialect, path, nonce string) (first string, words []string, err error) {
	dir := t.files.Group.Dir()
	if t.files.Group.UsesFIFOs() {
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
