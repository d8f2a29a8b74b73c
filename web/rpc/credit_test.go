package rpc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/protocol"
	"trl/web/auth"
)

// receive takes output events of a terminal until one reaches the offset least.
func receive(c *rig.Client, least int) (text string, offset int) {
	c.T.Helper()
	var b strings.Builder
	for offset < least {
		f := c.Event("term.output")
		b.WriteString(f.Str("data"))
		offset = f.Num("offset") + len(f.Str("data"))
	}
	return b.String(), offset
}

// TestWindowHoldsOutputBack: no more than the window and one piece is sent before it is acknowledged, the program waits, and nothing is lost.
func TestWindowHoldsOutputBack(t *testing.T) {
	g := start(t)
	c := g.Dial()
	const window, total = 8 << 10, 1 << 20
	open := c.Call("term.open", object{"session_id": c.Session(), "cols": 80, "rows": 24, "window_bytes": window,
		"command": "head -c 1048576 /dev/zero | tr '\\0' x; echo; echo end"})
	stream := open.Str("stream_id")
	_, offset := receive(c, window)
	// What is on its way now would come before the answer.
	for range 3 {
		c.Call("system.ping", object{})
	}
	c.Mu.Lock()
	waiting := len(c.Came)
	c.Mu.Unlock()
	if waiting > 4 { // pieces of what the window allows still
		t.Fatalf("%d messages more than the window allows, at %d", waiting, offset)
	}
	all := offset
	for end := time.Now().Add(testkit.Patience); ; {
		c.Call("stream.ack", object{"stream_id": stream, "offset": all})
		text, at := receive(c, all+1)
		if at <= all {
			t.Fatalf("at %d after %d", at, all)
		}
		all = at
		if strings.HasSuffix(text, "end\r\n") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("at %d", all)
		}
	}
	if want := total + len("\r\nend\r\n"); all != want {
		t.Errorf("%d bytes, want %d", all, want)
	}
	c.Call("stream.ack", object{"stream_id": "st-unknown", "offset": 1}) // nothing
	if f := c.Try("stream.ack", object{"stream_id": stream, "offset": -1}); f.OK {
		t.Error("a negative offset")
	}
}

