package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/coder/websocket"

	"trl/client"
	"trl/protocol"
)

// dialBinary opens a connection with output in binary frames, which package client does not use.
func dialBinary(ctx context.Context, o client.Options) (*websocket.Conn, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/ws"
	}
	d := &websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}, HTTPHeader: http.Header{}}
	if o.Token != "" {
		d.HTTPHeader.Set("Authorization", "Bearer "+o.Token)
	}
	c, _, err := websocket.Dial(ctx, u.String(), d)
	if err != nil {
		return nil, err
	}
	c.SetReadLimit(1 << 30)
	return c, nil
}

// follow runs a command and reads its frames up to exec.exit; got counts their bytes, including the short headers.
func follow(ctx context.Context, c *websocket.Conn, id, command string) (got int, err error) {
	m, err := json.Marshal(map[string]any{"id": 1, "method": "exec.stream", "params": protocol.Exec{SessionRef: protocol.SessionRef{SessionID: id}, Command: command}})
	if err != nil {
		return 0, err
	}
	if err := c.Write(ctx, websocket.MessageText, m); err != nil {
		return 0, err
	}
	for {
		kind, b, err := c.Read(ctx)
		switch {
		case err != nil:
			return got, err
		case kind == websocket.MessageBinary:
			got += len(b)
		case bytes.HasPrefix(b, []byte(`{"event":"exec.exit"`)):
			return got, nil
		case bytes.Contains(b, []byte(`"ok":false`)):
			return got, fmt.Errorf("exec.stream: %s", b)
		}
	}
}
