package member

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"trl/cluster/directory"
	"trl/cluster/link"
	"trl/cluster/node"
	"trl/cluster/placement"
	"trl/pool/claims"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// retryAfter is when a client may ask the directory again.
const retryAfter = time.Second

// otherVersion is the reason in details.nodes of a node that speaks other versions of the link protocol; retryOtherVersion is when a client may ask
// again whether it has been upgraded.
const (
	otherVersion      = "version"
	retryOtherVersion = 8 * time.Second
)

// fault makes an error for clients of an error of the directory.
func fault(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, directory.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return protocol.Errorf(protocol.DirectoryUnavailable, "the cluster's directory does not answer").With("retry_after_ms", retryAfter.Milliseconds())
	}
	return err
}

// The methods of cluster.Nodes; Dial is in member.go.

// Self returns this node.
func (b *Member) Self() protocol.Node {
	n, _ := b.directory.Node(b.self.Epoch) // the directory never forgets its own node
	return b.toProtocol(n)
}

// All returns all known nodes, by name.
func (b *Member) All() (all []protocol.Node) {
	for _, n := range b.directory.Nodes() {
		all = append(all, b.toProtocol(n))
	}
	return all
}

// Find returns the node with an epoch, and what is known of it.
func (b *Member) Find(epoch string) (protocol.Node, cluster.Standing) {
	settled := b.directory.Settled() // asked first: a node that was heard in between is known
	n, ok := b.directory.Node(epoch)
	switch {
	case ok:
		return b.toProtocol(n), cluster.Known
	case settled:
		return protocol.Node{}, cluster.Gone
	}
	return protocol.Node{}, cluster.MayLive
}

func (b *Member) toProtocol(n *node.Node) protocol.Node {
	p := protocol.Node{
		Node: n.Name, Epoch: n.Epoch, URL: n.PublicURL, Zone: n.Zone, Labels: n.Labels, Version: n.Version,
		ActiveSessions: n.Live, MaxSessions: n.Max, Load: n.Load, Draining: n.Draining, Self: n.Epoch == b.self.Epoch,
	}
	if err := link.CheckVersion(n.Link); err != nil {
		p.Unreachable = err.Error()
	} else if n.Starting {
		p.Unreachable = "its gateway is starting"
	} else if gone := b.dialer.Unreachable(link.Node{Name: n.Name, Epoch: n.Epoch}); gone != nil {
		p.Unreachable = gone.Cause.Error()
	}
	return p
}

// FindName returns the epoch of the node whose session has a principal's name, or "".
func (b *Member) FindName(ctx context.Context, principal, name string) (string, error) {
	return b.known(b.directory.FindName(ctx, principal, name))
}

// FindKey does the same with the request key of a session.create.
func (b *Member) FindKey(ctx context.Context, principal, key string) (string, error) {
	return b.known(b.directory.FindKey(ctx, principal, key))
}

// FindMoved does the same with a session that has moved.
func (b *Member) FindMoved(ctx context.Context, mark string) (string, error) {
	return b.known(b.directory.FindMoved(ctx, mark))
}

// known returns the epoch of a claim, if its node is known.
func (b *Member) known(c directory.Claim, found bool, err error) (string, error) {
	if err != nil {
		return "", fault(err)
	}
	if !found {
		return "", nil
	}
	switch _, standing := b.Find(c.Epoch); standing {
	case cluster.Known:
		return c.Epoch, nil
	case cluster.MayLive:
		return "", cluster.UnknownYet()
	}
	return "", nil
}

// Place returns the epochs of the nodes to ask for a new session, the best one first.
func (b *Member) Place(where map[string]string, name string) ([]string, error) {
	nodes := b.directory.Nodes()
	if name != "" {
		nodes = slices.DeleteFunc(slices.Clone(nodes), func(n *node.Node) bool { return n.Name != name })
	}
	q := placement.Request{Where: where, Own: b.self.Epoch}
	order := placement.Order(slices.DeleteFunc(slices.Clone(nodes), speaksOtherVersion), q, newRandom())
	if len(order) == 0 {
		return nil, b.noPlace(nodes, q, name)
	}
	b.directory.Placed(order[0].Epoch)
	var epochs []string
	for _, n := range order {
		epochs = append(epochs, n.Epoch)
	}
	return epochs, nil
}

// speaksOtherVersion reports whether no link to a node is possible, because it runs a much older or newer trl.
func speaksOtherVersion(n *node.Node) bool { return link.CheckVersion(n.Link) != nil }

func (b *Member) names() (names []string) {
	for _, n := range b.directory.Nodes() {
		names = append(names, n.Name)
	}
	return slices.Compact(names)
}