// TestWindowOfCommandsAndProcesses: a client that reads a connection and acknowledges nothing of one stream gets the window of it and one piece. The
// program waits, the server keeps what it keeps of any stream, and the other streams of the connection go on. Once the client acknowledges, the next
// bytes come. Once it has detached, nothing waits for it.
func TestWindowOfCommandsAndProcesses(t *testing.T) {
	const window, piece, total, read = 64 << 10, 32 << 10, 100 << 20, 8 << 20
	flood := fmt.Sprintf("read x; yes | head -c %d", total)
	endExec := func(c *rig.Client, id string) func() {
		return func() {
			c.Call("exec.detach", object{"exec_id": id})
			c.Call("exec.cancel", object{"exec_id": id})
		}
	}
	for method, follow := range map[string]func(c *rig.Client, session string) (opened object, from int, begin, end func()){
		"exec.stream": func(c *rig.Client, session string) (object, int, func(), func()) {
			opened := c.Call("exec.stream", object{"session_id": session, "command": flood, "interactive_stdin": true, "window_bytes": window})
			return opened, 0, func() { c.Call("exec.input", object{"exec_id": opened.Str("exec_id"), "data": "\n"}) },
				endExec(c, opened.Str("exec_id"))
		},
		"exec.attach": func(c *rig.Client, session string) (object, int, func(), func()) {
			id := c.Call("exec.stream", object{"session_id": session, "command": "echo before; " + flood, "interactive_stdin": true}).Str("exec_id")
			c.Event("exec.output")
			opened := c.Call("exec.attach", object{"exec_id": id, "offset": len("before\n"), "on_slow": "block", "window_bytes": window})
			return opened, len("before\n"), func() { c.Call("exec.input", object{"exec_id": id, "data": "\n"}) },
				endExec(c, id)
		},
		"process.logs": func(c *rig.Client, session string) (object, int, func(), func()) {
			id := c.Call("process.start", object{"session_id": session, "command": "echo before; " + flood, "stdin": "open"}).Str("process_id")
			c.Call("process.wait", object{"process_id": id, "until": object{"output": "before"}})
			opened := c.Call("process.logs", object{"process_id": id, "follow": true, "on_slow": "block", "window_bytes": window})
			return opened, opened.Num("next_offset"), func() { c.Call("process.input", object{"process_id": id, "data": "\n"}) },
				func() {
					c.Call("process.detach", object{"process_id": id})
					c.Call("process.kill", object{"process_id": id})
				}
		},
	} {
		t.Run(method, func(t *testing.T) {
			g := start(t)
			c := g.Dial()
			before := rss(t)
			opened, from, begin, end := follow(c, c.Session())
			stream := opened.Str("stream_id")
			isOutput := func(f *rig.Frame) bool {
				return strings.HasSuffix(f.Event, ".output") && f.Data.Str("stream_id") == stream
			}
			at := from
			next := func() {
				f := c.Await("output", isOutput)
				if f.Data.Num("offset") != at {
					t.Fatalf("offset %d, want %d", f.Data.Num("offset"), at)
				}
				at += len(f.Data.Str("data"))
			}
			begin()
			for at < from+window {
				next()
			}
			other := c.Session()
			for range 5 {
				s := c.Call("exec.stream", object{"session_id": other, "command": "seq 20000"})
				if out, _ := c.Output(s.Str("stream_id"), 0); out != string(seq(20000)) {
					t.Fatalf("another stream: %d bytes", len(out))
				}
			}
			c.Mu.Lock()
			beyond := slices.ContainsFunc(c.Came, isOutput)
			c.Mu.Unlock()
			if beyond || at >= from+window+piece {
				t.Fatalf("more than the window came: %d bytes, and %v", at-from, beyond)
			}
			if grown := rss(t) - before; grown > 64<<20 {
				t.Errorf("grew by %d MiB", grown>>20)
			}
			for at < from+read {
				c.Call("stream.ack", object{"stream_id": stream, "offset": at})
				for acked := at; at < acked+window; {
					next()
				}
			}
			if gaps := g.Metric("trl_stream_gaps_total"); gaps != 0 {
				t.Errorf("%v gaps", gaps)
			}
			end()
		})
	}
}

// TestWindowAfterAGap: a client that skips acknowledges up to the end of the gap, and the stream goes on behind it.
func TestWindowAfterAGap(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	opened := c.Call("exec.stream", object{"session_id": id, "command": "yes | head -c 20000000; echo end", "on_slow": "skip", "window_bytes": 1000})
	stream := opened.Str("stream_id")
	c.Event("exec.output")
	testkit.Eventually(t, "the command's end", func() bool {
		return c.Call("session.info", object{"session_id": id}).Str("state") == "IDLE"
	})
	c.Call("stream.ack", object{"stream_id": stream, "offset": 32 << 10})
	gaps, at := 0, 0
	for at < 20000000+len("end\n") {
		f := c.Await("output", func(f *rig.Frame) bool { return f.Event == "exec.output" || f.Event == "stream.gap" })
		if f.Event == "stream.gap" {
			gaps, at = gaps+1, f.Data.Num("to")
		} else {
			at = f.Data.Num("offset") + len(f.Data.Str("data"))
		}
		c.Call("stream.ack", object{"stream_id": stream, "offset": at})
	}
	c.Event("exec.exit")
	if gaps == 0 {
		t.Error("no gap")
	}
}

// TestWindowIsOfTheConnection: a retry of a request with its request_key may have another window, and is not run again.
func TestWindowIsOfTheConnection(t *testing.T) {
	c := start(t).Dial()
	q := object{"session_id": c.Session(), "command": "echo once; sleep 600", "request_key": "k", "window_bytes": 1000}
	first := c.Call("exec.stream", q).Str("exec_id")
	q["window_bytes"] = 2000
	if again := c.Call("exec.stream", q).Str("exec_id"); again != first {
		t.Errorf("%s, want %s", again, first)
	}
	for _, method := range []string{"exec.stream", "exec.attach", "process.logs"} {
		if f := c.Try(method, object{"command": ":", "window_bytes": -1}); f.Code() != "INVALID_PARAMS" {
			t.Errorf("%s: %+v", method, f)
		}
	}
}

