package peer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/coder/websocket"

	"trl/protocol"
)

// trl is a gateway, spoken to as the other peers are: over a bare WebSocket and with encoding/json, not with our client.
type trl struct {
	cannot
	address string
}

// trlConn is a connection with one session.
type trlConn struct {
	ctx     context.Context
	c       *websocket.Conn
	n       int
	session string
}

// connect dials and makes a session, with more params than the shell if there are any.
func (t *trl) connect(ctx context.Context, as Encoding, params protocol.SessionCreate) (*trlConn, *protocol.SessionCreated, error) {
	subprotocol := "trl.v1+bin"
	if as == JSON {
		subprotocol = "trl.v1"
	}
	c, err := dial(ctx, "ws://"+t.address+"/v1/ws", subprotocol)
	if err != nil {
		return nil, nil, err
	}
	conn := &trlConn{ctx: ctx, c: c}
	params.Shell = "/bin/bash"
	params.OnDisconnect = "destroy" // should our Close not arrive
	var made protocol.SessionCreated
	if err := conn.ask("session.create", params, &made); err != nil {
		c.CloseNow()
		return nil, nil, err
	}
	conn.session = made.SessionID
	return conn, &made, nil
}

func (t *trlConn) send(method string, params any) error {
	t.n++
	b, err := json.Marshal(map[string]any{"id": t.n, "method": method, "params": params})
	if err != nil {
		return err
	}
	return t.c.Write(t.ctx, websocket.MessageText, b)
}

// ask sends a request and reads up to its answer, past events.
func (t *trlConn) ask(method string, params, into any) error {
	if err := t.send(method, params); err != nil {
		return err
	}
	for {
		kind, b, err := t.c.Read(t.ctx)
		if err != nil {
			return err
		}
		if kind == websocket.MessageBinary || !isAnswer(b) {
			continue
		}
		var m struct {
			ID    int
			OK    bool
			Data  json.RawMessage
			Error json.RawMessage
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return err
		}
		switch {
		case m.ID != t.n: // of input
			continue
		case !m.OK:
			return fmt.Errorf("%s: %s", method, m.Error)
		case into == nil:
			return nil
		}
		return json.Unmarshal(m.Data, into)
	}
}

func isAnswer(b []byte) bool { return bytes.HasPrefix(b, []byte(`{"id"`)) }

// Close ends the session and waits until it is gone.
func (t *trlConn) Close() error {
	defer t.c.CloseNow()
	return t.ask("session.destroy", map[string]any{"session_id": t.session, "force": true}, nil)
}

func (t *trlConn) Run(command string) (Result, error) {
	var r protocol.ExecResult
	if err := t.ask("exec.run", map[string]any{"session_id": t.session, "command": command}, &r); err != nil {
		return Result{}, err
	}
	if r.ExitCode == nil {
		return Result{}, errors.New("exec.run: no exit code")
	}
	return Result{Output: r.Stdout + r.Stderr, Code: *r.ExitCode}, nil
}

// trlStream is the output of one exec or terminal on a connection, and its input.
type trlStream struct {
	*trlConn
	next protocol.InputFrame // its number, and where the next input begins
}

// stream makes a stream of the answer that has opened it.
func (t *trlConn) stream(number uint64, inputOffset *int64) *trlStream {
	s := &trlStream{trlConn: t, next: protocol.InputFrame{StreamNo: number}}
	if inputOffset != nil {
		s.next.Offset = *inputOffset
	}
	return s
}

// Write sends a frame, which has no answer.
func (s *trlStream) Write(p []byte) error {
	s.next.Data = p
	frame := protocol.AppendInput(nil, &s.next)
	s.next.Offset += int64(len(p))
	return s.c.Write(s.ctx, websocket.MessageBinary, frame)
}

// Read returns the next output.
func (s *trlStream) Read() ([]byte, error) {
	for {
		kind, b, err := s.c.Read(s.ctx)
		if err != nil {
			return nil, err
		}
		if kind == websocket.MessageBinary {
			if b, err = payload(b); err != nil || len(b) > 0 {
				return b, err
			}
			continue
		}
		var m struct {
			OK    *bool
			Error json.RawMessage
			Event string
			Data  struct {
				Data, Encoding string
				Error          json.RawMessage // of input.refused
			}
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return nil, err
		}
		switch {
		case m.OK != nil && !*m.OK:
			return nil, fmt.Errorf("refused: %s", m.Error)
		case m.Event == "input.refused":
			return nil, fmt.Errorf("input refused: %s", m.Data.Error)
		case m.Event == "exec.exit", m.Event == "term.exit":
			return nil, io.EOF
		case m.Event != "exec.output" && m.Event != "term.output":
		case m.Data.Encoding == protocol.Base64:
			return base64.StdEncoding.DecodeString(m.Data.Data)
		default:
			return []byte(m.Data.Data), nil
		}
	}
}

// payload is the output in a binary frame: after its kind, the stream's number and the offset.
func payload(frame []byte) ([]byte, error) {
	for rest, n := frame[min(1, len(frame)):], 0; ; n++ {
		_, size := binary.Uvarint(rest)
		if size <= 0 {
			return nil, errors.New("a broken binary frame")
		}
		if rest = rest[size:]; n == 1 {
			return rest, nil
		}
	}
}

func (t *trl) Terminal(ctx context.Context) (Stream, error) {
	c, made, err := t.connect(ctx, Binary, protocol.SessionCreate{Terminal: &protocol.FirstTerminal{Cols: columns, Rows: rows}})
	if err != nil {
		return nil, err
	}
	return c.stream(made.Terminal.StreamNo, made.Terminal.InputOffset), nil
}

// stream starts a command whose output is followed.
func (t *trl) stream(ctx context.Context, command string, stdin bool, as Encoding) (*trlStream, error) {
	c, _, err := t.connect(ctx, as, protocol.SessionCreate{})
	if err != nil {
		return nil, err
	}
	var opened protocol.StreamOpened
	if err := c.ask("exec.stream", map[string]any{"session_id": c.session, "command": command, "interactive_stdin": stdin}, &opened); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c.stream(opened.StreamNo, opened.InputOffset), nil
}

func (t *trl) Shell(ctx context.Context) (Stream, error) {
	return t.stream(ctx, "/bin/bash", true, Binary)
}

func (t *trl) Session(ctx context.Context) (Session, error) {
	c, _, err := t.connect(ctx, JSON, protocol.SessionCreate{})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (t *trl) Follow(ctx context.Context, command string, as Encoding) (n int, err error) {
	s, err := t.stream(ctx, command, false, as)
	if err != nil {
		return 0, err
	}
	err = drain(s, func(b []byte) { n += len(b) })
	return n, errors.Join(err, s.Close())
}