// noPlace says why none of the nodes takes a session: details.nodes has the reason of each. While this node knows no other, one that it does not know
// yet may take it.
func (b *Member) noPlace(nodes []*node.Node, q placement.Request, name string) error {
	if len(b.directory.Nodes()) == 1 && !b.directory.Settled() {
		return cluster.UnknownYet()
	}
	if len(nodes) == 0 {
		return protocol.InvalidParam("node", "there is no node %q", name).With("nodes", b.names())
	}
	why, count := map[string]string{}, map[string]int{}
	for _, n := range nodes {
		why[n.Name] = placement.Why(n, q)
		if why[n.Name] != placement.Elsewhere && speaksOtherVersion(n) {
			why[n.Name] = otherVersion
		}
		count[why[n.Name]]++
	}
	switch {
	case count[placement.Starting] > 0: // it may have room in a moment
		return protocol.Errorf(protocol.NodeUnreachable, "the nodes that could have the session are starting").With("nodes", why).With("retry_after_ms", retryAfter.Milliseconds())
	case count[placement.Full] > 0:
		return protocol.Errorf(protocol.MaxSessionsReached, "no node has room for another session").With("nodes", why)
	case count[placement.Draining] > 0:
		return protocol.Errorf(protocol.ShuttingDown, "the nodes that could have the session are being drained").With("nodes", why)
	case count[otherVersion] > 0:
		return protocol.Errorf(protocol.NodeUnreachable, "the nodes that could have the session run another version of trl").With("nodes", why).With("retry_after_ms", retryOtherVersion.Milliseconds())
	}
	return protocol.InvalidParam("where", "no node has these labels").With("nodes", b.names())
}

// askAll is up to how many other nodes are asked for each list. The directory's answer is some milliseconds behind, or seconds while its servers start,
// so a client could miss the session that it has just made. With more nodes a list would cost too much.
const askAll = 16

// Presence returns the epochs of the other nodes where a principal may have sessions: all of a few, and of many those that the directory names, if it
// answers.
func (b *Member) Presence(ctx context.Context, principal string) (epochs []string) {
	for _, n := range b.directory.Nodes() {
		if n.Epoch != b.self.Epoch {
			epochs = append(epochs, n.Epoch)
		}
	}
	if len(epochs) <= askAll {
		return epochs
	}
	live, err := b.directory.Presence(ctx, principal)
	if err != nil {
		return epochs
	}
	delete(live, b.self.Epoch)
	return slices.Sorted(maps.Keys(live))
}

// Degraded reports whether the directory does not work now.
func (b *Member) Degraded() bool {
	degraded, _ := b.directory.Degraded()
	return degraded
}

// Directory returns the member's directory for the pool.
func (b *Member) Directory() claims.Directory { return forPool{b} }

// forPool is the directory as the pool uses it.
type forPool struct{ b *Member }

func (p forPool) ClaimName(ctx context.Context, principal, name, session string) (string, error) {
	c, err := p.b.directory.ClaimName(ctx, principal, name, session)
	return c.Session, fault(err)
}

func (p forPool) ClaimKey(ctx context.Context, principal, key, session string) (string, error) {
	c, err := p.b.directory.ClaimKey(ctx, principal, key, session)
	return c.Session, fault(err)
}

// An error of a release needs no answer: the directory frees the key later.
func (p forPool) ReleaseName(ctx context.Context, principal, name, session string) {
	_ = p.b.directory.ReleaseName(ctx, principal, name, session)
}

func (p forPool) ReleaseKey(ctx context.Context, principal, key, session string) {
	_ = p.b.directory.ReleaseKey(ctx, principal, key, session)
}

// presenceWait is how long a session.create waits for the number of its principal's sessions on other nodes.
const presenceWait = 500 * time.Millisecond

func (p forPool) LiveElsewhere(principal string) (n int) {
	if p.b.Degraded() {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), presenceWait)
	defer cancel()
	live, err := p.b.directory.Presence(ctx, principal)
	if err != nil {
		return 0
	}
	for epoch, of := range live {
		if epoch != p.b.self.Epoch {
			n += of
		}
	}
	return n
}

func movedOf(m claims.Moved) directory.Moved {
	return directory.Moved{Principal: m.Principal, Session: m.Session, Name: m.Name, Key: m.Key, Marks: m.Marks}
}

// Errors of these need no answer: the directory writes everything later.
func (p forPool) TakeOver(m claims.Moved) { p.b.directory.TakeOver(movedOf(m)) }

func (p forPool) AwaitTakeOver(ctx context.Context) error { return p.b.directory.Restore(ctx) }

func (p forPool) MovesAway(m claims.Moved) { p.b.directory.MovesAway(movedOf(m)) }

func (p forPool) GiveUp(m claims.Moved) { p.b.directory.GiveUp(movedOf(m)) }

func (p forPool) ReleaseMoved(ctx context.Context, m claims.Moved) {
	_ = p.b.directory.ReleaseMoved(ctx, movedOf(m))
}

func (p forPool) SetLive(principal string, live int) { p.b.directory.SetLive(principal, live) }

func (p forPool) Rebuild(names []claims.Name, here []claims.Moved, live map[string]int) {
	o := directory.Owned{Live: live}
	for _, n := range names {
		o.Names = append(o.Names, directory.OwnedName(n))
	}
	for _, m := range here {
		o.Moved = append(o.Moved, movedOf(m))
	}
	p.b.directory.Note(o)
}
