package web

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"trl/cluster/link"
	"trl/pool"
	"trl/protocol"
	"trl/web/rpc"
	"trl/web/rpc/cluster"
)

// testCluster is some gateways with links between them, without a directory.
type testCluster struct {
	t      testing.TB
	cred   *link.Credentials
	change func(*Config) // set once; as newCluster got it
	mu     sync.Mutex
	nodes  []*testNode // guarded by mu
	starts bool        // guarded by mu; nodes that are not known may live
}

// testNode is one gateway.
type testNode struct {
	*server
	cluster.Nodes // the methods that no test of this package needs
	of            *testCluster
	name          string
	url           string
	dialer        *link.Dialer
	cutOff        func() // ends its links and takes no more
	links         *linkListener
	gone          bool // guarded by of.mu; nobody knows it any more
}

// newCluster starts a gateway for each name.
func newCluster(t *testing.T, tune func(*pool.Config), change func(*Config), names ...string) *testCluster {
	t.Helper()
	cl := &testCluster{t: t}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	cred, err := link.OpenCredentials(link.Files{Secret: secret}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	cl.cred, cl.change = cred, change
	for _, name := range names {
		cl.add(name, tune, change)
	}
	return cl
}

func (cl *testCluster) add(name string, tune func(*pool.Config), change func(*Config)) *testNode {
	t := cl.t
	n := &testNode{of: cl, name: name}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.links = &linkListener{Listener: l, open: map[*linkSocket]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	var accepting sync.WaitGroup
	n.cutOff = func() {
		stop()
		accepting.Wait()
	}
	t.Cleanup(func() { // after the gateway has ended
		n.cutOff()
		n.dialer.Close()
	})
	n.server = startWith(t, func(c *pool.Config) { tune(c) }, func(c *Config) {
		c.Cluster = rpc.Cluster{Node: name, Nodes: n}
		change(c)
	})
	self := link.Node{Name: name, Epoch: n.Pool.Epoch()}
	n.url = "ws://" + l.Addr().String()
	a, err := link.NewAcceptor(link.AcceptorOptions{
		Self: self, URL: n.url, Credentials: cl.cred,
		Admit:   func(_ context.Context, _ link.Node, h *link.Hello) error { return n.AdmitLink(h) },
		Serve:   func(_ context.Context, h *link.Hello, c *link.Conn) { n.ServeLink(h, c) },
		Refused: func(_ string, err error) { t.Logf("%s refused a link: %v", name, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	accepting.Go(func() { a.Serve(ctx, n.links) })
	if n.dialer, err = link.NewDialer(context.Background(), link.DialerOptions{Self: self, Credentials: cl.cred}); err != nil {
		t.Fatal(err)
	}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.nodes = append(cl.nodes, n)
	return n
}

// forget makes a node unknown to all. unsettled: it may live all the same.
func (cl *testCluster) forget(n *testNode, unsettled bool) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	n.gone, cl.starts = true, unsettled
}

func (n *testNode) describe() protocol.Node {
	return protocol.Node{Node: n.name, Epoch: n.Pool.Epoch(), MaxSessions: 256}
}

// Self is of cluster.Nodes.
func (n *testNode) Self() protocol.Node { return n.describe() }

// All is of cluster.Nodes.
func (n *testNode) All() (all []protocol.Node) {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	for _, other := range n.of.nodes {
		if !other.gone {
			all = append(all, other.describe())
		}
	}
	return all
}

func (n *testNode) find(epoch string) *testNode {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	for _, other := range n.of.nodes {
		if other.Pool.Epoch() == epoch && !other.gone {
			return other
		}
	}
	return nil
}

// Find is of cluster.Nodes.
func (n *testNode) Find(epoch string) (protocol.Node, cluster.Standing) {
	if other := n.find(epoch); other != nil {
		return other.describe(), cluster.Known
	}
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if n.of.starts {
		return protocol.Node{}, cluster.MayLive
	}
	return protocol.Node{}, cluster.Gone
}

// Dial is of cluster.Nodes.
func (n *testNode) Dial(ctx context.Context, epoch string, h *link.Hello) (*link.Conn, error) {
	to := n.find(epoch)
	if to == nil {
		return nil, errors.New("no node has this epoch")
	}
	return n.dialer.Dial(ctx, link.Peer{Node: link.Node{Name: to.name, Epoch: epoch}, URL: to.url}, h)
}

// Presence is of cluster.Nodes.
func (n *testNode) Presence(context.Context, string) (epochs []string) {
	for _, other := range n.All() {
		if other.Epoch != n.Pool.Epoch() {
			epochs = append(epochs, other.Epoch)
		}
	}
	return epochs
}

// Degraded is of cluster.Nodes.
func (n *testNode) Degraded() bool { return false }

// FindName is of cluster.Nodes.
func (n *testNode) FindName(context.Context, string, string) (string, error) { return "", nil }

// Place is of cluster.Nodes: new sessions are made where they are asked for.
func (n *testNode) Place(map[string]string, string) ([]string, error) {
	return []string{n.Pool.Epoch()}, nil
}

func (cl *testCluster) node(name string) *testNode {
	for _, n := range cl.nodes {
		if n.name == name {
			return n
		}
	}
	cl.t.Fatalf("no node %s", name)
	return nil
}

// linkListener is where a node takes links.
type linkListener struct {
	net.Listener

	mu       sync.Mutex
	accepted int                  // guarded by mu
	open     map[*linkSocket]bool // guarded by mu
}

// linkSocket is one link of another node.
type linkSocket struct {
	net.Conn
	of   *linkListener
	dead atomic.Bool // it ends when the other node sends something
}

func (l *linkListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &linkSocket{Conn: c, of: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted++
	l.open[s] = true
	return s, nil
}

// counts returns how many links were accepted, and how many of them are open.
func (l *linkListener) counts() (accepted, open int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepted, len(l.open)
}

// each calls f for every open link.
func (l *linkListener) each(f func(*linkSocket)) {
	l.mu.Lock()
	all := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, s := range all {
		f(s)
	}
}

// kill makes a link end without a word as soon as the other node uses it.
func (s *linkSocket) kill() { s.dead.Store(true) }

func (s *linkSocket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if s.dead.Load() && n > 0 {
		s.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func (s *linkSocket) Close() error {
	s.of.mu.Lock()
	delete(s.of.open, s)
	s.of.mu.Unlock()
	return s.Conn.Close()
}
