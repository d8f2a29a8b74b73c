package peer

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"github.com/coder/websocket"
)

// ttyd is github.com/tsl0922/ttyd, written after its src/protocol.c and src/server.h at 647d55a (1.7.7). The operator chooses the program of all
// terminals; it must be an interactive bash, and ttyd must run with --writable. There are no commands.
type ttyd struct {
	cannot
	address string
}

func (t *ttyd) Terminal(ctx context.Context) (Stream, error) {
	c, err := dial(ctx, "ws://"+t.address+"/ws", "tty")
	if err != nil {
		return nil, err
	}
	hello, err := json.Marshal(map[string]any{"AuthToken": "", "columns": columns, "rows": rows})
	if err == nil {
		err = c.Write(ctx, websocket.MessageBinary, hello)
	}
	if err != nil {
		c.CloseNow()
		return nil, err
	}
	return &messages{ctx: ctx, c: c, kind: websocket.MessageBinary, wrap: tagged('0'), open: func(_ websocket.MessageType, b []byte) ([]byte, error) {
		if len(b) == 0 || b[0] != '0' { // the title, the preferences
			return nil, nil
		}
		return b[1:], nil
	}}, nil
}

// gotty is github.com/sorenisanerd/gotty, written after its webtty and server at 0ac4324 (2.1.2 and later). The operator chooses the program of all
// terminals; it must be an interactive bash, and gotty must run with --permit-write. There are no commands.
type gotty struct {
	cannot
	address string
}

func (g *gotty) Terminal(ctx context.Context) (Stream, error) {
	c, err := dial(ctx, "ws://"+g.address+"/ws", "webtty")
	if err != nil {
		return nil, err
	}
	for _, m := range []string{`{"Arguments":"","AuthToken":""}`, `3{"columns":80,"rows":24}`} {
		if err := c.Write(ctx, websocket.MessageText, []byte(m)); err != nil {
			c.CloseNow()
			return nil, err
		}
	}
	return &messages{ctx: ctx, c: c, kind: websocket.MessageText, wrap: tagged('1'), open: func(_ websocket.MessageType, b []byte) ([]byte, error) {
		if len(b) == 0 || b[0] != '1' {
			return nil, nil
		}
		n, err := base64.StdEncoding.Decode(b[1:], b[1:])
		return b[1:][:n], err
	}}, nil
}
