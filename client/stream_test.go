package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"trl/protocol"
)

// TestASecondStreamTakesThePlaceOfTheFirst: the server sends a connection each stream once.
func TestASecondStreamTakesThePlaceOfTheFirst(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one ")
		q, _ = p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one ")
		p.output(4, "two")
		p.exit(0)
		p.drain()
	})})
	first, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if k, err := read(first)(soon(t)); err != nil || string(k.Data) != "one " {
		t.Fatalf("%q, %v", k.Data, err)
	}
	second, err := c.AttachCommand(soon(t), first.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays so
		if _, err := read(first)(soon(t)); !errors.Is(err, ErrDisplaced) {
			t.Errorf("the first: %v", err)
		}
	}
	first.Detach()
	var out strings.Builder
	if _, err := second.Copy(soon(t), &out, io.Discard); err != nil || out.String() != "one two" {
		t.Errorf("the second: %q, %v", &out, err)
	}
}

// hears is what OnEvent may not be told of streams.
func hears(t *testing.T) func(protocol.Event) {
	return func(e protocol.Event) { t.Errorf("OnEvent: %s %v", e.Name, e.Data) }
}

// kept is how many streams the connection knows of.
func (c *Client) kept() int {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.streams) + len(l.abandoned) + l.opening + len(l.calls)
}

// TestCloseDetaches: and what still comes is nobody's.
func TestCloseDetaches(t *testing.T) {
	for kind, open := range map[string]func(*testing.T, *Client) (func(), error){
		"exec": func(t *testing.T, c *Client) (func(), error) {
			s, err := inOne(c).ExecStream(context.Background(), "x", nil)
			return s.Detach, err
		},
		"process": func(t *testing.T, c *Client) (func(), error) {
			s, err := (&Process{c: c, info: protocol.ProcessInfo{ProcessID: "process-1"}}).StreamLogs(soon(t), 0)
			return s.Close, err
		},
		"term": func(t *testing.T, c *Client) (func(), error) {
			s, err := inOne(c).OpenTerminal(soon(t), TerminalOptions{Cols: 80, Rows: 24})
			return s.Detach, err
		},
	} {
		t.Run(kind, func(t *testing.T) {
			output := func(p *peer) {
				p.send(`{"event":"%s.output","data":{"stream_id":"st-1","offset":0,"data":"x"}}`, kind)
			}
			c := dial(t, Options{OnEvent: hears(t), URL: listen(t, func(p *peer) {
				q, _ := p.take()
				answer := `{"stream_id":"st-1"}`
				if kind != "process" {
					answer = `{"stream_id":"st-1","` + kind + `_id":"` + kind + `-1"}`
				}
				p.ok(q, answer)
				for range 10 * feedful { // nobody reads it
					output(p)
				}
				q, _ = p.take()
				if q.Method != kind+".detach" || q.Params[kind+"_id"] != kind+"-1" {
					t.Errorf("%+v", q)
				}
				output(p)
				p.ok(q, "null")
				q, _ = p.take()
				p.ok(q, "null")
				p.drain()
			})})
			leave, err := open(t, c)
			if err != nil {
				t.Fatal(err)
			}
			leave()
			leave()
			if err := c.Call(soon(t), "x", nil, nil); err != nil {
				t.Fatal(err)
			}
			if n := c.kept(); n != 0 {
				t.Errorf("%d streams and calls kept", n)
			}
		})
	}
}

// TestACancelledStartEndsTheCommand: before its answer by the id of the request, and afterwards by the id of the command. Its output is left.
func TestACancelledStartEndsTheCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, Options{OnEvent: hears(t), URL: listen(t, func(p *peer) {
		start, _ := p.take()
		cancel()
		byRequest, _ := p.take()
		if byRequest.Method != "exec.cancel" || byRequest.Params["request_id"] != float64(start.ID) {
			t.Errorf("%+v", byRequest)
		}
		p.ok(byRequest, `{"cancelled":false}`)
		p.ok(start, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one")
		for _, method := range []string{"exec.detach", "exec.cancel"} {
			q, _ := p.take()
			if q.Method != method || q.Params["exec_id"] != "x-1" {
				t.Errorf("%+v, want %s", q, method)
			}
			p.output(3, "two")
			p.ok(q, "{}")
		}
		other, _ := p.take()
		p.ok(other, "null")
		p.drain()
	})})
	if _, err := inOne(c).ExecStream(ctx, "x", nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := c.Call(soon(t), "x", nil, nil); err != nil {
		t.Fatal(err)
	}
	if n := c.kept(); n != 0 {
		t.Errorf("%d streams and calls kept", n)
	}
}

