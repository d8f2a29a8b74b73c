package source

import (
	"sync/atomic"

	"trl/protocol"
)

// A Refusal says why a frame with input was refused: those behind it are refused for the same reason, until the client shows that it knows.
type Refusal struct {
	why atomic.Pointer[protocol.Error]
}

// Set keeps e, unless an earlier frame was refused, and returns it.
func (r *Refusal) Set(e *protocol.Error) *protocol.Error {
	r.why.CompareAndSwap(nil, e)
	return e
}

// Why returns why frames are refused, nil if they are not.
func (r *Refusal) Why() *protocol.Error { return r.why.Load() }

// Clear is called when the client knows.
func (r *Refusal) Clear() { r.why.Store(nil) }
