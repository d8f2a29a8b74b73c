// Package member makes a gateway a node of a cluster: it joins the directory, takes links from the other nodes and dials them, and answers what the
// gateway asks of its cluster (web/rpc/cluster.Nodes) and what its pool asks (claims.Directory).
//
// A Member owns three things, each with goroutines of its own: the directory (ended by directory.Close), the dialer (ended by Dialer.Close, which waits
// for its links) and the acceptor. The acceptor's goroutine and the one that describes this node begin in Start; Stop ends both and waits for them.
package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/cluster/directory"
	"trl/cluster/link"
	"trl/cluster/node"
	"trl/internal/buildinfo"
	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/metrics"
)

// describeInterval is how often the directory is told how busy this node is. It passes that on with its heartbeats, and at once what is urgent.
const describeInterval = time.Second

// joinPatience is how long after its start a node may not have reached the directory before it logs that.
const joinPatience = 5 * time.Second

// Member is this gateway as a node of its cluster. Open makes it, Attach gives it the pool, Start makes it serve, Stop and Close end it.
type Member struct {
	self      link.Node
	settings  *config.Settings // as at the start
	listener  net.Listener
	creds     *link.Credentials
	dialer    *link.Dialer
	directory *directory.Directory
	metrics   *metrics.Metrics
	log       zerolog.Logger
	opened    time.Time

	stop    context.CancelFunc // set once in Start; ends the goroutines of Start
	running sync.WaitGroup

	mu     sync.Mutex
	pool   sessions        // guarded by mu; nil before Attach
	limits *limits         // guarded by mu; what a reload may change
	twins  map[string]bool // guarded by mu; epochs of other nodes with our name that were logged
}

// sessions is what a Member needs of the pool.
type sessions interface {
	LiveCount() int
	LoseName(session string)
}

// server is what a Member needs of the gateway's server.
type server interface {
	AdmitLink(h *link.Hello) error
	ServeLink(h *link.Hello, c *link.Conn)
	Draining() bool
}

// limits are what a reload may change of a node.
type limits struct {
	max    int
	labels map[string]string
}

func limitsOf(s *config.Settings) *limits {
	return &limits{max: max(0, s.PoolConfig().MaxSessions), labels: s.Cluster.Labels}
}

// Open joins the directory. It does not wait for it: a node whose directory does not answer serves its own sessions and joins later. The others do
// not give it sessions before Start. epoch is the part of ids that says that this node made them; l is the listener for links.
func Open(s *config.Settings, epoch string, l net.Listener, m *metrics.Metrics, log zerolog.Logger) (*Member, error) {
	c := &s.Cluster
	b := &Member{
		self: link.Node{Name: c.Node, Epoch: epoch}, settings: s, listener: l, metrics: m, log: log, opened: time.Now(), limits: limitsOf(s), twins: map[string]bool{},
		stop: func() {},
	}
	var err error
	b.creds, err = link.OpenCredentials(link.Files{Secret: c.Secret, CA: c.LinkCA, Cert: c.LinkCert, Key: c.LinkKey}, func(err error) {
		log.Error().Err(err).Msg("changed files of the cluster cannot be used; the earlier ones stay in force")
	})
	if errors.Is(err, fs.ErrPermission) && s.GatewayUser != nil {
		return nil, cmdline.WithHint(err, "the gateway runs as %s, which must be able to read the file and its directory", s.GatewayUser.Text)
	}
	if err != nil {
		return nil, cmdline.WithHint(err, "see --cluster-secret, --cluster-ca, --cluster-cert and --cluster-key")
	}
	b.dialer, err = link.NewDialer(context.Background(), link.DialerOptions{
		Self: b.self, Credentials: b.creds, Insecure: s.Web.Insecure, Limits: link.Limits{Stall: b.stall()}, OnReach: b.logReach,
	})
	if err != nil {
		return nil, cmdline.WithHint(err, "see --node")
	}
	b.directory, err = directory.Open(directory.Options{
		Servers: c.Servers, Creds: c.Creds, CA: c.CA, Insecure: s.Web.Insecure, Metrics: m,
		Node: node.Node{
			Epoch: epoch, Name: c.Node, URL: b.url(), PublicURL: c.PublicURL, Zone: c.Labels["zone"], Labels: c.Labels,
			Version: buildinfo.Version(), Link: link.Version, Starting: true,
		},
		OnHealth: b.logHealth, OnNodes: b.logTwins, OnConflict: b.conflict,
	})
	if err != nil {
		b.dialer.Close()
		return nil, cmdline.WithHint(err, "see --cluster, --cluster-nats-creds and --cluster-nats-ca; --insecure when the network encrypts itself")
	}
	return b, nil
}

