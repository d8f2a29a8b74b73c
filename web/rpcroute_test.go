package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/transport"
)

// rpcAnswer is an answer with its text.
type rpcAnswer struct {
	rig.Frame
	Raw string `json:"-"`
}

// rpcClient sends requests over HTTP.
type rpcClient struct {
	t      testing.TB
	http   *http.Client
	url    string
	header http.Header
}

// rpc returns a client of POST /v1/rpc.
func (g *server) rpc(token string) *rpcClient {
	tr := &http.Transport{}
	g.T.Cleanup(tr.CloseIdleConnections)
	c := &rpcClient{t: g.T, http: &http.Client{Transport: tr}, url: g.URL() + "/v1/rpc", header: http.Header{"Content-Type": {"application/json"}}}
	if token != "" {
		c.header.Set("Authorization", "Bearer "+token)
	}
	return c
}

// with returns the same client with another header.
func (c *rpcClient) with(name, value string) *rpcClient {
	q := *c
	q.header = c.header.Clone()
	q.header.Set(name, value)
	return &q
}

func (c *rpcClient) ndjson() *rpcClient { return c.with("Accept", transport.NDJSON) }

// post sends a body and returns the response, whose body the caller closes.
func (c *rpcClient) post(ctx context.Context, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = c.header
	return c.http.Do(r)
}

// send sends a body and returns the status and the only line of the answer.
func (c *rpcClient) send(body string) (int, *rpcAnswer) {
	c.t.Helper()
	resp, err := c.post(c.t.Context(), body)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	f := &rpcAnswer{Raw: string(text)}
	if err := json.Unmarshal(text, f); err != nil {
		c.t.Fatalf("%d %q: %v", resp.StatusCode, text, err)
	}
	return resp.StatusCode, f
}

func rpcRequest(method string, params object) string {
	b, _ := json.Marshal(object{"method": method, "params": params})
	return string(b)
}

func (c *rpcClient) try(method string, params object) (int, *rpcAnswer) {
	c.t.Helper()
	return c.send(rpcRequest(method, params))
}

// call sends a request that is carried out.
func (c *rpcClient) call(method string, params object) object {
	c.t.Helper()
	status, f := c.try(method, params)
	if status != 200 || !f.OK {
		c.t.Fatalf("%s: %d %s", method, status, f.Raw)
	}
	return f.Data
}

// following is a response that is read line by line.
type following struct {
	t    testing.TB
	resp *http.Response
	r    *bufio.Reader
	stop context.CancelFunc
}

// follow sends a request whose answer is followed by events, and reads the answer.
func (c *rpcClient) follow(method string, params object) (*following, object) {
	c.t.Helper()
	f, answer, status := c.tryFollow(method, params)
	if f == nil {
		c.t.Fatalf("%s: %d", method, status)
	}
	return f, answer
}

// tryFollow is follow, but returns nothing with the status of a response that nothing follows.
func (c *rpcClient) tryFollow(method string, params object) (_ *following, answer object, status int) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	resp, err := c.ndjson().post(ctx, rpcRequest(method, params))
	if err != nil {
		c.t.Fatal(err)
	}
	f := &following{c.t, resp, bufio.NewReaderSize(resp.Body, 16), cancel}
	c.t.Cleanup(func() { cancel(); resp.Body.Close() })
	if resp.StatusCode != 200 {
		return nil, nil, resp.StatusCode
	}
	first, err := f.next()
	if err != nil || !first.OK || resp.Header.Get("Content-Type") != transport.NDJSON {
		c.t.Fatalf("%s: %v %v %v", method, first, err, resp.Header)
	}
	return f, first.Data, resp.StatusCode
}

// next returns the next line that is not blank.
func (f *following) next() (*rig.Frame, error) {
	for {
		line, err := f.r.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if line == "\n" {
			continue
		}
		frame := &rig.Frame{}
		if err := json.Unmarshal([]byte(line), frame); err != nil {
			f.t.Fatalf("%q: %v", line, err)
		}
		return frame, nil
	}
}

// rest reads to the end of the response: the output, and the last event.
func (f *following) rest() (output string, last *rig.Frame) {
	f.t.Helper()
	for {
		frame, err := f.next()
		if err == io.EOF {
			return output, last
		}
		if err != nil {
			f.t.Fatal(err)
		}
		if strings.HasSuffix(frame.Event, ".output") {
			output += frame.Data.Text("data", "encoding")
		}
		last = frame
	}
}

