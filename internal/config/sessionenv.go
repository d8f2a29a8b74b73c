package config

import (
	"os"
	"os/user"

	"trl/internal/statedir"
	"trl/runtime/confine"
)

// SessionEnv is what every session starts from: PROTOCOL.md §9's list and nothing else of our own environment, which may hold
// our secrets or the operator's. SHELL is not here: it is the session's own, whatever that of a service's user (nologin).
// as: whom sessions run as, if not as us; what a login sets is added where that is known.
func SessionEnv(as *confine.Account) []string {
	account, _ := user.Current() // nil in a container whose uid has no passwd entry
	fallback := map[string]string{
		"PATH":    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME":    statedir.HomeDir(),
		"USER":    "",
		"LOGNAME": "",
		"LANG":    "C.UTF-8", // without it most programs would take UTF-8 for 8-bit noise
		"TZ":      "",
		"TMPDIR":  "",
	}
	if account != nil {
		fallback["USER"], fallback["LOGNAME"] = account.Username, account.Username
	}
	own := map[string]bool{"HOME": true, "USER": true, "LOGNAME": true} // another user's are not
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
	// No terminal, no colours, no pager: commands' output goes to programs. Terminals set their own TERM.
	return append(env, "TERM=dumb", "NO_COLOR=1", "GIT_PAGER=cat")
}

// defaultDir is where sessions start unless the operator or the client says otherwise.
func defaultDir() string {
	if info, err := os.Stat(statedir.HomeDir()); err == nil && info.IsDir() {
		return statedir.HomeDir()
	}
	return "/tmp"
}
