package client

import (
	"errors"
	"fmt"

	"trl/protocol"
)

// Error is the server's answer to a request that it could not carry out: a Code, a message for people, and Details, which depend on the code.
type Error = protocol.Error

var (
	// ErrConnectionLost is what a *ConnectionLostError matches with errors.Is.
	ErrConnectionLost = errors.New("connection lost")
	// ErrClosed means that Close was called on the Client, or that the output was left.
	ErrClosed = errors.New("client is closed")
	// ErrDisplaced means that another reader of the same Client reads this output now.
	ErrDisplaced = errors.New("another stream of this client reads the output now")
	// ErrGap means that output was not read in time and the server dropped it.
	ErrGap = errors.New("lost because they were not read in time")
)

// Outcome says what became of a request whose answer is lost.
type Outcome string

// The outcomes.
const (
	OutcomeUnsent  Outcome = "unsent"  // the server never got it
	OutcomeUnknown Outcome = "unknown" // the server may have carried it out
)

// ConnectionLostError means that the connection was lost, and could not be made again or did not bring the answer.
type ConnectionLostError struct {
	Outcome Outcome
	cause   error
}

func (e *ConnectionLostError) Error() string {
	if e.cause == nil {
		return ErrConnectionLost.Error()
	}
	return ErrConnectionLost.Error() + ": " + e.cause.Error()
}

// Is makes errors.Is(err, ErrConnectionLost) true.
func (e *ConnectionLostError) Is(target error) bool { return target == ErrConnectionLost }

// Unwrap returns why the connection was lost.
func (e *ConnectionLostError) Unwrap() error { return e.cause }

var errNewEpoch = errors.New("the server was started anew before it answered")

// CommandError is a failed command with ExecOptions.Check.
type CommandError struct{ Result *ExecResult }

func (e *CommandError) Error() string {
	r := e.Result
	how := fmt.Sprintf("exit code %d", r.ExitCode)
	if r.Signal != "" {
		how = "ended by " + r.Signal
	}
	if r.TimedOut {
		how += " after its time limit"
	}
	return r.Command + ": " + how
}

// OutcomeUnknownError means that the server accepted a command and cannot say how it ended. Exit has what is known, and the reason as its Error.
type OutcomeUnknownError struct{ Exit protocol.ExecExit }

func (e *OutcomeUnknownError) Error() string {
	return "the command's result is unknown: " + e.Exit.Error.Error()
}

// Unwrap returns the server's reason.
func (e *OutcomeUnknownError) Unwrap() error { return e.Exit.Error }

// ProcessReadyTimeoutError means that the Timeout of a wait for a process is over. The process goes on.
type ProcessReadyTimeoutError struct {
	ProcessID, Condition string
}

func (e *ProcessReadyTimeoutError) Error() string {
	return fmt.Sprintf("process %s: not within the time: %s", e.ProcessID, e.Condition)
}

// Timeout makes it a timeout as package net means it.
func (e *ProcessReadyTimeoutError) Timeout() bool { return true }

// ProcessExitedBeforeReadyError means that a process ended before what was waited for.
type ProcessExitedBeforeReadyError struct {
	ProcessID, Condition string
	ExitCode             int    // -1 if it is unknown
	Tail                 string // the last output
}

func (e *ProcessExitedBeforeReadyError) Error() string {
	text := fmt.Sprintf("process %s ended with exit code %d before: %s", e.ProcessID, e.ExitCode, e.Condition)
	if e.Tail != "" {
		text += "\n" + e.Tail
	}
	return text
}

// CodeOf returns the server's code in err's chain, and "" if there is none.
func CodeOf(err error) protocol.Code {
	if e, ok := errors.AsType[*protocol.Error](err); ok && e != nil {
		return e.Code
	}
	return ""
}

// IsSessionLost reports whether the session belonged to an earlier epoch of the server.
func IsSessionLost(err error) bool { return CodeOf(err) == protocol.SessionLost }

// IsSessionTerminated reports whether the session has ended, or was lost with an earlier epoch of the server.
func IsSessionTerminated(err error) bool {
	return CodeOf(err) == protocol.SessionTerminated || IsSessionLost(err)
}

// IsSessionNotFound reports whether there is no such session.
func IsSessionNotFound(err error) bool { return CodeOf(err) == protocol.SessionNotFound }

// IsSessionExists reports whether a live session has this name.
func IsSessionExists(err error) bool { return CodeOf(err) == protocol.SessionExists }

// IsSessionBusy reports whether another command runs, for a command with WhenBusy "reject", or the session's queue is full.
func IsSessionBusy(err error) bool { return CodeOf(err) == protocol.SessionBusy }

// IsForbidden reports whether the credential does not allow the request.
func IsForbidden(err error) bool { return CodeOf(err) == protocol.Forbidden }

// IsAuthFailed reports whether the credential is missing, wrong, revoked or expired.
func IsAuthFailed(err error) bool { return CodeOf(err) == protocol.AuthFailed }

// IsNotFound reports whether there is no such command, process, terminal, stream, share link or recording.
func IsNotFound(err error) bool {
	switch CodeOf(err) {
	case protocol.ExecNotFound, protocol.ProcessNotFound, protocol.TermNotFound, protocol.StreamNotFound, protocol.ShareNotFound, protocol.RecordingNotFound:
		return true
	}
	return false
}

// IsLimit reports whether a bound of the session or the server was reached.
func IsLimit(err error) bool {
	return CodeOf(err) == protocol.LimitExceeded || CodeOf(err) == protocol.MaxSessionsReached
}

// IsRetryable reports whether the server has refused the request, and may accept the same request a little later.
func IsRetryable(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e == nil {
		return false
	}
	switch e.Code {
	case protocol.RateLimited, protocol.ShuttingDown, protocol.SessionBusy, protocol.NodeUnreachable, protocol.DirectoryUnavailable:
		return true
	case protocol.LimitExceeded:
		return e.Details["limit"] == "stdin" || e.Details["limit"] == "connections"
	}
	return false
}
