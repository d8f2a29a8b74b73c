package web

import (
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/pool"
)

// only is the connection that there is.
func (g *gateway) only() (c *conn) {
	g.each(func(one *conn) { c = one })
	return c
}

// TestReopeningWhatWasLetGo: a terminal is let go while a connection still has its stream, because the client acknowledges nothing. Its
// request_key gives it back, as often as it is asked for, and the connection ends with its client.
func TestReopeningWhatWasLetGo(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	open := object{"session_id": id, "cols": 80, "rows": 24, "request_key": "k", "window_bytes": 1000, "command": "head -c 100000 /dev/zero | tr '\\0' x"}
	other := g.dial()
	first := c.call("term.open", open).str("term_id")
	eventually(t, "the terminal's end", func() bool {
		f := other.call("term.list", object{"session_id": id})
		return f["terminals"].([]any)[0].(map[string]any)["state"] == "exited"
	})
	g.pool.Forget(time.Now().Add(2 * time.Minute)) // longer than what has ended is kept, shorter than its request_key
	for range 3 {
		if again := c.call("term.open", open).str("term_id"); again != first {
			t.Fatalf("%s, want %s", again, first)
		}
	}
	c.close()
	eventually(t, "the end of the connection", func() bool { return g.metric("trl_connections") == 1 })
}

// TestDetachFromWhatClosedItsOutput: the stream of a process that has closed its output and runs on can be left.
func TestDetachFromWhatClosedItsOutput(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	p := c.call("process.start", object{"session_id": id, "command": "echo out; exec >/dev/null 2>&1; sleep 600"}).str("process_id")
	c.call("process.logs", object{"process_id": p, "follow": true})
	proc, err := g.pool.FindProcess(local.Subject, p)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of its output", proc.Journal().Closed)
	c.call("process.detach", object{"process_id": p})
	if state := c.call("process.info", object{"process_id": p}).str("state"); state != "running" {
		t.Fatalf("it is %s", state)
	}
}

// TestLeavingGivesThePlaceBack: a connection whose client has gone does not last as long as what it asked a session to end.
func TestLeavingGivesThePlaceBack(t *testing.T) {
	g := start(t)
	other := g.dial()
	id := other.session()
	p := other.call("process.start", object{"session_id": id, "command": "trap '' TERM; echo ready; while :; do sleep 0.1; done"}).str("process_id")
	other.call("process.wait", object{"process_id": p, "until": object{"output": "ready"}})
	c := g.dial()
	c.begin("process.kill", object{"process_id": p, "kill_grace_s": 50})
	c.call("system.ping", nil)
	c.close()
	eventually(t, "the end of the connection", func() bool { return g.metric("trl_connections") == 1 })
	if state := other.call("process.info", object{"process_id": p}).str("state"); state != "running" {
		t.Fatalf("the process is %s", state)
	}
	other.call("process.kill", object{"process_id": p, "kill_grace_s": 0})
}

// TestAPanicEndsOneConnection: a panic in what answers or streams for one client ends its connection with 1011, gives back what that had,
// and the gateway serves everybody else.
func TestAPanicEndsOneConnection(t *testing.T) {
	explode := func() { panic("made by a test") }
	for name, spoil := range map[string]func(t *testing.T, c *client, of *conn, term *pool.Terminal){
		"on a goroutine": func(t *testing.T, c *client, of *conn, term *pool.Terminal) {
			of.spawn("test", explode)
		},
		"in a stream": func(t *testing.T, c *client, of *conn, term *pool.Terminal) {
			src := termSource(term)
			src.exit = func() (string, any) { explode(); return "", nil }
			of.mu.Lock()
			defer of.mu.Unlock()
			of.inFlight.Add(1)
			of.subscribeLocked(&call{c: of, id: []byte(`"s"`)}, src, 0, false)
		},
		"in a stream's first answer": func(t *testing.T, c *client, of *conn, term *pool.Terminal) {
			of.mu.Lock()
			defer of.mu.Unlock()
			defer func() {
				recover()
				if len(of.subs) != 0 {
					t.Errorf("%d subscriptions stay", len(of.subs))
				}
				of.spawn("test", explode)
			}()
			of.followLocked(&call{c: of, id: []byte(`"s"`)}, termSource(term), 0, false, func(sub *subscription) any {
				sub.view = term.View(pool.Attaching{})
				explode()
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t)
			c := g.dial()
			id := c.session()
			of := g.only()
			open := c.call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "command": "sleep 600"})
			term, err := g.pool.FindTerminal(local.Subject, open.str("term_id"))
			if err != nil {
				t.Fatal(err)
			}
			c.call("term.detach", object{"term_id": term.ID()})
			spoil(t, c, of, term)
			other := g.dial()
			other.call("term.close", object{"term_id": term.ID(), "kill_grace_s": 0})
			if code := c.closed(); code != websocket.StatusInternalError {
				t.Errorf("closed with %d", code)
			}
			eventually(t, "the end of the connection", func() bool { return g.metric("trl_connections") == 1 })
			if n := term.Info().Viewers; n != 0 {
				t.Errorf("%d viewers", n)
			}
			if got := other.run(id, "echo fine"); got != "fine\n" {
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
	c := g.dial()
	c.call("system.ping", nil)
	of := g.only()
	of.inFlight.Add(1)
	of.spawn("test", func() { (&call{c: of, id: []byte(`"s"`), method: "test"}).answer(spoilt{}, nil) })
	if code := c.answer("s").code(); code != "INTERNAL_ERROR" {
		t.Errorf("answered %s", code)
	}
	c.call("system.ping", nil)
}

// TestNothingRunsWithoutAStream: a request that is refused for one stream too many has begun nothing.
func TestNothingRunsWithoutAStream(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	of := g.only()
	of.mu.Lock()
	of.reserved = maxStreams
	of.mu.Unlock()
	for method, params := range map[string]object{
		"exec.stream": {"session_id": id, "command": "echo ran"},
		"term.open":   {"session_id": id, "command": "echo ran", "cols": 80, "rows": 24},
	} {
		if code := c.try(method, params).code(); code != "LIMIT_EXCEEDED" {
			t.Errorf("%s: %q", method, code)
		}
	}
	if n := len(c.call("exec.list", object{"session_id": id})["execs"].([]any)); n != 0 {
		t.Errorf("%d commands", n)
	}
	if n := len(c.call("term.list", object{"session_id": id})["terminals"].([]any)); n != 0 {
		t.Errorf("%d terminals", n)
	}
	of.mu.Lock()
	of.reserved = maxStreams - 1
	of.mu.Unlock()
	c.call("term.open", object{"session_id": id, "command": "sleep 600", "cols": 80, "rows": 24})
	if code := c.try("exec.stream", object{"session_id": id, "command": "echo ran"}).code(); code != "LIMIT_EXCEEDED" {
		t.Errorf("one more: %q", code)
	}
}