func TestRPCStatuses(t *testing.T) {
	_, set := withFile(t, "ann-token ann admin\nbob-token bob user\neve-token eve viewer\nslow-token cid user rate=0.001\n")
	g := start(t, set, func(c *Config) { c.MaxFrame = 1 << 20 })
	bob, eve := g.rpc("bob-token"), g.rpc("eve-token")
	session := bob.call("session.create", object{"name": "work"}).Str("session_id")
	gone := bob.call("session.create", object{}).Str("session_id")
	bob.call("session.destroy", object{"session_id": gone})
	bob.ndjson().try("exec.attach", object{"exec_id": "none"})
	waits, started := bob.follow("exec.stream", object{"session": "work", "command": "sleep 1000"})
	slow := g.rpc("slow-token")
	for slow.call("system.ping", nil); ; {
		if status, _ := slow.try("system.ping", nil); status == 429 {
			break
		}
	}
	for _, want := range []struct {
		c      *rpcClient
		body   string
		status int
		code   protocol.Code
	}{
		{bob, `{"method":"system.ping"}`, 200, ""},
		{bob, `{"id":"x","method":"system.ping","params":{}}`, 200, ""},
		{bob, ``, 400, protocol.InvalidRequest},
		{bob, `[]`, 400, protocol.InvalidRequest},
		{bob, `{"method":"system.ping","more":1}`, 400, protocol.InvalidRequest},
		{bob, `{"method":"system.ping"}{}`, 400, protocol.InvalidRequest},
		{bob.with("Content-Type", "text/plain"), `{"method":"system.ping"}`, 400, protocol.InvalidRequest},
		{bob.with("Content-Type", "application/x-www-form-urlencoded"), `{"method":"system.ping"}`, 400, protocol.InvalidRequest},
		{bob.with("Content-Type", "application/json; charset=utf-8"), `{"method":"system.ping"}`, 200, ""},
		{bob, `{"method":"no.such"}`, 404, protocol.UnknownMethod},
		{bob, rpcRequest("exec.run", object{"command": 1}), 400, protocol.InvalidParams},
		{bob, rpcRequest("exec.run", object{"command": strings.Repeat("x", 2<<20)}), 413, protocol.RequestTooLarge},
		{g.rpc(""), `{"method":"system.ping"}`, 401, protocol.AuthFailed},
		{g.rpc("wrong-token"), `{"method":"system.ping"}`, 401, protocol.AuthFailed},
		{eve, rpcRequest("exec.run", object{"command": "pwd"}), 403, protocol.Forbidden},
		{bob, rpcRequest("session.list", object{"all": true}), 403, protocol.Forbidden},
		{slow, `{"method":"system.ping"}`, 429, protocol.RateLimited},
		{bob, rpcRequest("session.info", object{"session": "none"}), 404, protocol.SessionNotFound},
		{bob, rpcRequest("session.create", object{"name": "work"}), 409, protocol.SessionExists},
		{bob, rpcRequest("exec.run", object{"session": "work", "command": "pwd", "when_busy": "reject"}), 409, protocol.SessionBusy},
		{bob, rpcRequest("exec.run", object{"session_id": gone, "command": "pwd"}), 409, protocol.SessionTerminated},
		{bob, rpcRequest("session.create", object{"shell": "/no/such/shell"}), 404, protocol.ShellNotFound},
		{bob, rpcRequest("session.create", object{"working_dir": "/no/such/dir"}), 404, protocol.WorkingDirNotFound},
		{bob, rpcRequest("exec.wait", object{"exec_id": "x-none"}), 404, protocol.ExecNotFound},
		{bob, rpcRequest("process.info", object{"process_id": "p-none"}), 404, protocol.ProcessNotFound},
		{bob, rpcRequest("term.snapshot", object{"term_id": "t-none"}), 404, protocol.TermNotFound},
		{bob, rpcRequest("exec.input", object{"exec_id": started.Str("exec_id"), "data": "x"}), 409, protocol.StdinClosed},
		{bob.ndjson(), rpcRequest("exec.attach", object{"exec_id": started.Str("exec_id"), "offset": 1 << 30}), 404, protocol.StreamNotFound},
		{bob, rpcRequest("exec.stream", object{"command": "pwd"}), 501, protocol.NotSupported},
		{bob, rpcRequest("share.revoke", object{"share_id": "sh-none"}), 404, protocol.ShareNotFound},
	} {
		status, f := want.c.send(want.body)
		if status != want.status || f.Code() != string(want.code) {
			t.Errorf("%.80s: %d %s, want %d %s", want.body, status, f.Raw, want.status, want.code)
		}
		if want.code != "" && want.code.Status() != want.status {
			t.Errorf("%s has the status %d in the table", want.code, want.code.Status())
		}
	}
	if _, f := bob.send(`{"id":"x","method":"system.ping"}`); f.ID != "x" {
		t.Errorf("the id is not in the answer: %s", f.Raw)
	}
	if _, f := bob.send(`{"method":"system.ping"}`); f.ID != nil {
		t.Errorf("there is an id: %s", f.Raw)
	}
	waits.stop()
	if status, f := bob.try("exec.cancel", object{"exec_id": started.Str("exec_id")}); status != 200 || !f.Data.Yes("cancelled") {
		t.Errorf("cancel: %d %s", status, f.Raw)
	}
	resp, err := http.Get(bob.url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 405 {
		t.Errorf("GET: %d", resp.StatusCode)
	}
	if got := bob.call("exec.run", object{"session_id": session, "command": "cd /usr; pwd"}).Stdout(); got != "/usr\n" {
		t.Errorf("the session goes on: %q", got)
	}
	if features := bob.call("system.capabilities", nil)["features"]; fmt.Sprint(features) != "[rpc mcp]" {
		t.Errorf("features %v", features)
	}
}

// TestRPCNeedsAConnection: what is about a connection says so, and nothing has happened.
func TestRPCNeedsAConnection(t *testing.T) {
	g := start(t)
	c := g.rpc("")
	session := c.call("session.create", nil).Str("session_id")
	for method, params := range map[string]object{
		"session.watch": {"session_id": session}, "session.unwatch": {"session_id": session},
		"term.open": {"session_id": session, "cols": 80, "rows": 24}, "term.attach": {"term_id": "t-x"}, "term.detach": {"term_id": "t-x"},
		"exec.detach": {"exec_id": "x-x"}, "process.detach": {"process_id": "p-x"}, "stream.ack": {"stream_id": "st-x", "offset": 0},
		"exec.cancel":    {"request_id": 1},
		"session.create": {"on_disconnect": "destroy"},
		"exec.stream":    {"session_id": session, "command": "touch /no", "window_bytes": 1},
	} {
		status, f := c.ndjson().try(method, params)
		if details := f.Error.Details; status != 501 || f.Code() != "NOT_SUPPORTED" || details.Str("use") != "websocket" || !strings.Contains(f.Error.Message, "/v1/ws") {
			t.Errorf("%s: %d %s", method, status, f.Raw)
		}
	}
	if n := len(c.call("session.list", nil).Objs("sessions")); n != 1 {
		t.Errorf("%d sessions", n)
	}
	if execs := c.call("exec.list", object{"session_id": session}).Objs("execs"); len(execs) != 0 {
		t.Errorf("commands ran: %v", execs)
	}
}

// TestRPCResumesInACharacter: a reader that was cut off in the middle of a character gets its other half.
func TestRPCResumesInACharacter(t *testing.T) {
	g := start(t)
	c := g.rpc("")
	proceed := t.TempDir() + "/go"
	f, opened := c.follow("exec.stream", object{"command": "printf 'a€b'; until [ -e " + proceed + " ]; do sleep 0.05; done"})
	if ev, err := f.next(); err != nil || ev.Data.Str("data") != "a€b" {
		t.Fatalf("%v %v", ev, err)
	}
	f.stop()
	exec := opened.Str("exec_id")
	again, opened := c.follow("exec.attach", object{"exec_id": exec, "offset": 2})
	if opened.Num("offset") != 2 {
		t.Fatalf("%v", opened)
	}
	got := ""
	for len(got) < 3 {
		ev, err := again.next()
		if err != nil {
			t.Fatal(err)
		}
		if ev.Data.Num("offset") != 2+len(got) {
			t.Errorf("offset %d after %q", ev.Data.Num("offset"), got)
		}
		got += ev.Data.Text("data", "encoding")
	}
	if got != "\x82\xacb" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, last := again.rest(); last == nil || last.Event != "exec.exit" {
		t.Errorf("the last event is %v", last)
	}
	for offset, want := range []string{"a€b", "€b", "\x82\xacb", "\xacb", "b", ""} { // the command has ended
		f, _ := c.follow("exec.attach", object{"exec_id": exec, "offset": offset})
		if got, last := f.rest(); got != want || last == nil || last.Event != "exec.exit" {
			t.Errorf("from %d: %q, %v", offset, got, last)
		}
	}
}

func TestRPCFollowsAProcess(t *testing.T) {
	g := start(t)
	c := g.rpc("")
	session := c.call("session.create", nil).Str("session_id")
	id := c.call("process.start", object{"session_id": session, "command": "echo one; read x; echo two $x", "stdin": "open"}).Str("process_id")
	c.call("process.wait", object{"process_id": id, "until": object{"output": "one"}})
	f, logs := c.follow("process.logs", object{"process_id": id, "follow": true})
	if chunks := logs.Objs("chunks"); len(chunks) != 1 || chunks[0].Str("data") != "one\n" || logs.Num("next_offset") != 4 {
		t.Fatalf("%v", logs)
	}
	c.call("process.input", object{"process_id": id, "data": "three\n"})
	if got, last := f.rest(); got != "two three\n" || last == nil || last.Event != "process.exit" {
		t.Errorf("%q, %v", got, last)
	}
	f, logs = c.follow("process.logs", object{"process_id": id, "follow": true, "offset": 6})
	if got, last := f.rest(); got != "" || last == nil || last.Event != "process.exit" || logs.Objs("chunks")[0].Str("data") != "o three\n" {
		t.Errorf("%v %q, %v", logs, got, last)
	}
	if once := c.ndjson().call("process.logs", object{"process_id": id}); once.Num("next_offset") != 14 { // without follow there is one answer
		t.Errorf("%v", once)
	}
}

// TestRPCReaderThatStops: the output waits in the command's pipe and not in the gateway; the reader ends as one of a WebSocket does.
func TestRPCReaderThatStops(t *testing.T) {
	g := start(t, func(c *Config) { c.SlowClient = 5 * time.Second }) // the test looks at the command before
	c := g.rpc("")
	const size = 64 << 20
	var before, during goruntime.MemStats
	goruntime.GC()
	goruntime.ReadMemStats(&before)
	f, opened := c.follow("exec.stream", object{"command": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo done >&2", size)})
	exec := opened.Str("exec_id")
	if _, err := f.next(); err != nil {
		t.Fatal(err)
	}
	held := 0
	for reads := true; reads; { // nobody does, but the gateway does not know it yet
		got := c.call("exec.wait", object{"exec_id": exec, "yield_ms": 0, "offset": 0})
		if reads = g.Series("trl_connections_closed_total", "slow") < 1; reads && got.Yes("running") {
			held = max(held, got.Num("stdout_bytes"))
		}
		goruntime.GC()
		goruntime.ReadMemStats(&during)
		if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 40<<20 {
			t.Fatalf("the gateway holds %d MiB", grown>>20)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if held == 0 || held > size/2 {
		t.Errorf("the command wrote %d bytes while nobody read", held)
	}
	if got := c.call("exec.wait", object{"exec_id": exec}); got.Num("exit_code") != 0 || got.Num("stdout_bytes") != size {
		t.Errorf("the command: %v", got)
	}
	for err := error(nil); ; {
		if _, err = f.next(); err == io.EOF {
			t.Error("the response looks complete")
		}
		if err != nil {
			break
		}
	}
}

// TestRPCClientThatGoes: the command goes on, and so does a request that waits for it.
func TestRPCClientThatGoes(t *testing.T) {
	g := start(t)
	c := g.rpc("")
	dir := t.TempDir()
	f, opened := c.follow("exec.stream", object{"command": "echo begun; until [ -e " + dir + "/go ]; do sleep 0.05; done; echo ended"})
	if _, err := f.next(); err != nil {
		t.Fatal(err)
	}
	f.stop()
	testkit.Eventually(t, "the connection has ended", func() bool { return g.Series("trl_connections", "http") == 0 })
	ctx, cancel := context.WithCancel(t.Context()) // a second client waits in the queue, and goes
	queued := make(chan struct{})
	go func() {
		defer close(queued)
		if resp, err := c.post(ctx, rpcRequest("exec.run", object{"command": "echo queued > " + dir + "/queued", "request_key": "k"})); err == nil {
			resp.Body.Close()
		}
	}()
	testkit.Eventually(t, "the second command waits", func() bool { return g.Series("trl_connections", "http") == 1 })
	testkit.Eventually(t, "it is in the queue", func() bool { return g.Metric("trl_exec_queue_length") == 1 })
	cancel()
	<-queued
	testkit.Eventually(t, "the connection has ended", func() bool { return g.Series("trl_connections", "http") == 0 })
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := c.call("exec.wait", object{"exec_id": opened.Str("exec_id")}); got.Stdout() != "begun\nended\n" || got.Num("exit_code") != 0 {
		t.Errorf("%v", got)
	}
	if got := c.call("exec.run", object{"command": "echo queued > " + dir + "/queued", "request_key": "k"}); got.Num("exit_code") != 0 { // the same command, once
		t.Errorf("%v", got)
	}
}

func TestRPCBlankLines(t *testing.T) {
	g := start(t, func(c *Config) { c.PingEvery = 100 * time.Millisecond })
	f, _ := g.rpc("").follow("exec.stream", object{"command": "sleep 1000", "timeout_s": 1000})
	for range 3 {
		if line, err := f.r.ReadString('\n'); err != nil || line != "\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
}

// TestRPCAtAShutdown: who follows is told and sees that there is more; who waits gets an answer that says where the result will be.
func TestRPCAtAShutdown(t *testing.T) {
	g := start(t)
	c := g.rpc("")
	sessions := []string{c.call("session.create", nil).Str("session_id"), c.call("session.create", nil).Str("session_id")}
	f, _ := c.follow("exec.stream", object{"session_id": sessions[0], "command": "echo begun; sleep 1000"})
	if _, err := f.next(); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status int
		f      *rpcAnswer
	}
	waiting := make(chan answer, 1)
	go func() {
		status, f := c.try("exec.run", object{"session_id": sessions[1], "command": "sleep 1000"})
		waiting <- answer{status, f}
	}()
	testkit.Eventually(t, "both commands run", func() bool {
		return g.Metric("trl_connections") == 2 && c.call("system.stats", nil).Num("running") == 2
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	handed := make(chan struct{})
	go func() { defer close(handed); g.HandOver(ctx) }() // the sessions go on
	if ev, err := f.next(); err != nil || ev.Event != "server.shutdown" {
		t.Errorf("%v %v", ev, err)
	}
	if ev, err := f.next(); err == nil || err == io.EOF {
		t.Errorf("after the notice: %v %v", ev, err)
	}
	got := <-waiting
	if got.status != 503 || got.f.Code() != "SHUTTING_DOWN" || got.f.Error.Details.Str("exec_id") == "" {
		t.Errorf("%d %s", got.status, got.f.Raw)
	}
	<-handed
	if err := g.Gateway.Pool.Close(ctx); err != nil {
		t.Error(err)
	}
}

// TestRPCKeepsItsConnection: a thousand requests use one connection and leave nothing.
func TestRPCKeepsItsConnection(t *testing.T) {
	g := start(t, withTokens)
	c := g.rpc(gateway.UserToken)
	session := c.call("session.create", nil).Str("session_id")
	count := func() (sockets, goroutines int) { // a session keeps other descriptors for the output of its last commands
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") {
				sockets++
			}
		}
		return sockets, goruntime.NumGoroutine()
	}
	testkit.Eventually(t, "the first request is over", func() bool { return g.Metric("trl_connections") == 0 })
	sockets, goroutines := count()
	conn, err := net.Dial("tcp", g.Addr()) // Go's client leaves a connection whose writing goroutine reports later than 50 ms after the answer
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(3 * patience))
	answers := bufio.NewReader(conn)
	for i := range 1000 {
		body := `{"method":"system.ping"}`
		if i%10 == 0 {
			body = rpcRequest("exec.run", object{"session_id": session, "command": ":"})
		}
		r, err := http.NewRequest("POST", c.url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = c.header
		if err := r.Write(conn); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(answers, r)
		if err != nil {
			t.Fatal(err)
		}
		var f rig.Frame
		if err := json.NewDecoder(resp.Body).Decode(&f); err != nil || !f.OK || resp.Close {
			t.Fatalf("%d: %v %v, the connection ends: %v", i, f, err, resp.Close)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	conn.Close()
	testkit.Eventually(t, "nothing is left", func() bool {
		f, n := count()
		return f <= sockets && n <= goroutines && g.Metric("trl_connections") == 0
	})
	if bad := g.rpc("wrong"); true { // a stranger's connection is short
		resp, err := bad.post(t.Context(), `{"method":"system.ping"}`)
		if err != nil || !resp.Close {
			t.Errorf("%v %v", resp, err)
		}
		resp.Body.Close()
	}
}

// TestRPCBoundsAreOfAPrincipal: the requests of a principal count together, however many connections it makes.
func TestRPCBoundsAreOfAPrincipal(t *testing.T) {
	g := start(t, withTokens, func(c *Config) { c.MaxInFlight = 3 })
	c := g.rpc(gateway.UserToken)
	for i := range 3 {
		c.follow("exec.stream", object{"session": c.call("session.create", object{"name": fmt.Sprint("s", i)}).Str("name"), "command": "sleep 1000"})
	}
	// A stream does not count once it is answered; a request that waits does.
	var waiting sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 3 {
		waiting.Go(func() {
			for refused := true; refused; { // the count of the answer before goes down soon after the client has it
				resp, err := c.post(ctx, rpcRequest("exec.run", object{"session": fmt.Sprint("s", i), "command": ":"}))
				if err != nil {
					return
				}
				refused = resp.StatusCode == http.StatusTooManyRequests
				resp.Body.Close()
			}
		})
	}
	testkit.Eventually(t, "three wait", func() bool { return g.Metric("trl_exec_queue_length") == 3 })
	if status, f := c.try("system.ping", nil); status != 429 || f.Code() != "RATE_LIMITED" {
		t.Errorf("%d %s", status, f.Raw)
	}
	if status, f := g.rpc(gateway.AdminToken).try("system.ping", nil); status != 200 {
		t.Errorf("another principal: %d %s", status, f.Raw)
	}
	if status, f := c.try("exec.cancel", object{"session": "s0"}); status != 200 { // an urgent one
		t.Errorf("%d %s", status, f.Raw)
	}
	cancel()
	waiting.Wait()
	testkit.Eventually(t, "there is room again", func() bool { status, _ := c.try("system.ping", nil); return status == 200 })

	full := start(t, withTokens, func(c *Config) { c.MaxConns, c.MaxConnsOfPrincipal = 8, 1 })
	c = full.rpc(gateway.UserToken)
	c.follow("exec.stream", object{"command": "sleep 1000"})
	resp, err := c.post(t.Context(), `{"method":"system.ping"}`)
	if err != nil || resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%v %v", resp, err)
	}
	resp.Body.Close()
}

// TestRPCFromPages: a page may use its own gateway, or one that lists it; no other page can make a browser do anything.
func TestRPCFromPages(t *testing.T) {
	const friend, stranger = "https://app.example", "https://evil.example"
	_, set := withFile(t, "a-plain-token ann admin\n")
	g := start(t, set, func(c *Config) { c.Origins = []string{friend} })
	login := g.logIn("a-plain-token")
	ping := `{"method":"system.ping"}`
	page := func(origin string, change ...func(http.Header)) (int, http.Header) {
		c := g.rpc("")
		c.url = g.URL() + login.Path + "v1/rpc"
		c.header.Set("Cookie", login.Name+"="+login.Value)
		if origin != "" {
			c.header.Set("Origin", origin)
		}
		for _, f := range change {
			f(c.header)
		}
		resp, err := c.post(t.Context(), ping)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header
	}
	bearer := func(h http.Header) { h.Set("Authorization", "Bearer a-plain-token") }
	form := func(h http.Header) { h.Set("Content-Type", "text/plain") }
	for _, c := range []struct {
		what   string
		origin string
		change []func(http.Header)
		status int
	}{
		{"our page", g.URL(), nil, 200},
		{"our page, a form", g.URL(), []func(http.Header){form}, 400},
		{"a cookie without an origin", "", nil, 401},
		{"a listed page with the cookie alone", friend, nil, 401},
		{"a listed page with a token", friend, []func(http.Header){bearer}, 200},
		{"another page with the cookie", stranger, nil, 403},
		{"another page with a token", stranger, []func(http.Header){bearer}, 403},
		{"a page without an origin of its own", "null", []func(http.Header){form}, 403},
	} {
		status, h := page(c.origin, c.change...)
		if status != c.status {
			t.Errorf("%s: %d, want %d", c.what, status, c.status)
		}
		if got := h.Get("Access-Control-Allow-Origin"); c.origin == friend && got != friend || c.origin == stranger && got != "" {
			t.Errorf("%s may be read by %q", c.what, got)
		}
		if h.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("%s: cookies are allowed", c.what)
		}
	}
	for origin, want := range map[string]int{friend: 204, stranger: 403} {
		r, _ := http.NewRequest("OPTIONS", g.URL()+"/v1/rpc", nil)
		r.Header = http.Header{"Origin": {origin}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type"}}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		allowed := strings.ToLower(resp.Header.Get("Access-Control-Allow-Headers"))
		if resp.StatusCode != want || want == 204 && (!strings.Contains(allowed, "authorization") || !strings.Contains(allowed, "content-type") || resp.Header.Get("Access-Control-Allow-Origin") != origin) {
			t.Errorf("preflight of %s: %d %v", origin, resp.StatusCode, resp.Header)
		}
	}
	// What opens a WebSocket opens nothing else.
	c := g.rpc("")
	for _, offer := range []string{"trl.token." + base64.RawURLEncoding.EncodeToString([]byte("a-plain-token")), "trl.ticket.x"} {
		if status, f := c.with("Sec-WebSocket-Protocol", offer).send(ping); status != 401 {
			t.Errorf("%s: %d %s", offer, status, f.Raw)
		}
	}
}

func TestRPCOfGuests(t *testing.T) {
	g := start(t, withTokens)
	owner := g.rpc(gateway.UserToken)
	session := owner.call("session.create", nil).Str("session_id")
	other := owner.call("session.create", nil).Str("session_id")
	watcher := g.rpc(owner.call("share.create", object{"session_id": session}).Str("token"))
	typist := g.rpc(owner.call("share.create", object{"session_id": session, "mode": "control"}).Str("token"))
	if got := typist.call("exec.run", object{"command": "echo hello"}).Stdout(); got != "hello\n" {
		t.Errorf("%q", got)
	}
	for what, c := range map[string]struct {
		who    *rpcClient
		method string
		params object
		status int
	}{
		"a guest who watches types":      {watcher, "exec.run", object{"command": "pwd"}, 403},
		"a guest makes a session":        {typist, "session.create", nil, 403},
		"a guest looks at another one":   {watcher, "session.info", object{"session_id": other}, 404},
		"a guest looks at its own":       {watcher, "session.info", object{"session_id": session}, 200},
		"a link that does not exist any": {g.rpc("trl_share_nonsense"), "session.list", nil, 401},
	} {
		if status, f := c.who.try(c.method, c.params); status != c.status {
			t.Errorf("%s: %d %s", what, status, f.Raw)
		}
	}
}

// TestRPCAudit: a request has its own entry, and there is none for its connection.
func TestRPCAudit(t *testing.T) {
	g, _, entries := audited(t, withTokens)
	c := g.rpc(gateway.UserToken)
	c.call("exec.run", object{"command": "echo secret"})
	c.call("system.ping", nil)
	g.rpc(gateway.ViewToken).try("exec.run", object{"command": "pwd"})
	g.rpc("wrong").try("system.ping", nil)
	got := ""
	for _, e := range entries() {
		switch e.Action {
		case "exec.run", audit.ActionRefused, audit.ActionConnect, audit.ActionDisconnect:
			got += fmt.Sprintf("%s %s %s; ", e.Action, e.Principal, e.Outcome)
			if !strings.HasPrefix(e.Remote, "127.0.0.1:") {
				t.Errorf("remote %q", e.Remote)
			}
		}
	}
	if want := "exec.run bob ok; exec.run ann FORBIDDEN; auth.refused  AUTH_FAILED; "; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}

// TestRPCOnTheUnixSocket: one socket takes lines and HTTP, and the kernel says who the client is.
func TestRPCOnTheUnixSocket(t *testing.T) {
	g, path := startLocal(t)
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	c := &rpcClient{t: t, http: &http.Client{Transport: tr}, url: "http://trl/v1/rpc", header: http.Header{"Content-Type": {"application/json"}}}
	lines := dialLocal(t, path)
	for i := range 3 {
		if got := c.call("exec.run", object{"command": "cd /usr; pwd"}).Stdout(); got != "/usr\n" {
			t.Errorf("%q", got)
		}
		fmt.Fprintf(lines, `{"id":%d,"method":"exec.run","params":{"command":"pwd"}}`+"\n", i)
		if f := lines.line(); f.Data.Stdout() != "/usr\n" { // the same principal, the same session
			t.Errorf("%v", f)
		}
	}
	f, _ := c.follow("exec.stream", object{"command": "echo one; echo two"})
	if got, last := f.rest(); got != "one\ntwo\n" || last.Event != "exec.exit" {
		t.Errorf("%q %v", got, last)
	}
	if status, frame := c.try("no.such", nil); status != 404 {
		t.Errorf("%d %s", status, frame.Raw)
	}
	for path, want := range map[string][]byte{"schema": protocol.Schema(), "openapi.json": protocol.OpenAPI(), "asyncapi.json": protocol.AsyncAPI()} {
		resp, err := c.http.Get("http://trl/v1/" + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !bytes.Equal(text, want) {
			t.Errorf("%s: %d, %d bytes, %v", path, resp.StatusCode, len(text), err)
		}
	}
	for _, first := range []string{"P", "POST", "G"} { // the beginning of both
		one := dialLocal(t, path)
		fmt.Fprint(one, first)
		time.Sleep(20 * time.Millisecond)
		fmt.Fprint(one, "x\n")
		if got := one.line(); got.Code() != "INVALID_REQUEST" {
			t.Errorf("%sx: %v", first, got)
		}
	}
	raw := dialLocal(t, path) // a request that comes in pieces
	for _, piece := range []string{"PO", "ST /v1/rpc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", "Content-Length: 24\r\n\r\n{\"method\":", "\"system.ping\"}"} {
		fmt.Fprint(raw, piece)
		time.Sleep(20 * time.Millisecond)
	}
	answer, err := http.ReadResponse(raw.r, nil)
	if err != nil || answer.StatusCode != 200 {
		t.Errorf("%v %v", answer, err)
	}
	testkit.Eventually(t, "no connection is left but that of the lines", func() bool { return g.Metric("trl_connections") <= 4 })
}

// TestRPCIdleConnections: as many connections are kept for a next request as there may be clients.
func TestRPCIdleConnections(t *testing.T) {
	const most = 3
	g := start(t, func(c *Config) { c.MaxConns = most })
	for i := range most + 2 {
		resp, err := g.rpc("").post(t.Context(), `{"method":"system.ping"}`) // each from a connection of its own
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.Close != (i >= most) {
			t.Errorf("response %d: the connection ends: %v", i, resp.Close)
		}
		testkit.Eventually(t, "the connection is idle", func() bool { return g.idle.count() == min(i+1, most) })
	}
}

// TestRPCCredentialThatEnds: a request that waits is answered when its token is revoked; a response that is followed is cut off. The commands go on.
func TestRPCCredentialThatEnds(t *testing.T) {
	path, set := withFile(t, "ann-token ann user\nother-token ann user\n")
	g := start(t, set)
	c, other := g.rpc("ann-token"), g.rpc("other-token")
	for _, name := range []string{"one", "two"} {
		c.call("session.create", object{"name": name})
	}
	f, opened := c.follow("exec.stream", object{"session": "one", "command": "echo begun; sleep 1000"})
	if _, err := f.next(); err != nil {
		t.Fatal(err)
	}
	waiting := make(chan string, 1)
	go func() {
		status, f := c.try("exec.run", object{"session": "two", "command": "sleep 1000"})
		waiting <- fmt.Sprint(status, " ", f.Code(), " ", f.Error.Details.Str("exec_id"))
	}()
	testkit.Eventually(t, "both commands run", func() bool { return other.call("system.stats", nil).Num("running") == 2 })
	os.WriteFile(path+".new", []byte("other-token ann user\n"), 0o600)
	os.Rename(path+".new", path)
	var exec string
	if _, err := fmt.Sscanf(<-waiting, "401 AUTH_FAILED %s", &exec); err != nil || exec == "" {
		t.Errorf("the request that waits: %q, %v", exec, err)
	}
	if ev, err := f.next(); err == nil || err == io.EOF {
		t.Errorf("the response looks complete: %v %v", ev, err)
	}
	for _, id := range []string{exec, opened.Str("exec_id")} {
		if got := other.call("exec.cancel", object{"exec_id": id}); !got.Yes("cancelled") {
			t.Errorf("%s: %v", id, got)
		}
	}
}

// TestRPCBadBodies: a body that does not come whole is answered as the client's fault. What the client accepts is a list of media types.
func TestRPCBadBodies(t *testing.T) {
	g := start(t, func(c *Config) { c.stall = 300 * time.Millisecond })
	for what, c := range map[string]struct{ body, says string }{
		"a wrong chunk":           {"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n", "malformed"},
		"no end of a chunk":       {"Transfer-Encoding: chunked\r\n\r\n5\r\n{", "in time"},
		"less than was announced": {"Content-Length: 50\r\n\r\n{\"method\":", "in time"},
	} {
		conn, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(conn, "POST /v1/rpc HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s", g.Addr(), c.body)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 400 || !resp.Close || !strings.Contains(string(text), "INVALID_REQUEST") || !strings.Contains(string(text), c.says) {
			t.Errorf("%s: %s %s", what, resp.Status, text)
		}
	}
	for accept, want := range map[string]int{
		"application/x-ndjson": 200, "text/html, Application/X-NDJSON;q=0.5": 200, "*/*": 501, "application/*": 501,
		"application/x-ndjson-foo": 501, "text/application/x-ndjson": 501, "application/x-ndjson;q=0": 501, "": 501,
	} {
		resp, err := g.rpc("").with("Accept", accept).post(t.Context(), rpcRequest("exec.stream", object{"command": ":"}))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Accept: %s: %s", accept, resp.Status)
		}
	}
}
