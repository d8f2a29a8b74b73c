package protocol

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
	Record           bool     `json:"record,omitzero"`
}

// Exec returns q in the form that the pool uses.
func (q *ExecStream) Exec() *Exec { return (*Exec)(q) }

// None is the params of a method without parameters, and the data of an answer that says only ok.
type None struct{}
