package protocol

import "time"

// ProcessStart is the params of process.start.
type ProcessStart struct {
	SessionRef
	Command    string   `json:"command"`
	Name       string   `json:"name,omitzero"`
	Env        Env      `json:"env,omitzero"`
	WorkingDir string   `json:"working_dir,omitzero"`
	Timeout    *Seconds `json:"timeout_s,omitzero"`
	Stdin      string   `json:"stdin,omitzero"` // none | open
	RequestKey string   `json:"request_key,omitzero"`
}

// ProcessStarted is the answer of process.start.
type ProcessStarted struct {
	ProcessID string `json:"process_id"`
	Pid       int    `json:"pid"`
	StreamID  string `json:"stream_id"`

	StateLost []string `json:"state_lost,omitzero"`
}

// ProcessInfo is the answer of process.info, and the data of process.exit.
type ProcessInfo struct {
	ProcessID   string     `json:"process_id"`
	SessionID   string     `json:"session_id"`
	StreamID    string     `json:"stream_id"`
	Pid         int        `json:"pid"`
	Name        string     `json:"name,omitzero"`
	Command     string     `json:"command"`
	State       string     `json:"state"` // running | exited
	ExitCode    *int       `json:"exit_code,omitzero"`
	Signal      string     `json:"signal,omitzero"`
	TimedOut    bool       `json:"timed_out,omitzero"`
	StartedAt   time.Time  `json:"started_at"`
	EndedAt     *time.Time `json:"ended_at,omitzero"`
	OutputBytes int64      `json:"output_bytes"`
	Ports       []int      `json:"ports,omitzero"`
	Usage       *Usage     `json:"usage,omitzero"`
	StateLost   []string   `json:"state_lost,omitzero"`
}

// Processes is the answer of process.list. Background are the pids of processes that commands left running. BackgroundCommands are those whose command
// line could be read.
type Processes struct {
	Processes          []ProcessInfo     `json:"processes"`
	Background         []int             `json:"background,omitzero"`
	BackgroundCommands []BackgroundEntry `json:"background_commands,omitzero"`
}

// BackgroundEntry is one process that a command left running.
type BackgroundEntry struct {
	Pid     int    `json:"pid"`
	Command string `json:"command"`
}

// ProcessRef is the params of process.info.
type ProcessRef struct {
	ProcessID string `json:"process_id"`
}

// ProcessLogs is the params of process.logs.
type ProcessLogs struct {
	ProcessID   string `json:"process_id"`
	Offset      int64  `json:"offset,omitzero"`
	MaxBytes    *int64 `json:"max_bytes,omitzero"`
	Follow      bool   `json:"follow,omitzero"`
	OnSlow      string `json:"on_slow,omitzero"`
	WindowBytes int64  `json:"window_bytes,omitzero"` // with follow
}

// Chunk is a piece of a stream.
type Chunk struct {
	Offset   int64  `json:"offset"`
	Stream   string `json:"stream"`
	Data     string `json:"data"`
	Encoding string `json:"encoding,omitzero"` // base64 when the bytes are not UTF-8
}

// GapRange is bytes that are gone: from ≤ offset < to.
type GapRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Logs is the answer of process.logs.
type Logs struct {
	StreamID   string    `json:"stream_id,omitzero"`
	StreamNo   uint64    `json:"stream_no,omitzero"`
	Chunks     []Chunk   `json:"chunks"`
	NextOffset int64     `json:"next_offset"`
	EOF        bool      `json:"eof"`
	Gap        *GapRange `json:"gap,omitzero"`

	InputOffset *int64 `json:"input_offset,omitzero"` // as StreamNo
}

// ProcessInput is the params of process.input.
type ProcessInput struct {
	ProcessID string `json:"process_id"`
	Data      string `json:"data,omitzero"`
	Encoding  string `json:"encoding,omitzero"`
	EOF       bool   `json:"eof,omitzero"`
	Offset    *int64 `json:"offset,omitzero"`
}

// ProcessKill is the params of process.kill.
type ProcessKill struct {
	ProcessID string   `json:"process_id"`
	Signal    string   `json:"signal,omitzero"`
	KillGrace *Seconds `json:"kill_grace_s,omitzero"`
}

// Until is the condition of process.wait: exactly one of exit, port, output, http.
type Until struct {
	Exit   bool   `json:"exit,omitzero"`
	Port   int    `json:"port,omitzero"`
	Host   string `json:"host,omitzero"`
	Output string `json:"output,omitzero"` // regular expression (RE2)
	HTTP   string `json:"http,omitzero"`
}

// ProcessWait is the params of process.wait.
type ProcessWait struct {
	ProcessID string   `json:"process_id"`
	Until     Until    `json:"until"`
	Timeout   *Seconds `json:"timeout_s,omitzero"`
}

// WaitResult is the answer of process.wait. Tail is the last output of a process that ended before the condition was met.
type WaitResult struct {
	Met      bool   `json:"met"`
	ExitCode *int   `json:"exit_code,omitzero"`
	Signal   string `json:"signal,omitzero"`
	Match    string `json:"match,omitzero"`
	Tail     string `json:"tail,omitzero"`
}
