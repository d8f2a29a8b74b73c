package client_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
	"trl/protocol"
)

// notOverHTTP has the scenarios that plain HTTP cannot carry out, and why. All others run over POST /v1/rpc with curl.
var notOverHTTP = map[string]string{
	"an argument list is quoted":                                                              "a client quotes it; a request has the text",
	"a close code says whether another connection is made":                                    "there is no connection",
	"patience begins when somebody needs the connection, and a silent one was no useless one": "there is no connection",
	"a client's own session that has ended is made anew":                                      "a request names its session",
	"the end of a session ends what waits in its queue":                                       "an exec.exit with an error is an event, of which a client makes an exception",
	"100 MiB of output that nobody reads":                                                     "a response has the window of its socket, and no window_bytes; TestRPCReaderThatStops of package web shows its bound",
	"input arrives once, although gateways are killed and connections cut meanwhile":          "a client repeats input at its offset",
	"a terminal comes back with its screen":                                                   "term.open sends events on a connection that also carries input: it needs the WebSocket",
	"a session and its terminal are made by one request":                                      "the same",
}

// longWithCurl has the scenarios that start so many curls, or wait for so long, that only make test-soak runs them.
var longWithCurl = map[string]bool{
	"1,000 commands with the connection cut every 50 run exactly once each": true,
	"the server is away for ten seconds":                                    true,
}

// TestScenariosWithCurl runs the clients' scenarios over POST /v1/rpc, with a curl for each request.
func TestScenariosWithCurl(t *testing.T) {
	testkit.StartsProcesses(t)
	testkit.TakesLong(t)
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	all := allScenarios(t)
	for _, name := range slices.Concat(slices.Collect(maps.Keys(notOverHTTP)), slices.Collect(maps.Keys(longWithCurl))) {
		if !slices.ContainsFunc(all, func(s scenario) bool { return s.Name == name }) {
			t.Errorf("%q is no scenario", name)
		}
	}
	all = slices.DeleteFunc(all, func(s scenario) bool { return notOverHTTP[s.Name] != "" || longWithCurl[s.Name] && !testkit.Soak })
	runScenarios(t, all, func(t *testing.T, s scenario, g *gateway) { runScenario(t, s, g, &withCurl{gateway: g}) })
}

// withCurl carries out the steps of one scenario, each request with a run of curl.
type withCurl struct {
	gateway *gateway

	mu       sync.Mutex
	sessions []*curlSession // guarded by mu; those that the steps made
	streams  []*curlStream  // guarded by mu
}

// params are the params of a request, or the data of its answer.
type params = map[string]any

// curlClient is what one client's requests have in common. A session of its own is what requests of this client name.
type curlClient struct{ url, token, session string }

type curlSession struct {
	c  *curlClient
	id string
}

func (s *curlSession) ID() string { return s.id }

type curlProcess struct {
	c  *curlClient
	id string
}

func (p *curlProcess) ID() string { return p.id }

func (w *withCurl) begin(ctx context.Context, in *scope) error {
	c, err := w.connect(ctx, step{})
	if err != nil {
		return err
	}
	in.set("client", c)
	s, err := w.create(ctx, c, params{})
	in.set("s", s)
	return err
}

func (w *withCurl) end() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.streams {
		s.close()
	}
	var ending sync.WaitGroup
	for _, s := range w.sessions {
		ending.Go(func() { _, _ = s.c.call(ctx, "session.destroy", params{"session_id": s.id, "force": true}) })
	}
	ending.Wait()
}

func (w *withCurl) connect(ctx context.Context, q step) (*curlClient, error) {
	c := &curlClient{url: w.gateway.URL, token: w.gateway.token(q), session: q.text("session", "")}
	if c.session != "" {
		_, err := c.call(ctx, "session.info", params{"session_id": c.session})
		return c, err
	}
	s, err := c.call(ctx, "session.create", params{"name": "default", "if_exists": "return", "request_key": rand.Text()})
	if err == nil {
		c.session = s["session_id"].(string)
	}
	return c, err
}

