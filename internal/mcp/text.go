package mcp

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"trl/client"
	"trl/protocol"
)

// kind is what an id names; ids begin with it.
type kind string

const (
	sessionKind   kind = "s-"
	execKind      kind = "x-"
	processKind   kind = "p-"
	terminalKind  kind = "t-"
	recordingKind kind = "r-"
	noKind        kind = ""
)

// kindOf tells an id from a name: an id has its prefix and at least 100 random bits.
func kindOf(id string) kind {
	for _, k := range []kind{sessionKind, execKind, processKind, terminalKind, recordingKind} {
		if strings.HasPrefix(id, string(k)) && len(id) >= len(k)+16 {
			return k
		}
	}
	return noKind
}

// seconds writes a time as people do.
func seconds(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// outcome says how work ended: by an exit code, or by a signal.
func outcome(code *int, signal string) string {
	switch {
	case signal != "":
		return "killed by " + signal
	case code != nil:
		return fmt.Sprintf("exit %d", *code)
	}
	return "ended, exit code unknown"
}

// execLine is the first line of the answer for a command that has ended.
func execLine(x *protocol.ExecExit) string {
	line := outcome(x.ExitCode, x.Signal)
	switch {
	case x.OOMKilled || x.LimitHit == "memory_bytes":
		line += ": out of memory"
	case x.TimedOut && x.TimeoutKind == "no_output":
		line += ": timed out, it printed nothing"
	case x.TimedOut:
		line += fmt.Sprintf(": timed out after %s", seconds(x.TimeoutS.Duration()))
	case x.Cancelled:
		line += ": stopped"
	case x.LimitHit != "":
		line += ": limit " + x.LimitHit + " reached"
	}
	line += fmt.Sprintf(" in %s", seconds(time.Duration(x.DurationMS)*time.Millisecond))
	if x.WorkingDir != "" {
		line += ", in " + x.WorkingDir
	}
	line += " [" + x.ExecID + "]"
	switch n := len(x.Background); {
	case n == 1:
		line += "; 1 of its processes still runs"
	case n > 1:
		line += fmt.Sprintf("; %d of its processes still run", n)
	}
	if x.KillFailed {
		line += "; it could not be killed, it hangs in the kernel"
	}
	if len(x.StateLost) > 0 {
		line += "; the shell was replaced and lost: " + strings.Join(x.StateLost, ", ")
	}
	return line
}

// processLine is the first line of the answer for a process that has ended.
func processLine(p *protocol.ProcessInfo) string {
	line := outcome(p.ExitCode, p.Signal)
	if p.TimedOut {
		line += ": timed out"
	}
	if p.EndedAt != nil {
		line += " in " + seconds(p.EndedAt.Sub(p.StartedAt))
	}
	return line + " [" + p.ProcessID + "]"
}

// joined puts the first line before the output.
func joined(first, output string) string {
	if strings.TrimSpace(output) == "" {
		return first
	}
	return first + "\n" + output
}

// failureText says why a request was refused, and what to do about it.
func failureText(err error) string {
	var refused *protocol.Error
	if u := (*unknownOutcome)(nil); errors.As(err, &u) {
		return joined(fmt.Sprintf("%s%s [%s]", sentence(u.Error()), advice(u.why), u.id), u.output)
	}
	switch {
	case errors.As(err, &refused):
		return sentence(refused.Error()) + advice(refused)
	case errors.Is(err, client.ErrConnectionLost):
		return sentence("The connection to the gateway was lost: "+err.Error()) + "If this started something, it may run: look at `list` before you start it again."
	}
	return sentence(err.Error())
}

func sentence(text string) string {
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return text + " "
}

// advice is what a model can do about a code.
func advice(e *protocol.Error) string {
	return cmp.Or(hintFor[e.Code], "Look at `list`.")
}

// hintFor has a hint for each code that a tool can meet; a test compares it with the protocol's list.
var hintFor = map[protocol.Code]string{
	protocol.InvalidRequest:       "This is a fault of the server; try another call.",
	protocol.UnknownMethod:        "This gateway is older than its tools.",
	protocol.InvalidParams:        "Correct this argument.",
	protocol.RequestTooLarge:      "Send less at once, for example through a file.",
	protocol.AuthFailed:           "The person who set this up must renew the token.",
	protocol.Forbidden:            "This token may not do that; tell the person who set it up.",
	protocol.RateLimited:          "Wait a moment, then call again.",
	protocol.SessionNotFound:      "See `list`, or make it with `session`.",
	protocol.SessionExists:        "Use it, or take another name.",
	protocol.SessionBusy:          "Run `list`, or use another session.",
	protocol.SessionTerminated:    "Its directory, variables and processes are gone. Without `session` the next call gets a new one.",
	protocol.SessionLost:          "The gateway was restarted: directory, variables and processes are gone. Without `session` the next call gets a new one.",
	protocol.MaxSessionsReached:   "End a session that is not needed, see `list`.",
	protocol.ShellNotFound:        "Tell the person who set this up.",
	protocol.ShellNotAllowed:      "Tell the person who set this up.",
	protocol.ShellFailed:          "Try `session` with reset, or another session.",
	protocol.WorkingDirNotFound:   "The directory must exist where the gateway runs.",
	protocol.ExecNotFound:         "It ended too long ago; see `list`.",
	protocol.ProcessNotFound:      "It ended too long ago; see `list`.",
	protocol.TermNotFound:         "It ended too long ago; see `list`.",
	protocol.StreamNotFound:       "The offset lies beyond the output; call wait without offset.",
	protocol.StdinClosed:          "It reads no input. Use `run` with stdin, background or tty for programs that read.",
	protocol.OffsetMismatch:       "Somebody else has given it input; call send again.",
	protocol.LimitExceeded:        "Wait for other work to end, or stop it; see `list`.",
	protocol.NotSupported:         "This gateway cannot do that; try another way.",
	protocol.ShuttingDown:         "Call again in a few seconds.",
	protocol.InternalError:        "Its log knows more; tell the person who set this up.",
	protocol.ShareNotFound:        "See `list`.",
	protocol.NodeUnreachable:      "Another machine has it; call again in a few seconds.",
	protocol.DirectoryUnavailable: "Call again in a few seconds.",
	protocol.RecordingNotFound:    "It was removed.",
}
