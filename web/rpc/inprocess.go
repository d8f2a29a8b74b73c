package rpc

import (
	"net"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/transport"
)

// Connect makes a connection with the rights of g inside this process. The caller is its client: on the connection that it gets, it writes requests and
// reads answers and events, one JSON object per line, as over the Unix socket (client.Options.Dial). All bounds of a connection hold. remote names the
// client in the audit log. The connection ends when the caller closes it, when g is no longer valid, and at a shutdown. Connect returns a
// *protocol.Error if there is no place for another connection.
func (cs *Clients) Connect(g *auth.Grant, remote string) (net.Conn, error) {
	leave, full := cs.Admit(g)
	if full != nil {
		return nil, full.Fault()
	}
	ours, theirs := net.Pipe()
	live := cs.live()
	c := newConn(cs, transport.NewInProcess(ours, transport.Limits{MaxFrame: live.MaxFrame, Stall: transport.StallLimit}, live.SlowClient), g)
	c.remote = remote
	forget, ok := cs.join(c)
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