// url is where the other nodes dial this one.
func (b *Member) url() string {
	return cmp.Or(b.settings.Cluster.Advertise, "wss://"+b.listener.Addr().String())
}

// stall is how long another node may take nothing from a link. It is above the time that its gateway gives a slow client.
func (b *Member) stall() time.Duration { return max(time.Minute, 2*b.settings.Web.SlowClient) }

// Attach gives the member its pool, before the pool starts.
func (b *Member) Attach(p sessions) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pool = p
}

// Start takes links and tells the other nodes that this one takes sessions.
func (b *Member) Start(s server, refused func(remote string)) error {
	ctx, cancel := context.WithCancel(context.Background())
	acceptor, err := link.NewAcceptor(link.AcceptorOptions{
		Self: b.self, URL: b.url(), Credentials: b.creds, Insecure: b.settings.Web.Insecure, Limits: link.Limits{MaxMessage: b.settings.Web.MaxFrame, Stall: b.stall()},
		Peer:  b.checkPeer,
		Admit: func(_ context.Context, _ link.Node, h *link.Hello) error { return s.AdmitLink(h) },
		Serve: func(_ context.Context, h *link.Hello, c *link.Conn) { s.ServeLink(h, c) },
		Refused: func(remote string, err error) {
			b.metrics.LinksRefused.Inc()
			b.log.Warn().Err(err).Str("remote", remote).Msg("link refused")
			refused(remote)
		},
	})
	if err == nil {
		err = acceptor.CheckListener(b.listener)
	}
	if err != nil {
		cancel()
		return cmdline.WithHint(err, "see --cluster-listen and --cluster-advertise")
	}
	b.stop = cancel
	b.running.Go(func() { // takes links; ends with ctx, when all links have ended; Stop waits for it
		if err := acceptor.Serve(ctx, b.listener); err != nil {
			b.log.Error().Err(err).Msg("links of other nodes are not taken any more")
		}
	})
	b.describe(s)
	b.running.Go(func() { // tells how busy this node is; ends with ctx; Stop waits for it
		tick, late := time.NewTicker(describeInterval), time.After(joinPatience)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.describe(s)
			case <-late:
				if degraded, why := b.directory.Degraded(); degraded {
					b.logHealth(true, why) // the directory reports only changes
				}
			case <-ctx.Done():
				return
			}
		}
	})
	b.log.Info().Str("node", b.self.Name).Str("epoch", b.self.Epoch).Str("address", b.url()).Msg("node of a cluster")
	return nil
}

func (b *Member) describe(s server) {
	b.mu.Lock()
	p, l := b.pool, b.limits
	b.mu.Unlock()
	live, draining, load := p.LiveCount(), s.Draining(), loadPerProcessor()
	b.directory.Describe(func(n *node.Node) {
		n.Live, n.Max, n.Draining, n.Load, n.Labels, n.Zone, n.Starting = live, l.max, draining, load, l.labels, l.labels["zone"], false
	})
}

// loadPerProcessor returns how many processes want to run for each processor, or 0 if proc(5) does not tell.
func loadPerProcessor() float64 {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load / float64(runtime.NumCPU())
}

// Configure puts settings that a reload has changed in force.
func (b *Member) Configure(s *config.Settings) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = limitsOf(s)
}

