package protocol

import (
	"math"
	"net/url"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Bounds of a request. Each is far above what anybody types and far below what would do harm.
const (
	MaxCommand    = 1 << 20 // bytes; the issue asks for 1 MiB, the frame limit of 4 MiB leaves room for its escapes
	MaxRequestKey = 128     // characters; a UUID has 36
	MaxName       = 128     // characters; names are shown in lists
	MaxEnv        = 1024    // variables; each is some lines of shell, and a login has about thirty
	MaxLabels     = 64      // as many as Kubernetes objects carry in practice, several times over
	MaxLabelKey   = 64      // characters
	MaxLabelValue = 256     // characters

	MaxID       = 256                                   // bytes of a request's id, as it was written: it is kept for exec.cancel by request_id
	MaxRef      = 128                                   // bytes of the id of a session, command, process, …; the longest of ours has 44
	MaxPath     = 4096                                  // bytes, PATH_MAX of Linux
	MaxEnvBytes = 256 << 10                             // of all names and values together; Linux takes 128 KiB of one variable
	MaxPattern  = 1 << 10                               // bytes of until.output
	MaxHost     = 253                                   // bytes, as DNS has it
	MaxURL      = 2 << 10                               // bytes of until.http
	MaxSubject  = 512                                   // bytes of a principal's name
	MaxSession  = 4 * MaxName                           // bytes of a session's name where it stands for the id
	MaxLabel    = 4 * (MaxLabelKey + 1 + MaxLabelValue) // bytes of session.list's label
	MaxSignal   = 16                                    // bytes of a signal's name
	MaxText     = 4 << 10                               // bytes of a command's text in lists and events, which have its beginning
)

// lengths bounds every string of a request, in bytes. The key is Type.name or name. 0 means that its own Validate bounds it, that it is one of a few
// words, or that the size of the request is its bound (stdin and data, which are bytes for a program). A test fails for a string that is in no table
// here.
var lengths = map[string]int{
	"session_id": MaxRef, "exec_id": MaxRef, "process_id": MaxRef, "term_id": MaxRef, "stream_id": MaxRef, "share_id": MaxRef, "recording_id": MaxRef,
	"session": MaxSession, "shell": MaxPath, "working_dir": MaxPath, "owner": MaxSubject,
	"label": MaxLabel, "host": MaxHost, "node": MaxHost, "output": MaxPattern, "http": MaxURL, "signal": MaxSignal,
	"command": 0, "name": 0, "request_key": 0, "stdin": 0, "data": 0,
}

// bounded are the strings of a params type for which lengths has a bound.
type bounded struct {
	name  string // as an error shows it
	index []int
	most  int
}

var boundeds sync.Map // reflect.Type → []bounded

func boundedOf(t reflect.Type) []bounded {
	if fs, ok := boundeds.Load(t); ok {
		return fs.([]bounded)
	}
	var fs []bounded
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" || name == "-":
		case f.Type.Kind() == reflect.Struct:
			for _, in := range boundedOf(f.Type) {
				fs = append(fs, bounded{name + "." + in.name, slices.Concat(f.Index, in.index), in.most})
			}
		case f.Type.Kind() == reflect.String:
			if most := find(lengths, t, t, name); most > 0 {
				fs = append(fs, bounded{name, f.Index, most})
			}
		}
	}
	boundeds.Store(t, fs)
	return fs
}

// refuseLong finds a string of *into that exceeds its bound.
func refuseLong(raw []byte, into any) *Error {
	if len(raw) <= 16 { // no string in it exceeds the smallest bound in lengths
		return nil
	}
	v := reflect.ValueOf(into).Elem()
	if v.Kind() != reflect.Struct {
		return nil
	}
	for _, f := range boundedOf(v.Type()) {
		if f.most < len(raw) && v.FieldByIndex(f.index).Len() > f.most {
			return InvalidParam(f.name, "%s is longer than %d bytes", f.name, f.most).With("limit", f.most)
		}
	}
	return nil
}

