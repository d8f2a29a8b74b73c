package web

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

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

// frame is any message from the server.
type frame struct {
	ID    any
	OK    bool
	Data  object
	Error *struct {
		Code, Message string
		Details       object
	}
	Event string
	size  int
}

type object map[string]any

func (o object) str(key string) string { s, _ := o[key].(string); return s }
func (o object) num(key string) int    { f, _ := o[key].(float64); return int(f) }

// bytes decodes a text field.
func (o object) bytes(key, encoding string) []byte {
	if o.str(encoding) == "base64" {
		b, _ := base64.StdEncoding.DecodeString(o.str(key))
		return b
	}
	return []byte(o.str(key))
}

func (f *frame) code() string {
	if f.Error == nil {
		return ""
	}
	return f.Error.Code
}

// client is one WebSocket connection that keeps what comes until it is asked for.
type client struct {
	t    testing.TB
	ws   *websocket.Conn
	next int

	mu     sync.Mutex
	came   []*frame // guarded by mu; not taken yet
	err    error    // guarded by mu; why reading ended
	change chan struct{}
	done   chan struct{}
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

func (g *gateway) dial(token ...string) *client {
	g.t.Helper()
	o := &websocket.DialOptions{Subprotocols: []string{"trl.v1"}, HTTPHeader: http.Header{}}
	if len(token) > 0 {
		o.HTTPHeader.Set("Authorization", "Bearer "+token[0])
	}
	ws, _, err := g.dialWith(o)
	if err != nil {
		g.t.Fatal(err)
	}
	c := &client{t: g.t, ws: ws, change: make(chan struct{}, 1), done: make(chan struct{})}
	go c.read()
	g.t.Cleanup(c.close)
	return c
}

func (c *client) read() {
	defer close(c.done)
	for {
		_, b, err := c.ws.Read(context.Background())
		f := &frame{size: len(b)}
		if err == nil {
			err = json.Unmarshal(b, f)
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.came = append(c.came, f)
		}
		c.mu.Unlock()
		select {
		case c.change <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (c *client) close() {
	c.ws.CloseNow()
	<-c.done
}

// await takes the first frame that fits.
func (c *client) await(what string, fits func(*frame) bool) *frame {
	c.t.Helper()
	timeout := time.After(patience)
	for {
		c.mu.Lock()
		for i, f := range c.came {
			if fits(f) {
				c.came = append(c.came[:i:i], c.came[i+1:]...)
				c.mu.Unlock()
				return f
			}
		}
		err := c.err
		c.mu.Unlock()
		if err != nil {
			c.t.Fatalf("%s: connection ended: %v", what, err)
		}
		select {
		case <-c.change:
		case <-timeout:
			c.t.Fatalf("%s: did not come", what)
		}
	}
}

func (c *client) event(name string) object {
	c.t.Helper()
	return c.await(name, func(f *frame) bool { return f.Event == name }).Data
}

func (c *client) sendText(text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// begin sends a request and returns its id.
func (c *client) begin(method string, params object) int {
	c.t.Helper()
	c.next++
	b, _ := json.Marshal(object{"id": c.next, "method": method, "params": params})
	c.sendText(string(b))
	return c.next
}

func (c *client) answer(id any) *frame {
	c.t.Helper()
	if n, ok := id.(int); ok {
		id = float64(n)
	}
	return c.await(fmt.Sprintf("answer %v", id), func(f *frame) bool { return f.Event == "" && f.ID == id })
}

func (c *client) try(method string, params object) *frame {
	c.t.Helper()
	return c.answer(c.begin(method, params))
}

func (c *client) call(method string, params object) object {
	c.t.Helper()
	f := c.try(method, params)
	if !f.OK {
		c.t.Fatalf("%s: %+v", method, f.Error)
	}
	return f.Data
}

func (c *client) session(more ...object) string {
	c.t.Helper()
	params := object{}
	for _, m := range more {
		for k, v := range m {
			params[k] = v
		}
	}
	return c.call("session.create", params).str("session_id")
}

func (c *client) run(session, command string) string {
	c.t.Helper()
	return c.call("exec.run", object{"session_id": session, "command": command}).str("stdout")
}

// output takes the events of a stream up to its exit and returns the bytes, which must be gapless from offset on, and the exit.
func (c *client) output(stream string, offset int) ([]byte, object) {
	c.t.Helper()
	var b []byte
	for {
		f := c.await("output of "+stream, func(f *frame) bool {
			return f.Data.str("stream_id") == stream && (strings.HasSuffix(f.Event, ".output") || strings.HasSuffix(f.Event, ".exit") || f.Event == "stream.gap")
		})
		switch {
		case strings.HasSuffix(f.Event, ".exit"):
			return b, f.Data
		case f.Event == "stream.gap":
			c.t.Fatalf("gap: %v", f.Data)
		case f.Data.num("offset") != offset+len(b):
			c.t.Fatalf("offset %d, want %d", f.Data.num("offset"), offset+len(b))
		}
		b = append(b, f.Data.bytes("data", "encoding")...)
	}
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
