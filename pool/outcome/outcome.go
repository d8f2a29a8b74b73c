// Package outcome tells clients and metrics how a command has ended.
package outcome

import (
	"errors"
	"time"

	"trl/metrics"
	"trl/pool/shells"
	"trl/protocol"
	"trl/runtime/shell"
)

// IsUnrun reports whether the command never ran.
func IsUnrun(out *shell.Outcome) bool { return out.Err != nil && out.Code < 0 }

// Put puts the outcome of a run into the form that clients get. keeperGone says that no session is left.
func Put(x *protocol.ExecExit, out *shell.Outcome, code *int, keeperGone func() bool) {
	x.DurationMS, x.LingerMS = out.Duration.Milliseconds(), out.Linger.Milliseconds()
	x.TimedOut, x.TimeoutKind, x.Cancelled = out.Timeout != "", out.Timeout, out.Cancelled
	x.ShellRestored, x.StateLost = out.Restored, out.Lost
	x.KillFailed, x.Background = out.KillFailed, out.Background
	if out.Dir != "" {
		x.WorkingDir = out.Dir
	}
	x.OOMKilled, x.LimitHit = out.OOMKilled, out.LimitHit
	if out.HasUsage {
		x.Usage = &protocol.Usage{CPUMS: float64(out.CPU) / float64(time.Millisecond), MaxRSSBytes: out.MaxRSS, MemoryPeakBytes: out.MemoryPeak}
	}
	switch {
	case IsUnrun(out): // the caller says why
	case errors.Is(out.Err, shell.ErrUnknownEnd) || out.Err != nil && !errors.Is(out.Err, shell.ErrShellGone): // ErrShellGone is about what follows the command
		if keeperGone() {
			x.Error = shells.KeeperGone(out.Err)
			break
		}
		x.Error = protocol.Errorf(protocol.InternalError, "end of the command is unknown").WithCause(out.Err)
	default:
		*code = out.Code
		x.ExitCode, x.Signal = code, out.Signal
	}
}

// Of returns the label of trl_execs_total. shellDied says that the shell died with the command.
func Of(x *protocol.ExecExit, shellDied bool) string {
	switch {
	case x.Error != nil:
		return metrics.OutcomeError
	case x.Cancelled:
		return metrics.OutcomeCancelled
	case x.TimeoutKind == "no_output":
		return metrics.OutcomeNoOutput
	case x.TimedOut:
		return metrics.OutcomeTimeout
	case shellDied:
		return metrics.OutcomeShellDied
	case x.Signal != "":
		return metrics.OutcomeSignaled
	case x.ExitCode != nil && *x.ExitCode != 0:
		return metrics.OutcomeFailed
	}
	return metrics.OutcomeOK
}

// Cause returns the cause of the error of a command that broke.
func Cause(x *protocol.ExecExit) error {
	if x.Error == nil {
		return nil
	}
	return x.Error.Unwrap()
}
