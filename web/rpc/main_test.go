package rpc

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/listen"
	"trl/web/rpc/bounds"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type object = rig.Object

// config is what a test changes of its server.
type config struct {
	LiveConfig
	AuthNone bool
	Tokens   auth.Tokens
	stall    time.Duration // of a message that has begun
	nodes    cluster.Nodes
	audit    *audit.Log

	gatherWait time.Duration // 0: as long as a busy machine needs
}

func withTokens(c *config) { c.AuthNone, c.Tokens = false, gateway.RoleTokens }

// server is a gateway whose only route is the WebSocket, on a free port.
type server struct {
	*gateway.Gateway
	clients *Clients
}

func start(t testing.TB, change ...func(*config)) *server {
	t.Helper()
	return startWith(t, func(*pool.Config) {}, change...)
}

// throughRelay makes the clients of all tests use a gateway that owns nothing: every session is on another node. No test should see that, but for those
// that count what a gateway holds.
var throughRelay = os.Getenv("TRL_TEST_RELAY") != ""

// startWith is start with another pool.
func startWith(t testing.TB, tune func(*pool.Config), change ...func(*config)) *server {
	t.Helper()
	if throughRelay {
		cl := newClusterWith(t, []string{"gate", "owner"}, tune, change...)
		g := cl.node("owner").server
		g.Address = cl.node("gate").Address
		return g
	}
	return startNode(t, tune, change...)
}

// startNode starts one gateway.
func startNode(t testing.TB, tune func(*pool.Config), change ...func(*config)) *server {
	t.Helper()
	sessions := pool.Config{Retention: time.Minute, BaseEnv: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"}}
	tune(&sessions)
	g := &server{Gateway: gateway.New(t, sessions)}
	cfg := config{LiveConfig: LiveConfig{MaxFrame: 4 << 20, SlowClient: 30 * time.Second}, AuthNone: true, stall: transport.StallLimit}
	for _, f := range change {
		f(&cfg)
	}
	checker := auth.New(auth.Config{None: cfg.AuthNone, Tokens: cfg.Tokens, Refused: func(*http.Request, string) {}, GuestElsewhere: func(ctx context.Context, token string) (*auth.Grant, *protocol.Error) {
		return g.clients.GuestElsewhere(ctx, token)
	}}, g.Pool, g.Metrics, g.Logger)
	if err := checker.Open(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.Address = l.Addr().String()
	g.clients = New(Config{
		MaxInFlight: MaxInFlight, MaxConns: 1024, MaxGuests: 16, PingEvery: 20 * time.Second, PeerSilence: 45 * time.Second, Version: "test", Drains: neverDrains{},
		Cluster: Cluster{Nodes: cfg.nodes}, Audit: cfg.audit,
	}, func() *LiveConfig { return &cfg.LiveConfig }, g.Pool, checker, g.Metrics, g.Logger)
	g.clients.gatherWait = testkit.Patience // a busy machine may be late
	if cfg.gatherWait != 0 {
		g.clients.gatherWait = cfg.gatherWait
	}
	srv := &http.Server{ConnContext: listen.ConnContext, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, no := checker.Authorize(r)
		if no != nil {
			auth.Deny(w, no)
			return
		}
		bounds := transport.Limits{MaxFrame: cfg.MaxFrame, Stall: cfg.stall, PingEvery: 20 * time.Second, PeerSilence: 45 * time.Second}
		if r.Method == http.MethodPost {
			g.clients.ServeHTTP(w, r, listen.SocketOf(r), who, r.RemoteAddr, bounds)
			return
		}
		leave, full := g.clients.Admit(who)
		if full != nil {
			auth.Refuse(w, full.Status, full.String())
			return
		}
		defer leave()
		conn, err := transport.AcceptWebSocket(w, r, bounds)
		if err != nil {
			t.Error(err)
			return
		}
		g.clients.Serve(conn, who, auth.ClientAddr(r), r.RemoteAddr)
	})}
	gated := listen.LimitStrangers(l, func() time.Duration { return cfg.SlowClient }, g.Metrics.ClientsRefused.WithLabelValues(bounds.GroupStrangers))
	g.Pool.Start()
	var served sync.WaitGroup
	served.Go(func() { srv.Serve(gated) })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		soon, cancel := context.WithTimeout(ctx, ShutdownNotice)
		defer cancel()
		emptied := make(chan struct{})
		go func() { // waited for below
			defer close(emptied)
			if err := g.Pool.Close(ctx); err != nil {
				t.Errorf("pool: %v", err)
			}
		}()
		g.clients.Leave(soon, emptied)
		<-emptied
		srv.Close()
		gated.Close()
		served.Wait()
		g.clients.Close()
		checker.Close()
		if err := g.CloseHost(); err != nil {
			t.Errorf("host: %v", err)
		}
	})
	return g
}

// neverDrains is the drain of a server that has none.
type neverDrains struct{}

func (neverDrains) Drain(time.Duration, bool, bool) {}
func (neverDrains) Undrain() error                  { return nil }
func (neverDrains) Draining() bool                  { return false }
