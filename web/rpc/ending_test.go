package rpc

import (
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/web/rpc/source"
)

// only is the connection that there is.
func (g *server) only() (c *conn) {
	if throughRelay {
		g.T.Skip("it reaches into the client's connection, which another gateway has")
	}
	g.clients.each(func(one *conn) { c = one })
	return c
}

// TestReopeningWhatWasLetGo: a terminal is let go while a connection still has its stream, because the client acknowledges nothing. Its
// request_key gives it back, as often as it is asked for, and the connection ends with its client.
func TestReopeningWhatWasLetGo(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	open := object{"session_id": id, "cols": 80, "rows": 24, "request_key": "k", "window_bytes": 1000, "command": "head -c 100000 /dev/zero | tr '\\0' x"}
	other := g.Dial()
	first := c.Call("term.open", open).Str("term_id")
	defer func() {
		if t.Failed() {
			t.Log(g.Log.String())
		}
	}()
	testkit.Eventually(t, "the terminal's end", func() bool {
		f := other.Call("term.list", object{"session_id": id})
		return f["terminals"].([]any)[0].(map[string]any)["state"] == "exited"
	})
	g.Pool.DropExpired(time.Now().Add(2 * time.Minute)) // longer than what has ended is kept, shorter than its request_key
	for range 3 {
		if again := c.Call("term.open", open).Str("term_id"); again != first {
			t.Fatalf("%s, want %s", again, first)
		}
	}
	c.Close()
	testkit.Eventually(t, "the end of the connection", func() bool { return g.Metric("trl_connections") == 1 })
}

// TestDetachFromWhatClosedItsOutput: the stream of a process that has closed its output and runs on can be left.
func TestDetachFromWhatClosedItsOutput(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	p := c.Call("process.start", object{"session_id": id, "command": "echo out; exec >/dev/null 2>&1; sleep 600"}).Str("process_id")
	c.Call("process.logs", object{"process_id": p, "follow": true})
	proc, err := g.Pool.FindProcess("local", p)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the end of its output", proc.Journal().Closed)
	c.Call("process.detach", object{"process_id": p})
	if state := c.Call("process.info", object{"process_id": p}).Str("state"); state != "running" {
		t.Fatalf("it is %s", state)
	}
}

// TestLeavingGivesThePlaceBack: a connection whose client has gone does not last as long as what it asked a session to end.
func TestLeavingGivesThePlaceBack(t *testing.T) {
	g := start(t)
	other := g.Dial()
	id := other.Session()
	p := other.Call("process.start", object{"session_id": id, "command": "trap '' TERM; echo ready; while :; do sleep 0.1; done"}).Str("process_id")
	other.Call("process.wait", object{"process_id": p, "until": object{"output": "ready"}})
	c := g.Dial()
	c.Begin("process.kill", object{"process_id": p, "kill_grace_s": 50})
	c.Call("system.ping", nil)
	c.Close()
	testkit.Eventually(t, "the end of the connection", func() bool { return g.Metric("trl_connections") == 1 })
	if state := other.Call("process.info", object{"process_id": p}).Str("state"); state != "running" {
		t.Fatalf("the process is %s", state)
	}
	other.Call("process.kill", object{"process_id": p, "kill_grace_s": 0})
}

// TestAPanicEndsOneConnection: a panic in what answers or streams for one client ends its connection with 1011, gives back what that had,
// and the gateway serves everybody else.
func TestAPanicEndsOneConnection(t *testing.T) {
	explode := func() { panic("made by a test") }
	for name, spoil := range map[string]func(t *testing.T, c *rig.Client, of *conn, term *pool.Terminal){
		"on a goroutine": func(t *testing.T, c *rig.Client, of *conn, term *pool.Terminal) {
			of.spawn("test", explode)
		},
		"in a stream": func(t *testing.T, c *rig.Client, of *conn, term *pool.Terminal) {
			src := source.OfTerminal(term)
			src.Exit = func() (string, any) { explode(); return "", nil }
			of.mu.Lock()
			defer of.mu.Unlock()
			of.inFlight.Add(1)
			of.subscribeLocked(&call{c: of, id: []byte(`"s"`)}, src, 0, false, 0)
		},
		"in a stream's first answer": func(t *testing.T, c *rig.Client, of *conn, term *pool.Terminal) {
			of.mu.Lock()
			defer of.mu.Unlock()
			defer func() {
				recover()
				if len(of.subs) != 0 {
					t.Errorf("%d subscriptions stay", len(of.subs))
				}
				of.spawn("test", explode)
			}()
			of.followLocked(&call{c: of, id: []byte(`"s"`)}, source.OfTerminal(term), 0, false, func(sub *subscription) any {
				sub.viewer = term.AddViewer(pool.AttachRequest{})
				explode()
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t)
			c := g.Dial()
			id := c.Session()
			of := g.only()
			open := c.Call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "command": "sleep 600"})
			term, err := g.Pool.FindTerminal("local", open.Str("term_id"))
			if err != nil {
				t.Fatal(err)
			}
			c.Call("term.detach", object{"term_id": term.ID()})
			spoil(t, c, of, term)
			other := g.Dial()
			other.Call("term.close", object{"term_id": term.ID(), "kill_grace_s": 0})
			if code := c.CloseStatus(); code != websocket.StatusInternalError {
				t.Errorf("closed with %d", code)
			}
			testkit.Eventually(t, "the end of the connection", func() bool { return g.Metric("trl_connections") == 1 })
			if n := term.Info().Viewers; n != 0 {
				t.Errorf("%d viewers", n)
			}
			if got := other.Run(id, "echo fine").Stdout(); got != "fine\n" {
				t.Errorf("%q", got)
			}
		})
	}
}

