package web

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/web/auth"
	"trl/web/listen"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience bounds every wait on a busy machine.
const patience = 60 * time.Second

type object = rig.Object

// server is a gateway with a Server on a free port.
type server struct {
	*Server
	*gateway.Gateway
	stop func() error // Shutdown, once
}

func start(t testing.TB, change ...func(*Config)) *server {
	t.Helper()
	return startWith(t, func(*pool.Config) {}, change...)
}

// startWith is start with a pool of the caller.
func startWith(t testing.TB, tune func(*pool.Config), change ...func(*Config)) *server {
	t.Helper()
	g := &server{}
	ownBound := func(who string) int { // as internal/serve wires it
		if f, ok := g.cfg.Tokens.(*auth.TokenFile); ok {
			return f.MaxSessions(who)
		}
		return 0
	}
	sessions := pool.Config{MaxOfPrincipal: ownBound, Retention: time.Minute, BaseEnv: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/tmp"}}
	tune(&sessions)
	g.Gateway = gateway.New(t, sessions)
	cfg := Config{Config: listen.Config{Listen: "127.0.0.1:0", AuthNone: true}, Version: "test"}
	for _, f := range change {
		f(&cfg)
	}
	g.Server = New(cfg, g.Pool, g.Metrics, g.Registry, g.Logger)
	if err := g.Listen(); err != nil {
		g.CloseHost()
		t.Fatal(err)
	}
	g.Address = g.Addr()
	g.Pool.Start()
	served := make(chan error, 1)
	go func() { served <- g.Serve() }()
	g.stop = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := g.Shutdown(ctx)
		if e := <-served; err == nil {
			err = e
		}
		if e := g.CloseHost(); err == nil {
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