func (w *withCurl) create(ctx context.Context, c *curlClient, p params) (*curlSession, error) {
	p["request_key"] = rand.Text()
	answer, err := c.call(ctx, "session.create", p)
	if err != nil {
		return nil, err
	}
	s := &curlSession{c, answer["session_id"].(string)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions = append(w.sessions, s)
	return s, nil
}

// pick returns the fields of a step that are params under the same name.
func pick(q step, names ...string) params {
	p := params{}
	for _, name := range names {
		if v, ok := q[name]; ok {
			p[name] = v
		}
	}
	return p
}

// starting returns the params of a request that starts work. The key and the id of the session let it be sent again.
func (q step) starting(s *curlSession, names ...string) params {
	p := pick(q, append(names, "command", "env", "working_dir", "timeout_s")...)
	p["session_id"], p["request_key"] = s.id, rand.Text()
	return p
}

func (w *withCurl) carryOut(ctx context.Context, q step, in *scope) (any, error) {
	of := in.get(q.text("of", ""))
	process, _ := of.(*curlProcess)
	output, _ := of.(*reading)
	caller := func() *curlClient { return in.get(q.text("client", "client")).(*curlClient) }
	session := func() *curlSession {
		s := in.get(q.text("in", "s"))
		if c, ok := s.(*curlClient); ok {
			return &curlSession{c, c.session}
		}
		return s.(*curlSession)
	}
	switch do := q.text("do", ""); do {
	case "connect":
		return w.connect(ctx, q)
	case "session":
		return w.create(ctx, caller(), pick(q, "name", "working_dir", "env"))
	case "get_session":
		s, err := caller().call(ctx, "session.info", params{"session": q["name"]})
		if err != nil {
			return nil, err
		}
		return &curlSession{caller(), s["session_id"].(string)}, nil
	case "move":
		s := of.(*curlSession)
		return s.c.call(ctx, "session.move", params{"session_id": s.id, "node": q["node"]})
	case "destroy":
		s := of.(*curlSession)
		_, err := s.c.call(ctx, "session.destroy", params{"session_id": s.id})
		return nil, err
	case "exec":
		return q.exec(ctx, session())
	case "stream":
		p := q.starting(session())
		if q["stdin"] == "open" {
			p["interactive_stdin"] = true
		}
		return w.follow(ctx, &curlStream{c: session().c, method: "exec.stream", params: p})
	case "follow":
		p := params{"process_id": process.id, "follow": true, "offset": q.number("since")}
		return w.follow(ctx, &curlStream{c: process.c, id: process.id, method: "process.logs", params: p, offset: int64(q.number("since"))})
	case "read":
		return output.read(ctx, q["until"])
	case "count":
		output.forget = true
		return output.read(ctx, "end")
	case "write":
		if output != nil {
			s := output.of.(*curlStream)
			return nil, write(ctx, curlInput{s.c, "exec.input", "exec_id", s.id}, q)
		}
		return nil, write(ctx, curlInput{process.c, "process.input", "process_id", process.id}, q)
	case "kill":
		if output != nil {
			s := output.of.(*curlStream)
			return s.c.call(ctx, "exec.cancel", params{"exec_id": s.id, "signal": q.text("signal", "")})
		}
		return process.c.call(ctx, "process.kill", params{"process_id": process.id, "signal": q.text("signal", "")})
	case "process":
		s := session()
		p, err := s.c.call(ctx, "process.start", maps.Collect(maps.All(q.starting(s, "stdin"))))
		if err != nil {
			return nil, err
		}
		return &curlProcess{s.c, p["process_id"].(string)}, nil
	case "wait_for_port":
		until := params{"port": q.number("port")}
		if q.text("mode", "") == "http" {
			until = params{"http": "http://127.0.0.1:" + q.text("port", "") + q.text("path", "/")}
		}
		return process.await(ctx, q, until)
	case "wait_for_log":
		return process.awaitLine(ctx, q)
	case "wait_for_exit":
		if _, err := process.await(ctx, q, params{"exit": true}); err != nil {
			return nil, err
		}
		p, err := process.c.call(ctx, "process.info", params{"process_id": process.id})
		return params{"exit_code": p["exit_code"], "signal": p["signal"], "timed_out": p["timed_out"] == true}, err
	case "logs":
		return process.logs(ctx)
	case "call":
		p, _ := q["params"].(params)
		return caller().call(ctx, q.text("method", ""), p)
	default:
		return nil, mismatch{"there is no such operation over HTTP: " + do + ". If that must be so, notOverHTTP says why"}
	}
}

// exec runs a command. One that other steps do not wait for is answered at once, with its id, and then waited for, so that it can be cancelled.
func (q step) exec(ctx context.Context, s *curlSession) (any, error) {
	p := q.starting(s, "when_busy", "stdin", "max_output_bytes")
	if in, ok := q["stdin_base64"]; ok {
		p["stdin"], p["stdin_encoding"] = in, "base64"
	}
	asking := ctx
	if q["meanwhile"] == true { // it is answered at once, and a cancel needs the id in the answer
		p["yield_ms"] = 0
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
	}
	r, err := s.c.call(asking, "exec.run", p)
	if err == nil && r["running"] == true {
		id := r["exec_id"]
		if r, err = s.c.call(ctx, "exec.wait", params{"exec_id": id}); ctx.Err() != nil {
			_, _ = s.c.call(context.WithoutCancel(ctx), "exec.cancel", params{"exec_id": id})
		}
	}
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"stdout", "stderr"} {
		text, _ := r[name].(string)
		encoding, _ := r[name+"_encoding"].(string)
		exact, err := protocol.DecodeBytes(text, encoding)
		if err != nil {
			return nil, err
		}
		r[name], r[name+"_base64"] = string(exact), base64.StdEncoding.EncodeToString(exact)
	}
	for _, name := range []string{"timed_out", "cancelled", "truncated"} {
		r[name] = r[name] == true
	}
	if code, _ := asNumber(r["exit_code"]); q["check"] == true && code != 0 {
		return nil, &client.CommandError{Result: &client.ExecResult{ExitCode: int(code), Stdout: r["stdout"].(string)}}
	}
	return r, nil
}

