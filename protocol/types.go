package protocol

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Seconds is a length of time on the wire: a number, fractional where wanted.
type Seconds float64

// Duration converts s to a time.Duration and saturates if s is too large for it. A positive s never becomes 0, because 0 often means none.
func (s Seconds) Duration() time.Duration {
	const most = float64(1<<63-1) / float64(time.Second)
	if float64(s) >= most {
		return 1<<63 - 1
	}
	d := time.Duration(float64(s) * float64(time.Second))
	if d == 0 && s > 0 {
		return 1
	}
	return d
}

// Env is variables to set; a null unsets.
type Env map[string]*string

// The smallest limits. Below them no shell starts, or it cannot save its state.
const (
	MinMemory    = 8 << 20
	MinPids      = 1
	MinCPU       = 0.01
	MinFileSize  = 1 << 20
	MinOpenFiles = 16
)

// Limits bounds the resources of a session's processes. In a request, zero means the server's limit; in an answer, none.
type Limits struct {
	MemoryBytes   int64   `json:"memory_bytes,omitzero"`
	Pids          int64   `json:"pids,omitzero"`
	CPU           float64 `json:"cpu,omitzero"`
	FileSizeBytes int64   `json:"file_size_bytes,omitzero"`
	OpenFiles     int64   `json:"open_files,omitzero"`
}

// Names returns the names of the limits that are set, as on the wire.
func (l Limits) Names() (names []string) {
	for _, x := range []struct {
		name string
		set  bool
	}{
		{"memory_bytes", l.MemoryBytes > 0}, {"pids", l.Pids > 0}, {"cpu", l.CPU > 0},
		{"file_size_bytes", l.FileSizeBytes > 0}, {"open_files", l.OpenFiles > 0},
	} {
		if x.set {
			names = append(names, x.name)
		}
	}
	return names
}

// --- sessions ---

// SessionCreate is the params of session.create.
type SessionCreate struct {
	Shell        string            `json:"shell,omitzero"`
	Env          Env               `json:"env,omitzero"`
	WorkingDir   string            `json:"working_dir,omitzero"`
	Name         string            `json:"name,omitzero"`
	Timeout      *Seconds          `json:"timeout_s,omitzero"`
	IdleTimeout  *Seconds          `json:"idle_timeout_s,omitzero"`
	OnDisconnect string            `json:"on_disconnect,omitzero"` // keep | destroy
	OnShellExit  string            `json:"on_shell_exit,omitzero"` // restore | terminate
	Limits       *Limits           `json:"limits,omitzero"`
	Labels       map[string]string `json:"labels,omitzero"`
	IfExists     string            `json:"if_exists,omitzero"` // error | return
	Record       string            `json:"record,omitzero"`    // off | terminals | execs | all
	RequestKey   string            `json:"request_key,omitzero"`
}

// Session is the answer of session.create.
type Session struct {
	SessionID  string            `json:"session_id"`
	Epoch      string            `json:"epoch"`
	Name       string            `json:"name,omitzero"`
	Shell      string            `json:"shell"`
	WorkingDir string            `json:"working_dir"`
	State      string            `json:"state"`
	CreatedAt  time.Time         `json:"created_at"`
	Pid        int               `json:"pid,omitzero"`
	Limits     Limits            `json:"limits"`
	Labels     map[string]string `json:"labels,omitzero"`
	Record     string            `json:"record"` // off | terminals | execs | all
}

// CurrentExec is the running command of a RUNNING session.
type CurrentExec struct {
	ID        string    `json:"id"`
	Command   string    `json:"command"`
	StartedAt time.Time `json:"started_at"`
}

// TermRunning is what runs in a terminal of a session.
type TermRunning struct {
	TermID    string     `json:"term_id"`
	Command   string     `json:"command"`
	StartedAt *time.Time `json:"started_at,omitzero"`
}

