package rpc

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/cluster/link"
	"trl/pool"
	"trl/pool/ids"
	"trl/protocol"
	"trl/web/rpc/cluster"
)

// testCluster is some gateways with links between them, and a directory that is always right.
type testCluster struct {
	t      testing.TB
	scheme string // of links
	nodes  []*testNode
	place  []string // guarded by mu; names of the nodes to ask for a new session
	down   error    // guarded by mu; what the directory answers; nil: it works
	fresh  bool     // guarded by mu; nodes that are not known may live

	found func() string // guarded by mu; what FindName answers; nil: what is true
	mu    sync.Mutex
}

// testNode is one gateway.
type testNode struct {
	*server
	cluster *testCluster
	name    string
	proxy   *linkProxy
	dialer  *link.Dialer
	hidden  bool // guarded by cluster.mu; its lease has run out
}

// newCluster starts a gateway for each name. New sessions go to the second one, until placeOn says otherwise.
func newCluster(t testing.TB, names []string, change ...func(*config)) *testCluster {
	t.Helper()
	return newClusterWith(t, names, func(*pool.Config) {}, change...)
}

func newClusterWith(t testing.TB, names []string, tune func(*pool.Config), change ...func(*config)) *testCluster {
	t.Helper()
	return (&testCluster{t: t, place: names[1:2], scheme: "ws"}).start(names, tune, change)
}

func (cl *testCluster) start(names []string, tune func(*pool.Config), change []func(*config)) *testCluster {
	t := cl.t
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 40)), 0o600); err != nil {
		t.Fatal(err)
	}
	cred, err := link.OpenCredentials(link.Files{Secret: secret}, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		cl.add(name, cred, tune, change)
	}
	return cl
}

