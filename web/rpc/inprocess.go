package rpc

import (
	"context"
	"net"
	"net/http"
	"sync"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/bounds"
	"trl/web/transport"
)

// A Visit is an HTTP request of a client that connections inside this process serve. It has a place among the clients. One connection at a time uses that
// place; any other takes a place of its own.
type Visit struct {
	cs     *Clients
	g      *auth.Grant
	remote string
	usage  *bounds.Usage
	forget func() // gives the usage back
	leave  func() // gives the place back
	size   int64  // bytes of the body, which are reserved

	mu    sync.Mutex
	inUse bool // guarded by mu; a connection uses the place
	left  bool // guarded by mu; Leave has been called
}

// Visit gives a request a place until Leave, or returns the limit that has been reached. remote names the client in the audit log.
func (cs *Clients) Visit(g *auth.Grant, remote string) (*Visit, *bounds.ConnLimit) {
	leave, full := cs.Admit(g)
	if full != nil {
		return nil, full
	}
	usage, forget := cs.usages.Of(g)
	return &Visit{cs: cs, g: g, remote: remote, usage: usage, forget: forget, leave: leave}, nil
}

// Leave ends the visit. A connection that still uses the place keeps it until its end.
func (v *Visit) Leave() {
	v.usage.ReleaseRequest(v.size)
	v.forget()
	v.release(func() { v.left = true })
}

// release makes a change, and gives the place back if nobody needs it afterwards.
func (v *Visit) release(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if change(); v.left && !v.inUse {
		v.leave()
	}
}

// ReadBody reads the body of the request within the bounds of a message over a connection. It waits while too many large ones are being read.
func (v *Visit) ReadBody(ctx context.Context, control *http.ResponseController, r *http.Request, limits transport.Limits) ([]byte, *protocol.Error) {
	var read func() // gives back what a large body reserves
	body, err := transport.ReadBody(control, r, limits, func() error {
		if read != nil {
			return nil
		}
		release, err := v.usage.ReserveReading(ctx, v.cs.live().MaxFrame)
		if err != nil {
			return protocol.Errorf(protocol.RateLimited, "too many large requests are being read")
		}
		read = release
		return nil
	})
	if read != nil {
		read()
	}
	if err != nil {
		return nil, badBody(transport.ReasonOf(err), err)
	}
	if e := v.usage.ReserveRequest(int64(len(body)), false); e != nil {
		return nil, e
	}
	v.size = int64(len(body))
	return body, nil
}

// Connect makes a connection with the rights of the request's client. The caller is its client: on the connection that it gets, it writes requests and
// reads answers and events, one JSON object per line, as over the Unix socket (client.Options.Dial). All bounds of a connection hold. The connection ends
// when the caller closes it, when the client's credential is no longer valid, and at a shutdown. Connect returns a *protocol.Error if there is no place for
// another connection.
func (v *Visit) Connect() (net.Conn, error) {
	leave, err := v.place()
	if err != nil {
		return nil, err
	}
	ours, theirs := net.Pipe()
	live := v.cs.live()
	c := newConn(v.cs, transport.NewInProcess(ours, transport.Limits{MaxFrame: live.MaxFrame, Stall: transport.StallLimit}, live.SlowClient), v.g)
	c.remote = v.remote
	forget, ok := v.cs.join(c)
	if !ok {
		leave()
		c.cancel()
		ours.Close()
		return nil, protocol.Errorf(protocol.ShuttingDown, "the server is shutting down")
	}
	go func() { // serves the connection and ends with it; Close waits for it
		defer forget()
		defer leave()
		c.serve()
	}()
	return theirs, nil
}

// place returns the place for a connection: the request's own, if no other connection uses it.
func (v *Visit) place() (leave func(), err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.inUse || v.left {
		leave, full := v.cs.Admit(v.g)
		if full != nil {
			return nil, full.Fault()
		}
		return leave, nil
	}
	v.inUse = true
	return func() { v.release(func() { v.inUse = false }) }, nil
}
