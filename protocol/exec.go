package protocol

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Exec is a foreground command. ExecRun and ExecStream are the same struct with the fields of each method.
type Exec struct {
	SessionRef
	Command          string   `json:"command"`
	Timeout          *Seconds `json:"timeout_s,omitzero"`
	NoOutputTimeout  *Seconds `json:"no_output_timeout_s,omitzero"`
	Stdin            *string  `json:"stdin,omitzero"`
	StdinEncoding    string   `json:"stdin_encoding,omitzero"`
	Env              Env      `json:"env,omitzero"`
	WorkingDir       string   `json:"working_dir,omitzero"`
	MaxOutputBytes   *int64   `json:"max_output_bytes,omitzero"`
	WhenBusy         string   `json:"when_busy,omitzero"` // queue | reject
	KillGrace        *Seconds `json:"kill_grace_s,omitzero"`
	Clean            bool     `json:"clean,omitzero"`
	RequestKey       string   `json:"request_key,omitzero"`
	YieldMS          *float64 `json:"yield_ms,omitzero"`
	InteractiveStdin bool     `json:"interactive_stdin,omitzero"` // exec.stream only
	OnSlow           string   `json:"on_slow,omitzero"`           // exec.stream only: block | skip
	WindowBytes      int64    `json:"window_bytes,omitzero"`      // exec.stream only
	Record           bool     `json:"record,omitzero"`
}

// Omitted describes the bytes of one stream that are missing from the returned text.
type Omitted struct {
	At    int64 `json:"at"`
	Bytes int64 `json:"bytes"`
}

// OmittedStreams is ExecResult's omitted.
type OmittedStreams struct {
	Stdout *Omitted `json:"stdout,omitzero"`
	Stderr *Omitted `json:"stderr,omitzero"`
}

// Usage is what a command used, if known.
type Usage struct {
	CPUMS       float64 `json:"cpu_ms"`
	MaxRSSBytes int64   `json:"max_rss_bytes,omitzero"`

	MemoryPeakBytes int64 `json:"memory_peak_bytes,omitzero"`
}

// ExecExit describes how a command ended: it is exec.exit's data and part of exec.run's.
type ExecExit struct {
	ExecID        string   `json:"exec_id"`
	SessionID     string   `json:"session_id"`
	StreamID      string   `json:"stream_id"`
	StdoutBytes   int64    `json:"stdout_bytes"`
	StderrBytes   int64    `json:"stderr_bytes"`
	ExitCode      *int     `json:"exit_code,omitzero"` // absent while running
	Signal        string   `json:"signal,omitzero"`
	DurationMS    int64    `json:"duration_ms"`
	QueuedMS      int64    `json:"queued_ms"`
	TimedOut      bool     `json:"timed_out"`
	TimeoutKind   string   `json:"timeout_kind,omitzero"` // hard | no_output
	TimeoutS      Seconds  `json:"timeout_s,omitzero"`    // the hard limit in force
	Cancelled     bool     `json:"cancelled"`
	LingerMS      int64    `json:"linger_ms"`
	ShellRestored bool     `json:"shell_restored"`
	StateLost     []string `json:"state_lost,omitzero"`
	Usage         *Usage   `json:"usage,omitzero"`
	OOMKilled     bool     `json:"oom_killed,omitzero"`
	LimitHit      string   `json:"limit_hit,omitzero"` // memory_bytes | pids | file_size_bytes
	KillFailed    bool     `json:"kill_failed,omitzero"`
	WorkingDir    string   `json:"working_dir"`
	Background    []int    `json:"background,omitzero"`
	Error         *Error   `json:"error,omitzero"` // the outcome is unknown: never together with an exit code of 0
}

// ExecResult is exec.run's and exec.wait's data.
type ExecResult struct {
	ExecExit
	Stdout         string         `json:"stdout"`
	Stderr         string         `json:"stderr"`
	StdoutEncoding string         `json:"stdout_encoding"`
	StderrEncoding string         `json:"stderr_encoding"`
	Truncated      bool           `json:"truncated"`
	Omitted        OmittedStreams `json:"omitted,omitzero"`
	Running        bool           `json:"running,omitzero"`     // the answer came before the end (yield_ms)
	NextOffset     *int64         `json:"next_offset,omitzero"` // where exec.wait continues
}

// StreamOpened is the first answer of exec.stream, exec.attach and process.logs with follow.
type StreamOpened struct {
	ExecID    string `json:"exec_id,omitzero"`
	ProcessID string `json:"process_id,omitzero"`
	StreamID  string `json:"stream_id"`
	StreamNo  uint64 `json:"stream_no,omitzero"` // on connections with binary frames only
	Offset    int64  `json:"offset"`

	InputOffset *int64 `json:"input_offset,omitzero"` // as StreamNo
	RecordingID string `json:"recording_id,omitzero"`
}

// ExecWait is the params of exec.wait.
type ExecWait struct {
	ExecID  string   `json:"exec_id"`
	Offset  *int64   `json:"offset,omitzero"`
	Timeout *Seconds `json:"timeout_s,omitzero"`
	YieldMS *float64 `json:"yield_ms,omitzero"`
}

