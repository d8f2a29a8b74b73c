package peer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/coder/websocket"
)

// cf is packages/sandbox-container of github.com/cloudflare/sandbox-sdk, written after its routes and handlers at 6abf639: sessions with a bash of their
// own, commands whose output comes whole or as server-sent events, and a terminal in a session, which outlives its connection.
type cf struct {
	cannot
	address string
}

func (c *cf) post(ctx context.Context, path string, params, into any) error {
	return call(ctx, http.MethodPost, "http://"+c.address+"/api/"+path, params, into)
}

// cfSession is a session of cf.
type cfSession struct {
	ctx context.Context
	c   *cf
	id  string
}

func (c *cf) Session(ctx context.Context) (Session, error) { return c.session(ctx) }

func (c *cf) session(ctx context.Context) (*cfSession, error) {
	s := &cfSession{ctx, c, "bench-" + rand.Text()}
	return s, c.post(ctx, "session/create", map[string]any{"id": s.id, "cwd": "/tmp", "env": struct{}{}}, nil)
}

func (s *cfSession) Run(command string) (Result, error) {
	var r struct {
		ExitCode       int
		Stdout, Stderr string
	}
	err := s.c.post(s.ctx, "execute", map[string]string{"command": command, "sessionId": s.id}, &r)
	return Result{Output: r.Stdout + r.Stderr, Code: r.ExitCode}, err
}

func (s *cfSession) Close() error {
	return s.c.post(s.ctx, "session/delete", map[string]string{"sessionId": s.id}, nil)
}

func (c *cf) Terminal(ctx context.Context) (Stream, error) {
	s, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	q := url.Values{"sessionId": {s.id}, "cols": {fmt.Sprint(columns)}, "rows": {fmt.Sprint(rows)}}
	conn, err := dial(ctx, "ws://"+c.address+"/ws/pty?"+q.Encode())
	if err != nil {
		_ = s.Close() // the error of the dial says more
		return nil, err
	}
	return &messages{ctx: ctx, c: conn, kind: websocket.MessageBinary, open: cfOutput, end: s.Close}, nil
}

func cfOutput(kind websocket.MessageType, b []byte) ([]byte, error) {
	if kind == websocket.MessageBinary {
		return b, nil
	}
	var m struct{ Type, Message string }
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, err
	}
	switch m.Type {
	case "exit":
		return nil, io.EOF
	case "error":
		return nil, fmt.Errorf("cf: %s", m.Message)
	}
	return nil, nil // ready
}

func (c *cf) Follow(ctx context.Context, command string, as Encoding) (n int, err error) {
	if as != JSON {
		return 0, ErrCannot
	}
	s, err := c.session(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	err = events(ctx, "http://"+c.address+"/api/execute/stream", map[string]string{"command": command, "sessionId": s.id}, func(event []byte) error {
		var m struct{ Type, Data, Error string }
		if err := json.Unmarshal(event, &m); err != nil {
			return err
		}
		if m.Type == "error" {
			return fmt.Errorf("cf: %s", m.Error)
		}
		n += len(m.Data)
		return nil
	})
	return n, err
}
