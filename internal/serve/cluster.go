package serve

import (
	"trl/internal/member"
	"trl/pool/ids"
	"trl/web/audit"
	"trl/web/listen"
	"trl/web/rpc"
)

// joinCluster makes this gateway a node of its cluster, if it is to be one. Nothing of a cluster runs otherwise.
func (g *gateway) joinCluster() (err error) {
	s := g.settings
	s.Web.Cluster = rpc.Cluster{Node: s.Cluster.Node, PublicURL: s.Cluster.PublicURL}
	if len(s.Cluster.Servers) == 0 {
		return nil
	}
	s.Pool.Epoch = ids.EpochMark(s.Pool.Epoch) // with a keeper it is the keeper's, so that a node is the same one after its gateway has died
	if s.Web.Sockets == nil {
		if s.Web.Sockets, err = listen.Bind(s.Web.Config); err != nil {
			return hintListen(err, s)
		}
	}
	if g.member, err = member.Open(s, s.Pool.Epoch, s.Web.Sockets.Link, g.metrics, g.log); err != nil {
		return err
	}
	g.addCleanup(func() error { g.member.Close(); return nil })
	s.Web.Cluster.Nodes, s.Pool.Directory = g.member, g.member.Directory()
	return nil
}

// startMember lets the other nodes use this one.
func (g *gateway) startMember() error {
	return g.member.Start(g.server, func(remote string) {
		g.settings.Web.Audit.AppendStranger(audit.Entry{Action: audit.ActionRefused, Outcome: "refused", Remote: remote, Reason: "link"})
	})
}
