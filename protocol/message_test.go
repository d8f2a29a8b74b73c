package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// answer is what becomes of a frame before anything runs: its params as understood, or a failure.
func answer(frame []byte) (params any, failure []byte) {
	req, err := DecodeRequest(frame)
	if err == nil {
		i := slices.IndexFunc(methods, func(m Method) bool { return m.Name == req.Method })
		switch {
		case i >= 0:
			into := reflect.New(methods[i].Params).Interface()
			if err = DecodeParams(req.Params, into); err == nil {
				return into, nil
			}
		default:
			err = NoSuchMethod(req.Method)
		}
	}
	return nil, AppendFailure(nil, req.ID, err)
}

// TestGoldenRequests: what clients send, the typing errors of a year included, and what they are told.
func TestGoldenRequests(t *testing.T) {
	const file = "testdata/requests.txt"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for line := range strings.Lines(string(text)) {
		frame, isFrame := strings.CutPrefix(line, "> ")
		if !isFrame {
			if !strings.HasPrefix(line, "<") && !strings.HasPrefix(line, "=") {
				got.WriteString(line)
			}
			continue
		}
		got.WriteString(line)
		params, failure := answer([]byte(strings.TrimSuffix(frame, "\n")))
		if failure != nil {
			fmt.Fprintf(&got, "< %s\n", failure)
			continue
		}
		understood, err := json.Marshal(params, writing)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "= %s\n", understood)
	}
	golden(t, file, got.Bytes())
}

func p[T any](v T) *T { return &v }

