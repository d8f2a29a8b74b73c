// Package directory keeps what the machines of a cluster must know of each other, in NATS: which nodes there are, which session has which name or
// request key, where a principal has sessions, and where sessions have moved.
//
// A gateway works without it. While NATS does not answer, the directory is degraded: it keeps the nodes that it knows, claims fail after a bounded
// wait with ErrUnavailable, and nothing is forgotten. What a node owns it writes again when NATS is back.
//
// No clock of a machine matters: leases are NATS' own, and the directory only measures how long it has waited.
package directory

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"trl/cluster/kv"
)

// ErrUnavailable says that NATS did not answer in time. The request may succeed later.
var ErrUnavailable = kv.ErrUnavailable

// Directory is one node's connection to the directory. Open makes it and Close ends it.
type Directory struct {
	opts      Options
	instance  string // distinguishes this Directory from another one with the same epoch
	nodes     *kv.Bucket
	names     *kv.Bucket
	keys      *kv.Bucket
	moved     *kv.Bucket
	presence  *kv.Bucket
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	running   sync.WaitGroup
	connected chan struct{} // closed when the buckets have their connection
	wakeLoop  chan struct{}
	wakeWrite chan struct{}
	callbacks sync.Mutex // held while a callback runs

	mu       sync.Mutex
	conn     *nats.Conn // nil until connected
	known    known
	self     self
	health   health
	records  records
	presents map[string]*present  // by hash of the principal
	purges   map[string]time.Time // nodes that went, by epoch
	raised   time.Time            // when replicas were checked last
}

// health says whether the directory works. All of it is guarded by Directory.mu.
type health struct {
	degraded bool
	why      string
	dialErr  error
	since    time.Time // of the latest change
	term     int       // counts the times that the directory became healthy: what was written before may be lost
}

// The lifetimes of keys. The owner of a key writes it again after a third of it. What nobody writes again ends by itself, so that a node that died
// leaves nothing behind; its names and its presence count only as long as its lease anyway.
const (
	ownedTTL = 24 * time.Hour
	keyTTL   = 10 * time.Minute
)

