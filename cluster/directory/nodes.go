package directory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"trl/cluster/kv"
	"trl/cluster/node"
)

// beatTimeout bounds the write of the node's own entry; the directory is degraded when it passes.
const beatTimeout = 3 * time.Second

// known are the nodes that this one knows, itself among them. All of it is guarded by Directory.mu.
type known struct {
	byEpoch map[string]*peer
	list    []*node.Node // of byEpoch; nil: to be made again
}

type peer struct {
	node  *node.Node // never changed, but replaced
	heard time.Time
}

func (k *known) init(self node.Node) {
	k.byEpoch = map[string]*peer{self.Epoch: {node: &self}}
}

func (k *known) set(n *node.Node, heard time.Time) {
	k.byEpoch[n.Epoch] = &peer{n, heard}
	k.list = nil
}

func (k *known) remove(epoch string) {
	delete(k.byEpoch, epoch)
	k.list = nil
}

// self is what this node says of itself. All of it is guarded by Directory.mu.
type self struct {
	node    node.Node
	written node.Node // as it was written last
	at      time.Time // of the last write; zero: it must be written now
	echo    time.Time // when our own entry was heard last
	opened  time.Time
	left    bool
}

// announcement is an entry of trl_nodes.
type announcement struct {
	node.Node
	Instance string `json:"instance"`
}

// Nodes returns the nodes that are known, by name, this one among them. Callers must not change them.
func (d *Directory) Nodes() []*node.Node {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known.list == nil {
		for _, p := range d.known.byEpoch {
			d.known.list = append(d.known.list, p.node)
		}
		slices.SortFunc(d.known.list, func(a, b *node.Node) int {
			return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Epoch, b.Epoch))
		})
	}
	return slices.Clip(d.known.list)
}

// Node returns the node of an epoch.
func (d *Directory) Node(epoch string) (*node.Node, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.known.byEpoch[epoch]
	if !ok {
		return nil, false
	}
	return p.node, true
}

// Placed counts a session that was just made on a node, until that node's next word: otherwise all sessions of some seconds would go to the node
// that was the least busy one before.
func (d *Directory) Placed(epoch string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.known.byEpoch[epoch]; ok && p.node.Live+1 < p.node.Max { // only the node itself knows that it is full: sessions end meanwhile
		n := *p.node
		n.Live++
		d.known.set(&n, p.heard)
	}
}

// Describe changes what this node says of itself. The others learn it with the next heartbeat, and at once if it begins or stops to drain, becomes
// full or has room again, or if its sessions changed by a tenth of its maximum, but not more than once a second.
func (d *Directory) Describe(change func(*node.Node)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	epoch := d.self.node.Epoch
	change(&d.self.node)
	d.self.node.Epoch = epoch
	n := d.self.node
	d.known.set(&n, time.Now())
	if urgent(&n, &d.self.written) {
		d.wake()
	}
}

// urgent says whether the others should learn of a change before the next heartbeat.
func urgent(now, written *node.Node) bool {
	moved := now.Live - written.Live
	return now.Draining != written.Draining || now.HasRoom() != written.HasRoom() || now.Max != written.Max ||
		max(moved, -moved)*10 > now.Max
}

// beat writes the node's own entry if that is due.
func (d *Directory) beat(now time.Time) {
	d.mu.Lock()
	s := &d.self
	age := now.Sub(s.at)
	due := !s.left && (s.at.IsZero() || d.health.degraded || age >= d.opts.heartbeat || age >= time.Second && urgent(&s.node, &s.written))
	n := s.node
	drains, degraded := n.Draining != s.written.Draining, d.health.degraded
	if !due && !(drains && !s.left) {
		d.mu.Unlock()
		return
	}
	if s.opened.IsZero() {
		s.opened = now
	}
	d.mu.Unlock()

	value, err := json.Marshal(announcement{n, d.instance})
	if err == nil {
		ctx, cancel := context.WithTimeout(d.ctx, beatTimeout)
		if degraded { // the bucket may be gone, or have no leader; the others hear the entry all the same
			_ = d.nodes.Conn.Publish(d.nodes.Subject(n.Epoch), value)
			err = d.nodes.Make(ctx)
		}
		if err == nil {
			_, err = d.nodes.Put(ctx, n.Epoch, value, 0)
		}
		cancel()
	}
	if err != nil {
		d.setHealth(false, "this node's entry cannot be written: "+err.Error())
		return
	}
	d.mu.Lock()
	s.written, s.at = n, now
	silent := !s.echo.IsZero() && now.Sub(s.echo) > 2*d.opts.heartbeat+beatTimeout && !d.health.degraded
	d.mu.Unlock()
	if silent {
		d.setHealth(false, "entries of nodes do not arrive")
		return
	}
	d.setHealth(true, "")
}