type spoilt struct{}

func (spoilt) MarshalText() ([]byte, error) { panic("made by a test") }

// TestAPanicInAnAnswerIsAnswered: what cannot be written is INTERNAL_ERROR, and the connection goes on.
func TestAPanicInAnAnswerIsAnswered(t *testing.T) {
	g := start(t)
	c := g.Dial()
	c.Call("system.ping", nil)
	of := g.only()
	of.inFlight.Add(1)
	of.spawn("test", func() { (&call{c: of, id: []byte(`"s"`), method: "test"}).answer(spoilt{}, nil) })
	if code := c.Answer("s").Code(); code != "INTERNAL_ERROR" {
		t.Errorf("answered %s", code)
	}
	c.Call("system.ping", nil)
}

// TestNothingRunsWithoutAStream: a request that is refused for one stream too many has begun nothing.
func TestNothingRunsWithoutAStream(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	of := g.only()
	of.mu.Lock()
	of.reserved = maxStreams
	of.mu.Unlock()
	for method, params := range map[string]object{
		"exec.stream": {"session_id": id, "command": "echo ran"},
		"term.open":   {"session_id": id, "command": "echo ran", "cols": 80, "rows": 24},
	} {
		if code := c.Try(method, params).Code(); code != "LIMIT_EXCEEDED" {
			t.Errorf("%s: %q", method, code)
		}
	}
	if n := len(c.Call("exec.list", object{"session_id": id})["execs"].([]any)); n != 0 {
		t.Errorf("%d commands", n)
	}
	if n := len(c.Call("term.list", object{"session_id": id})["terminals"].([]any)); n != 0 {
		t.Errorf("%d terminals", n)
	}
	of.mu.Lock()
	of.reserved = maxStreams - 1
	of.mu.Unlock()
	c.Call("term.open", object{"session_id": id, "command": "sleep 600", "cols": 80, "rows": 24})
	if code := c.Try("exec.stream", object{"session_id": id, "command": "echo ran"}).Code(); code != "LIMIT_EXCEEDED" {
		t.Errorf("one more: %q", code)
	}
}

// TestDestroyedAtEachDisconnect: the session that a connection makes under the name of one that has ended is its own, too; what a connection
// remembers of its sessions is those that live.
func TestDestroyedAtEachDisconnect(t *testing.T) {
	g := start(t)
	q := object{"name": "job", "on_disconnect": "destroy", "if_exists": "return"}
	other := g.Dial()
	for range 2 {
		c := g.Dial()
		id := c.Session(q)
		if again := other.Session(q); again != id {
			t.Fatalf("%s, want %s", again, id)
		}
		c.Close()
		testkit.Eventually(t, "the end of the session", func() bool {
			return other.Call("session.info", object{"session_id": id}).Str("state") == "TERMINATED"
		})
	}
	other.Close()
	testkit.Eventually(t, "no connection", func() bool { return g.only() == nil })
	c := g.Dial()
	for range 3 {
		c.Call("session.destroy", object{"session_id": c.Session(object{"on_disconnect": "destroy"}), "force": true})
	}
	c.Session(object{"on_disconnect": "destroy"})
	of := g.only()
	of.mu.Lock()
	defer of.mu.Unlock()
	if len(of.boundSessions) != 1 {
		t.Errorf("%d sessions are remembered", len(of.boundSessions))
	}
}

// TestCancelMakesNoSession: also where a default session has ended and is still known.
func TestCancelMakesNoSession(t *testing.T) {
	g := start(t)
	c := g.Dial()
	c.Call("exec.run", object{"command": "true"})
	c.Call("session.destroy", object{"session": "default", "force": true})
	if cancelled := c.Call("exec.cancel", object{})["cancelled"]; cancelled != false {
		t.Errorf("cancelled: %v", cancelled)
	}
	if live := c.Call("session.list", nil)["sessions"].([]any); len(live) != 0 {
		t.Errorf("%v", live)
	}
}

// TestDetachedGuestDoesNotType: a guest that was put to looking on does not type by leaving the terminal.
func TestDetachedGuestDoesNotType(t *testing.T) {
	g := start(t, withTokens)
	owner := g.Dial(gateway.AdminToken)
	id := owner.Session()
	term := owner.Call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "command": "cat"}).Str("term_id")
	guest := g.Dial(owner.Call("share.create", object{"term_id": term, "mode": "control"}).Str("token"))
	guest.Call("term.attach", object{"term_id": term})
	owner.Call("term.attach", object{"term_id": term, "mode": "control"})
	guest.Call("term.detach", object{"term_id": term})
	if code := guest.Try("term.input", object{"term_id": term, "data": "x"}).Code(); code != "FORBIDDEN" {
		t.Errorf("typing: %q", code)
	}
	if code := guest.Try("term.resize", object{"term_id": term, "cols": 20, "rows": 5}).Code(); code != "FORBIDDEN" {
		t.Errorf("resizing: %q", code)
	}
	owner.Call("term.detach", object{"term_id": term})
	guest.Call("term.input", object{"term_id": term, "data": "x"})
}
