package protocol

import "time"

// Recording is one recording, ended or in progress: an asciicast of a terminal or a command.
type Recording struct {
	RecordingID string    `json:"recording_id"`
	SessionID   string    `json:"session_id"`
	Session     string    `json:"session,omitzero"`
	TermID      string    `json:"term_id,omitzero"`
	ExecID      string    `json:"exec_id,omitzero"`
	Command     string    `json:"command,omitzero"`
	Owner       string    `json:"owner"`
	State       string    `json:"state"`           // recording | ended
	Reason      string    `json:"reason,omitzero"` // why it ended
	ExitCode    *int      `json:"exit_code,omitzero"`
	Cols        int       `json:"cols"`
	Rows        int       `json:"rows"`
	StartedAt   time.Time `json:"started_at"`
	DurationMS  int64     `json:"duration_ms"`
	SizeBytes   int64     `json:"size_bytes"`
	OutputBytes int64     `json:"output_bytes"`
	Demanded    bool      `json:"demanded,omitzero"`
}

// Recordings is the answer of recording.list; the list is never null.
type Recordings struct {
	Recordings []Recording `json:"recordings"`
	Partial    []string    `json:"partial,omitzero"`
}

// RecordingList is the params of recording.list. The session may be forgotten.
type RecordingList struct {
	SessionID string `json:"session_id,omitzero"`
	All       bool   `json:"all,omitzero"`
}

// RecordingRef is the params of methods that need only a recording.
type RecordingRef struct {
	RecordingID string `json:"recording_id"`
}

// Validate requires a recording.
func (q *RecordingRef) Validate() *Error { return present("recording_id", q.RecordingID) }