// hear takes in an entry of trl_nodes as its owner writes it. NATS delivers it without waiting for the bucket's leader.
func (d *Directory) hear(m *nats.Msg) {
	epoch := d.nodes.KeyOf(m.Subject)
	var a announcement
	gone := kv.IsDelete(m)
	if !gone && (json.Unmarshal(m.Data, &a) != nil || a.Epoch != epoch) {
		return
	}
	now := time.Now()
	d.mu.Lock()
	if epoch == d.opts.Node.Epoch {
		other := !gone && a.Instance != d.instance
		// While a gateway is replaced, the old one and the new one may both write.
		stolen := other && !d.self.opened.IsZero() && now.Sub(d.self.opened) > 2*d.opts.lease
		if !other {
			d.self.echo = now
		}
		d.mu.Unlock()
		if stolen {
			d.call(func() { d.opts.OnConflict(Conflict{Kind: "node", Key: epoch, Session: a.Name}) })
		}
		return
	}
	before := d.known.byEpoch[epoch]
	if gone {
		d.known.remove(epoch)
		d.purges[epoch] = now
	} else {
		d.known.set(&a.Node, now)
		delete(d.purges, epoch)
	}
	changed := gone != (before == nil) || before != nil && !gone && before.node.Draining != a.Draining
	d.mu.Unlock()
	if changed {
		d.nodesChanged()
	}
}

func (d *Directory) nodesChanged() {
	if d.opts.Metrics != nil {
		d.mu.Lock()
		n := len(d.known.byEpoch)
		d.mu.Unlock()
		d.opts.Metrics.ClusterNodes.Set(float64(n))
	}
	d.call(d.opts.OnNodes)
}

// readNodes takes in the nodes that NATS has. It forgets none: a bucket may be empty because its servers have just started. If there are more
// nodes than one listing has, their next heartbeats tell of them.
func (d *Directory) readNodes() {
	ctx, cancel := context.WithTimeout(d.ctx, beatTimeout)
	defer cancel()
	entries, err := d.nodes.List(ctx, "*")
	if err != nil {
		return
	}
	d.mu.Lock()
	for _, e := range entries {
		var a announcement
		if e.Key != d.opts.Node.Epoch && json.Unmarshal(e.Value, &a) == nil && a.Epoch == e.Key {
			d.known.set(&a.Node, time.Now())
		}
	}
	d.mu.Unlock()
	d.nodesChanged()
}

// forgetSilent forgets nodes whose lease has run out. Such a node has been silent for a whole lease while NATS answered all the time, and NATS has
// no entry of it any more.
func (d *Directory) forgetSilent() {
	d.mu.Lock()
	var silent []string
	if d.healthyForLocked() >= d.opts.lease {
		for epoch, p := range d.known.byEpoch {
			if epoch != d.opts.Node.Epoch && time.Since(p.heard) >= d.opts.lease {
				silent = append(silent, epoch)
			}
		}
	}
	d.mu.Unlock()
	forgotten := false
	for _, epoch := range silent {
		gone, err := d.leaseHasEnded(d.ctx, epoch)
		if err != nil {
			break
		}
		d.mu.Lock()
		p := d.known.byEpoch[epoch]
		switch {
		case p == nil || time.Since(p.heard) < d.opts.lease: // heard meanwhile
		case gone:
			d.known.remove(epoch)
			d.purges[epoch] = time.Now()
			forgotten = true
		default:
			p.heard = p.heard.Add(d.opts.heartbeat / 10) // asked again at the next tick
		}
		d.mu.Unlock()
	}
	if forgotten {
		d.nodesChanged()
	}
}

// leaseHasEnded asks NATS whether it has no entry of a node any more.
func (d *Directory) leaseHasEnded(ctx context.Context, epoch string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := d.nodes.Latest(ctx, epoch)
	if errors.Is(err, kv.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// first says whether this node does what one node of the cluster must do: the one with the lowest epoch.
func (d *Directory) first() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for epoch := range d.known.byEpoch {
		if epoch < d.opts.Node.Epoch {
			return false
		}
	}
	return true
}

// raiseInterval is how often the first node checks whether buckets can have more replicas, because servers were added.
const raiseInterval = 30 * time.Second

func (d *Directory) raise(now time.Time) {
	d.mu.Lock()
	due := !d.health.degraded && now.Sub(d.raised) >= raiseInterval
	if due {
		d.raised = now
	}
	d.mu.Unlock()
	if due && d.first() {
		d.running.Go(func() {
			ctx, cancel := context.WithTimeout(d.ctx, beatTimeout)
			defer cancel()
			for _, b := range d.buckets() {
				if _, err := b.Raise(ctx); err != nil {
					return
				}
			}
		})
	}
}
