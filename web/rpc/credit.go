package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"trl/pool"
	"trl/protocol"
)

// credit bounds what is on its way to a client that says how far it has got (window_bytes, stream.ack). A browser cannot stop reading its
// WebSocket: the kernel's flow control ends at its memory, where a fast program would pile up what the page has yet to draw.
type credit struct {
	window int64
	acked  atomic.Int64  // every byte before it is done with
	moved  chan struct{} // one token: acked has moved
}

// windowReader is what a client with a window is sent the stream with; nil where it has no window.
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

// awaitCredit returns when the byte at offset may be sent, and reports whether the subscription is still there. A client that says nothing for
// patience holds up its own output from then on, but no program any more: it may be a page in a tab that its browser has put to sleep.
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

// streamAck: a stream that has ended meanwhile, or is another client's, needs none.
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
