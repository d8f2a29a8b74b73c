package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

// execd is components/execd of github.com/alibaba/OpenSandbox, written after its PTY.md and its packages web and runtime at 4db3a99. It has sessions (a
// bash for each command, which it gives the directory and the variables of the last one), single commands, and a bash behind a WebSocket, on a terminal
// or on pipes.
type execd struct {
	address string
}

func (e *execd) url(path string) string { return "http://" + e.address + path }

// open makes a bash and attaches to it; query chooses pipes instead of a terminal.
func (e *execd) open(ctx context.Context, query string) (Stream, error) {
	var made struct {
		ID string `json:"session_id"`
	}
	if err := call(ctx, http.MethodPost, e.url("/pty"), struct{}{}, &made); err != nil {
		return nil, err
	}
	end := func() error { return call(ctx, http.MethodDelete, e.url("/pty/"+made.ID), nil, nil) }
	c, err := dial(ctx, "ws://"+e.address+"/pty/"+made.ID+"/ws"+query)
	if err != nil {
		_ = end() // the error of the dial says more
		return nil, err
	}
	return &messages{ctx: ctx, c: c, kind: websocket.MessageBinary, wrap: tagged(0), open: execdOutput, end: end}, nil
}

func execdOutput(kind websocket.MessageType, b []byte) ([]byte, error) {
	if kind == websocket.MessageText {
		var m struct{ Type, Error string }
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		switch m.Type {
		case "exit":
			return nil, io.EOF
		case "error":
			return nil, fmt.Errorf("execd: %s", m.Error)
		}
		return nil, nil // connected
	}
	const replay = 3 // output from before the connection, after its offset
	switch {
	case len(b) > 9 && b[0] == replay:
		return b[9:], nil
	case len(b) > 1 && b[0] < replay:
		return b[1:], nil
	}
	return nil, nil
}

func (e *execd) Terminal(ctx context.Context) (Stream, error) { return e.open(ctx, "") }
func (e *execd) Shell(ctx context.Context) (Stream, error)    { return e.open(ctx, "?pty=0") }

// commandPath is the path of single commands. execd keeps the answer open for a second after its last event.
const commandPath = "/command"

// run sends a command and reads its events. They have no exit code if the command succeeded.
func (e *execd) run(ctx context.Context, path, command string, output func(text string)) (code int, err error) {
	ended := false
	var atEnd error
	if path == commandPath {
		atEnd = errStop
	}
	err = events(ctx, e.url(path), map[string]string{"command": command}, func(event []byte) error {
		var m struct {
			Type, Text string
			Error      struct{ EName, EValue string }
		}
		if err := json.Unmarshal(event, &m); err != nil {
			return err
		}
		switch m.Type {
		case "stdout", "stderr":
			output(m.Text)
		case "execution_complete":
			ended = true
			return atEnd
		case "error":
			ended = true
			if code, err = strconv.Atoi(m.Error.EValue); err != nil {
				return fmt.Errorf("execd: %s: %s", m.Error.EName, m.Error.EValue)
			}
			return atEnd
		}
		return nil
	})
	if err == nil && !ended {
		err = fmt.Errorf("execd: the answer has no end")
	}
	return code, err
}

// text runs a command and joins its lines, which come without their line feeds.
func (e *execd) text(ctx context.Context, path, command string) (Result, error) {
	var out strings.Builder
	code, err := e.run(ctx, path, command, func(text string) {
		out.WriteString(text)
		out.WriteByte('\n')
	})
	return Result{Output: out.String(), Code: code}, err
}

// execdSession is a session of execd.
type execdSession struct {
	ctx context.Context
	e   *execd
	id  string
}

func (e *execd) Session(ctx context.Context) (Session, error) {
	var made struct {
		ID string `json:"session_id"`
	}
	if err := call(ctx, http.MethodPost, e.url("/session"), struct{}{}, &made); err != nil {
		return nil, err
	}
	return &execdSession{ctx, e, made.ID}, nil
}

func (s *execdSession) Run(command string) (Result, error) {
	return s.e.text(s.ctx, "/session/"+s.id+"/run", command)
}

func (s *execdSession) Close() error {
	return call(s.ctx, http.MethodDelete, s.e.url("/session/"+s.id), nil, nil)
}

func (e *execd) Once(ctx context.Context, command string) (Result, error) {
	return e.text(ctx, commandPath, command)
}

func (e *execd) Follow(ctx context.Context, command string, as Encoding) (n int, err error) {
	if as == Binary {
		s, err := e.Shell(ctx)
		return followShell(s, err, command)
	}
	s, err := e.Session(ctx)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	_, err = e.run(ctx, "/session/"+s.(*execdSession).id+"/run", command, func(text string) { n += len(text) + 1 })
	return n, err
}