// TestACancelledNextDoesNotDetachTheNext: which asks for the same stream again, before the answer to the first has come.
func TestACancelledNextDoesNotDetachTheNext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := dial(t, Options{OnEvent: hears(t), URL: listen(t, func(p *peer) {
		q, _ := p.take()
		if p.n == 1 {
			p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
			return
		}
		cancel()
		again, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "o")
		p.ok(again, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "one")
		q, _ = p.take()
		if q.Method != "exec.input" {
			t.Errorf("%+v", q)
		}
		p.ok(q, "null")
		p.output(3, " two")
		p.exit(0)
		p.drain()
	})})
	s, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(s)(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if k, err := read(s)(soon(t)); err != nil || string(k.Data) != "one" {
		t.Errorf("%q, %v", k.Data, err)
	}
	if err := s.Write(soon(t), []byte("x")); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	if _, err := s.Copy(soon(t), &out, io.Discard); err != nil || out.String() != " two" {
		t.Errorf("%q, %v", &out, err)
	}
}

// TestTheCauseOfAContextIsNotTheEnd: a server whose client has left cancels with io.EOF.
func TestTheCauseOfAContextIsNotTheEnd(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.drain()
	})})
	s, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(io.EOF)
	if _, err := read(s)(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestDetachGoesBeforeTheNextAttach: else it would end that one.
func TestDetachGoesBeforeTheNextAttach(t *testing.T) {
	const times = 20
	all := make(chan struct{})
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		for range times {
			for _, method := range []string{"exec.attach", "exec.detach"} {
				q, _ := p.take()
				if q.Method != method {
					t.Errorf("%s, want %s", q.Method, method)
				}
				p.ok(q, `{"exec_id":"x-1","stream_id":"st-1"}`)
			}
		}
		close(all)
		p.drain()
	})})
	for range times {
		s, err := c.AttachCommand(soon(t), "x-1", 0)
		if err != nil {
			t.Fatal(err)
		}
		s.Detach()
	}
	<-all // the last detach may still be on its way: closing the client would cut it off
}

// TestTerminalWithItsSession: one request opens the terminal and makes or finds the Client's own session. A server that does not know that gets two.
func TestTerminalWithItsSession(t *testing.T) {
	for name, old := range map[string]bool{"one request": false, "older server": true} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, Options{URL: listen(t, func(p *peer) {
				q, _ := p.take()
				if first, _ := q.Params["terminal"].(map[string]any); q.Method != "session.create" || q.Params["if_exists"] != "return" || first["cols"] != 80.0 {
					t.Errorf("%+v", q)
				}
				output := `{"event":"term.output","data":{"stream_id":"st-1","stream":"tty","offset":0,"data":"shown"}}`
				if old {
					p.send(`{"id":%d,"ok":false,"error":{"code":"INVALID_PARAMS","message":"unknown field","details":{"field":"terminal"}}}`, q.ID)
					q, _ = p.take()
					if q.Method != "session.create" || q.Params["terminal"] != nil {
						t.Errorf("%+v", q)
					}
					p.ok(q, `{"session_id":"s-1"}`)
					q, _ = p.take()
					if q.Method != "term.open" || q.Params["session_id"] != "s-1" {
						t.Errorf("%+v", q)
					}
					p.ok(q, `{"stream_id":"st-1","term_id":"t-1"}`)
				} else {
					p.ok(q, `{"session_id":"s-1","terminal":{"stream_id":"st-1","term_id":"t-1"}}`)
				}
				p.send("%s", output)
				p.drain()
			})})
			term, err := c.OpenTerminal(soon(t), TerminalOptions{Cols: 80, Rows: 24})
			if err != nil {
				t.Fatal(err)
			}
			if c.ID() != "s-1" || term.ID() != "t-1" {
				t.Errorf("session %s, terminal %s", c.ID(), term.ID())
			}
			for {
				e, err := term.Next(soon(t))
				if err != nil {
					t.Fatal(err)
				}
				if e.Type == EventData && string(e.Data) == "shown" {
					return
				}
			}
		})
	}
}
