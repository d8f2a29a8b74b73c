package rpc

import (
	"trl/cluster/link"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/transport"
)

// A gateway serves the clients of other nodes that use its sessions: each link is the connection of one client.

// AdmitLink returns the error for the client of another node that may not have a link, best before the link is accepted.
func (cs *Clients) AdmitLink(h *link.Hello) error {
	g, err := cs.grantOf(h)
	if err != nil {
		return err
	}
	leave, full := cs.Admit(g)
	if full != nil {
		return full.Fault()
	}
	leave()
	return nil
}

// ServeLink serves the client of another node over its link, until the link is over.
func (cs *Clients) ServeLink(h *link.Hello, l *link.Conn) {
	t := transport.NewLink(l, h)
	g, err := cs.grantOf(h)
	if err != nil { // the share link has ended since AdmitLink
		t.SendClose(transport.ReasonUnshared)
		return
	}
	leave, full := cs.Admit(g)
	if full != nil { // the last place has been taken since AdmitLink
		t.SendClose(transport.ReasonShutdown)
		return
	}
	defer leave()
	remote := "node " + l.Peer().Name
	if h.Client.IsValid() {
		remote = h.Client.String()
	}
	cs.Serve(t, g, h.Client, remote)
}

// grantOf returns what a client of another node may do, as that node says. The owner of a share link judges it itself.
func (cs *Clients) grantOf(h *link.Hello) (*auth.Grant, error) {
	if h.Share != "" {
		g, ok := cs.auth.Guest(h.Share)
		if !ok {
			return nil, protocol.Errorf(protocol.AuthFailed, "no such share link, or it has ended")
		}
		return g, nil
	}
	return auth.ForLink(auth.Principal{Subject: h.Principal, Role: auth.Role(h.Role)}, h.Credential, h.Terms.Expires()), nil
}
