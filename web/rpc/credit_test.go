package rpc

import (
	"encoding/json"
	"fmt"
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
