package runtime

import (
	"fmt"
	"regexp"
	"strings"
	"syscall"
	"time"

	"trl/protocol"
)

// signalling is a signal that a client wants sent, and where to say what came of it.
type signalling struct {
	sig  syscall.Signal
	told chan Signalled // has room for the one answer
}

// Signalled is what came of Command.Signal.
type Signalled struct {
	Processes int    // how many got the signal, the shell among them where it did
	Why       string // why nobody did: protocol.SignalEnded and so on
}

// signal sends what a client wants sent to the command's processes, and does to the shell what the signal would do to a plain one: a
// trap of its user's is run, INT ends its list, and where it is at work itself, without a process, the signal ends the command.
func (r *run) signal(sig syscall.Signal, now time.Time) Signalled {
	n := len(r.others())
	defer r.cell.Signal(sig, r.p.child.Pid()) // after the shell, which is to know of it when what it waits for ends
	k, pid := r.p.kind, r.p.child.Pid()
	switch interrupt := sig == syscall.SIGINT; {
	case r.reported || r.died:
		if n == 0 {
			return Signalled{Why: protocol.SignalEnded}
		}
	case r.end != nil: // it is being ended, and the shell with it
	case r.trapped(sig), interrupt && k.abort == sig && !ignores(pid, sig) && r.deaf():
		_ = r.p.child.Signal(sig)
		r.aborted = r.aborted || interrupt
		n++
	case interrupt && n > 0 && !ignores(pid, sig):
		_ = r.p.child.Signal(k.abort)
		r.aborted, r.unsure = true, 3
		r.doubt = firstDoubt / 4
		r.suspect = now.Add(r.doubt)
		n++
	case n > 0:
	case !endsByDefault(sig) || ignores(pid, sig) && !ignoredByShells(sig):
		return Signalled{Why: protocol.SignalIgnored}
	case sig != syscall.SIGKILL && r.deaf():
		return Signalled{Why: protocol.SignalTrapped}
	default:
		r.begin(sig, r.c.Grace, now)
		n++
	}
	return Signalled{Processes: n}
}

// catches has the signals that an interactive shell catches for itself.
var catches = map[string]string{
	"bash": " HUP INT ILL TRAP ABRT BUS FPE USR1 SEGV USR2 PIPE ALRM CHLD XCPU XFSZ VTALRM WINCH SYS ",
	"dash": " INT CHLD ",
	"ash":  " INT CHLD ",
	"zsh":  " HUP INT PIPE ALRM CHLD WINCH ",
}

// trapped says whether the shell has a trap of its user's for sig. What the kernel says settles it, but for signals that the shell
// catches for itself: then a trap in the text or in the last snapshot must name the signal.
func (r *run) trapped(sig syscall.Signal) bool {
	k := r.p.kind
	if !inMask(r.p.child.Pid(), "SigCgt:", sig) {
		return false
	}
	name := protocol.SignalName(sig)
	if !strings.Contains(catches[k.name], " "+name+" ") && sig != k.abort {
		return true
	}
	name = regexp.QuoteMeta(name)
	set := regexp.MustCompile(fmt.Sprintf(`(?i)\btrap\b[^;&|\n]*\s((SIG)?%s|%d)(\s|[;&|)}]|$)|TRAP%s`, name, int(sig), name))
	if strings.Contains(strings.ToLower(r.c.Text), "trap") && set.MatchString(unquoted(r.c.Text)) {
		return true
	}
	script, _ := r.s.st.script(k, nil)
	return regexp.MustCompile(`(?m)' (SIG)?` + name + `$|^TRAP` + name + ` \(\)`).Match(script)
}

// unquoted is text with each quoted part replaced by a blank: a trap in there is another program's.
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

// ignoredByShells: an interactive shell ignores sig by itself.
func ignoredByShells(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return true
	}
	return false
}

// endsByDefault: a process that does nothing about sig ends of it.
func endsByDefault(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU:
		return false
	}
	return true
}