// Open joins the directory. It does not wait for NATS: it fails only because of its options.
func Open(o Options) (*Directory, error) {
	o.setDefaults()
	demand, err := o.check()
	if err != nil {
		return nil, err
	}
	d := &Directory{
		opts:      o,
		instance:  nats.NewInbox(),
		connected: make(chan struct{}),
		wakeLoop:  make(chan struct{}, 1),
		wakeWrite: make(chan struct{}, 1),
		presents:  map[string]*present{},
		purges:    map[string]time.Time{},
		nodes:     &kv.Bucket{Name: "trl_nodes", TTL: o.lease, Memory: true},
		names:     &kv.Bucket{Name: "trl_names", TTL: ownedTTL},
		keys:      &kv.Bucket{Name: "trl_keys", TTL: keyTTL},
		moved:     &kv.Bucket{Name: "trl_moved", TTL: ownedTTL},
		presence:  &kv.Bucket{Name: "trl_presence", TTL: ownedTTL, Memory: true},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.health = health{degraded: true, why: "not connected yet", since: time.Now()}
	d.self.node = o.Node
	d.known.init(d.self.node)
	d.records.init()
	d.showHealth(true)
	d.running.Go(func() { d.run(demand) })
	return d, nil
}

// run connects, and then does the directory's periodic work until Close.
func (d *Directory) run(demand security) {
	conn, err := d.connect(demand)
	if err != nil { // of the options; files may have changed since Open
		d.setHealth(false, err.Error())
		return
	}
	defer conn.Close()
	for _, b := range d.buckets() {
		b.Conn = conn
	}
	d.mu.Lock()
	d.conn = conn
	d.mu.Unlock()
	close(d.connected)
	if _, err := conn.Subscribe(d.nodes.Subject("*"), d.hear); err != nil {
		d.setHealth(false, err.Error())
		return
	}
	d.running.Go(d.write)
	d.loop(conn)
}

func (d *Directory) buckets() []*kv.Bucket {
	return []*kv.Bucket{d.nodes, d.names, d.keys, d.moved, d.presence}
}

// Close leaves the directory and waits for all that belongs to it. The node's entry stays for the rest of its lease: the next gateway of the same
// keeper has the same epoch. A node that ends for good calls Leave before.
func (d *Directory) Close() {
	d.cancel()
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn != nil {
		conn.Close() // wakes whoever waits for an answer
	}
	d.running.Wait()
}

// Leave takes this node out of the directory at once. Its names are free then.
func (d *Directory) Leave(ctx context.Context) error {
	ctx, cancel, err := d.bounded(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	d.mu.Lock()
	d.self.left = true
	d.mu.Unlock()
	return d.nodes.Drop(ctx, d.opts.Node.Epoch, d.opts.lease)
}

// Degraded says whether the directory does not work now, and why.
func (d *Directory) Degraded() (degraded bool, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.health.degraded, d.health.why
}

// bounded adds the directory's own bound, and its end, to ctx. It waits for the first connection.
func (d *Directory) bounded(ctx context.Context) (context.Context, context.CancelFunc, error) {
	ctx, cancel := context.WithTimeout(ctx, d.opts.Wait)
	stop := context.AfterFunc(d.ctx, cancel)
	end := func() { stop(); cancel() }
	select {
	case <-d.connected:
		return ctx, end, nil
	case <-ctx.Done():
		end()
		return nil, nil, ErrUnavailable
	}
}

func (d *Directory) wake() { signal(d.wakeLoop) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// loop writes the node's entry, notices whether NATS answers, and forgets nodes whose lease has run out.
func (d *Directory) loop(conn *nats.Conn) {
	tick := time.NewTicker(d.opts.heartbeat / 10)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-d.ctx.Done():
			return
		case <-tick.C:
		case <-d.wakeLoop:
		}
		now := time.Now()
		if now.Sub(last) > d.opts.heartbeat+beatTimeout { // this process was stopped; nodes are not silent because it heard nothing
			d.setHealth(false, "this process did not run")
		}
		last = now
		if !conn.IsConnected() {
			d.setHealth(false, d.notConnected(conn))
			continue
		}
		d.beat(now)
		d.forgetSilent()
		d.raise(now)
	}
}

func (d *Directory) notConnected(conn *nats.Conn) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.health.dialErr
	if err == nil {
		err = conn.LastError()
	}
	if err == nil {
		return "not connected to NATS"
	}
	return "not connected to NATS: " + err.Error()
}

// noteConnectError is called by the client whenever an attempt to connect has failed.
func (d *Directory) noteConnectError(err error) {
	d.mu.Lock()
	if d.health.dialErr == nil || !errors.Is(err, nats.ErrNoServers) {
		d.health.dialErr = err
	}
	d.mu.Unlock()
	d.wake()
}

// setHealth notes whether NATS answers. Whenever it answers again, the nodes are read and everything that this node owns is written again.
func (d *Directory) setHealth(healthy bool, why string) {
	d.mu.Lock()
	was := d.health
	d.health.why = why
	changed := was.degraded == healthy
	if changed {
		d.health.degraded, d.health.since = !healthy, time.Now()
		if healthy {
			d.health.dialErr = nil
			d.health.term++
		}
	}
	d.mu.Unlock()
	if !changed {
		return
	}
	d.showHealth(!healthy)
	if healthy {
		d.readNodes()
		signal(d.wakeWrite)
	}
	d.call(func() { d.opts.OnHealth(!healthy, why) })
}

func (d *Directory) call(f func()) {
	d.callbacks.Lock()
	defer d.callbacks.Unlock()
	f()
}

func (d *Directory) showHealth(degraded bool) {
	if d.opts.Metrics == nil {
		return
	}
	v := 0.0
	if degraded {
		v = 1
	}
	d.opts.Metrics.DirectoryDegraded.Set(v)
}

// healthyForLocked returns for how long NATS has answered without a break.
func (d *Directory) healthyForLocked() time.Duration {
	if d.health.degraded {
		return 0
	}
	return time.Since(d.health.since)
}

// Settled reports whether this node has heard all others that live, because NATS has answered for a whole lease. Until then a node may live that it
// does not know.
func (d *Directory) Settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.healthyForLocked() >= d.opts.lease
}

func joined(servers []string) string { return strings.Join(servers, ",") }