// TestGoldenAnswers: what the server sends, one of each.
func TestGoldenAnswers(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600_000_000, time.UTC)
	session := Session{SessionID: "s-1", Epoch: "e-1", Name: "work", Shell: "/bin/bash", WorkingDir: "/tmp", State: "IDLE", CreatedAt: at, Pid: 42,
		Limits: Limits{Pids: 100}, Labels: map[string]string{"b": "2", "a": "1"}}
	exit := ExecExit{ExecID: "x-1", SessionID: "s-1", StreamID: "t-1", StdoutBytes: 3, ExitCode: p(0), DurationMS: 12, WorkingDir: "/tmp"}
	process := ProcessInfo{ProcessID: "p-1", SessionID: "s-1", StreamID: "t-2", Pid: 43, Command: "sleep 9", State: "running", StartedAt: at}
	gone := process
	gone.State, gone.ExitCode, gone.Signal, gone.EndedAt, gone.OutputBytes = "exited", p(143), "TERM", &at, 7
	terminal := TermInfo{TermID: "t-1", SessionID: "s-1", StreamID: "st-1", Pid: 44, State: "running", Cols: 80, Rows: 24, Command: "/bin/bash", Viewers: 2, StartedAt: at}
	terminal.Attached = []TermViewer{
		{ViewerID: "1", Subject: "admin", Mode: "view", Since: at, Cols: 80, Rows: 24}, {ViewerID: "2", Subject: "admin", Mode: "control", Since: at, Via: "demo"},
	}
	closed := terminal
	closed.Viewers, closed.Attached = 0, nil
	closed.State, closed.ExitCode, closed.Signal, closed.EndedAt = "exited", p(129), "HUP", &at
	results := []any{
		nil, None{}, session,
		SessionInfo{Session: session, LastActiveAt: at, EnvCount: 2, CommandsRun: 1, CurrentExec: &CurrentExec{"x-1", "true", at}, Unmanaged: []int{7}},
		SessionInfo{Session: Session{SessionID: "s-2", State: "TERMINATED", CreatedAt: at}, LastActiveAt: at, TerminatedAt: &at, Reason: ReasonIdle},
		Sessions{}, Destroyed{"s-1", "TERMINATED", ReasonClient},
		ExecResult{ExecExit: exit, Stdout: "hi\n", StdoutEncoding: UTF8, StderrEncoding: UTF8},
		ExecResult{ExecExit: ExecExit{ExecID: "x-2", ExitCode: p(137), Signal: "KILL", TimedOut: true, TimeoutKind: "hard", TimeoutS: 1.5, StateLost: []string{"functions"},
			Usage: &Usage{CPUMS: 1.25, MemoryPeakBytes: 4096}, OOMKilled: true, LimitHit: "memory_bytes", Background: []int{9}, ShellRestored: true}, Stdout: "/w==", StdoutEncoding: Base64, StderrEncoding: UTF8,
			Truncated: true, Omitted: OmittedStreams{Stdout: &Omitted{10, 20}}},
		ExecResult{ExecExit: ExecExit{ExecID: "x-3"}, StdoutEncoding: UTF8, StderrEncoding: UTF8, Running: true, NextOffset: p[int64](0)},
		ExecResult{ExecExit: ExecExit{ExecID: "x-4", Error: Errorf(ShellFailed, "the shell is gone")}},
		StreamOpened{ExecID: "x-1", StreamID: "t-1"}, ExecCancelled{}, ProcessStarted{"p-1", 43, "t-2", nil},
		Processes{}, Processes{Processes: []ProcessInfo{process, gone}, Background: []int{9}},
		Logs{}, Logs{StreamID: "t-2", Chunks: []Chunk{{5, "stdout", "é<&>", ""}}, NextOffset: 10, EOF: true, Gap: &GapRange{0, 5}},
		TermOpened{"t-1", "s-1", "st-1", 7, 44, "1", 1767323045600000, p[int64](0), "r-1", nil}, TermAttached{"t-1", "st-1", 8, 4096, "view", 80, 24, "running", "2", 0, p[int64](12), ""}, InputTaken{12}, Terminals{}, Terminals{[]TermInfo{terminal, closed}},
		TermSnapshot{"t-1", 80, 24, []string{"$ vim", ""}, Cursor{5, 1, true}, true, "vim", 4096, "running", 0},
		Recordings{}, Recordings{Recordings: []Recording{{RecordingID: "r-1", SessionID: "s-1", TermID: "t-1", Owner: "me", State: "recording", Cols: 80, Rows: 24, StartedAt: at}}},
		WaitResult{Met: true, Match: "ready"}, Pong{UptimeS: 12, Version: "1.0", Time: at, Epoch: "e-1"},
		Stats{ByState: map[string]int{"RUNNING": 1, "IDLE": 2}}, Capabilities{Limits: map[string]float64{"max_sessions": 256}},
	}
	failures := []*Error{
		Errorf(SessionNotFound, "no session %q", "s-9"),
		Errorf(SessionBusy, "a command is running").With("exec_id", "x-1"),
		AsError(errors.New("secret")),
		Errorf(InternalError, "details that are not JSON").With("f", func() {}),
	}
	sent := []Event{
		{"session.state", SessionState{"s-1", "IDLE", "TERMINATED", at, ReasonIdle}}, {"session.expiring", SessionExpiring{"s-1", 59.5}},
		{"exec.started", ExecStarted{"s-1", "x-1", "t-1", "true", at}}, {"exec.exit", exit}, {"process.started", process}, {"process.exit", gone},
		{"exec.output", &Output{StreamID: "t-1", ExecID: "x-1", Stream: "stdout", Data: []byte("h\té\n\"\\\x1b\u2028<&>")}},
		{"process.output", Output{StreamID: "t-2", ProcessID: "p-1", Offset: 9, Stream: "stderr", Data: []byte{0xff, 0}, Replay: true}},
		{"term.opened", terminal}, {"term.exit", closed}, {"term.resized", TermResized{"t-1", 120, 30}},
		{"term.viewers", TermViewers{"t-1", "s-1", "st-1", 2, terminal.Attached}}, {"term.viewers", TermViewers{TermID: "t-1", SessionID: "s-1", StreamID: "st-1"}},
		{"term.control", TermControl{"t-1", "st-1", "view", &terminal.Attached[1]}}, {"term.control", TermControl{TermID: "t-1", StreamID: "st-1", Mode: "control"}},
		{"term.command", TermCommand{"t-1", "st-1", "make", p(2), p[int64](1200), 40, 90}}, {"term.command", TermCommand{TermID: "t-1", StreamID: "st-1"}},
		{"term.output", &Output{StreamID: "st-1", TermID: "t-1", Offset: 90, Stream: "tty", Data: []byte("\x1b[H\x1b[2J"), Replay: true, Snapshot: true}},
		{"stream.started", StreamStarted{"st-2", 3, "x-1"}}, {"input.refused", InputRefused{3, 12, Errorf(OffsetMismatch, "not there").With("input_offset", 14)}},
		{"stream.gap", StreamGap{"t-1", 0, 9}}, {"server.shutdown", ServerShutdown{8}},
	}
	var got []byte
	for _, r := range results {
		line, err := appendResult(got, jsontext.Value(`1`), r)
		if err != nil {
			t.Fatalf("%T: %v", r, err)
		}
		got = append(line, '\n')
	}
	for _, e := range failures {
		got = append(AppendFailure(got, jsontext.Value(`"a"`), e), '\n')
	}
	got = append(AppendFailure(got, nil, Errorf(InvalidRequest, "no id")), '\n')
	for _, e := range sent {
		line, err := AppendEvent(got, e.Name, e.Data)
		if err != nil {
			t.Fatal(err)
		}
		got = append(line, '\n')
	}
	for line := range bytes.Lines(got) {
		if !jsontext.Value(bytes.TrimSuffix(line, []byte("\n"))).IsValid() {
			t.Errorf("not JSON: %s", line)
		}
	}
	golden(t, "testdata/answers.txt", got)
}

