package rpc

import (
	"errors"
	"net/http"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/transport"
)

// overHTTP says what a method needs, if its request comes over HTTP.
type overHTTP int

const (
	nothing         overHTTP = iota
	needsNDJSON              // events follow the answer, so the client must accept NDJSON
	needsConnection          // it is about what a connection follows
)

// ServeHTTP serves one HTTP request that has passed all checks: its body is a request, and the response its answer. The request is a connection of its
// own, which ends with the response. remote names the client in the audit log.
func (cs *Clients) ServeHTTP(w http.ResponseWriter, r *http.Request, sock *transport.Socket, g *auth.Grant, remote string, limits transport.Limits) {
	leave, full := cs.Admit(g)
	if full != nil {
		RefuseHTTP(w, full.Status, full.Fault())
		return
	}
	defer leave()
	t := transport.NewHTTP(w, r, sock, limits)
	c := newConn(cs, t, g)
	c.remote = remote
	forget, ok := cs.join(c)
	if !ok {
		c.cancel()
		RefuseHTTP(w, http.StatusServiceUnavailable, protocol.Errorf(protocol.ShuttingDown, "the server is shutting down"))
		return
	}
	func() {
		defer forget()
		c.serve()
	}()
	t.Finish(c.unanswered())
}

// RefuseHTTP answers a request that is not served.
func RefuseHTTP(w http.ResponseWriter, status int, e *protocol.Error) {
	transport.SetFaultHeader(w.Header(), status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(protocol.AppendFailure(nil, protocol.NoID, e), '\n'))
}

// unanswered returns the error for a client whose request was not answered before its connection ended.
func (c *conn) unanswered() *protocol.Error {
	var e *protocol.Error
	switch c.reason {
	case transport.ReasonShutdown:
		e = protocol.Errorf(protocol.ShuttingDown, "the server ended before it could answer")
	case transport.ReasonAuthOver:
		e = protocol.Errorf(protocol.AuthFailed, "what you logged in with is no longer good")
	case transport.ReasonUnshared:
		e = protocol.Errorf(protocol.Forbidden, "this share link has ended")
	case transport.ReasonNodeGone:
		e = protocol.Errorf(protocol.ShuttingDown, "the connection to the session's node was lost before it could answer")
	default:
		e = badBody(c.reason, nil)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.recent.All() { // at most one
		if k.execID != "" {
			e = e.With("exec_id", k.execID) // the command goes on
		}
	}
	return e
}

// badBody is the error for a client whose request could not be read.
func badBody(why transport.CloseReason, err error) *protocol.Error {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e
	}
	switch why {
	case transport.ReasonStalled:
		return protocol.Errorf(protocol.InvalidRequest, "the request did not come to its end in time")
	case transport.ReasonMalformed, transport.ReasonClient:
		return protocol.Errorf(protocol.InvalidRequest, "the body of the request is incomplete or malformed")
	}
	return protocol.Errorf(protocol.InternalError, "internal error")
}

// decode reads one message.
func (c *conn) decode(msg []byte) (protocol.Request, *protocol.Error) {
	if c.request != nil {
		return protocol.DecodeHTTPRequest(msg)
	}
	return protocol.DecodeRequest(msg)
}

// notOverHTTP is the error for what only a connection can do.
func notOverHTTP(why string) *protocol.Error {
	return protocol.Errorf(protocol.NotSupported, "%s: use the WebSocket, /v1/ws", why).With("use", "websocket")
}

// checkHTTP returns an error if the request came over HTTP and the method needs more than that.
func (k *call) checkHTTP(needs overHTTP) *protocol.Error {
	switch {
	case k.c.request == nil || needs == nothing || needs == needsNDJSON && k.c.request.Follows():
		return nil
	case needs == needsNDJSON:
		return protocol.Errorf(protocol.NotSupported, "%s sends events after its answer: ask for them with Accept: %s", k.method, transport.NDJSON).With("accept", transport.NDJSON)
	}
	return notOverHTTP(k.method + " needs a connection")
}

// checkWindow returns an error for a window that nobody could acknowledge. The response has a flow control of its own.
func (k *call) checkWindow(window int64) *protocol.Error {
	if window == 0 || k.c.request == nil {
		return nil
	}
	return notOverHTTP("window_bytes needs stream.ack").With("field", "window_bytes")
}
