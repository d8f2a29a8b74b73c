package client

import (
	"context"
	"errors"
	"time"

	"trl/protocol"
)

// inputPiece is the size of the data in one input request. It is far below the size of a frame (4 MiB) and the server's buffer for a program that does
// not read (1 MiB), also in JSON, which writes a control character in six bytes.
const inputPiece = 64 << 10

// input sends p piece by piece, each when there is room for it. An empty p is one piece.
func (c *Client) input(ctx context.Context, method string, p []byte, params func(text, encoding string, last bool) any) error {
	for {
		piece := p[:min(len(p), inputPiece)]
		p = p[len(piece):]
		text, encoding := protocol.EncodeBytes(piece)
		if err := c.callWhenRoom(ctx, method, params(text, encoding, len(p) == 0)); err != nil || len(p) == 0 {
			return err
		}
	}
}

// callWhenRoom repeats a Call while the server has no room for it.
func (c *Client) callWhenRoom(ctx context.Context, method string, params any) error {
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := c.Call(ctx, method, params, nil)
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.RateLimited && (e.Code != protocol.LimitExceeded || e.Details["limit"] != "stdin") {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// ignoreClosed returns nil for the end of an input that has ended already, as after the end of what reads it.
func ignoreClosed(err error) error {
	if CodeOf(err) == protocol.StdinClosed {
		return nil
	}
	return err
}
