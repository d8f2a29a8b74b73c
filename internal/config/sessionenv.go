package config

import (
	"os"
	"os/user"

	"trl/internal/statedir"
	"trl/runtime/confine"
)

// SessionEnv is the environment of every session. It has nothing else of our own environment, which may contain our secrets or the
// operator's. SHELL is not in it: each session sets it to its own shell. as is the account that sessions run as, if it is not ours. The
// variables that a login sets for it are added where the account is known.
func SessionEnv(as *confine.Account) []string {
	account, _ := user.Current() // nil in a container whose uid has no passwd entry
	fallback := map[string]string{
		"PATH":    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME":    statedir.HomeDir(),
		"USER":    "",
		"LOGNAME": "",
		"LANG":    "C.UTF-8", // without it most programs would not accept UTF-8
		"TZ":      "",
		"TMPDIR":  "",
	}
	if account != nil {
		fallback["USER"], fallback["LOGNAME"] = account.Username, account.Username
	}
	own := map[string]bool{"HOME": true, "USER": true, "LOGNAME": true} // not for another user
	var env []string
	for _, name := range []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR"} {
		value := os.Getenv(name)
		if value == "" {
			value = fallback[name]
		}
		if value != "" && (as == nil || !own[name]) {
			env = append(env, name+"="+value)
		}
	}
	// No terminal, no colours, no pager: programs read the output of commands. Terminals set their own TERM.
	return append(env, "TERM=dumb", "NO_COLOR=1", "GIT_PAGER=cat")
}

// defaultDir is where sessions start unless the operator or the client chooses another directory.
func defaultDir() string {
	if info, err := os.Stat(statedir.HomeDir()); err == nil && info.IsDir() {
		return statedir.HomeDir()
	}
	return "/tmp"
}