// ExecInput is the params of exec.input.
type ExecInput struct {
	ExecID   string `json:"exec_id"`
	Data     string `json:"data,omitzero"`
	Encoding string `json:"encoding,omitzero"`
	EOF      bool   `json:"eof,omitzero"`
	Offset   *int64 `json:"offset,omitzero"`
}

// InputTaken is the answer of exec.input, process.input and term.input.
type InputTaken struct {
	InputOffset int64 `json:"input_offset"`
}

// ExecCancel is the params of exec.cancel. RequestID is the id of a request on this connection as the client wrote it (compare it with Request.ID): a
// string or a number.
type ExecCancel struct {
	SessionRef
	ExecID    string         `json:"exec_id,omitzero"`
	RequestID jsontext.Value `json:"request_id,omitzero"`
	Signal    string         `json:"signal,omitzero"`
	KillGrace *Seconds       `json:"kill_grace_s,omitzero"`
}

// The reasons why exec.cancel has sent a signal to no process.
const (
	SignalEnded   = "ended"   // the command had ended
	SignalIgnored = "ignored" // the shell itself was working, and the signal has no effect on it
	SignalTrapped = "trapped" // the shell itself was working and has a trap for INT, and trl can stop it only with INT
)

// ExecCancelled is the answer of exec.cancel.
type ExecCancelled struct {
	ExecID    string `json:"exec_id,omitzero"`
	Cancelled bool   `json:"cancelled"`
	Signalled int    `json:"signalled,omitzero"`
	Reason    string `json:"reason,omitzero"` // ended | ignored | trapped
}

// Ended is the answer if the command had ended.
func (q *ExecCancel) Ended(id string) *ExecCancelled {
	a := &ExecCancelled{ExecID: id}
	if q.Signal != "" {
		a.Reason = SignalEnded
	}
	return a
}

// ExecAttach is the params of exec.attach.
type ExecAttach struct {
	ExecID      string `json:"exec_id"`
	Offset      int64  `json:"offset,omitzero"`
	OnSlow      string `json:"on_slow,omitzero"`
	WindowBytes int64  `json:"window_bytes,omitzero"`
}

// ExecDetach is the params of exec.detach, which stops sending a command's output to this connection.
type ExecDetach struct {
	ExecID string `json:"exec_id"`
}

// ExecStarted is the data of exec.started.
type ExecStarted struct {
	SessionID string    `json:"session_id"`
	ExecID    string    `json:"exec_id"`
	StreamID  string    `json:"stream_id"`
	Command   string    `json:"command"`
	At        time.Time `json:"at"`
}

// ExecRun is the params of exec.run. It converts to Exec and back: the two differ in their tags alone, and the compiler sees to it.
type ExecRun struct {
	SessionRef
	Command          string   `json:"command"`
	Timeout          *Seconds `json:"timeout_s,omitzero"`
	NoOutputTimeout  *Seconds `json:"no_output_timeout_s,omitzero"`
	Stdin            *string  `json:"stdin,omitzero"`
	StdinEncoding    string   `json:"stdin_encoding,omitzero"`
	Env              Env      `json:"env,omitzero"`
	WorkingDir       string   `json:"working_dir,omitzero"`
	MaxOutputBytes   *int64   `json:"max_output_bytes,omitzero"`
	WhenBusy         string   `json:"when_busy,omitzero"`
	KillGrace        *Seconds `json:"kill_grace_s,omitzero"`
	Clean            bool     `json:"clean,omitzero"`
	RequestKey       string   `json:"request_key,omitzero"`
	YieldMS          *float64 `json:"yield_ms,omitzero"`
	InteractiveStdin bool     `json:"-"`
	OnSlow           string   `json:"-"`
	WindowBytes      int64    `json:"-"`
	Record           bool     `json:"record,omitzero"`
}

// Exec returns q in the form that the pool uses.
func (q *ExecRun) Exec() *Exec { return (*Exec)(q) }

// ExecStream is the params of exec.stream, as ExecRun is those of exec.run.
type ExecStream struct {
	SessionRef
	Command          string   `json:"command"`
	Timeout          *Seconds `json:"timeout_s,omitzero"`
	NoOutputTimeout  *Seconds `json:"no_output_timeout_s,omitzero"`
	Stdin            *string  `json:"stdin,omitzero"`
	StdinEncoding    string   `json:"stdin_encoding,omitzero"`
	Env              Env      `json:"env,omitzero"`
	WorkingDir       string   `json:"working_dir,omitzero"`
	MaxOutputBytes   *int64   `json:"-"`
	WhenBusy         string   `json:"when_busy,omitzero"`
	KillGrace        *Seconds `json:"kill_grace_s,omitzero"`
	Clean            bool     `json:"-"`
	RequestKey       string   `json:"request_key,omitzero"`
	YieldMS          *float64 `json:"-"`
	InteractiveStdin bool     `json:"interactive_stdin,omitzero"`
	OnSlow           string   `json:"on_slow,omitzero"`
	WindowBytes      int64    `json:"window_bytes,omitzero"`
	Record           bool     `json:"record,omitzero"`
}

// Exec returns q in the form that the pool uses.
func (q *ExecStream) Exec() *Exec { return (*Exec)(q) }

// None is the params of a method without parameters, and the data of an answer that says only ok.
type None struct{}
