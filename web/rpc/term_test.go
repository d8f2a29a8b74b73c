package rpc

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// TestSessionWithATerminal: session.create opens a terminal, too, and a terminal that cannot be opened leaves nothing behind.
func TestSessionWithATerminal(t *testing.T) {
	c := start(t).Dial()
	terminal := object{"cols": 80, "rows": 24, "command": "echo ready; exec cat"}
	made := c.Call("session.create", object{"name": "work", "labels": object{"stream_no": "7"}, "terminal": terminal})
	id, term := made.Str("session_id"), made.Obj("terminal")
	if term.Str("session_id") != id || term.Str("viewer_id") == "" {
		t.Fatalf("%v", made)
	}
	shown := &rig.Terminal{C: c, Id: term.Str("term_id"), Stream: term.Str("stream_id")}
	shown.Expect("ready\r\n")
	c.Call("term.input", object{"term_id": shown.Id, "data": "typed\n"})
	shown.Expect("typed\r\ntyped\r\n")

	found := c.Call("session.create", object{"name": "work", "if_exists": "return", "terminal": terminal})
	if other := found.Obj("terminal"); found.Str("session_id") != id || other.Str("term_id") == shown.Id || other.Str("term_id") == "" {
		t.Errorf("%v, then %v", made, found)
	}
	if plain := c.Call("session.create", object{"name": "plain"}); plain["terminal"] != nil {
		t.Errorf("%v", plain)
	}
}

// TestSessionWithoutItsTerminal: if the terminal cannot be opened, the session is not made, and its name and request_key are free. A session that existed
// stays.
func TestSessionWithoutItsTerminal(t *testing.T) {
	c := start(t).Dial()
	nowhere := object{"cols": 80, "rows": 24, "working_dir": "/no/such/directory"}
	q := object{"name": "work", "request_key": "k", "terminal": nowhere}
	for range 2 {
		if f := c.Try("session.create", q); f.Code() != "WORKING_DIR_NOT_FOUND" {
			t.Fatalf("%+v", f)
		}
		if got := c.Call("session.list", nil)["sessions"].([]any); len(got) != 0 {
			t.Fatalf("%v", got)
		}
	}
	for field, bad := range map[string]object{
		"terminal.cols":        {"cols": 0, "rows": 24},
		"terminal.working_dir": {"cols": 80, "rows": 24, "working_dir": "relative"},
	} {
		if f := c.Try("session.create", object{"terminal": bad}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != field {
			t.Errorf("%s: %+v", field, f)
		}
	}
	q["terminal"] = object{"cols": 80, "rows": 24, "command": "exec cat"}
	made := c.Call("session.create", q)
	if f := c.Try("session.create", object{"name": "work", "if_exists": "return", "terminal": nowhere}); f.Code() != "WORKING_DIR_NOT_FOUND" {
		t.Errorf("%+v", f)
	}
	if info := c.Call("session.info", object{"session": "work"}); info.Str("session_id") != made.Str("session_id") || info.Str("state") != "IDLE" {
		t.Errorf("%v", info)
	}
}

// TestSessionWithATerminalIsMadeOnce: a repeated session.create returns the same session and the same terminal, on any connection.
func TestSessionWithATerminalIsMadeOnce(t *testing.T) {
	g := start(t)
	q := object{"request_key": "k", "terminal": object{"cols": 80, "rows": 24, "command": "echo ready; exec cat"}}
	var ids []string
	for range 3 {
		c := g.Dial()
		made := c.Call("session.create", q)
		term := made.Obj("terminal")
		ids = append(ids, made.Str("session_id")+" "+term.Str("term_id"))
		(&rig.Terminal{C: c, Id: term.Str("term_id"), Stream: term.Str("stream_id")}).Expect("ready\r\n")
		again := c.Call("session.create", q)
		ids = append(ids, again.Str("session_id")+" "+again.Obj("terminal").Str("term_id"))
	}
	if slices.Sort(ids); len(slices.Compact(ids)) != 1 {
		t.Error(ids)
	}
}

// TestSessionWithATerminalOnAnotherNode: the number of the terminal's stream is the client's, not the owner's.
func TestSessionWithATerminalOnAnotherNode(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"})
	ws, _, err := cl.node("gate").DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	const create = `{"id":1,"method":"session.create","params":{"labels":{"stream_no":"7"},"terminal":{"cols":80,"rows":24,"window_bytes":65536,"command":"echo ready; exec cat"}}}`
	if err := ws.Write(ctx, websocket.MessageText, []byte(create)); err != nil {
		t.Fatal(err)
	}
	var number uint64
	for got := ""; !strings.Contains(got, "ready\r\n"); {
		kind, msg, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageBinary {
			no, n := binary.Uvarint(msg[1:])
			_, m := binary.Uvarint(msg[1+n:])
			if no != number {
				t.Fatalf("output of stream %d, the terminal has %d", no, number)
			}
			got += string(msg[1+n+m:])
			continue
		}
		var f struct {
			ID   int
			OK   bool
			Data struct {
				Node     string
				Terminal struct {
					StreamNo uint64 `json:"stream_no"`
				}
			}
		}
		if err := json.Unmarshal(msg, &f); err != nil {
			t.Fatal(err)
		}
		if f.ID == 1 {
			if number = f.Data.Terminal.StreamNo; !f.OK || f.Data.Node != "one" || number == 0 {
				t.Fatalf("%s", msg)
			}
		}
	}
}