// TestFailedAnswerLeavesNothing: a result that cannot be written leaves dst as it was, so that a failure can follow.
func TestFailedAnswerLeavesNothing(t *testing.T) {
	dst := []byte("before")
	for _, write := range []func() ([]byte, error){
		func() ([]byte, error) {
			return appendResult(dst, jsontext.Value("1"), map[string]any{"a": 1, "f": func() {}})
		},
		func() ([]byte, error) { return AppendEvent(dst, "e", map[string]any{"a": 1, "f": func() {}}) },
	} {
		if got, err := write(); err == nil || string(got) != "before" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// TestInvalidUTF8IsNamed: bytes that are not UTF-8 are refused where they stand, and the id is still echoed.
func TestInvalidUTF8IsNamed(t *testing.T) {
	for frame, want := range map[string]string{
		"{\"params\":{\"command\":\"\xff\"},\"method\":\"exec.run\",\"id\":1}": `{"id":1,"ok":false,"error":{"code":"INVALID_PARAMS"`,
		"{\"id\":\"\xff\",\"method\":\"exec.run\"}":                            `{"id":null,"ok":false,"error":{"code":"INVALID_REQUEST"`,
		"{\"id\":1,\"method\":\"\xff\"}":                                       `{"id":1,"ok":false,"error":{"code":"INVALID_REQUEST"`,
		"{\"id\":1,\"method\":\"exec.run\",\"\xff\":1}":                        `{"id":1,"ok":false,"error":{"code":"INVALID_REQUEST"`,
	} {
		_, failure := answer([]byte(frame))
		if !strings.HasPrefix(string(failure), want) || !jsontext.Value(failure).IsValid() {
			t.Errorf("%q: got %s, want %s…", frame, failure, want)
		}
		if strings.Contains(frame, "command") && !bytes.Contains(failure, []byte(`"field":"command"`)) {
			t.Errorf("%q: got %s, which does not name the field", frame, failure)
		}
	}
}

// TestDepthIsBounded: nesting that would cost a naive decoder its stack is refused at once.
func TestDepthIsBounded(t *testing.T) {
	for _, deep := range []int{maxDepth, 9_000, 2_000_000} {
		frame := fmt.Sprintf(`{"id":1,"method":"exec.run","params":{"command":"","env":%s%s}}`, strings.Repeat("[", deep), strings.Repeat("]", deep))
		if _, failure := answer([]byte(frame)); failure == nil {
			t.Errorf("%d levels pass", deep)
		}
	}
	// Brackets in a command are text.
	command, _ := json.Marshal(strings.Repeat(`{["\`, 1000))
	if _, failure := answer(fmt.Appendf(nil, `{"id":1,"method":"exec.run","params":{"command":%s}}`, command)); failure != nil {
		t.Errorf("brackets in a string: %s", failure)
	}
}

// TestBounds: a value at its bound passes, one beyond does not.
func TestBounds(t *testing.T) {
	env := func(n int) Env {
		e := Env{}
		for i := range n {
			e[fmt.Sprint("V", i)] = p("v")
		}
		return e
	}
	labels := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint("k", i)] = "v"
		}
		return m
	}
	for _, c := range []struct {
		name  string
		at    interface{ Validate() *Error }
		over  interface{ Validate() *Error }
		field string
	}{
		{"command", &ExecRun{Command: strings.Repeat("x", MaxCommand)}, &ExecRun{Command: strings.Repeat("x", MaxCommand+1)}, "command"},
		{"key", &ExecStream{RequestKey: strings.Repeat("é", MaxRequestKey)}, &ExecStream{RequestKey: strings.Repeat("é", MaxRequestKey+1)}, "request_key"},
		{"name", &SessionCreate{Name: strings.Repeat("é", MaxName)}, &SessionCreate{Name: strings.Repeat("é", MaxName+1)}, "name"},
		{"env", &ExecRun{Env: env(MaxEnv)}, &ExecRun{Env: env(MaxEnv + 1)}, "env"},
		{"labels", &SessionCreate{Labels: labels(MaxLabels)}, &SessionCreate{Labels: labels(MaxLabels + 1)}, "labels"},
		{"label key", &SessionCreate{Labels: map[string]string{strings.Repeat("k", MaxLabelKey): ""}}, &SessionCreate{Labels: map[string]string{strings.Repeat("k", MaxLabelKey+1): ""}}, "labels"},
		{"label value", &SessionCreate{Labels: map[string]string{"k": strings.Repeat("v", MaxLabelValue)}}, &SessionCreate{Labels: map[string]string{"k": strings.Repeat("v", MaxLabelValue+1)}}, "labels"},
		{"port", &ProcessWait{ProcessID: "p", Until: Until{Port: 65535}}, &ProcessWait{ProcessID: "p", Until: Until{Port: 65536}}, "until.port"},
		{"negative port", &ProcessWait{ProcessID: "p", Until: Until{Port: 1}}, &ProcessWait{ProcessID: "p", Until: Until{Port: -1}}, "until.port"},
		{"infinite time", &SessionCreate{Timeout: p(Seconds(1e300))}, &SessionCreate{Timeout: p(Seconds(inf))}, "timeout_s"},
		{"no number", &ExecWait{ExecID: "x", YieldMS: p(0.0)}, &ExecWait{ExecID: "x", YieldMS: p(inf - inf)}, "yield_ms"},
	} {
		if e := c.at.Validate(); e != nil {
			t.Errorf("%s at the bound: %v", c.name, e)
		}
		if e := c.over.Validate(); e == nil || e.Code != InvalidParams || e.Details["field"] != c.field {
			t.Errorf("%s over the bound: %v", c.name, e)
		}
	}
}

// TestSecondsKeepTheirSign: the shortest time is not none, and the longest not a negative one.
func TestSecondsKeepTheirSign(t *testing.T) {
	for s, want := range map[Seconds]time.Duration{0: 0, 5e-324: 1, 1e-10: 1, 1e-9: 1, 1.5: 1500 * time.Millisecond, 1e300: math.MaxInt64} {
		if got := s.Duration(); got != want {
			t.Errorf("%g s: %d ns, want %d", float64(s), got, want)
		}
	}
}

// TestErrorKeepsItsCause: what caused an error is for errors.Is and never on the wire.
func TestErrorKeepsItsCause(t *testing.T) {
	e := Errorf(WorkingDirNotFound, "working directory: %w", fs.ErrNotExist)
	if !errors.Is(e, fs.ErrNotExist) {
		t.Error("Errorf lost its cause")
	}
	if got := AsError(fmt.Errorf("create: %w", e)); got != e {
		t.Errorf("AsError gave %v", got)
	}
	secret := fmt.Errorf("open /secret: %w", fs.ErrPermission)
	got := AsError(secret)
	if got.Code != InternalError || !errors.Is(got, fs.ErrPermission) {
		t.Errorf("AsError gave %v", got)
	}
	if text := AppendFailure(nil, nil, got); bytes.Contains(text, []byte("secret")) {
		t.Errorf("the cause travels: %s", text)
	}
	if AsError(nil) != nil {
		t.Error("AsError(nil) is not nil")
	}
	both := Errorf(InternalError, "%w and %w", fs.ErrExist, fs.ErrClosed)
	if !errors.Is(both, fs.ErrExist) || !errors.Is(both, fs.ErrClosed) {
		t.Error("Errorf lost one of two causes")
	}
}

// TestRequestOutlivesFrame: the id is kept for an answer that may come much later than the frame's buffer is used again.
func TestRequestOutlivesFrame(t *testing.T) {
	frame := []byte(`{"id":"abc","method":"system.ping"}`)
	req, err := DecodeRequest(frame)
	clear(frame)
	if err != nil || string(req.ID) != `"abc"` || req.Method != "system.ping" {
		t.Errorf("got %s %q, %v", req.ID, req.Method, err)
	}
}

// appendResult appends the success {"id":…,"ok":true,"data":…}; a nil data is {}.
func appendResult(dst []byte, id jsontext.Value, data any) ([]byte, error) {
	n := len(dst)
	if err := WriteResult((*appender)(&dst), id, data); err != nil {
		return dst[:n], err
	}
	return dst, nil
}
