package rpc

import (
	"trl/cluster/link"
	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
)

// Input comes in requests, each with an answer, or in binary frames without one. A frame belongs to a stream that the connection follows. If a frame is
// refused, so are those that the client has sent before it knew that: until its next request with input and without an offset.

// takeFrame takes a binary frame. It runs on the reading goroutine, which keeps input in order.
func (c *conn) takeFrame(frame []byte) {
	if f, ok := protocol.ParseInput(frame); !ok || !c.inputs {
		c.refuseRequest(nil, protocol.Errorf(protocol.InvalidRequest, "binary frames carry no requests, and this is no input"))
	} else if e := c.takeInput(f); e != nil {
		c.sendEvent("input.refused", &protocol.InputRefused{StreamNo: f.StreamNo, Offset: f.Offset, Error: e})
	}
}

// takeInput gives the input of a frame to what its stream comes from, here or on another node.
func (c *conn) takeInput(f protocol.InputFrame) *protocol.Error {
	if e := c.grant.ExpiredError(); e != nil {
		return e
	}
	c.mu.Lock()
	sub := c.numbered[f.StreamNo]
	r, no := c.relayOfLocked(f.StreamNo)
	c.mu.Unlock()
	if e := c.grant.BeginRequest(); e != nil {
		c.srv.m.RateLimited.Inc()
		if sub != nil {
			sub.refusal.Set(e) // otherwise others could type so much that a later frame fits behind theirs
		}
		return e
	}
	defer c.grant.EndRequest()
	switch {
	case r != nil && r.sendInput(protocol.InputFrame{StreamNo: no, Offset: f.Offset, Data: f.Data, EOF: f.EOF}):
		return nil
	case sub == nil:
		return protocol.Errorf(protocol.StreamNotFound, "this connection follows no stream with this number")
	case c.grant.Share != nil && !guestMay(c.grant.Share, sub.InputMethod):
		return protocol.Errorf(protocol.Forbidden, "this share link does not allow it")
	case c.principal.Role == auth.Viewer:
		return protocol.Errorf(protocol.Forbidden, "a viewer may only read")
	}
	if e := sub.refusal.Why(); e != nil {
		return e
	}
	if err := sub.Input(sub.viewer, &f); err != nil {
		return sub.refusal.Set((&call{c: c, method: sub.InputMethod}).fault(err))
	}
	return nil
}

// inputOffset returns where the client's input in frames begins, for the answer; nil: it may send none.
func (c *conn) inputOffset(sub *subscription) *int64 {
	if !c.inputs || c.principal.Role == auth.Viewer {
		return nil
	}
	return sub.InputOffset()
}

// takeRequest answers a request with input for a stream. offset is the request's; take gives the input to what the stream comes from.
func (k *call) takeRequest(streamID string, offset *int64, take func(at int64) (end int64, err error)) (any, bool, error) {
	at := int64(pool.Anywhere)
	k.c.mu.Lock()
	if sub := k.c.subs[streamID]; offset != nil {
		at = *offset
	} else if sub != nil {
		sub.refusal.Clear()
	}
	k.c.mu.Unlock()
	end, err := take(at)
	return &protocol.InputTaken{InputOffset: end}, false, err
}

// relayOfLocked returns the relay through which a stream comes, and the stream's number there; nil: it is a stream of this node. mu is held.
func (c *conn) relayOfLocked(no uint64) (r *relay, owners uint64) {
	if c.relays == nil || no%link.Stride == 0 {
		return nil, 0
	}
	for _, r := range c.relays.byEpoch {
		if owners, ok := r.numbers.ToOwner(no); ok {
			return r, owners
		}
	}
	return nil, 0
}

// sendInput sends a frame to the owner, behind the requests before it, and reports whether the relay could take it.
func (r *relay) sendInput(f protocol.InputFrame) bool {
	r.sending.Lock()
	defer r.sending.Unlock()
	r.mu.Lock()
	l := r.link
	r.mu.Unlock()
	if l == nil {
		return false
	}
	frame := protocol.AppendInput(nil, &f)
	r.toOwner.Add(float64(len(frame)))
	_ = l.Send(link.Binary, frame) // run gets the error, and ends the connection
	return true
}