// enums are the fields that accept one of a few words. Schema and PROTOCOL.md are generated from them, too. The key is Type.name or name.
var enums = map[string][]string{
	"on_disconnect":        {"keep", "destroy"},
	"on_shell_exit":        {"restore", "terminate"},
	"if_exists":            {"error", "return"},
	"when_busy":            {"queue", "reject"},
	"on_slow":              {"block", "skip"},
	"stdin_encoding":       {UTF8, Base64},
	"encoding":             {UTF8, Base64},
	"stdout_encoding":      {UTF8, Base64},
	"stderr_encoding":      {UTF8, Base64},
	"stream":               {"stdout", "stderr", "tty"},
	"timeout_kind":         {"hard", "no_output"},
	"ExecCancelled.reason": {SignalEnded, SignalIgnored, SignalTrapped},
	"limit_hit":            {"memory_bytes", "pids", "file_size_bytes"},
	"ProcessStart.stdin":   {"none", "open"},
	"ExecEntry.state":      {"queued", "running", "ended"},
	"ProcessInfo.state":    {"running", "exited"},
	"TermInfo.state":       {"running", "exited"},
	"TermAttached.state":   {"running", "exited"},
	"TermSnapshot.state":   {"running", "exited"},
	"mode":                 {"control", "view"},
	"state":                SessionStates,
	"SessionState.from":    SessionStates,
	"SessionState.to":      SessionStates,
	"reason":               words(Reasons),

	"SessionCreate.record": recordWords,
	"Session.record":       recordWords,
	"SessionInfo.record":   recordWords,
	"Capabilities.record":  recordWords,
	"Recording.state":      {"recording", "ended"},
	"Recording.reason":     {"exit", "full", "no_room", "failed", "deleted", "lost"},
}

// recordWords are the values of record.
var recordWords = []string{"off", "terminals", "execs", "all"}

func words[S ~string](list []S) (all []string) {
	for _, s := range list {
		all = append(all, string(s))
	}
	return all
}

// SessionStates are the states of a session on the wire.
var SessionStates = []string{"CREATING", "IDLE", "RUNNING", "TERMINATED"}

// first returns the first fault.
func first(faults ...*Error) *Error {
	for _, e := range faults {
		if e != nil {
			return e
		}
	}
	return nil
}

// Validate requires exactly one of the two, because these methods have no default session.
func (q *SessionRef) Validate() *Error {
	if q.SessionID == "" && q.Session == "" {
		return InvalidParam("session_id", "session_id is missing")
	}
	return q.atMostOne()
}

func (q *SessionRef) atMostOne() *Error {
	if q.SessionID != "" && q.Session != "" {
		return InvalidParam("session", "session_id and session exclude each other")
	}
	return nil
}

// Validate checks everything that does not depend on the server's configuration.
func (q *SessionCreate) Validate() *Error {
	return first(
		validShell(q.Shell),
		q.Env.validate(),
		validDir(q.WorkingDir),
		validName(q.Name),
		validSeconds("timeout_s", q.Timeout),
		validSeconds("idle_timeout_s", q.IdleTimeout),
		oneOf("on_disconnect", q.OnDisconnect),
		oneOf("on_shell_exit", q.OnShellExit),
		q.Limits.validate(),
		validLabels("labels", q.Labels),
		oneOf("if_exists", q.IfExists),
		oneOf("SessionCreate.record", q.Record),
		validKey(q.RequestKey),
		validLabels("where", q.Where),
		q.Terminal.validate(),
	)
}

// Validate checks the name of the state, and that the request asks one question.
func (q *SessionList) Validate() *Error {
	if q.All && q.Owner != "" {
		return InvalidParam("owner", "all and owner exclude each other")
	}
	return oneOf("state", q.State)
}

// Validate requires a session and a sane grace time.
func (q *SessionDestroy) Validate() *Error {
	return first(q.SessionRef.Validate(), validSeconds("grace_s", q.Grace))
}

// Validate requires a session and a name.
func (q *SessionRename) Validate() *Error {
	if q.Name == "" {
		return InvalidParam("name", "name is empty")
	}
	return first(q.SessionRef.Validate(), validName(q.Name))
}

// Validate requires a session.
func (q *SessionUpdate) Validate() *Error {
	faults := first(q.SessionRef.Validate(), validSeconds("timeout_s", q.Timeout), validSeconds("idle_timeout_s", q.IdleTimeout))
	if faults == nil && q.Labels != nil {
		return validLabels("labels", *q.Labels)
	}
	return faults
}

