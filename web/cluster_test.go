package web

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	gone          bool   // guarded by of.mu; nobody knows it any more
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
	accepting.Go(func() { a.Serve(ctx, l) })
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
