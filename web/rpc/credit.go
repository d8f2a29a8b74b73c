package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"trl/pool"
	"trl/protocol"
)

// credit bounds how much is on its way to a client that acknowledges what it has used (window_bytes, stream.ack). A program in JavaScript cannot stop
// reading its WebSocket. TCP's flow control therefore does not help it: the output of a fast program would pile up in its memory.
type credit struct {
	window int64
	acked  atomic.Int64  // the client has acknowledged every byte before this offset
	moved  chan struct{} // holds a token after acked has moved
}

// windowReader returns the reader of a client with a window, and nil if the client has no window.
func (sub *subscription) windowReader(window int64) *pool.Reader {
	if window == 0 {
		return nil
	}
	return sub.r
}

func newCredit(window, from int64) *credit {
	if window == 0 {
		return nil
	}
	cr := &credit{window: window, moved: make(chan struct{}, 1)}
	cr.acked.Store(from)
	return cr
}

func (cr *credit) ack(offset int64) {
	for {
		before := cr.acked.Load()
		if offset <= before {
			return
		}
		if cr.acked.CompareAndSwap(before, offset) {
			break
		}
	}
	select {
	case cr.moved <- struct{}{}:
	default:
	}
}

// awaitCredit returns when the byte at offset may be sent, and reports whether the subscription still exists. If the client acknowledges nothing for
// slowLimit, its output goes on waiting, but the program no longer does: the client may be a page in a tab that the browser has suspended.
func (sub *subscription) awaitCredit(ctx context.Context, offset int64, slowLimit time.Duration) bool {
	cr := sub.credit
	if cr == nil || offset-cr.acked.Load() < cr.window {
		return true
	}
	late := time.NewTimer(slowLimit)
	defer late.Stop()
	for {
		select {
		case <-cr.moved:
			if offset-cr.acked.Load() < cr.window {
				sub.r.SetBlock(sub.block)
				return true
			}
		case <-late.C:
			sub.r.SetBlock(false)
		case <-sub.stopped:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// streamAck ignores a stream that has ended or that this connection does not follow.
func streamAck(k *call, q *protocol.StreamAck) (any, bool, error) {
	c := k.c
	c.mu.Lock()
	sub := c.subs[q.StreamID]
	c.mu.Unlock()
	if sub != nil && sub.credit != nil {
		sub.credit.ack(q.Offset)
	}
	return nil, false, nil
}