// await waits for a process.
func (p *curlProcess) await(ctx context.Context, q step, until params) (any, error) {
	w, err := p.c.call(ctx, "process.wait", params{"process_id": p.id, "until": until, "timeout_s": q["timeout_s"]})
	switch {
	case err != nil || w["met"] == true:
		return w, err
	case w["exit_code"] != nil:
		return nil, &client.ProcessExitedBeforeReadyError{ProcessID: p.id, ExitCode: int(w["exit_code"].(float64))}
	}
	return nil, &client.ProcessReadyTimeoutError{ProcessID: p.id}
}

// awaitLine waits for a line of output. The answer to process.wait does not have the groups of the expression, so the log is searched again.
func (p *curlProcess) awaitLine(ctx context.Context, q step) (any, error) {
	pattern, err := regexp.Compile(q.text("pattern", regexp.QuoteMeta(q.text("text", ""))))
	if err != nil {
		return nil, err
	}
	if _, err := p.await(ctx, q, params{"output": pattern.String()}); err != nil {
		return nil, err
	}
	logs, err := p.logs(ctx)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(logs["stdout"].(string)) {
		line = strings.TrimSuffix(line, "\n")
		if m := pattern.FindStringSubmatch(line); m != nil {
			return params{"line": line, "groups": m[1:]}, nil
		}
	}
	return nil, mismatch{fmt.Sprintf("the log has no line that matches: %v", logs)}
}

func (p *curlProcess) logs(ctx context.Context) (params, error) {
	logs, err := p.c.call(ctx, "process.logs", params{"process_id": p.id})
	if err != nil {
		return nil, err
	}
	got := params{"stdout": "", "stderr": "", "next_offset": logs["next_offset"]}
	for _, k := range logs["chunks"].([]any) {
		e, err := outputEvent(k.(params))
		if err != nil {
			return nil, err
		}
		name := string(e.Type)
		got[name] = got[name].(string) + string(e.Data)
	}
	return got, nil
}

// curlInput is the standard input of a command or a process.
type curlInput struct {
	c              *curlClient
	method, of, id string
}

// piece is how much input one request has.
const piece = 256 << 10

func (i curlInput) Write(ctx context.Context, data []byte) error {
	for part := range slices.Chunk(data, piece) {
		text, encoding := protocol.EncodeBytes(part)
		for {
			_, err := i.c.call(ctx, i.method, params{i.of: i.id, "data": text, "encoding": encoding})
			if client.CodeOf(err) == protocol.LimitExceeded && ctx.Err() == nil { // what came before is not read yet
				time.Sleep(10 * time.Millisecond)
				continue
			}
			if err != nil {
				return err
			}
			break
		}
	}
	return nil
}

func (i curlInput) CloseStdin(ctx context.Context) error {
	_, err := i.c.call(ctx, i.method, params{i.of: i.id, "eof": true})
	if client.CodeOf(err) == protocol.StdinClosed { // it has read enough, and ended
		return nil
	}
	return err
}