// SessionInfo is the answer of session.info, and an element of the answer of session.list.
type SessionInfo struct {
	Session
	LastActiveAt time.Time     `json:"last_active_at"`
	EnvCount     int           `json:"env_count"`
	CommandsRun  int64         `json:"commands_run"`
	CurrentExec  *CurrentExec  `json:"current_exec,omitzero"`
	QueueLength  int           `json:"queue_length"`
	Processes    int           `json:"processes"`
	Terminals    int           `json:"terminals"`
	InTerminals  []TermRunning `json:"in_terminals,omitzero"`
	Recording    int           `json:"recording"`
	Unmanaged    []int         `json:"background,omitzero"` // pids that earlier commands left running
	Owner        string        `json:"owner,omitzero"`
	MemoryBytes  int64         `json:"memory_bytes,omitzero"`
	LastExec     *LastExec     `json:"last_exec,omitzero"`
	TerminatedAt *time.Time    `json:"terminated_at,omitzero"`
	Reason       Reason        `json:"reason,omitzero"`
}

// SessionRef names a session by id or by name. Without both it means the default session, in methods for which PROTOCOL.md says so.
type SessionRef struct {
	SessionID string `json:"session_id,omitzero"`
	Session   string `json:"session,omitzero"`
}

// SessionList is the params of session.list.
type SessionList struct {
	State string `json:"state,omitzero"`
	Label string `json:"label,omitzero"` // key or key=value
	All   bool   `json:"all,omitzero"`
	Owner string `json:"owner,omitzero"`
}

// Sessions is the answer of session.list; the list is never null.
type Sessions struct {
	Sessions []SessionInfo `json:"sessions"`
}

// SessionDestroy is the params of session.destroy.
type SessionDestroy struct {
	SessionRef
	Force bool     `json:"force,omitzero"`
	Grace *Seconds `json:"grace_s,omitzero"`
}

// Destroyed is the answer of session.destroy.
type Destroyed struct {
	SessionID string `json:"session_id"`
	State     string `json:"state"`
	Reason    Reason `json:"reason"`
}

// SessionRename is the params of session.rename.
type SessionRename struct {
	SessionRef
	Name string `json:"name"`
}

// SessionExpiring is the data of session.expiring.
type SessionExpiring struct {
	SessionID string  `json:"session_id"`
	In        Seconds `json:"in_s"`
}

// Reason is the reason for a session's end; the list is closed.
type Reason string

// The reasons.
const (
	ReasonClient      Reason = "client"
	ReasonIdle        Reason = "idle"
	ReasonExpired     Reason = "expired"
	ReasonShellExited Reason = "shell_exited"
	ReasonShellFailed Reason = "shell_failed"
	ReasonDisconnect  Reason = "disconnect"
	ReasonShutdown    Reason = "shutdown"
	ReasonLimit       Reason = "limit"
)

// Reasons lists all reasons.
var Reasons = []Reason{
	ReasonClient, ReasonIdle, ReasonExpired, ReasonShellExited, ReasonShellFailed, ReasonDisconnect, ReasonShutdown, ReasonLimit,
}

// --- foreground commands ---

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

// ExecAttach is the params of exec.attach.
type ExecAttach struct {
	ExecID string `json:"exec_id"`
	Offset int64  `json:"offset,omitzero"`
	OnSlow string `json:"on_slow,omitzero"`
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

// --- background processes ---

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
	ProcessID string `json:"process_id"`
	Offset    int64  `json:"offset,omitzero"`
	MaxBytes  *int64 `json:"max_bytes,omitzero"`
	Follow    bool   `json:"follow,omitzero"`
	OnSlow    string `json:"on_slow,omitzero"`
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
}

