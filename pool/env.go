package pool

import (
	"path/filepath"
	"slices"
	"strings"

	"trl/protocol"
)

// shellControlVariables are the variables that change what a shell itself does, before or between the commands it is given: what code it loads, which
// files it runs, which language it speaks. Whoever may run a command may also do all of this in it; but env is the part of a request that
// people fill from elsewhere (a form, a repository's settings), and here it would be code. A name that ends in * stands for all that begin so.
//
// Not here, because a shell's start and control do not depend on them: PATH, HOME and SHELL, which sessions must be able to set; PS1 and PS2,
// which are shown; IFS, which shells do not take from the environment; MALLOC_…, which tunes; DYLD_…, which is another system's; and
// NODE_OPTIONS, PYTHONSTARTUP and their like, which are read by commands.
var shellControlVariables = []string{
	"LD_*",           // the dynamic linker: LD_PRELOAD and LD_AUDIT are code in the shell before its first instruction, LD_LIBRARY_PATH another libc
	"GLIBC_TUNABLES", // read by the same linker; has been a way in (CVE-2023-4911)
	"GCONV_PATH",     // libraries that iconv loads, which bash calls for \u outside of UTF-8
	"BASH_ENV",       // a file that bash runs when it starts, and its name is expanded: $(…) runs, too
	"ENV",            // the same for sh, dash, ash and zsh as sh
	"BASH_FUNC_*",    // functions that bash defines when it starts
	"SHELLOPTS",      // options that bash starts with: noexec, xtrace
	"BASHOPTS",       // the same for shopt
	"BASH_COMPAT",    // the bash of another year
	"POSIXLY_CORRECT",
	"BASH_XTRACEFD", // a descriptor that bash writes to and closes: also one of those that trl speaks to it through
	"PROMPT_COMMAND",
	"PS0",     // expanded before each command at a terminal: $(…) runs
	"PS4",     // the same, for each command under set -x
	"ZDOTDIR", // where zsh's start files are
	"FPATH",   // where zsh finds functions that it does not have yet
}

// checkEnv refuses what steers a shell, unless the operator allows it. A null only takes away.
func (p *Pool) checkEnv(env protocol.Env) error {
	for name, value := range env {
		if value != nil && matchesName(shellControlVariables, name) && !matchesName(p.config.Load().AllowEnv, name) {
			return protocol.InvalidParam("env."+name, "env.%s changes what the shell itself does; set it in a command, or have the operator allow it (--allow-env)", name)
		}
	}
	return nil
}

// matchesName reports whether name is in a list, or begins as an entry that ends in *.
func matchesName(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		prefix, open := strings.CutSuffix(entry, "*")
		return entry == name || open && strings.HasPrefix(name, prefix)
	})
}

// idVariable tells a session's processes whose they are, and the orphan scan, too: a session cannot remove it.
const idVariable = "TRL_SESSION_ID"

// environment is the base, the session's own variables, and its id.
func (p *Pool) environment(id, shell string, env protocol.Env) []string {
	base := p.config.Load().BaseEnv
	all := make([]string, 0, len(base)+len(env)+2)
	if filepath.Base(shell) != "busybox" { // which by this name is no shell
		base = append(slices.Clone(base), "SHELL="+shell)
	}
	for _, v := range base {
		name, _, _ := strings.Cut(v, "=")
		if _, replaced := env[name]; !replaced && name != idVariable {
			all = append(all, v)
		}
	}
	for name, value := range withoutID(env) {
		if value != nil {
			all = append(all, name+"="+*value)
		}
	}
	return append(all, idVariable+"="+id)
}

func withoutID(env protocol.Env) protocol.Env {
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
