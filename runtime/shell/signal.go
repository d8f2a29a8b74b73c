package shell

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"trl/protocol"
	"trl/runtime/procfs"
	"trl/runtime/snapshot"
)

// signalRequest is a client's request to send a signal, with a channel for the result.
type signalRequest struct {
	sig    syscall.Signal
	result chan SignalResult // has room for the result
}

// SignalResult is the result of Command.Signal.
type SignalResult struct {
	Processes int    // how many processes got the signal; counts the shell, too, if it got one
	Why       string // why no process got it: protocol.SignalEnded and so on
}

// earlySignalTimeout is how long a process may take from its fork to its exec. A subshell never calls exec.
const earlySignalTimeout = 2 * time.Second

// earlySignal is a signal that a process may have lost, because it had called no exec yet and still caught what its shell does.
type earlySignal struct {
	sig   syscall.Signal
	pid   int
	until time.Time
}

// repeatEarlySignals sends signals again to the processes that have called exec since.
func (r *run) repeatEarlySignals(now time.Time) {
	r.early = slices.DeleteFunc(r.early, func(e earlySignal) bool {
		p, ok := procfs.Read(e.pid)
		if ok && !p.BeforeExec {
			r.scope.SignalSome(e.sig, e.pid)
		}
		return !ok || !p.BeforeExec || now.After(e.until)
	})
}

// signal sends a client's signal to the command's processes. The shell reacts as a plain shell would: the user's trap for sig runs;
// INT ends the shell's command list; and if the shell itself works, without another process, the signal aborts the command.
func (r *run) signal(sig syscall.Signal, now time.Time) SignalResult {
	members := r.membersExceptShell()
	n := len(members)
	for _, pid := range members {
		if p, ok := procfs.Read(pid); ok && p.BeforeExec {
			r.early = append(r.early, earlySignal{sig, pid, now.Add(earlySignalTimeout)})
		}
	}
	defer r.scope.Signal(sig, r.p.child.Pid()) // after the shell's signal, so that the shell has it before the process that it waits for ends
	k, pid := r.p.dialect, r.p.child.Pid()
	switch interrupt := sig == syscall.SIGINT; {
	case r.reported || r.died:
		if n == 0 {
			return SignalResult{Why: protocol.SignalEnded}
		}
	case r.abort != nil: // the abort also handles the shell
	case r.hasTrap(sig), interrupt && k.AbortSignal == sig && !procfs.Ignores(pid, sig) && r.hasAbortTrap():
		_ = r.p.child.Signal(sig)
		r.aborted = r.aborted || interrupt
		n++
	case interrupt && n > 0 && !procfs.Ignores(pid, sig):
		_ = r.p.child.Signal(k.AbortSignal)
		r.aborted, r.resendsLeft = true, 3
		r.wedgeInterval = firstWedgeInterval / 4
		r.wedgeCheckAt = now.Add(r.wedgeInterval)
		n++
	case n > 0:
	case !endsByDefault(sig) || procfs.Ignores(pid, sig) && !ignoredByShells(sig):
		return SignalResult{Why: protocol.SignalIgnored}
	case sig != syscall.SIGKILL && r.hasAbortTrap():
		return SignalResult{Why: protocol.SignalTrapped}
	default:
		r.startAbort(sig, r.c.Grace, now)
		n++
	}
	return SignalResult{Processes: n}
}

// caughtByShell has the signals that an interactive shell catches without a trap.
var caughtByShell = map[string]string{
	"bash": " HUP INT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM CHLD XCPU XFSZ VTALRM WINCH SYS ",
	"dash": " INT CHLD ",
	"ash":  " INT CHLD ",
	"zsh":  " HUP INT PIPE ALRM CHLD WINCH ",
}

// hasTrap tells whether the user has set a trap for sig. If the shell does not catch sig, there is none. If it does, there is one,
// except for signals that the shell catches without a trap: then a trap in the text or in the last snapshot must name the signal.
func (r *run) hasTrap(sig syscall.Signal) bool {
	k := r.p.dialect
	if !procfs.InMask(r.p.child.Pid(), "SigCgt:", sig) {
		return false
	}
	name := protocol.SignalName(sig)
	if !strings.Contains(caughtByShell[k.Name], " "+name+" ") && sig != k.AbortSignal {
		return true
	}
	name = regexp.QuoteMeta(name)
	set := regexp.MustCompile(fmt.Sprintf(`(?i)\btrap\b[^;&|\n]*\s((SIG)?%s|%d)(\s|[;&|)}]|$)|TRAP%s`, name, int(sig), name))
	if strings.Contains(strings.ToLower(r.c.Text), "trap") && set.MatchString(unquoted(r.c.Text)) {
		return true
	}
	script, _ := r.s.state.Script(k, snapshot.Alive)
	return regexp.MustCompile(`(?m)' (SIG)?` + name + `$|^TRAP` + name + ` \(\)`).Match(script)
}

// unquoted returns text with each quoted part replaced by a blank, because a trap in a quoted part is for another program.
func unquoted(text string) string {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case c == '\\' && quote != '\'':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
			b.WriteByte(' ')
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ignoredByShells tells whether an interactive shell ignores sig without a trap.
func ignoredByShells(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return true
	}
	return false
}

// endsByDefault tells whether sig ends a process that does not handle it.
func endsByDefault(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return false
	}
	return true
}
