package protocol

import "time"

// LastExec is the command of a session that ended last, for lists.
type LastExec struct {
	ExecID     string    `json:"exec_id"`
	Command    string    `json:"command"`
	ExitCode   *int      `json:"exit_code,omitzero"`
	Signal     string    `json:"signal,omitzero"`
	TimedOut   bool      `json:"timed_out,omitzero"`
	Cancelled  bool      `json:"cancelled,omitzero"`
	DurationMS int64     `json:"duration_ms"`
	EndedAt    time.Time `json:"ended_at"`
}

// ExecEntry is one command of a session: waiting, running, or ended with its exit.
type ExecEntry struct {
	ExecID    string     `json:"exec_id"`
	StreamID  string     `json:"stream_id"`
	Command   string     `json:"command"`
	State     string     `json:"state"` // queued | running | ended
	QueuedAt  time.Time  `json:"queued_at"`
	StartedAt *time.Time `json:"started_at,omitzero"`
	Exit      *ExecExit  `json:"exit,omitzero"`

	RecordingID string `json:"recording_id,omitzero"`
}

// Execs is the answer of exec.list, oldest first.
type Execs struct {
	Execs []ExecEntry `json:"execs"`
}

// Who is the principal of a connection.
type Who struct {
	Subject string `json:"subject"`
	Role    string `json:"role"` // admin | user | viewer
	Share   *Share `json:"share,omitzero"`
}
