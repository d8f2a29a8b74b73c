package web

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/metrics"
	"trl/pool"
	"trl/runtime"
	"trl/web/auth"
	"trl/web/listen"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long anything may take on a busy machine before a test gives up.
const patience = 60 * time.Second

type object = rig.Object

// tokens is a Tokens of a test.
type tokens map[string]auth.Principal

func (t tokens) Lookup(token string) (*auth.Grant, auth.Outcome) {
	if p, ok := t[token]; ok {
		return &auth.Grant{Principal: p}, auth.Accepted
	}
	return nil, auth.Unknown
}

func (t tokens) ByID(string) *auth.Grant { return nil }

// gateway is a real one on a free port, with real shells.
type gateway struct {
	*Server
	t        testing.TB
	pool     *pool.Pool
	registry *prometheus.Registry
	log      *testkit.LogBook
	stop     func() error // Shutdown, once
}

func start(t testing.TB, change ...func(*Config)) *gateway {
	t.Helper()
	return startWith(t, func(*pool.Config) {}, change...)
}

// startWith is start with another pool.
func startWith(t testing.TB, tune func(*pool.Config), change ...func(*Config)) *gateway {
	t.Helper()
	testkit.StartsProcesses(t)
	g := &gateway{t: t, registry: prometheus.NewRegistry(), log: &testkit.LogBook{}}
	log := zerolog.New(g.log)
	m := metrics.New(g.registry)
	host, err := runtime.NewHost(runtime.Config{Isolation: "auto", Metrics: m, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ownBound := func(who string) int { // as internal/serve wires it
		if f, ok := g.cfg.Tokens.(*auth.TokenFile); ok {
			return f.MaxSessions(who)
		}
		return 0
	}
	sessions := pool.Config{MaxOfPrincipal: ownBound, Retention: time.Minute, BaseEnv: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"}}
	tune(&sessions)
	g.pool = pool.New(sessions, runtime.Local(host), m, log)
	cfg := Config{Config: listen.Config{Listen: "127.0.0.1:0", AuthNone: true}, Version: "test"}
	for _, f := range change {
		f(&cfg)
	}
	g.Server = New(cfg, g.pool, m, g.registry, log)
	if err := g.Listen(); err != nil {
		host.Close()
		t.Fatal(err)
	}
	g.pool.Start()
	served := make(chan error, 1)
	go func() { served <- g.Serve() }()
	g.stop = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := g.Shutdown(ctx)
		if e := <-served; err == nil {
			err = e
		}
		if e := host.Close(); err == nil {
			err = e
		}
		return err
	})
	t.Cleanup(func() {
		if err := g.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return g
}

func (g *gateway) dialWith(o *websocket.DialOptions) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, "ws://"+g.Addr()+"/v1/ws", o)
	if err == nil {
		ws.SetReadLimit(-1)
	}
	return ws, resp, err
}

func (g *gateway) dial(token ...string) *rig.Client {
	g.t.Helper()
	o := &websocket.DialOptions{Subprotocols: []string{"trl.v1"}, HTTPHeader: http.Header{}}
	if len(token) > 0 {
		o.HTTPHeader.Set("Authorization", "Bearer "+token[0])
	}
	ws, _, err := g.dialWith(o)
	if err != nil {
		g.t.Fatal(err)
	}
	return rig.NewClient(g.t, ws)
}

// metric is the sum of a series over its labels.
func (g *gateway) metric(name string) float64 {
	families, err := g.registry.Gather()
	if err != nil {
		g.t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}