func (cl *testCluster) add(name string, cred *link.Credentials, tune func(*pool.Config), change []func(*config)) {
	t := cl.t
	n := &testNode{cluster: cl, name: name}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.proxy = newLinkProxy(t, l.Addr().String())
	ctx, stop := context.WithCancel(context.Background())
	var accepting sync.WaitGroup
	t.Cleanup(func() { // after the gateway has ended
		stop()
		accepting.Wait()
		if n.dialer != nil {
			n.dialer.Close()
		}
	})
	n.server = startNode(t, tune, append(slices.Clone(change), func(c *config) { c.nodes = nodesOf{n} })...)
	self := link.Node{Name: name, Epoch: n.Pool.Epoch()}
	limits := link.Limits{MaxMessage: 4 << 20}
	a, err := link.NewAcceptor(link.AcceptorOptions{
		Self: self, URL: cl.scheme + "://" + n.proxy.Addr().String(), Credentials: cred, Limits: limits,
		Admit:   func(_ context.Context, _ link.Node, h *link.Hello) error { return n.clients.AdmitLink(h) },
		Serve:   func(_ context.Context, h *link.Hello, c *link.Conn) { n.clients.ServeLink(h, c) },
		Refused: func(_ string, err error) { t.Logf("%s refused a link: %v", name, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	accepting.Go(func() { a.Serve(ctx, l) })
	if n.dialer, err = link.NewDialer(context.Background(), link.DialerOptions{Self: self, Credentials: cred}); err != nil {
		t.Fatal(err)
	}
	cl.mu.Lock()
	cl.nodes = append(cl.nodes, n)
	cl.mu.Unlock()
}

func (cl *testCluster) node(name string) *testNode {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, n := range cl.nodes {
		if n.name == name {
			return n
		}
	}
	cl.t.Fatalf("no node %s", name)
	return nil
}

// placeOn says where new sessions go.
func (cl *testCluster) placeOn(names ...string) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.place = names
}

// setDown makes the directory answer with err.
func (cl *testCluster) setDown(err error) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.down = err
}

func (cl *testCluster) fault() error {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.down
}

// nodesOf is what a node knows of its cluster.
type nodesOf struct{ *testNode }

func (n *testNode) describe() protocol.Node {
	return protocol.Node{Node: n.name, Epoch: n.Pool.Epoch(), MaxSessions: 256}
}

func (n nodesOf) Self() protocol.Node { return n.describe() }

func (n nodesOf) All() (all []protocol.Node) {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	for _, other := range n.cluster.nodes {
		if !other.hidden {
			all = append(all, other.describe())
		}
	}
	return all
}

func (n *testNode) find(epoch string) *testNode {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	for _, other := range n.cluster.nodes {
		if other.Pool.Epoch() == epoch && !other.hidden {
			return other
		}
	}
	return nil
}

func (n nodesOf) Find(epoch string) (protocol.Node, cluster.Standing) {
	if other := n.find(epoch); other != nil {
		return other.describe(), cluster.Known
	}
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	if n.cluster.fresh {
		return protocol.Node{}, cluster.MayLive
	}
	return protocol.Node{}, cluster.Gone
}

func (n nodesOf) Dial(ctx context.Context, epoch string, h *link.Hello) (*link.Conn, error) {
	to := n.find(epoch)
	return n.dialer.Dial(ctx, link.Peer{Node: link.Node{Name: to.name, Epoch: epoch}, URL: n.cluster.scheme + "://" + to.proxy.Addr().String()}, h)
}

func (n nodesOf) FindName(_ context.Context, principal, name string) (epoch string, err error) {
	if err := n.cluster.fault(); err != nil {
		return "", err
	}
	n.cluster.mu.Lock()
	found := n.cluster.found
	n.cluster.mu.Unlock()
	if found != nil {
		epoch, _ := ids.EpochOf('s', found())
		return epoch, nil
	}
	for _, node := range n.All() {
		if other := n.find(node.Epoch); other != nil && other.Pool.HasOpen(principal, name) {
			return node.Epoch, nil
		}
	}
	return "", nil
}

func (n nodesOf) FindKey(context.Context, string, string) (string, error) { return "", nil }

func (n nodesOf) FindMoved(_ context.Context, mark string) (epoch string, err error) {
	if err := n.cluster.fault(); err != nil {
		return "", err
	}
	for _, node := range n.All() {
		if other := n.find(node.Epoch); other != nil && other.Pool.Has(mark) {
			return node.Epoch, nil
		}
	}
	return "", nil
}

func (n nodesOf) Place(where map[string]string, node string) (epochs []string, err error) {
	if len(where) > 0 {
		return nil, protocol.InvalidParam("where", "no node has labels")
	}
	n.cluster.mu.Lock()
	names := n.cluster.place
	n.cluster.mu.Unlock()
	if node != "" {
		if names = []string{node}; !slices.ContainsFunc(n.All(), func(other protocol.Node) bool { return other.Node == node }) {
			return nil, protocol.InvalidParam("node", "there is no node %q", node)
		}
	}
	for _, name := range names {
		epochs = append(epochs, n.cluster.node(name).Pool.Epoch())
	}
	return epochs, nil
}

func (n nodesOf) Presence(context.Context, string) (epochs []string) {
	for _, other := range n.All() {
		if other.Epoch != n.Pool.Epoch() {
			epochs = append(epochs, other.Epoch)
		}
	}
	return epochs
}

func (n nodesOf) Degraded() bool { return n.cluster.fault() != nil }

// linkProxy stands between the nodes and one of them.
type linkProxy struct {
	net.Listener
	to    string
	tasks sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu

	accepted int           // guarded by mu; connections that were let in
	gate     chan struct{} // guarded by mu; closed: bytes pass
	away     bool          // guarded by mu; nobody is let in
}

func newLinkProxy(t testing.TB, to string) *linkProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &linkProxy{Listener: l, to: to, conns: map[net.Conn]bool{}, gate: make(chan struct{})}
	close(p.gate)
	p.tasks.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.resume()
		p.cut()
		p.tasks.Wait()
	})
	return p
}

