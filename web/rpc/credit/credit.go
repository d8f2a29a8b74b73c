// Package credit bounds how much is on its way to a client that acknowledges what it has used (window_bytes, stream.ack). A program in JavaScript cannot
// stop reading its WebSocket. TCP's flow control therefore does not help it: the output of a fast program would pile up in its memory.
package credit

import (
	"context"
	"sync/atomic"
	"time"
)

// Credit is what a client may be sent of one stream. A nil *Credit has no bound.
type Credit struct {
	window int64
	acked  atomic.Int64  // the client has acknowledged every byte before this offset
	moved  chan struct{} // holds a token after acked has moved
}

// New returns the Credit of a client that has everything before from, nil if it has no window.
func New(window, from int64) *Credit {
	if window == 0 {
		return nil
	}
	c := &Credit{window: window, moved: make(chan struct{}, 1)}
	c.acked.Store(from)
	return c
}

// Ack notes that the client has used every byte before offset. Any goroutine may call it.
func (c *Credit) Ack(offset int64) {
	if c == nil {
		return
	}
	for {
		before := c.acked.Load()
		if offset <= before {
			return
		}
		if c.acked.CompareAndSwap(before, offset) {
			break
		}
	}
	select {
	case c.moved <- struct{}{}:
	default:
	}
}

// Await returns when the byte at offset may be sent, and reports whether the stream is still followed. One goroutine at a time calls it. If the client
// acknowledges nothing for slow, its output goes on waiting, but the program no longer does, because the client may be a page in a tab that the browser
// has suspended: block(false). After an acknowledgement it waits again: block(true).
func (c *Credit) Await(ctx context.Context, offset int64, slow time.Duration, stopped <-chan struct{}, block func(bool)) bool {
	if c == nil || offset-c.acked.Load() < c.window {
		return true
	}
	late := time.NewTimer(slow)
	defer late.Stop()
	for {
		select {
		case <-c.moved:
			if offset-c.acked.Load() < c.window {
				block(true)
				return true
			}
		case <-late.C:
			block(false)
		case <-stopped:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