// Validate checks everything that does not depend on the session.
func (q *Exec) Validate() *Error {
	faults := first(
		q.atMostOne(),
		validCommand(q.Command),
		validSeconds("timeout_s", q.Timeout),
		validSeconds("no_output_timeout_s", q.NoOutputTimeout),
		oneOf("stdin_encoding", q.StdinEncoding),
		q.Env.validate(),
		validDir(q.WorkingDir),
		notNegative("max_output_bytes", q.MaxOutputBytes),
		oneOf("when_busy", q.WhenBusy),
		validSeconds("kill_grace_s", q.KillGrace),
		validKey(q.RequestKey),
		notNegative("yield_ms", q.YieldMS),
		oneOf("on_slow", q.OnSlow),
		notNegative("window_bytes", &q.WindowBytes),
	)
	if faults == nil && q.Stdin != nil && q.StdinEncoding == Base64 {
		if _, err := DecodeBytes(*q.Stdin, Base64); err != nil {
			return InvalidParam("stdin", "stdin is not base64")
		}
	}
	return faults
}

// Validate is Exec's Validate.
func (q *ExecRun) Validate() *Error { return q.Exec().Validate() }

// Validate is Exec's Validate.
func (q *ExecStream) Validate() *Error { return q.Exec().Validate() }

// Validate requires an exec.
func (q *ExecWait) Validate() *Error {
	return first(
		present("exec_id", q.ExecID),
		notNegative("offset", q.Offset),
		validSeconds("timeout_s", q.Timeout),
		notNegative("yield_ms", q.YieldMS),
	)
}

// Validate requires an exec and bytes in an encoding we know.
func (q *ExecInput) Validate() *Error {
	return first(present("exec_id", q.ExecID), oneOf("encoding", q.Encoding), validData(q.Data, q.Encoding), notNegative("offset", q.Offset))
}

// Validate refuses two ways of saying what to cancel.
func (q *ExecCancel) Validate() *Error {
	if len(q.RequestID) > MaxID {
		return InvalidParam("request_id", "request_id is longer than %d bytes", MaxID).With("limit", MaxID)
	}
	if k := q.RequestID.Kind(); q.RequestID != nil && k != '"' && k != '0' {
		if k != 'n' {
			return InvalidParam("request_id", "request_id is not a string or a number")
		}
		q.RequestID = nil
	}
	ways := 0
	for _, given := range []bool{q.SessionID != "" || q.Session != "", q.ExecID != "", q.RequestID != nil} {
		if given {
			ways++
		}
	}
	if ways > 1 {
		return InvalidParam("exec_id", "session, exec_id and request_id exclude each other")
	}
	return first(q.atMostOne(), validSignal(q.Signal), validSeconds("kill_grace_s", q.KillGrace))
}

// Validate requires an exec.
func (q *ExecAttach) Validate() *Error {
	return first(present("exec_id", q.ExecID), notNegative("offset", &q.Offset), oneOf("on_slow", q.OnSlow), notNegative("window_bytes", &q.WindowBytes))
}

// Validate requires an exec.
func (q *ExecDetach) Validate() *Error { return present("exec_id", q.ExecID) }

// Validate checks everything that does not depend on the session.
func (q *ProcessStart) Validate() *Error {
	return first(
		q.atMostOne(),
		validCommand(q.Command),
		validName(q.Name),
		q.Env.validate(),
		validDir(q.WorkingDir),
		validSeconds("timeout_s", q.Timeout),
		oneOf("ProcessStart.stdin", q.Stdin),
		validKey(q.RequestKey),
	)
}

// Validate requires a process.
func (q *ProcessRef) Validate() *Error { return present("process_id", q.ProcessID) }

// Validate requires a process.
func (q *ProcessLogs) Validate() *Error {
	return first(present("process_id", q.ProcessID), notNegative("offset", &q.Offset), notNegative("max_bytes", q.MaxBytes), oneOf("on_slow", q.OnSlow),
		notNegative("window_bytes", &q.WindowBytes))
}

// Validate requires a process and bytes in an encoding we know.
func (q *ProcessInput) Validate() *Error {
	return first(present("process_id", q.ProcessID), oneOf("encoding", q.Encoding), validData(q.Data, q.Encoding), notNegative("offset", q.Offset))
}

// Validate requires a process.
func (q *ProcessKill) Validate() *Error {
	return first(present("process_id", q.ProcessID), validSignal(q.Signal), validSeconds("kill_grace_s", q.KillGrace))
}