// ProcessInput is the params of process.input.
type ProcessInput struct {
	ProcessID string `json:"process_id"`
	Data      string `json:"data,omitzero"`
	Encoding  string `json:"encoding,omitzero"`
	EOF       bool   `json:"eof,omitzero"`
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

// --- terminals ---

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

// --- streams and events ---

// StreamAck is the params of stream.ack.
type StreamAck struct {
	StreamID string `json:"stream_id"`
	Offset   int64  `json:"offset"`
}

// StreamStarted is the data of stream.started. On a connection with binary frames it comes before the first chunk of a stream that no answer has
// numbered.
type StreamStarted struct {
	StreamID string `json:"stream_id"`
	StreamNo uint64 `json:"stream_no"`
	ExecID   string `json:"exec_id,omitzero"`
}

// Output is the data of exec.output, process.output and term.output.
type Output struct {
	StreamID  string `json:"stream_id"`
	ExecID    string `json:"exec_id,omitzero"`
	ProcessID string `json:"process_id,omitzero"`
	TermID    string `json:"term_id,omitzero"`
	Offset    int64  `json:"offset"`
	Stream    string `json:"stream"`
	Data      []byte `json:"-"` // raw; AppendOutput writes data and encoding
	Replay    bool   `json:"replay,omitzero"`
	Snapshot  bool   `json:"snapshot,omitzero"` // a terminal's screen: not bytes of the stream, which continues at Offset
}

// StreamGap is the data of stream.gap.
type StreamGap struct {
	StreamID string `json:"stream_id"`
	From     int64  `json:"from"`
	To       int64  `json:"to"`
}

// SessionState is the data of session.state.
type SessionState struct {
	SessionID string    `json:"session_id"`
	From      string    `json:"from"`
	To        string    `json:"to"`
	At        time.Time `json:"at"`
	Reason    Reason    `json:"reason,omitzero"`
}

// ServerShutdown is the data of server.shutdown.
type ServerShutdown struct {
	In Seconds `json:"in_s"`
}

// Event is a notification: its name and the data of that name.
type Event struct {
	Name string `json:"event"`
	Data any    `json:"data"`
}

// --- server ---

// Drain is the params of system.drain.
type Drain struct {
	Wait *Seconds `json:"wait_s,omitzero"`
	Undo bool     `json:"undo,omitzero"`
}

// Drained is the answer of system.drain.
type Drained struct {
	Draining       bool `json:"draining"`
	ActiveSessions int  `json:"active_sessions"`
}

// Pong is the answer of system.ping.
type Pong struct {
	UptimeS int64     `json:"uptime_s"`
	Version string    `json:"version"`
	Time    time.Time `json:"time"`
	Epoch   string    `json:"epoch"`
}

// Stats is the answer of system.stats.
type Stats struct {
	ActiveSessions   int            `json:"active_sessions"`
	Draining         bool           `json:"draining"`
	ByState          map[string]int `json:"by_state"`
	MaxSessions      int            `json:"max_sessions"`
	TotalCommandsRun int64          `json:"total_commands_run"`
	Running          int            `json:"running"`
	Queued           int            `json:"queued"`
	Processes        int            `json:"processes"`
	Terminals        int            `json:"terminals"`
	WarmShells       int            `json:"warm_shells"`
	UptimeS          int64          `json:"uptime_s"`
	MemoryRSSBytes   int64          `json:"memory_rss_bytes"`
}

// Isolation is the tier of containment in force, and why there is no better one.
type Isolation struct {
	Tier  string          `json:"tier"`
	Why   string          `json:"why"`
	Tiers []IsolationTier `json:"tiers"`
}

// IsolationTier is one tier, and whether the server's machine provides it.
type IsolationTier struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"`
}

// Capabilities is the answer of system.capabilities.
type Capabilities struct {
	Version      string             `json:"version"`
	Shells       []string           `json:"shells"`
	DefaultShell string             `json:"default_shell"`
	Encodings    []string           `json:"encodings"`
	Subprotocols []string           `json:"subprotocols"`
	Methods      []string           `json:"methods"`
	Isolation    Isolation          `json:"isolation"`
	Limits       map[string]float64 `json:"limits"`

	SessionLimits []string `json:"session_limits"`
	Principal     Who      `json:"principal"`

	SessionUser string   `json:"session_user,omitzero"`
	NoNewPrivs  bool     `json:"no_new_privs,omitzero"`
	AllowWrite  []string `json:"allow_write,omitempty"`
	Sandbox     string   `json:"sandbox,omitzero"`
	Record      string   `json:"record,omitzero"`
}
