package protocol

import "time"

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
	Node         string            `json:"node,omitzero"`
	Where        map[string]string `json:"where,omitzero"`
	Terminal     *FirstTerminal    `json:"terminal,omitzero"`
}

// FirstTerminal is the terminal that session.create opens: the params of term.open that concern the terminal.
type FirstTerminal struct {
	Cols        int    `json:"cols"`
	Rows        int    `json:"rows"`
	Command     string `json:"command,omitzero"`
	Env         Env    `json:"env,omitzero"`
	WorkingDir  string `json:"working_dir,omitzero"`
	OnSlow      string `json:"on_slow,omitzero"`
	WindowBytes int64  `json:"window_bytes,omitzero"`
	Record      bool   `json:"record,omitzero"`
}

// Open returns the term.open that opens the terminal in a session.
func (f *FirstTerminal) Open(session, key string) *TermOpen {
	return &TermOpen{
		SessionRef: SessionRef{SessionID: session}, Cols: f.Cols, Rows: f.Rows, Command: f.Command, Env: f.Env, WorkingDir: f.WorkingDir, OnSlow: f.OnSlow,
		WindowBytes: f.WindowBytes, Record: f.Record, RequestKey: key,
	}
}

// validate names a field of the terminal as terminal.cols, for example.
func (f *FirstTerminal) validate() *Error {
	if f == nil {
		return nil
	}
	e := f.Open("s", "").Validate()
	if e != nil {
		if field, ok := e.Details["field"].(string); ok {
			e = e.With("field", "terminal."+field)
		}
	}
	return e
}

// SessionCreated is the answer of session.create.
type SessionCreated struct {
	Session
	Terminal *TermOpened `json:"terminal,omitzero"`
}

// Session describes a session in short.
type Session struct {
	SessionID  string            `json:"session_id"`
	Epoch      string            `json:"epoch"`
	Node       string            `json:"node,omitzero"` // absent: there is one node
	Name       string            `json:"name,omitzero"`
	Shell      string            `json:"shell"`
	WorkingDir string            `json:"working_dir"`
	State      string            `json:"state"`
	CreatedAt  time.Time         `json:"created_at"`
	Pid        int               `json:"pid,omitzero"`
	Limits     Limits            `json:"limits"`
	Labels     map[string]string `json:"labels,omitzero"`
	Record     string            `json:"record"` // off | terminals | execs | all
	Where      map[string]string `json:"where,omitzero"`
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
	Timeout      Seconds       `json:"timeout_s,omitzero"`
	IdleTimeout  Seconds       `json:"idle_timeout_s,omitzero"`
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
	Partial  []string      `json:"partial,omitzero"`
}

// Located is the answer of session.locate.
type Located struct {
	SessionID string `json:"session_id"`
	Node      string `json:"node"`
	URL       string `json:"url,omitzero"`
}

// SessionMove is the params of session.move.
type SessionMove struct {
	SessionRef
	Node string `json:"node"`
}

// SessionMoved is the answer of session.move.
type SessionMoved struct {
	SessionID string   `json:"session_id"`
	Node      string   `json:"node"`
	StateLost []string `json:"state_lost,omitzero"`
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

// SessionUpdate is the params of session.update. What is absent stays.
type SessionUpdate struct {
	SessionRef
	Labels      *map[string]string `json:"labels,omitzero"`
	Timeout     *Seconds           `json:"timeout_s,omitzero"`
	IdleTimeout *Seconds           `json:"idle_timeout_s,omitzero"`
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