// Validate requires a process and one condition.
func (q *ProcessWait) Validate() *Error {
	return first(present("process_id", q.ProcessID), q.Until.validate(), validSeconds("timeout_s", q.Timeout))
}

// Validate checks everything that does not depend on the session.
func (q *TermOpen) Validate() *Error {
	return first(
		q.atMostOne(),
		validSize("cols", q.Cols),
		validSize("rows", q.Rows),
		validCommand(q.Command),
		q.Env.validate(),
		validDir(q.WorkingDir),
		oneOf("on_slow", q.OnSlow),
		validKey(q.RequestKey),
		notNegative("window_bytes", &q.WindowBytes),
	)
}

// Validate requires a stream and an offset.
func (q *StreamAck) Validate() *Error {
	return first(present("stream_id", q.StreamID), notNegative("offset", &q.Offset))
}

// Validate requires a terminal.
func (q *TermRef) Validate() *Error { return present("term_id", q.TermID) }

// Validate requires a terminal and bytes in an encoding we know.
func (q *TermInput) Validate() *Error {
	return first(present("term_id", q.TermID), oneOf("encoding", q.Encoding), validData(q.Data, q.Encoding), notNegative("offset", q.Offset))
}

// Validate requires a terminal and a size.
func (q *TermResize) Validate() *Error {
	return first(present("term_id", q.TermID), validSize("cols", q.Cols), validSize("rows", q.Rows))
}

// Validate requires a terminal.
func (q *TermClose) Validate() *Error {
	return first(present("term_id", q.TermID), validSeconds("kill_grace_s", q.KillGrace))
}

// Validate requires a terminal, and history or screen.
func (q *TermAttach) Validate() *Error {
	if q.Snapshot && q.Offset != nil {
		return InvalidParam("snapshot", "snapshot and offset exclude each other")
	}
	if q.Snapshot && q.History {
		return InvalidParam("history", "history and snapshot exclude each other")
	}
	if q.Cols != 0 || q.Rows != 0 {
		if err := first(validSize("cols", q.Cols), validSize("rows", q.Rows)); err != nil {
			return err
		}
	}
	return first(present("term_id", q.TermID), notNegative("offset", q.Offset), oneOf("mode", q.Mode), oneOf("on_slow", q.OnSlow),
		notNegative("claim", &q.Claim), notNegative("window_bytes", &q.WindowBytes))
}

func validSize(field string, n int) *Error {
	if n < MinSize || n > MaxSize {
		return InvalidParam(field, "%s is not between %d and %d", field, MinSize, MaxSize)
	}
	return nil
}

func (u *Until) validate() *Error {
	conditions := 0
	for _, given := range []bool{u.Exit, u.Port != 0, u.Output != "", u.HTTP != ""} {
		if given {
			conditions++
		}
	}
	if conditions != 1 {
		return InvalidParam("until", "until is not exactly one of exit, port, output, http")
	}
	if u.Port < 0 || u.Port > 65535 {
		return InvalidParam("until.port", "until.port is not between 1 and 65535")
	}
	if u.Host != "" && u.Port == 0 {
		return InvalidParam("until.host", "until.host is given without until.port")
	}
	if u.HTTP != "" {
		if l, err := url.Parse(u.HTTP); err != nil || l.Scheme != "http" && l.Scheme != "https" || l.Host == "" {
			return InvalidParam("until.http", "until.http is not an http or https URL")
		}
	}
	return nil
}

// envName reports whether shells accept s as the name of a variable.
func envName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

func (e Env) validate() *Error {
	if len(e) > MaxEnv {
		return InvalidParam("env", "env has more than %d variables", MaxEnv).With("limit", MaxEnv)
	}
	size := 0
	for name, value := range e {
		if !envName(name) {
			return InvalidParam("env", "env has a name that is not [A-Za-z_][A-Za-z0-9_]*: %q", printable(name))
		}
		size += len(name)
		if value != nil {
			size += len(*value)
		}
		if size > MaxEnvBytes {
			return InvalidParam("env", "env has more than %d bytes", MaxEnvBytes).With("limit", MaxEnvBytes)
		}
		if value != nil && strings.IndexByte(*value, 0) >= 0 {
			return InvalidParam("env", "env %s contains a NUL", printable(name))
		}
	}
	return nil
}

