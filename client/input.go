package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"trl/protocol"
)

// inputPiece is the size of the data in one input request. It is far below the size of a frame (4 MiB) and the server's buffer for a program that does
// not read (1 MiB), also in JSON, which writes a control character in six bytes.
const inputPiece = 64 << 10

// input is the input of a command, a process or a terminal. It goes in pieces. Each piece has its offset, if we know how much input there is: a piece whose
// answer was lost is sent again, and the offset shows what of it was taken. The zero value knows nothing: the answer to the first piece tells.
type input struct {
	once sync.Once
	turn chan struct{} // has a token while a piece is on its way

	// owned by who has put the token into turn
	known bool  // end is how much input there is
	end   int64 // how much input the server has
	plain bool  // the server is older and knows no offsets
}

// begin says that the server has end bytes of input. It is called before other goroutines use the input.
func (in *input) begin(end int64) { in.known, in.end = true, end }

// An inputRequest makes the params of a request with a piece of input. offset is nil if it is not known.
type inputRequest func(text, encoding string, eof bool, offset *int64) any

// write sends p piece by piece, each when there is room for it, and the end of the input with the last one if eof is set. An empty p is one piece.
func (in *input) write(ctx context.Context, c *Client, method string, p []byte, eof bool, params inputRequest) error {
	for {
		piece := p[:min(len(p), inputPiece)]
		p = p[len(piece):]
		if err := in.send(ctx, c, method, piece, eof && len(p) == 0, params); err != nil || len(p) == 0 {
			return err
		}
	}
}

// send sends a piece, again while the server has no room for it, and again until it is known what became of it.
func (in *input) send(ctx context.Context, c *Client, method string, piece []byte, eof bool, params inputRequest) error {
	in.once.Do(func() { in.turn = make(chan struct{}, 1) })
	select {
	case in.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-in.turn }()
	var lost error // the connection was lost with the answer to this piece
	pause := 2 * time.Millisecond
	for {
		text, encoding := protocol.EncodeBytes(piece)
		var offset *int64
		if in.known && !in.plain {
			offset = &in.end
		}
		var answer struct {
			InputOffset *int64 `json:"input_offset"` // an older server has none
		}
		err := c.Call(ctx, method, params(text, encoding, eof, offset), &answer)
		e, refused := errors.AsType[*Error](err)
		loss, cut := errors.AsType[*ConnectionLostError](err)
		switch {
		case err == nil:
			if in.known = answer.InputOffset != nil; in.known {
				in.end = *answer.InputOffset
			}
			return nil
		case refused && (e.Code == protocol.RateLimited || e.Code == protocol.LimitExceeded && e.Details["limit"] == "stdin"):
			if err := sleep(ctx, pause); err != nil {
				in.known = in.known && lost == nil
				return err
			}
			pause = min(2*pause, 200*time.Millisecond)
		case refused && e.Code == protocol.InvalidParams && e.Details["field"] == "offset" && offset != nil && lost == nil:
			in.plain = true
		case refused && e.Code == protocol.OffsetMismatch && offset != nil:
			end := int64OfDetail(e, "input_offset")
			taken := end - in.end
			switch in.end = end; {
			case lost == nil && taken != 0: // somebody else has given input, and nothing of this piece was taken
			case lost == nil:
				return err
			case taken <= 0 || taken > int64(len(piece)): // the same, and nobody knows what was taken
				return lost
			case taken == int64(len(piece)) && !eof:
				return nil
			default:
				piece, lost = piece[taken:], nil
			}
		case cut && offset != nil && loss.Outcome == OutcomeUnknown && ctx.Err() == nil:
			lost = err
		default:
			in.known = in.known && refused && lost == nil
			if lost != nil && cut { // there is no connection any more
				return lost
			}
			return err
		}
	}
}

// int64OfDetail returns a number of an error's details.
func int64OfDetail(e *Error, name string) int64 {
	n, _ := e.Details[name].(float64)
	return int64(n)
}

// ignoreClosed returns nil for the end of an input that has ended already, as after the end of what reads it.
func ignoreClosed(err error) error {
	if CodeOf(err) == protocol.StdinClosed {
		return nil
	}
	return err
}
