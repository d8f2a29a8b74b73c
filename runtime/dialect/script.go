package dialect

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ListedScript makes a script of what bash.sh and zsh.sh write. The lines that restore the traps come last, where the user's functions and
// aliases cannot affect them, and where a DEBUG trap has no more lines to run for.
func ListedScript(raw []byte) []byte {
	traps, rest, found := bytes.Cut(raw, []byte(EndMark+" state\n"))
	if !found {
		return raw
	}
	o := slices.Clone(rest)
	for _, t := range entries(string(traps)) {
		o = append(append(append(o, `\builtin `...), t...), '\n')
	}
	return o
}

// UnsetSpawnEnv returns lines that unset the variables that a fresh shell got at its spawn. The snapshot sets those that still exist.
func UnsetSpawnEnv(k *Dialect, env []string) []byte {
	var b []byte
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if k.Name == "zsh" { // after an unset, a special parameter is no longer special
			b = fmt.Appendf(b, "[[ ${parameters[%s]} == *-special* ]] || ", name)
		}
		b = fmt.Appendf(b, "%s -v %s\n", k.Call("unset"), name)
	}
	return b
}

// PosixScript makes a script of the sections that posix.sh writes. A shell can read what it prints, except for aliases, which dash and ash
// print without the word alias, and options that belong to how trl runs the shell.
func PosixScript(raw []byte) []byte {
	sections := map[string]string{}
	name := "variables"
	for _, part := range strings.Split(string(raw), EndMark+" ") {
		if name == "" {
			name, part, _ = strings.Cut(part, "\n")
		}
		sections[name] = part
		name = ""
	}
	var o bytes.Buffer
	before := "unset -v OLDPWD"
	for _, v := range entries(sections["variables"]) { // assigning to a read-only variable would end the script
		switch n, _, _ := strings.Cut(v, "="); n {
		case "__trl_p", "__trl_c", "__trl_x", "PPID", "_", "LINENO":
		default:
			o.WriteString(v + "\n")
			if n == "OLDPWD" {
				before = v
			}
		}
	}
	o.WriteString(sections["export"])
	o.WriteString("umask " + sections["umask"])
	dir := strings.TrimSuffix(sections["pwd"], "\n")
	o.WriteString("case " + Quote(dir) + " in '') false ;; *) \\command cd -- " + Quote(dir) + "; \\command test . -ef " + Quote(dir) + " ;; esac && __trl_l=0 || __trl_l=1\n" + before + "\n")
	o.WriteString(sections["trap"])
	for _, l := range strings.Split(sections["set"], "\n") {
		if f := strings.Fields(l); len(f) == 3 {
			switch f[2] {
			case "interactive", "stdin", "monitor", "notify", "vi", "emacs", "nolog", "debug", "noexec":
				continue
			}
			o.WriteString(l + "\n")
		}
	}
	for _, r := range entries(sections["readonly"]) {
		if !strings.HasPrefix(r, "readonly __trl_") && !strings.HasPrefix(r, "readonly PPID") {
			o.WriteString(r + "\n")
		}
	}
	for _, a := range entries(sections["alias"]) { // last, because an alias changes how the following lines are read
		o.WriteString(`\alias ` + strings.TrimPrefix(a, "alias ") + "\n")
	}
	return o.Bytes()
}

// entries splits a listing at line ends outside of quotes.
func entries(s string) []string {
	var out []string
	var q byte
	from := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case q == 0 && c == '\\':
			i++
		case q == 0 && (c == '\'' || c == '"'):
			q = c
		case q == '"' && c == '\\':
			i++
		case c == q:
			q = 0
		case q == 0 && c == '\n':
			if i > from {
				out = append(out, s[from:i])
			}
			from = i + 1
		}
	}
	return out
}

