package shells

import (
	"path/filepath"
	"slices"
	"strings"

	"trl/protocol"
)

// controlVariables change what a shell itself does, before its commands or between them: which code it loads, which files it runs, which
// language it speaks. A client that may run a command may also do all of this in the command. But people fill env from elsewhere (a form, a
// repository's settings), and here such a value would be code. A name that ends in * stands for all names with that beginning.
//
// The list lacks variables on which the start and the control of a shell do not depend: PATH, HOME and SHELL, which sessions must be able to set;
// PS1 and PS2, which are displayed; IFS, which shells do not take from the environment; MALLOC_…, which tunes; DYLD_…, which is for another
// system; and NODE_OPTIONS, PYTHONSTARTUP and the like, which commands read.
var controlVariables = []string{
	"LD_*",           // the dynamic linker: LD_PRELOAD and LD_AUDIT are code in the shell before its first instruction, LD_LIBRARY_PATH another libc
	"GLIBC_TUNABLES", // read by the same linker; has been a way in (CVE-2023-4911)
	"GCONV_PATH",     // libraries that iconv loads, which bash calls for \u outside of UTF-8
	"BASH_ENV",       // a file that bash runs when it starts; bash expands its name, so $(…) runs, too
	"ENV",            // the same for sh, dash, ash and zsh as sh
	"BASH_FUNC_*",    // functions that bash defines when it starts
	"SHELLOPTS",      // options that bash starts with: noexec, xtrace
	"BASHOPTS",       // the same for shopt
	"BASH_COMPAT",    // makes bash behave as an older version
	"POSIXLY_CORRECT",
	"BASH_XTRACEFD", // a descriptor that bash writes to and closes; it may be one that trl uses to talk to bash
	"PROMPT_COMMAND",
	"PS0",     // expanded before each command at a terminal: $(…) runs
	"PS4",     // the same, for each command under set -x
	"ZDOTDIR", // where zsh's start files are
	"FPATH",   // where zsh finds functions that it does not have yet
}

// CheckEnv refuses variables that change what a shell itself does, unless the operator allows them by name. A request may remove any variable.
func CheckEnv(env protocol.Env, allowed []string) error {
	for name, value := range env {
		if value != nil && matches(controlVariables, name) && !matches(allowed, name) {
			return protocol.InvalidParam("env."+name, "env.%s changes what the shell itself does; set it in a command, or have the operator allow it (--allow-env)", name)
		}
	}
	return nil
}

// matches reports whether a list has a name, or the name's beginning with a * after it.
func matches(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		prefix, open := strings.CutSuffix(entry, "*")
		return entry == name || open && strings.HasPrefix(name, prefix)
	})
}

// idVariable tells the processes of a session to which session they belong, and it tells the orphan scan. A session cannot remove it.
const idVariable = "TRL_SESSION_ID"

// Environ returns the environment of a session's shell: the base environment, the session's own variables, and its id.
func Environ(base []string, id, shell string, env protocol.Env) []string {
	all := make([]string, 0, len(base)+len(env)+2)
	if filepath.Base(shell) != "busybox" { // a program that is started by this name is no shell
		base = append(slices.Clone(base), "SHELL="+shell)
	}
	for _, v := range base {
		name, _, _ := strings.Cut(v, "=")
		if _, replaced := env[name]; !replaced && name != idVariable {
			all = append(all, v)
		}
	}
	for name, value := range WithoutID(env) {
		if value != nil {
			all = append(all, name+"="+*value)
		}
	}
	return append(all, idVariable+"="+id)
}

// WithoutID returns env without the session's id.
func WithoutID(env protocol.Env) protocol.Env {
	if _, has := env[idVariable]; !has {
		return env
	}
	rest := protocol.Env{}
	for name, value := range env {
		if name != idVariable {
			rest[name] = value
		}
	}
	return rest
}
