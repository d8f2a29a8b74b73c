package protocol

import "time"

// The bounds of a terminal's width and height.
const (
	MinSize = 1
	MaxSize = 1000
)

// TermOpen is the params of term.open.
type TermOpen struct {
	SessionRef
	Cols       int    `json:"cols"`
	Rows       int    `json:"rows"`
	Command    string `json:"command,omitzero"`
	Env        Env    `json:"env,omitzero"`
	WorkingDir string `json:"working_dir,omitzero"`
	OnSlow     string `json:"on_slow,omitzero"`
	RequestKey string `json:"request_key,omitzero"`

	WindowBytes int64 `json:"window_bytes,omitzero"`
	Record      bool  `json:"record,omitzero"`
}

// TermOpened is the answer of term.open.
type TermOpened struct {
	TermID    string `json:"term_id"`
	SessionID string `json:"session_id"`
	StreamID  string `json:"stream_id"`
	StreamNo  uint64 `json:"stream_no,omitzero"`
	Pid       int    `json:"pid"`
	ViewerID  string `json:"viewer_id"`
	Claim     int64  `json:"claim"`

	InputOffset *int64   `json:"input_offset,omitzero"` // on connections with binary frames only
	RecordingID string   `json:"recording_id,omitzero"`
	StateLost   []string `json:"state_lost,omitzero"`
}

// TermRef is the params of methods that need only a terminal.
type TermRef struct {
	TermID string `json:"term_id"`
}

// TermInput is the params of term.input.
type TermInput struct {
	TermID   string `json:"term_id"`
	Data     string `json:"data"`
	Encoding string `json:"encoding,omitzero"`
	Offset   *int64 `json:"offset,omitzero"`
}

// TermResize is the params of term.resize.
type TermResize struct {
	TermID string `json:"term_id"`
	Cols   int    `json:"cols"`
	Rows   int    `json:"rows"`
}

// TermClose is the params of term.close.
type TermClose struct {
	TermID    string   `json:"term_id"`
	KillGrace *Seconds `json:"kill_grace_s,omitzero"`
}

// TermAttach is the params of term.attach.
type TermAttach struct {
	TermID   string `json:"term_id"`
	Offset   *int64 `json:"offset,omitzero"`
	Mode     string `json:"mode,omitzero"` // control | view
	Claim    int64  `json:"claim,omitzero"`
	Cols     int    `json:"cols,omitzero"`
	Rows     int    `json:"rows,omitzero"`
	Snapshot bool   `json:"snapshot,omitzero"`
	History  bool   `json:"history,omitzero"`
	OnSlow   string `json:"on_slow,omitzero"`

	WindowBytes int64 `json:"window_bytes,omitzero"`
}

// TermAttached is the answer of term.attach.
type TermAttached struct {
	TermID   string `json:"term_id"`
	StreamID string `json:"stream_id"`
	StreamNo uint64 `json:"stream_no,omitzero"`
	Offset   int64  `json:"offset"`
	Mode     string `json:"mode"`
	Cols     int    `json:"cols"`
	Rows     int    `json:"rows"`
	State    string `json:"state"`
	ViewerID string `json:"viewer_id"`
	Claim    int64  `json:"claim,omitzero"`

	InputOffset *int64 `json:"input_offset,omitzero"` // on connections with binary frames only
	RecordingID string `json:"recording_id,omitzero"`
}

// TermViewer is one client that is attached to a terminal.
type TermViewer struct {
	ViewerID string    `json:"viewer_id"`
	Subject  string    `json:"subject"`
	Mode     string    `json:"mode"` // control | view
	Since    time.Time `json:"since"`
	Cols     int       `json:"cols,omitzero"`
	Rows     int       `json:"rows,omitzero"`
	Via      string    `json:"via,omitzero"`
}

// TermInfo is a terminal: the answer of term.close, an element of term.list, and the data of term.opened and term.exit.
type TermInfo struct {
	TermID      string     `json:"term_id"`
	SessionID   string     `json:"session_id"`
	StreamID    string     `json:"stream_id"`
	Pid         int        `json:"pid"`
	State       string     `json:"state"` // running | exited
	ExitCode    *int       `json:"exit_code,omitzero"`
	Signal      string     `json:"signal,omitzero"`
	Cols        int        `json:"cols"`
	Rows        int        `json:"rows"`
	Command     string     `json:"command"`
	Viewers     int        `json:"viewers"`
	StartedAt   time.Time  `json:"started_at"`
	EndedAt     *time.Time `json:"ended_at,omitzero"`
	OutputBytes int64      `json:"output_bytes"`
	RecordingID string     `json:"recording_id,omitzero"`
	StateLost   []string   `json:"state_lost,omitzero"`

	Attached []TermViewer `json:"attached,omitempty"`
}

// Terminals is the answer of term.list; the list is never null.
type Terminals struct {
	Terminals []TermInfo `json:"terminals"`
}

// Cursor is where the next character goes.
type Cursor struct {
	Col     int  `json:"col"`
	Row     int  `json:"row"`
	Visible bool `json:"visible"`
}

// TermSnapshot is the answer of term.snapshot: a terminal's screen as text.
type TermSnapshot struct {
	TermID    string   `json:"term_id"`
	Cols      int      `json:"cols"`
	Rows      int      `json:"rows"`
	Lines     []string `json:"lines"`
	Cursor    Cursor   `json:"cursor"`
	Alternate bool     `json:"alternate"`
	Title     string   `json:"title,omitzero"`
	Offset    int64    `json:"offset"`
	State     string   `json:"state"`

	SkippedBytes int64 `json:"skipped_bytes,omitzero"`
}

// TermResized is the data of term.resized.
type TermResized struct {
	TermID string `json:"term_id"`
	Cols   int    `json:"cols"`
	Rows   int    `json:"rows"`
}

// TermViewers is the data of term.viewers.
type TermViewers struct {
	TermID    string       `json:"term_id"`
	SessionID string       `json:"session_id"`
	StreamID  string       `json:"stream_id"`
	Viewers   int          `json:"viewers"`
	Attached  []TermViewer `json:"attached,omitempty"`
}

// TermControl is the data of term.control.
type TermControl struct {
	TermID   string      `json:"term_id"`
	StreamID string      `json:"stream_id"`
	Mode     string      `json:"mode"` // control | view
	By       *TermViewer `json:"by,omitzero"`
}

// TermCommand is the data of term.command: a command that ended in a terminal, as the marks of its shell report it.
type TermCommand struct {
	TermID     string `json:"term_id"`
	StreamID   string `json:"stream_id"`
	Command    string `json:"command,omitzero"`
	ExitCode   *int   `json:"exit_code,omitzero"`
	DurationMS *int64 `json:"duration_ms,omitzero"`
	Offset     int64  `json:"offset"`
	EndOffset  int64  `json:"end_offset"`
}