// call sends a request and returns the data of its answer. If there is none, it sends the request again, if the request may be sent twice.
func (c *curlClient) call(ctx context.Context, method string, p params) (params, error) {
	for {
		answer, err := c.once(ctx, method, p)
		if err == nil || !errors.Is(err, client.ErrConnectionLost) || !mayRepeat(method, p) && !nothingDone(err) {
			return answer, err
		}
		if err := pause(ctx); err != nil {
			return nil, err
		}
	}
}

// mayRepeat reports whether a request that names its session and has a key, or changes nothing, can be sent again.
func mayRepeat(method string, p params) bool {
	has := func(name string) bool { return p[name] != nil && p[name] != "" }
	switch protocol.RepeatOf(method) {
	case protocol.RepeatAlways:
		return true
	case protocol.RepeatKeyed:
		return has("request_key") && (has("session_id") || method == "session.create")
	case protocol.RepeatEnd:
		return !has("signal")
	}
	return false
}

// nothingDone reports whether the answer says that the session's node could not be reached.
func nothingDone(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	return ok && e.Code == protocol.NodeUnreachable
}

func pause(ctx context.Context) error {
	select {
	case <-time.After(50 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// run returns the command of one request.
func (c *curlClient) run(ctx context.Context, method string, p params, flags ...string) *exec.Cmd {
	body, err := json.Marshal(params{"method": method, "params": p})
	if err != nil {
		panic(err)
	}
	cmd := exec.CommandContext(ctx, "curl", append(flags, "-sS", c.url+"/v1/rpc", "-H", "Authorization: Bearer "+c.token, "-H", "Content-Type: application/json", "--data-binary", "@-")...)
	cmd.Stdin = bytes.NewReader(body)
	return cmd
}

// envelope is the first line of every answer.
type envelope struct {
	OK    bool
	Data  params
	Error *protocol.Error
}

// result returns the data of an answer, or its error.
func (e *envelope) result() (params, error) {
	switch {
	case e.Error == nil:
		return e.Data, nil
	case e.Error.Code == protocol.ShuttingDown, e.Error.Code == protocol.NodeUnreachable: // there is another gateway soon, or the node can be reached again
		return nil, fmt.Errorf("%w: %w", client.ErrConnectionLost, e.Error)
	}
	return nil, e.Error
}

func (c *curlClient) once(ctx context.Context, method string, p params) (params, error) {
	cmd := c.run(ctx, method, p, "-w", "%{http_code}")
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return nil, fmt.Errorf("%w: %s", client.ErrConnectionLost, bytes.TrimSpace(failed.Stderr))
	}
	if err != nil {
		return nil, err
	}
	text, status, _ := bytes.Cut(out, []byte("\n"))
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("%s: %q: %w", method, out, err)
	}
	want := 200
	if e.Error != nil {
		want = e.Error.Code.Status()
	}
	if string(status) != strconv.Itoa(want) && string(status) != "503" {
		return nil, mismatch{fmt.Sprintf("%s: status %s of %s", method, status, text)}
	}
	return e.result()
}

// curlStream is output that is followed with Accept: application/x-ndjson. When a response is cut off, another one goes on at its offset.
type curlStream struct {
	c      *curlClient
	id     string // of the command or process
	method string // of the next request
	params params
	offset int64

	curl   *exec.Cmd // nil: there is no response
	lines  *bufio.Reader
	ahead  []client.Event // events that come before those of the response
	ended  bool
	cancel context.CancelFunc
}

func (s *curlStream) ID() string { return s.id }

func (w *withCurl) follow(ctx context.Context, s *curlStream) (any, error) {
	w.mu.Lock()
	w.streams = append(w.streams, s)
	w.mu.Unlock()
	return &reading{of: s, offset: s.offset}, s.connect(ctx)
}

// connect gets a response whose first line is a good answer.
func (s *curlStream) connect(ctx context.Context) error {
	for {
		err := s.open(ctx)
		if err == nil || !errors.Is(err, client.ErrConnectionLost) || !mayRepeat(s.method, s.params) {
			return err
		}
		if err := pause(ctx); err != nil {
			return err
		}
	}
}

func (s *curlStream) open(ctx context.Context) error {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := s.c.run(running, s.method, s.params, "-N", "-H", "Accept: application/x-ndjson")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return err
	}
	s.curl, s.lines, s.cancel = cmd, bufio.NewReaderSize(out, 64<<10), cancel
	var e envelope
	line, err := s.line(ctx)
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		s.close()
		return err
	}
	answer, err := e.result()
	if err != nil {
		s.close()
		return err
	}
	if s.method != "process.logs" {
		if s.id == "" {
			s.id = answer["exec_id"].(string)
		}
		s.method, s.params = "exec.attach", params{"exec_id": s.id}
		return nil
	}
	if gap, ok := answer["gap"].(params); ok {
		s.ahead = append(s.ahead, client.Event{Type: client.EventGap, From: int64(gap["from"].(float64)), Offset: int64(gap["to"].(float64))})
	}
	for _, k := range answer["chunks"].([]any) {
		e, err := outputEvent(k.(params))
		if err != nil {
			return err
		}
		s.ahead = append(s.ahead, e)
	}
	return nil
}

