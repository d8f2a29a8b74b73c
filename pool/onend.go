package pool

import "time"

// An End is how something ended that a client began, for who keeps the record: Config.Ended is told of each, also of what was begun
// under an earlier gateway.
type End struct {
	Owner   string // the principal
	Session string
	Kind    EndKind
	ID      string // of the command, process or terminal; empty for a session
	Outcome string // of a command: metrics.Outcomes
	Reason  string // of a session
	Code    *int   // exit code, where there is one
	Signal  string

	RequestedAt, StartedAt, EndedAt time.Time // Asked: when a command was sent; Began is zero for one that never had the turn
}

// EndKind is what ended.
type EndKind string

// The kinds of End.
const (
	ExecEnd     EndKind = "exec"
	ProcessEnd  EndKind = "process"
	TerminalEnd EndKind = "terminal"
	SessionEnd  EndKind = "session"
)

// reportEnd is called with no lock held.
func (p *Pool) reportEnd(e End) {
	if ended := p.config.Load().OnEnd; ended != nil {
		ended(e)
	}
}
