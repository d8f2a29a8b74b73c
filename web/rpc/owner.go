package rpc

import (
	"context"

	"trl/cluster/link"
	"trl/pool/share"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// A gateway serves the clients of other nodes that use its sessions: each link is the connection of one client.

// AdmitLink returns the error for the client of another node that may not have a link, best before the link is accepted.
func (cs *Clients) AdmitLink(h *link.Hello) error {
	_, leave, err := cs.AdmitHTTP(h)
	if err == nil {
		leave()
	}
	return err
}

// AdmitHTTP returns what a client of another node may do whose link carries HTTP, and gives it a place until leave is called.
func (cs *Clients) AdmitHTTP(h *link.Hello) (g *auth.Grant, leave func(), err error) {
	if g, err = cs.grantOf(h); err != nil {
		return nil, nil, err
	}
	leave, full := cs.Admit(g)
	if full != nil {
		return nil, nil, full.Fault()
	}
	return g, leave, nil
}

// ServeLink serves the client of another node, or that node itself, over its link, until the link is over.
func (cs *Clients) ServeLink(h *link.Hello, l *link.Conn) {
	if h.Carries == link.ForMove {
		cs.Moves.ServeLink(l)
		return
	}
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

// GuestElsewhere returns the grant of a share link of another node, or nil if there is none. The node tells what the link allows. The error says that the
// node cannot be asked now.
func (cs *Clients) GuestElsewhere(ctx context.Context, token string) (*auth.Grant, *protocol.Error) {
	nodes := cs.config.Cluster.Nodes
	epoch, ok := share.EpochOf(token)
	if nodes == nil || !ok || epoch == cs.pool.Epoch() {
		return nil, nil
	}
	n, standing := nodes.Find(epoch)
	switch standing {
	case cluster.MayLive:
		return nil, cluster.UnknownYet()
	case cluster.Gone:
		return nil, nil
	}
	can, fault := cluster.AskGuest(ctx, nodes, n, token)
	if fault != nil {
		cs.log.Debug().Err(fault).Msg("node of a share link cannot be asked")
	}
	if can == nil {
		return nil, fault
	}
	return &auth.Grant{
		Principal: auth.Principal{Subject: can.Principal.Subject, Role: auth.Role(can.Principal.Role)},
		Elsewhere: &auth.Elsewhere{Epoch: epoch, Token: token, ShareID: can.Principal.Share.ShareID},
	}, nil
}