// WithEnvAndDir returns scripts to read before and after a command that has its own variables or directory. The first saves the old values.
// The second restores them, and does nothing when it is read again, because a gateway may have died after it asked for it. If a variable is
// read-only or the directory cannot be entered, the first one's status is not 0, complaints has the reason, and the command must not run.
// The command's client sees no other output of these scripts.
func WithEnvAndDir(k *Dialect, env map[string]*string, dir, complaints string) (before, after string) {
	var b, a strings.Builder
	names := slices.Sorted(maps.Keys(env))
	for _, n := range names { // change nothing before each is known to be changeable
		b.WriteString(k.refuseReadonly(n, complaints))
	}
	for _, n := range names {
		switch k.Name {
		case "bash": // declare -p prints the attributes; the new variable is a plain string, and a nameref itself is unset, not its target
			fmt.Fprintf(&b, "__trl_o_%[1]s=$(builtin declare -p %[1]s 2>/dev/null) || builtin :\n", n)
			fmt.Fprintf(&b, "builtin unset -n %[1]s; builtin unset -v %[1]s\n", n)
			fmt.Fprintf(&a, "if [[ -v __trl_o_%[1]s ]]; then builtin unset -v %[1]s; builtin eval \"$__trl_o_%[1]s\"; builtin unset -v __trl_o_%[1]s; fi\n", n)
		case "zsh": // the same; but an unset would make a special variable of zsh ordinary
			fmt.Fprintf(&b, "__trl_o_%[1]s=$(builtin typeset -p %[1]s 2>/dev/null) || builtin :\n", n)
			fmt.Fprintf(&b, "[[ ${parameters[%[1]s]-} == *-special* ]] || builtin unset -v %[1]s\n", n)
			fmt.Fprintf(&a, "if [[ -v __trl_o_%[1]s ]]; then [[ ${parameters[%[1]s]-} == *-special* ]] || builtin unset -v %[1]s; builtin eval \"$__trl_o_%[1]s\"; builtin unset -v __trl_o_%[1]s; fi\n", n)
		default:
			fmt.Fprintf(&b, "case ${%[1]s+x} in x) __trl_h_%[1]s=1 __trl_o_%[1]s=$%[1]s ;; *) __trl_h_%[1]s= __trl_o_%[1]s= ;; esac\n", n)
			fmt.Fprintf(&b, "case \"\n$(export -p)\" in *'\nexport %[1]s='*|*'\nexport %[1]s\n'*) __trl_x_%[1]s=1 ;; *) __trl_x_%[1]s= ;; esac\n", n)
			fmt.Fprintf(&a, "case ${__trl_h_%[1]s+x} in x) \\unset %[1]s\ncase $__trl_h_%[1]s in 1) %[1]s=$__trl_o_%[1]s ;; esac\ncase $__trl_x_%[1]s in 1) \\export %[1]s ;; esac\n\\unset __trl_h_%[1]s __trl_o_%[1]s __trl_x_%[1]s ;; esac\n", n)
		}
	}
	b.WriteString(EnvScript(k, env))
	if dir != "" {
		// Before env's variables, which may contain PWD. The way back uses the shell's own path, with its links; trl checks where it led.
		back := "__trl_d=${PWD-}; case ${OLDPWD+x} in x) __trl_w=$OLDPWD ;; esac\n"
		cd, unset := k.Call("cd"), k.Call("unset")
		fmt.Fprintf(&a, "case ${__trl_d+x} in x) ")
		if k.Name == "zsh" { // zsh's `cd -` does not use the variable
			fmt.Fprintf(&a, "%s -- \"$__trl_w\" >/dev/null\n", cd)
		}
		fmt.Fprintf(&a, "%s -- \"$__trl_d\" >/dev/null\n%s -v OLDPWD\ncase ${__trl_w+x} in x) OLDPWD=$__trl_w ;; esac\n%[2]s -v __trl_d __trl_w ;; esac\n", cd, unset)
		return back + b.String() + CdLine(k, dir) + " || " + CdLine(k, dir) + " 2>" + complaints + "\n", a.String()
	}
	return b.String(), a.String()
}

func EnvScript(k *Dialect, env map[string]*string) string {
	var b strings.Builder
	for n, v := range env {
		if v == nil {
			fmt.Fprintf(&b, "%s -v %s\n", k.Call("unset"), n)
		} else {
			fmt.Fprintf(&b, "%s %s=%s\n", k.Call("export"), n, Quote(*v))
		}
	}
	return b.String()
}

// CdLine changes to a directory.
func CdLine(k *Dialect, dir string) string { return k.Call("cd") + " -- " + Quote(dir) + " >/dev/null" }

// CdBack returns a line that changes to dir from where the snapshot's own cd has led: PWD may be a variable that the user has set, or the
// directory of an earlier command.
func CdBack(k *Dialect, dir string) string {
	cd, test := k.Call("cd")+" -P --", k.Call("test")
	switch k.Name {
	case "zsh":
		cd = k.Call("cd") + " -q -P --" // runs none of the user's hooks
	case "dash", "ash":
		test = `\command test`
	}
	dir = Quote(dir)
	return fmt.Sprintf("{ %s . -ef %s || %s %s; } >/dev/null 2>&1 || { %s 'trl: cannot enter %%s\n' %s >&2; %s 1; }\n", test, dir, cd, dir, k.Call("printf"), dir, k.Call("exit"))
}

// ScriptArgs are the arguments that make the shell at path run only a script.
func ScriptArgs(path, script string) ([]string, error) {
	k, argv, err := Of(path)
	if err != nil {
		return nil, err
	}
	name := argv[0]
	switch k.Name {
	case "bash":
		argv = append(argv, "--norc", "--noprofile")
	case "zsh":
		argv = append(argv, "-f")
	}
	return append(argv, "-c", script, name), nil
}

// EndMark ends a snapshot; in a POSIX snapshot it also begins each section. No value contains it by chance, and a user who writes it on
// purpose damages only their own state.
const EndMark = "#trl-7c1e0b5d"
