package rpc

import (
	"cmp"
	"os"

	"trl/protocol"
	"trl/web/rpc/cluster"
)

// Cluster says which node this gateway is.
type Cluster struct {
	Node      string        // its name; "": the machine's
	PublicURL string        // where clients reach it; may be empty
	Nodes     cluster.Nodes // all nodes, which then also know Node and PublicURL; nil: there is one node
}

// self returns this node.
func (cs *Clients) self() protocol.Node {
	if cs.config.Cluster.Nodes != nil {
		return cs.config.Cluster.Nodes.Self()
	}
	host, _ := os.Hostname()
	stats := cs.pool.Stats()
	return protocol.Node{
		Node: cmp.Or(cs.config.Cluster.Node, host, "localhost"), Epoch: cs.pool.Epoch(), URL: cs.config.Cluster.PublicURL, Version: cs.config.Version,
		ActiveSessions: stats.ActiveSessions, MaxSessions: stats.MaxSessions, Draining: cs.config.Drains.Draining(), Self: true,
	}
}

// nodeName returns the name of this node for answers about its sessions, or "" if there are no others.
func (cs *Clients) nodeName() string {
	if cs.config.Cluster.Nodes == nil {
		return ""
	}
	return cs.config.Cluster.Nodes.Self().Node
}

// checkPlace refuses a session.create that wants another node, if there is none.
func (k *call) checkPlace(q *protocol.SessionCreate) *protocol.Error {
	if q.Node == "" && len(q.Where) == 0 || k.c.srv.config.Cluster.Nodes != nil { // placement has decided
		return nil
	}
	self := k.c.srv.self().Node
	if q.Node != "" {
		if _, fault := k.c.srv.findNode(q.Node); fault != nil {
			return fault
		}
	}
	for label, want := range q.Where {
		if label != "node" || want != self {
			return protocol.InvalidParam("where", "no node has the label %q with this value", label).With("nodes", []string{self})
		}
	}
	return nil
}

// allNodes returns all known nodes.
func (cs *Clients) allNodes() []protocol.Node {
	if cs.config.Cluster.Nodes == nil {
		return []protocol.Node{cs.self()}
	}
	return cs.config.Cluster.Nodes.All()
}

// findNode returns the node with a name. The error is about the parameter node, unless the node may live.
func (cs *Clients) findNode(name string) (protocol.Node, *protocol.Error) {
	var names []string
	for _, n := range cs.allNodes() {
		if n.Node == name {
			return n, nil
		}
		names = append(names, n.Node)
	}
	if nodes := cs.config.Cluster.Nodes; nodes != nil {
		if _, standing := nodes.Find(""); standing == cluster.MayLive { // as for every epoch that is not known
			return protocol.Node{}, cluster.UnknownYet()
		}
	}
	return protocol.Node{}, protocol.InvalidParam("node", "there is no node %q", name).With("nodes", names)
}

func systemNodes(k *call, _ *protocol.None) (any, bool, error) {
	nodes := k.c.srv.config.Cluster.Nodes
	return &protocol.Nodes{Nodes: k.c.srv.allNodes(), Degraded: nodes != nil && nodes.Degraded()}, false, nil
}
