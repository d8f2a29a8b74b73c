package rpc

import (
	"cmp"
	"context"
	"os"
	"time"

	"trl/cluster/link"
	"trl/protocol"
)

// Nodes is what a gateway asks of its cluster. Several goroutines may call its methods at once. An epoch is the part of ids that says which node made
// them: it is what pool.Epoch returns.
type Nodes interface {
	// Self returns this node. It does not wait.
	Self() protocol.Node
	// All returns all known nodes by name, this one among them. It does not wait.
	All() []protocol.Node
	// Find returns the node with an epoch, and whether it is known, gone, or may live although it is not known. It does not wait.
	Find(epoch string) (protocol.Node, Standing)
	// Dial makes a link to a known node, for the client that h describes. ctx bounds only the dialling. The link ends with its Close, and at the latest
	// with the gateway. The error is a *link.UnreachableError, or a *protocol.Error for the client; any other error counts as unreachable.
	Dial(ctx context.Context, epoch string, h *link.Hello) (*link.Conn, error)
	// FindName returns the id of the session that has a principal's name, on any node. It returns "" if there is none, or if its node is no longer known.
	// It may wait for the directory; the error is then a *protocol.Error DIRECTORY_UNAVAILABLE.
	FindName(ctx context.Context, principal, name string) (session string, err error)
	// FindKey is FindName for the request key of a session.create.
	FindKey(ctx context.Context, principal, key string) (session string, err error)
	// Place returns the epochs of the nodes to ask for a new session, the best one first; this node may be among them. where has labels that the node
	// must have, node the name of the only node to ask; both may be empty. The error is a *protocol.Error for the client: INVALID_PARAMS about node or
	// where if no node has that name or those labels, MAX_SESSIONS_REACHED or SHUTTING_DOWN if those that have take no sessions. It does not wait. It may
	// count the session at the first node at once.
	Place(where map[string]string, node string) (epochs []string, err error)
	// Presence returns the epochs of the other nodes where a principal has sessions, as far as the directory knows. If the directory does not answer
	// within ctx, it returns all other known nodes.
	Presence(ctx context.Context, principal string) (epochs []string)
	// Degraded reports whether the directory does not work now. It does not wait.
	Degraded() bool
}

// Standing is what a gateway knows of the node with an epoch.
type Standing int

const (
	// NodeGone means that no node has this epoch, or that its lease has run out.
	NodeGone Standing = iota
	// NodeMayLive means that the gateway does not know all nodes yet, because it has just started or was cut off from the directory. Requests about such a
	// node fail with UnknownYet.
	NodeMayLive
	// NodeKnown means that the node's lease runs. While the directory is degraded, known nodes stay known.
	NodeKnown
)

// UnknownYet returns the error for a request about a node that may live although this one does not know it.
func UnknownYet() *protocol.Error {
	return protocol.Errorf(protocol.NodeUnreachable, "this node does not know all others yet").With("retry_after_ms", unknownYetRetry.Milliseconds())
}

// unknownYetRetry is when a client may try again after UnknownYet. Nodes write their entries every 5 s, and a new node asks for them at once.
const unknownYetRetry = time.Second

// Cluster says which node this gateway is.
type Cluster struct {
	Node      string // its name; "": the machine's
	PublicURL string // where clients reach it; may be empty
	Nodes     Nodes  // all nodes, which then also know Node and PublicURL; nil: there is one node
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

// findNode returns the node with a name. The error is about the parameter node.
func (cs *Clients) findNode(name string) (protocol.Node, *protocol.Error) {
	var names []string
	for _, n := range cs.allNodes() {
		if n.Node == name {
			return n, nil
		}
		names = append(names, n.Node)
	}
	return protocol.Node{}, protocol.InvalidParam("node", "there is no node %q", name).With("nodes", names)
}

func systemNodes(k *call, _ *protocol.None) (any, bool, error) {
	nodes := k.c.srv.config.Cluster.Nodes
	return &protocol.Nodes{Nodes: k.c.srv.allNodes(), Degraded: nodes != nil && nodes.Degraded()}, false, nil
}
