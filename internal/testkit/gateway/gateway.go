// Package gateway runs a real pool for tests of the network edge, and dials what serves it.
package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/metrics"
	"trl/pool"
	"trl/runtime/host"
	"trl/web/auth"
)

// Gateway is a pool with real shells in this process. A test puts a server in front of it.
type Gateway struct {
	T        testing.TB
	Pool     *pool.Pool
	Metrics  *metrics.Metrics
	Registry *prometheus.Registry
	Log      *testkit.LogBook
	Logger   zerolog.Logger // writes into Log
	Address  string         // where the test's server listens; the test sets it

	host *host.Host
}

// New makes a pool that the server starts and closes. The caller closes the host then.
func New(t testing.TB, config pool.Config) *Gateway {
	t.Helper()
	testkit.StartsProcesses(t)
	g := &Gateway{T: t, Registry: prometheus.NewRegistry(), Log: &testkit.LogBook{}}
	g.Logger = zerolog.New(g.Log)
	g.Metrics = metrics.New(g.Registry)
	h, err := host.NewHost(host.Config{Isolation: "auto", Metrics: g.Metrics, Log: g.Logger})
	if err != nil {
		t.Fatal(err)
	}
	g.host = h
	g.Pool = pool.New(config, host.Local(h), g.Metrics, g.Logger)
	return g
}

// CloseHost ends every process of the gateway and waits for them.
func (g *Gateway) CloseHost() error { return g.host.Close() }

// DialWith makes a WebSocket connection.
func (g *Gateway) DialWith(o *websocket.DialOptions) (*websocket.Conn, *http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, "ws://"+g.Address+"/v1/ws", o)
	if err == nil {
		ws.SetReadLimit(-1)
	}
	return ws, resp, err
}

// Dial is a client, with a token where one is given.
func (g *Gateway) Dial(token ...string) *rig.Client {
	g.T.Helper()
	o := &websocket.DialOptions{Subprotocols: []string{"trl.v1"}, HTTPHeader: http.Header{}}
	if len(token) > 0 {
		o.HTTPHeader.Set("Authorization", "Bearer "+token[0])
	}
	ws, _, err := g.DialWith(o)
	if err != nil {
		g.T.Fatal(err)
	}
	return rig.NewClient(g.T, ws)
}

// Raw is a WebSocket connection without a library.
func (g *Gateway) Raw() rig.RawConn {
	g.T.Helper()
	return rig.DialRaw(g.T, g.Address, "")
}

// Share makes a share link and dials with it.
func (g *Gateway) Share(owner *rig.Client, params rig.Object) (guest *rig.Client, link rig.Object) {
	g.T.Helper()
	link = owner.Call("share.create", params)
	return g.Dial(link.Str("token")), link
}

// Metric is the sum of a series over its labels.
func (g *Gateway) Metric(name string) (sum float64) {
	g.eachSeries(name, func(_ string, value float64) { sum += value })
	return sum
}

// Series is one series by the values of its labels, -1 where there is none.
func (g *Gateway) Series(name string, labels ...string) float64 {
	found := -1.0
	g.eachSeries(name, func(of string, value float64) {
		if of == strings.Join(labels, " ") {
			found = value
		}
	})
	return found
}

func (g *Gateway) eachSeries(name string, f func(labels string, value float64)) {
	families, err := g.Registry.Gather()
	if err != nil {
		g.T.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			f(strings.Join(values, " "), m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
}

// Tokens are the tokens that a test's server knows.
type Tokens map[string]auth.Principal

func (t Tokens) Lookup(token string) (*auth.Grant, auth.Outcome) {
	if p, ok := t[token]; ok {
		return &auth.Grant{Principal: p}, auth.Accepted
	}
	return nil, auth.Unknown
}

func (t Tokens) ByID(string) *auth.Grant { return nil }

// The tokens of RoleTokens.
const (
	AdminToken = "admin-token-0123456789abcdef"
	UserToken  = "user-token-0123456789abcdef"
	ViewToken  = "view-token-0123456789abcdef"
)

// RoleTokens has a token for each role: ann's for an admin and a viewer, bob's for a user.
var RoleTokens = Tokens{
	AdminToken: {Subject: "ann", Role: auth.Admin},
	UserToken:  {Subject: "bob", Role: auth.User},
	ViewToken:  {Subject: "ann", Role: auth.Viewer},
}
