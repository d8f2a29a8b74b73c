// Package ends describes the ends of sessions, commands, processes and terminals, for the audit log.
package ends

import "time"

// An End says how a session, command, process or terminal ended. pool.Config.OnEnd gets each, also of work that began under an earlier gateway.
type End struct {
	Owner   string // the principal
	Session string
	Kind    Kind
	ID      string // of the command, process or terminal; empty for a session
	Outcome string // of a command: metrics.Outcomes
	Reason  string // of a session
	Code    *int   // exit code, where there is one
	Signal  string

	RequestedAt, StartedAt, EndedAt time.Time // RequestedAt is when a command was sent; StartedAt is zero for a command that never got the turn
}

// Kind is what ended.
type Kind string

// The kinds of End.
const (
	Exec     Kind = "exec"
	Process  Kind = "process"
	Terminal Kind = "terminal"
	Session  Kind = "session"
)