// Leave tells the other nodes that this one has ended: its names are free at once. Without it they learn when the lease has run out.
func (b *Member) Leave(ctx context.Context) {
	if degraded, _ := b.directory.Degraded(); degraded {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := b.directory.Leave(ctx); err != nil {
		b.log.Warn().Err(err).Msg("the cluster learns of this node's end only when its lease has run out")
	}
}

// Stop takes no more links, and returns when all links that were taken have ended. The server has ended their clients before.
func (b *Member) Stop() {
	b.stop()
	b.running.Wait()
}

// Close ends everything else. The node's entry in the directory stays for the rest of its lease, for the next gateway of the same keeper.
func (b *Member) Close() {
	b.Stop()
	b.dialer.Close()
	b.directory.Close()
	b.listener.Close()
}

// logReach logs once that a node cannot be dialled, and once that it can be again, however many requests want it.
func (b *Member) logReach(to link.Node, cause error) {
	if cause != nil {
		b.log.Warn().Err(cause).Str("node", to.Name).Str("epoch", to.Epoch).Msg("node cannot be reached")
		return
	}
	b.log.Info().Str("node", to.Name).Str("epoch", to.Epoch).Msg("node can be reached again")
}

func (b *Member) logHealth(degraded bool, why string) {
	if degraded {
		b.log.Warn().Str("cause", why).Msg("the cluster's directory does not answer; sessions, links and the nodes known so far go on, new names wait")
		return
	}
	b.log.Info().Msg("the cluster's directory answers")
}

// logTwins logs nodes with this node's name, which cannot link to it. After a restart of a whole node its earlier entry is one until its lease has run
// out.
func (b *Member) logTwins() {
	for _, n := range b.directory.Nodes() {
		if n.Name != b.self.Name || n.Epoch == b.self.Epoch || time.Since(b.opened) < time.Minute {
			continue
		}
		b.mu.Lock()
		told := b.twins[n.Epoch]
		b.twins[n.Epoch] = true
		b.mu.Unlock()
		if !told {
			b.log.Error().Str("node", n.Name).Str("epoch", n.Epoch).Msg("another node has the name of this one; give each a --node of its own")
		}
	}
}

// conflict hears of what this node owned and another one has now.
func (b *Member) conflict(c directory.Conflict) {
	switch c.Kind {
	case "name":
		b.mu.Lock()
		p := b.pool
		b.mu.Unlock()
		if p != nil {
			p.LoseName(c.Session)
		}
	case "node":
		b.log.Error().Str("node", c.Session).Str("epoch", c.Key).Msg("another gateway uses the epoch of this node")
	default:
		b.log.Warn().Str("session", c.Session).Msg("another node has this session's place in the directory now: " + c.Kind)
	}
}

// checkPeer refuses a node that claims another one's epoch. A name may have two epochs for a while, because a node that was restarted has a new one.
func (b *Member) checkPeer(from link.Node) error {
	if n, ok := b.directory.Node(from.Epoch); ok && n.Name != from.Name {
		return fmt.Errorf("epoch %s is of node %s, not %s", from.Epoch, n.Name, from.Name)
	}
	return nil
}

// Dial makes a link to a known node, for the client that h describes.
func (b *Member) Dial(ctx context.Context, epoch string, h *link.Hello) (*link.Conn, error) {
	n, ok := b.directory.Node(epoch)
	if !ok {
		return nil, &link.UnreachableError{Node: link.Node{Epoch: epoch}, RetryAfter: time.Second, Cause: errors.New("no node has this epoch")}
	}
	c, err := b.dialer.Dial(ctx, link.Peer{Node: link.Node{Name: n.Name, Epoch: n.Epoch}, URL: n.URL}, h)
	outcome := metrics.LinkOK
	switch {
	case err != nil:
		outcome = metrics.LinkFailed
	case c.Kept():
		outcome = metrics.LinkKept
	}
	b.metrics.LinksDialled.WithLabelValues(outcome).Inc()
	return c, err
}

func newRandom() *rand.Rand { return rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) }
