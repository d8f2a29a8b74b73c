package rpc

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/protocol"

	"github.com/coder/websocket"
)

// TestMethodsAreTheProtocols: the table here is the one that clients were promised.
func TestMethodsAreTheProtocols(t *testing.T) {
	want := map[string]bool{}
	for _, m := range protocol.Methods() {
		want[m.Name] = true
		if h, ok := handlers[m.Name]; !ok || h.call.params != m.Params {
			t.Errorf("%s: handled %v, params %v, want %v", m.Name, ok, h.call.params, m.Params)
		}
	}
	for name := range handlers {
		if !want[name] {
			t.Errorf("%s is not in the protocol", name)
		}
	}
	if reflect.TypeFor[protocol.None]().NumField() != 0 {
		t.Error("None says something")
	}
}

func TestMalformedFramesAreAnswered(t *testing.T) { // J8
	g := start(t)
	c := g.Dial()
	for text, want := range map[string]string{
		`{`:                                  "INVALID_REQUEST",
		`[]`:                                 "INVALID_REQUEST",
		`"x"`:                                "INVALID_REQUEST",
		``:                                   "INVALID_REQUEST",
		`{"method":"system.ping"}`:           "INVALID_REQUEST",
		`{"id":null,"method":"x"}`:           "INVALID_REQUEST",
		"{\"id\":\"\xff\",\"method\":\"x\"}": "INVALID_REQUEST",
	} {
		c.SendText(text)
		f := c.Await("failure", func(f *rig.Frame) bool { return f.Event == "" })
		if f.ID != nil || f.OK || f.Code() != want {
			t.Errorf("%q: %+v", text, f)
		}
	}
	for text, want := range map[string]string{
		`{"id":"q","method":"no.such"}`:                                      "UNKNOWN_METHOD",
		`{"id":"q","method":"term.open","params":{}}`:                        "INVALID_PARAMS",
		`{"id":"q","method":"system.ping","params":{"x":1}}`:                 "INVALID_PARAMS",
		`{"id":"q","method":"system.ping","params":[]}`:                      "INVALID_PARAMS",
		`{"id":"q","method":"session.info","params":{"session_id":5}}`:       "INVALID_PARAMS",
		`{"id":"q","method":"session.info","params":{"Session_ID":"s-x"}}`:   "INVALID_PARAMS",
		`{"id":"q","method":"exec.run","params":{"command":"a\u0000"}}`:      "INVALID_PARAMS",
		`{"id":"q","params":{}}`:                                             "INVALID_REQUEST",
		`{"params":{},"bogus":1,"method":"system.ping","id":"q"}`:            "INVALID_REQUEST",
		`{"id":"q","method":"exec.attach","params":{"exec_id":"x-nowhere"}}`: "EXEC_NOT_FOUND",
	} {
		c.SendText(text)
		if f := c.Answer("q"); f.Code() != want {
			t.Errorf("%s: %+v", text, f.Error)
		}
	}
	c.Ws.Write(t.Context(), websocket.MessageBinary, []byte(`{"id":1,"method":"system.ping"}`))
	if f := c.Await("failure", func(f *rig.Frame) bool { return f.Event == "" }); f.ID != nil || f.Code() != "INVALID_REQUEST" {
		t.Errorf("binary: %+v", f)
	}
	c.Call("system.ping", nil) // it is all the same connection
}

func TestTooBigIsClosedAndSessionLives(t *testing.T) { // J3, J4
	g := start(t)
	c := g.Dial()
	id := c.Session()
	big := strings.Repeat("a", 1<<20)
	if got := c.Call("exec.run", object{"session_id": id, "command": "X=1; wc -c", "stdin": big}); strings.TrimSpace(got.Str("stdout")) != "1048576" {
		t.Fatalf("%v", got)
	}
	go c.Ws.Write(context.Background(), websocket.MessageText, bytes.Repeat([]byte("x"), 16<<20))
	<-c.Done
	if code := websocket.CloseStatus(c.Err); code != websocket.StatusMessageTooBig {
		t.Fatalf("%v", c.Err)
	}
	d := g.Dial()
	if got := d.Run(id, "echo $X").Stdout(); got != "1\n" {
		t.Fatalf("%q", got)
	}
	w, err := d.Ws.Writer(t.Context(), websocket.MessageText) // fragments without end
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = w.Write(make([]byte, 64<<10))
	}
	<-d.Done
	if code := websocket.CloseStatus(d.Err); code != websocket.StatusMessageTooBig {
		t.Fatalf("%v", d.Err)
	}
	testkit.Eventually(t, "both are gone", func() bool { return g.Metric("trl_connections") == 0 })
}