// close ends the response.
func (s *curlStream) close() {
	if s.curl != nil {
		s.cancel()
		_ = s.curl.Wait()
		s.curl = nil
	}
}

// line returns the next line that is not blank. A response that ends is a connection that was lost: after the last event nobody reads on.
func (s *curlStream) line(ctx context.Context) ([]byte, error) {
	stop := context.AfterFunc(ctx, s.cancel)
	defer stop()
	for {
		line, err := s.lines.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, fmt.Errorf("%w: %w", client.ErrConnectionLost, err)
		case len(line) > 1:
			return line, nil
		}
	}
}

// Next returns the next event, from the next response if this one was cut off.
func (s *curlStream) Next(ctx context.Context) (client.Event, error) {
	for {
		if n := len(s.ahead); n > 0 {
			e := s.ahead[0]
			s.ahead = s.ahead[1:]
			s.pass(&e)
			return e, nil
		}
		if s.ended {
			return client.Event{}, io.EOF
		}
		if s.curl == nil {
			s.params["offset"] = s.offset
			if err := s.connect(ctx); err != nil {
				return client.Event{}, err
			}
			continue
		}
		line, err := s.line(ctx)
		if errors.Is(err, client.ErrConnectionLost) {
			s.close()
			continue
		}
		if err != nil {
			return client.Event{}, err
		}
		e, err := eventOf(line)
		if err != nil {
			return e, err
		}
		if e.Type == "" { // server.shutdown
			continue
		}
		s.pass(&e)
		if e.Type == client.EventComplete || e.Type == client.EventExit {
			s.ended = true
			s.close()
		}
		return e, nil
	}
}

// pass moves the offset behind an event.
func (s *curlStream) pass(e *client.Event) {
	switch e.Type {
	case client.EventGap, client.EventStdout, client.EventStderr:
		s.offset = e.Offset + int64(len(e.Data))
	}
}

// eventOf reads a line. An event without a type does not concern the reader.
func eventOf(line []byte) (client.Event, error) {
	var e struct {
		Event string
		Data  json.RawMessage
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return client.Event{}, fmt.Errorf("%q: %w", line, err)
	}
	switch e.Event {
	case "exec.output", "process.output":
		var p params
		if err := json.Unmarshal(e.Data, &p); err != nil {
			return client.Event{}, err
		}
		return outputEvent(p)
	case "stream.gap":
		var gap protocol.GapRange
		err := json.Unmarshal(e.Data, &gap)
		return client.Event{Type: client.EventGap, From: gap.From, Offset: gap.To}, err
	case "exec.exit":
		var x struct {
			ExitCode int `json:"exit_code"`
			Signal   string
		}
		err := json.Unmarshal(e.Data, &x)
		return client.Event{Type: client.EventComplete, Result: &client.ExecResult{ExitCode: x.ExitCode, ExecExit: protocol.ExecExit{Signal: x.Signal}}}, err
	case "process.exit":
		p := &protocol.ProcessInfo{}
		err := json.Unmarshal(e.Data, p)
		return client.Event{Type: client.EventExit, Process: p}, err
	case "server.shutdown":
		return client.Event{}, nil
	}
	return client.Event{}, mismatch{fmt.Sprintf("an event that nobody asked for: %s", line)}
}

func outputEvent(p params) (client.Event, error) {
	encoding, _ := p["encoding"].(string)
	data, err := protocol.DecodeBytes(p["data"].(string), encoding)
	e := client.Event{Type: client.EventType(p["stream"].(string)), Offset: int64(p["offset"].(float64)), Data: data}
	if err != nil {
		return e, err
	}
	return e, nil
}
