package client

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// Call sends any request of the protocol and decodes the answer's data into into, which may be nil. If the server could not carry out the request, the
// error is an *Error.
//
// If the connection is lost before the answer, Call sends the request again if that does nothing twice: one that changes nothing; one with a request_key
// and a session_id, to a server of the same epoch; one that ends work which it names. Otherwise it returns a *ConnectionLostError.
func (c *Client) Call(ctx context.Context, method string, params, into any) error {
	raw, err := encodeParams(method, params)
	if err != nil {
		return err
	}
	return c.send(ctx, request{method: method, params: raw, repeat: repeatOf(method, raw)}, into)
}

// request is a request that may be sent over several connections.
type request struct {
	method string
	params jsontext.Value
	repeat protocol.Repeat // always, keyed or never
	cancel *canceller      // told of each sending; may be nil
}

// send sends a request until its answer comes.
func (c *Client) send(ctx context.Context, q request, into any) error {
	var asked *link // the answer was lost with it
	var node nodeWait
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return c.outcome(err, asked != nil)
		}
		if asked != nil && q.repeat == protocol.RepeatKeyed && asked.epoch != l.epoch {
			return &ConnectionLostError{OutcomeUnknown, errNewEpoch}
		}
		if err = l.exchange(ctx, q, into, nil); node.passes(ctx, c, &err) {
			continue
		}
		lost, ok := err.(*ConnectionLostError)
		switch {
		case !ok && asked != nil && isUnreachable(err):
			return &ConnectionLostError{OutcomeUnknown, err}
		case !ok:
			return err
		case lost.Outcome == OutcomeUnsent:
		case q.repeat == protocol.RepeatNever:
			return err
		default:
			asked = l
		}
	}
}

// nodeWait is for one request, which may be sent again because the node of a cluster that it is for could not be reached: nothing was done.
type nodeWait struct {
	end time.Time // when our patience ends, from the first such answer on
}

// passes waits as long as the server says, and reports whether the request may be sent again. It may not after any other error, and when our patience is
// over. If ctx ends, that is the error.
func (w *nodeWait) passes(ctx context.Context, c *Client, err *error) bool {
	if !isUnreachable(*err) {
		return false
	}
	ms, _ := (*err).(*Error).Details["retry_after_ms"].(float64)
	wait := min(max(time.Duration(ms)*time.Millisecond, 50*time.Millisecond), maxPause)
	if w.end.IsZero() {
		w.end = time.Now().Add(c.o.Patience)
	}
	if time.Now().Add(wait).After(w.end) {
		return false
	}
	select {
	case <-time.After(wait):
		return true
	case <-c.ctx.Done():
		return true // there is no connection any more
	case <-ctx.Done():
		*err = context.Cause(ctx)
		return false
	}
}

func isUnreachable(err error) bool {
	e, ok := err.(*Error)
	return ok && e.Code == protocol.NodeUnreachable
}

// repeatOf applies the rule for a method to the params of a request.
func repeatOf(method string, params jsontext.Value) protocol.Repeat {
	r := protocol.RepeatOf(method)
	if r != protocol.RepeatKeyed && r != protocol.RepeatEnd {
		return r
	}
	var has struct {
		SessionID  string `json:"session_id"`
		RequestKey string `json:"request_key"`
		ExecID     string `json:"exec_id"`
		ProcessID  string `json:"process_id"`
		Signal     string `json:"signal"`
	}
	if json.Unmarshal(params, &has) != nil { // the server will say what is wrong
		return protocol.RepeatNever
	}
	switch {
	case r == protocol.RepeatKeyed && has.RequestKey != "" && (has.SessionID != "" || method == "session.create"):
		return protocol.RepeatKeyed
	case r == protocol.RepeatEnd && has.Signal == "" && (has.ExecID != "" || has.ProcessID != ""):
		return protocol.RepeatAlways
	}
	return protocol.RepeatNever
}

func encodeParams(method string, params any) (jsontext.Value, error) {
	if params == nil {
		return nil, nil
	}
	b, err := json.Marshal(params)
	if err != nil {
		return nil, protocol.Errorf(protocol.InvalidParams, "%s: %w", method, err)
	}
	return b, nil
}

// call is one request and its answer on this connection. If there is a feed, it gets the stream that the answer names.
func (l *link) call(ctx context.Context, method string, params, into any, to *feed) error {
	raw, err := encodeParams(method, params)
	if err != nil {
		return err
	}
	return l.exchange(ctx, request{method: method, params: raw}, into, to)
}

func (l *link) exchange(ctx context.Context, q request, into any, to *feed) error {
	if err := q.cancel.sending(); err != nil {
		return err
	}
	id, pending, err := l.send(ctx, q.method, q.params, to)
	if err != nil {
		return err
	}
	q.cancel.sent(l, id)
	f, err := l.wait(ctx, id, pending)
	switch {
	case err != nil:
		return err
	case !f.OK && f.Error != nil:
		return f.Error
	case !f.OK:
		return fmt.Errorf("%s: failure without an error", q.method)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(f.Data, into); err != nil {
		return fmt.Errorf("%s: answer: %w", q.method, err)
	}
	return nil
}
