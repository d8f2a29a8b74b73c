package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/coder/websocket"
)

// wsep is github.com/coder/wsep, written after its internal/proto at 519f1c2. It is a library: its server is any that calls wsep.Serve for every path, as
// its dev/server does. A connection runs one program; a message is a line of JSON and, after it, bytes.
type wsep struct {
	cannot
	address string
}

// wsepCommand is the command of a start message.
type wsepCommand struct {
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Stdin   bool     `json:"stdin"`
	TTY     bool     `json:"tty"`
	Rows    int      `json:"rows,omitempty"`
	Cols    int      `json:"cols,omitempty"`
	Env     []string `json:"env,omitempty"`
}

// wsepStream is one program. code is its exit code, once Read has returned io.EOF.
type wsepStream struct {
	messages
	code int
}

func (w *wsep) start(ctx context.Context, command wsepCommand) (*wsepStream, error) {
	c, err := dial(ctx, "ws://"+w.address+"/")
	if err != nil {
		return nil, err
	}
	hello, err := json.Marshal(map[string]any{"type": "start", "id": "", "command": command})
	if err == nil {
		err = c.Write(ctx, websocket.MessageBinary, hello)
	}
	if err != nil {
		c.CloseNow()
		return nil, err
	}
	s := &wsepStream{messages: messages{ctx: ctx, c: c, kind: websocket.MessageBinary}}
	s.wrap = func(p []byte) []byte { return append([]byte("{\"type\":\"stdin\"}\n"), p...) }
	s.open = func(_ websocket.MessageType, b []byte) ([]byte, error) {
		head, body, _ := bytes.Cut(b, []byte("\n"))
		var h struct {
			Type  string `json:"type"`
			Code  int    `json:"exit_code"`
			Error string `json:"error"`
		}
		if err := json.Unmarshal(head, &h); err != nil {
			return nil, err
		}
		switch h.Type {
		case "stdout", "stderr":
			return body, nil
		case "exit_code":
			if s.code = h.Code; h.Error != "" && h.Code == 0 {
				return nil, fmt.Errorf("wsep: %s", h.Error)
			}
			return nil, io.EOF
		}
		return nil, nil // pid
	}
	return s, nil
}

func (w *wsep) Terminal(ctx context.Context) (Stream, error) {
	return w.start(ctx, wsepCommand{Command: "bash", Stdin: true, TTY: true, Rows: rows, Cols: columns, Env: []string{"TERM=" + term}})
}

func (w *wsep) Shell(ctx context.Context) (Stream, error) {
	return w.start(ctx, wsepCommand{Command: "bash", Stdin: true})
}

func (w *wsep) Once(ctx context.Context, command string) (r Result, err error) {
	s, err := w.start(ctx, wsepCommand{Command: "bash", Args: []string{"-c", command}})
	if err != nil {
		return r, err
	}
	defer s.Close()
	var out strings.Builder
	err = drain(s, func(b []byte) { out.Write(b) })
	return Result{Output: out.String(), Code: s.code}, err
}

func (w *wsep) Follow(ctx context.Context, command string, as Encoding) (n int, err error) {
	if as != Binary {
		return 0, ErrCannot
	}
	s, err := w.start(ctx, wsepCommand{Command: "bash", Args: []string{"-c", command}})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	err = drain(s, func(b []byte) { n += len(b) })
	return n, err
}

// drain reads a stream until its program has ended.
func drain(s Stream, each func(b []byte)) error {
	for {
		b, err := s.Read()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		each(b)
	}
}