func (p *linkProxy) accept() {
	for {
		in, err := p.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		away := p.away
		p.mu.Unlock()
		out, err := net.Dial("tcp", p.to)
		if err != nil || away {
			in.Close()
			if err == nil {
				out.Close()
			}
			continue
		}
		p.mu.Lock()
		p.conns[in], p.conns[out] = true, true
		p.accepted++
		p.mu.Unlock()
		p.tasks.Go(func() { p.copy(in, out) })
		p.tasks.Go(func() { p.copy(out, in) })
	}
}

func (p *linkProxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		gate := p.gate
		p.mu.Unlock()
		<-gate
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends all connections.
func (p *linkProxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
		delete(p.conns, c)
	}
}

// setAway says whether nobody is let in.
func (p *linkProxy) setAway(away bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = away
}

// pause lets no bytes pass until resume.
func (p *linkProxy) pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate = make(chan struct{})
}

func (p *linkProxy) resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.gate:
	default:
		close(p.gate)
	}
}

// BenchmarkRelayedRun measures exec.run at the owner and through another node, by turns. The difference has a budget: 150 µs for the median.
func BenchmarkRelayedRun(b *testing.B) {
	cl := newCluster(b, []string{"gate", "one"})
	s := cl.node("gate").Dial().Session()
	request := fmt.Appendf(nil, `{"id":1,"method":"exec.run","params":{"session_id":%q,"command":":"}}`, s)
	took := map[string][]time.Duration{}
	conns := map[string]*websocket.Conn{}
	for _, name := range []string{"one", "gate"} {
		ws, _, err := cl.node(name).DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			b.Fatal(err)
		}
		defer ws.CloseNow()
		conns[name] = ws
	}
	for b.Loop() {
		for name, ws := range conns {
			began := time.Now()
			if err := ws.Write(b.Context(), websocket.MessageText, request); err != nil {
				b.Fatal(err)
			}
			if _, _, err := ws.Read(b.Context()); err != nil {
				b.Fatal(err)
			}
			took[name] = append(took[name], time.Since(began))
		}
	}
	reportQuantiles(b, took)
}

// reportQuantiles reports the median and the 99th percentile of what requests at the owner and through another node took.
func reportQuantiles(b *testing.B, took map[string][]time.Duration) {
	at := func(name string, part float64) float64 {
		slices.Sort(took[name])
		return float64(took[name][int(part*float64(len(took[name])-1))].Nanoseconds()) / 1000
	}
	for _, part := range []float64{0.5, 0.99} {
		b.ReportMetric(at("one", part), fmt.Sprintf("owner-p%.0f-µs", part*100))
		b.ReportMetric(at("gate", part), fmt.Sprintf("relayed-p%.0f-µs", part*100))
	}
}

// BenchmarkRelayedHTTP does the same with POST /v1/rpc, and a list that is gathered from another node over a WebSocket. Links use TLS.
func BenchmarkRelayedHTTP(b *testing.B) {
	cl := (&testCluster{t: b, place: []string{"one"}, scheme: "wss"}).start([]string{"gate", "one"}, func(*pool.Config) {}, nil)
	gate := cl.node("gate").Dial()
	request := fmt.Sprintf(`{"method":"exec.run","params":{"session_id":%q,"command":":"}}`, gate.Session())
	took := map[string][]time.Duration{}
	var lists []time.Duration
	for b.Loop() {
		for _, name := range []string{"one", "gate"} {
			began := time.Now()
			if status, text := post(b, cl.node(name), request, ""); status != 200 {
				b.Fatal(text)
			}
			took[name] = append(took[name], time.Since(began))
		}
		began := time.Now()
		gate.Call("session.list", nil)
		lists = append(lists, time.Since(began))
	}
	reportQuantiles(b, took)
	slices.Sort(lists)
	b.ReportMetric(float64(lists[len(lists)/2].Nanoseconds())/1000, "list-p50-µs")
}
