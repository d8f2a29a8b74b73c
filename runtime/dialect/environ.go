package dialect

import (
	"slices"
	"strings"
)

// NotInTerminals has the variables that a base environment sets for commands without a terminal. A terminal unsets each of them that
// still has this value.
var NotInTerminals = map[string]string{"NO_COLOR": "1", "GIT_PAGER": "cat"}

// TerminalEnv returns the variables of a terminal in a session that has those of env.
func TerminalEnv(env []string) []string {
	out := slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, value, _ := strings.Cut(kv, "=")
		unset, listed := NotInTerminals[name]
		return listed && value == unset || slices.Contains([]string{"COLUMNS", "LINES", "TERM", "COLORTERM"}, name)
	})
	return append(out, "TERM=xterm-256color", "COLORTERM=truecolor")
}

// MergeEnv returns the variables of base with those of env. A nil value removes a variable.
func MergeEnv(base []string, env map[string]*string) []string {
	out := slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		_, set := env[n]
		return set
	})
	for n, v := range env {
		if v != nil {
			out = append(out, n+"="+*v)
		}
	}
	return out
}