func (l *Limits) validate() *Error {
	if l == nil {
		return nil
	}
	return first(
		validLimit("limits.memory_bytes", l.MemoryBytes, MinMemory),
		validLimit("limits.pids", l.Pids, MinPids),
		validLimit("limits.cpu", l.CPU, MinCPU),
		validLimit("limits.file_size_bytes", l.FileSizeBytes, MinFileSize),
		validLimit("limits.open_files", l.OpenFiles, MinOpenFiles),
	)
}

func validLimit[N int64 | float64](field string, n, least N) *Error {
	if n != 0 && !(n >= least) || math.IsInf(float64(n), 1) {
		return InvalidParam(field, "%s is less than %v", field, least).With("least", least)
	}
	return nil
}

func validCommand(command string) *Error {
	if len(command) > MaxCommand {
		return InvalidParam("command", "command is longer than %d bytes", MaxCommand).With("limit", MaxCommand)
	}
	if strings.IndexByte(command, 0) >= 0 {
		return InvalidParam("command", "command contains a NUL")
	}
	return nil
}

func validShell(shell string) *Error {
	if strings.Contains(shell, "/") && !filepath.IsAbs(shell) {
		return InvalidParam("shell", "shell is neither an absolute path nor a name")
	}
	return nil
}

func validDir(dir string) *Error {
	if dir != "" && !filepath.IsAbs(dir) {
		return InvalidParam("working_dir", "working_dir is not an absolute path")
	}
	return nil
}

func validName(name string) *Error { return validText("name", name, MaxName) }

func validKey(key string) *Error {
	if utf8.RuneCountInString(key) > MaxRequestKey {
		return InvalidParam("request_key", "request_key is longer than %d characters", MaxRequestKey).With("limit", MaxRequestKey)
	}
	return nil
}

func validLabels(field string, labels map[string]string) *Error {
	if len(labels) > MaxLabels {
		return InvalidParam(field, "%s has more than %d entries", field, MaxLabels).With("limit", MaxLabels)
	}
	for key, value := range labels {
		if key == "" {
			return InvalidParam(field, "%s has an empty key", field)
		}
		if e := first(validText(field, key, MaxLabelKey), validText(field, value, MaxLabelValue)); e != nil {
			return e
		}
	}
	return nil
}

// validText checks words that lists and terminals show: they are bounded and contain no controls.
func validText(field, s string, most int) *Error {
	if utf8.RuneCountInString(s) > most {
		return InvalidParam(field, "%s is longer than %d characters", field, most).With("limit", most)
	}
	if strings.ContainsFunc(s, unicode.IsControl) {
		return InvalidParam(field, "%s contains a control character", field)
	}
	if strings.ContainsFunc(s, reorders) {
		return InvalidParam(field, "%s contains a character that changes the direction of text", field)
	}
	return nil
}

// reorders reports whether r shows other characters in another order: the embeddings, overrides and isolates of Unicode's bidirectional algorithm.
func reorders(r rune) bool { return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 }

func validSeconds(field string, s *Seconds) *Error { return notNegative(field, s) }

// notNegative also refuses NaN and the infinities: JSON has none, but a Go caller may pass them.
func notNegative[N ~int64 | ~float64](field string, n *N) *Error {
	if n != nil && (!(*n >= 0) || math.IsInf(float64(*n), 1)) {
		return InvalidParam(field, "%s is not a number of at least 0", field)
	}
	return nil
}

func validSignal(name string) *Error {
	if name == "" {
		return nil
	}
	_, err := ParseSignal(name)
	return err
}

func validData(data, encoding string) *Error {
	if encoding != Base64 {
		return nil
	}
	_, err := DecodeBytes(data, encoding)
	return err
}

func present(field, value string) *Error {
	if value == "" {
		return InvalidParam(field, "%s is missing", field)
	}
	return nil
}

// oneOf checks value against the enumeration of this name. An empty value means the default.
func oneOf(enum, value string) *Error {
	words := enums[enum]
	if value == "" || slices.Contains(words, value) {
		return nil
	}
	field := enum[strings.IndexByte(enum, '.')+1:]
	return InvalidParam(field, "%s is not one of %s", field, strings.Join(words, ", "))
}

// Validate checks what the types cannot express.
func (q *Drain) Validate() *Error { return validSeconds("wait_s", q.Wait) }