// TestSilentWindowHoldsNobodyUp: a client that acknowledges nothing for SlowClient does not hold the program any more.
func TestSilentWindowHoldsNobodyUp(t *testing.T) {
	g := start(t, func(cfg *config) { cfg.SlowClient = 200 * time.Millisecond })
	c := g.Dial()
	id := c.Session()
	c.Call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "window_bytes": 1024, "command": "head -c 30000000 /dev/zero | tr '\\0' x; echo done > /tmp/$TRL_SESSION_ID; sleep 600"})
	other := g.Dial()
	if got := other.Run(id, "until [ -e /tmp/$TRL_SESSION_ID ]; do sleep 0.02; done; rm /tmp/$TRL_SESSION_ID; echo went on").Stdout(); got != "went on\n" {
		t.Errorf("%q", got)
	}
}

func TestExecList(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	c.Run(id, "echo one; (exit 3)")
	running := c.Call("exec.stream", object{"session_id": id, "command": "sleep 600"}).Str("exec_id")
	queued := c.Call("exec.stream", object{"session_id": id, "command": strings.Repeat("é", 4000)}).Str("exec_id")
	execs := c.Call("exec.list", object{"session_id": id})["execs"].([]any)
	var states []string
	for _, e := range execs {
		states = append(states, object(e.(map[string]any)).Str("state"))
	}
	if got := strings.Join(states, " "); got != "ended running queued" {
		t.Fatalf("states: %s", got)
	}
	var schema object
	if err := json.Unmarshal(protocol.Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"methods", "exec.list", "result", "properties", "execs", "items", "properties", "state"} {
		schema = object(schema[key].(map[string]any))
	}
	if got := fmt.Sprint(schema["enum"]); got != "[queued running ended]" {
		t.Errorf("the schema says %s", got)
	}
	first, last := object(execs[0].(map[string]any)), object(execs[2].(map[string]any))
	if exit := object(first["exit"].(map[string]any)); exit.Num("exit_code") != 3 || first.Str("command") != "echo one; (exit 3)" {
		t.Errorf("%+v", first)
	}
	if text := last.Str("command"); text != strings.Repeat("é", 2048) {
		t.Errorf("%d bytes of the text", len(text))
	}
	c.Call("exec.cancel", object{"exec_id": queued})
	c.Call("exec.cancel", object{"exec_id": running})
	info := c.Call("session.info", object{"session_id": id})
	l := object(info["last_exec"].(map[string]any))
	if l["cancelled"] != true || l.Str("exec_id") != running || info.Str("owner") != "local" {
		t.Errorf("%+v", info)
	}
	testkit.Eventually(t, "memory is known", func() bool {
		return c.Call("session.info", object{"session_id": id}).Num("memory_bytes") > 0
	})
	other := g.Dial()
	if f := other.Try("exec.list", object{"session_id": "s-none"}); f.OK || f.Error.Code != "SESSION_NOT_FOUND" {
		t.Errorf("%+v", f)
	}
}

func TestProcessListTellsPorts(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	c.Call("process.start", object{"session_id": id, "command": "python3 -c 'import socket,time; s=socket.socket(); s.bind((\"127.0.0.1\",0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(600)'"})
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(20 * time.Millisecond) {
		p := object(c.Call("process.list", object{"session_id": id})["processes"].([]any)[0].(map[string]any))
		if ports, _ := p["ports"].([]any); len(ports) == 1 && ports[0].(float64) > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", p)
		}
	}
}

func TestCapabilitiesTellWhoOneIs(t *testing.T) {
	g := start(t, func(cfg *config) {
		cfg.AuthNone, cfg.Tokens = false, gateway.Tokens{"t": {Subject: "ann", Role: auth.Viewer}}
	})
	who := object(g.Dial("t").Call("system.capabilities", object{})["principal"].(map[string]any))
	if who.Str("subject") != "ann" || who.Str("role") != "viewer" {
		t.Errorf("%+v", who)
	}
}
