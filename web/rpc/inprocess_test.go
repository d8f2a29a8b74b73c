package rpc

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"trl/client"
	"trl/internal/testkit"
	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/bounds"
	"trl/web/transport"
)

func (g *server) visit(who auth.Principal) *Visit {
	g.T.Helper()
	v, full := g.clients.Visit(&auth.Grant{Principal: who}, "test")
	if full != nil {
		g.T.Fatal(full)
	}
	return v
}

// inProcess is a Go client that reaches the server without a socket.
func (g *server) inProcess(who auth.Principal) *client.Client {
	g.T.Helper()
	v := g.visit(who)
	c, err := client.Connect(g.T.Context(), client.Options{Dial: func(context.Context) (net.Conn, error) { return v.Connect() }})
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { c.Close(); v.Leave() })
	return c
}

func TestClientInProcess(t *testing.T) {
	g := start(t, withTokens)
	ann, viewer := g.inProcess(auth.Principal{Subject: "ann", Role: auth.User}), g.inProcess(auth.Principal{Subject: "ann", Role: auth.Viewer})
	r, err := ann.Exec(t.Context(), "cd /usr; pwd", nil)
	if err != nil || r.Stdout != "/usr\n" {
		t.Fatalf("%+v, %v", r, err)
	}
	_, err = viewer.Exec(t.Context(), "pwd", nil)
	testkit.WantCode(t, err, protocol.Forbidden)
	s, err := ann.ExecStream(t.Context(), "head -c 3000000 /dev/zero | tr '\\0' x", nil)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	for {
		chunk, err := s.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		size += len(chunk.Data)
	}
	if size != 3000000 {
		t.Errorf("%d bytes", size)
	}
	if n := g.Series("trl_connections", "in_process"); n != 2 {
		t.Errorf("%v connections", n)
	}
	ann.Close()
	testkit.Eventually(t, "the connection has ended", func() bool { return g.Series("trl_connections", "in_process") == 1 })
	if _, err := g.inProcess(auth.Principal{Subject: "ann", Role: auth.User}).Exec(t.Context(), "pwd", nil); err != nil {
		t.Error(err)
	}
}

// TestNoPlaceInProcess: the first connection of a request has the request's place, any other needs one of its own.
func TestNoPlaceInProcess(t *testing.T) {
	g := start(t)
	g.clients.places.Max = 1
	who := auth.Principal{Subject: "ann", Role: auth.Admin}
	v := g.visit(who)
	if _, full := g.clients.Visit(&auth.Grant{Principal: who}, "test"); full == nil {
		t.Error("there is a place for another request")
	}
	for range 3 {
		c, err := v.Connect()
		if err != nil {
			t.Fatal(err)
		}
		_, err = v.Connect()
		testkit.WantCode(t, err, protocol.LimitExceeded)
		c.Close()
		testkit.Eventually(t, "the connection has ended", func() bool { return g.Metric("trl_connections") == 0 })
		testkit.Eventually(t, "its place is free", func() bool {
			v.mu.Lock()
			defer v.mu.Unlock()
			return !v.inUse
		})
	}
	v.Leave()
	g.visit(who).Leave()
}

// TestShutdownInProcess: the connection of a client that reads nothing ends, too.
func TestShutdownInProcess(t *testing.T) {
	g := startWith(t, func(*pool.Config) {})
	c, err := g.visit(auth.Principal{Subject: "ann", Role: auth.User}).Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, `{"id":1,"method":"exec.stream","params":{"command":"yes"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	some := make([]byte, 10)
	if _, err := io.ReadFull(c, some); err != nil || !strings.HasPrefix(string(some), `{"id":1`) {
		t.Fatalf("%q, %v", some, err)
	}
} // the server's cleanup waits for the connection

// TestBodiesOfVisitsAreBounded: a large body waits while as many are read as may be, and bodies that have been read count until the visit's end.
func TestBodiesOfVisitsAreBounded(t *testing.T) {
	g := start(t)
	who := auth.Principal{Subject: "ann", Role: auth.User}
	limits := transport.Limits{MaxFrame: g.clients.live().MaxFrame, Stall: testkit.Patience}
	read := func(wait time.Duration, size int) (*Visit, *protocol.Error) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		v := g.visit(who)
		w := httptest.NewRecorder()
		_, e := v.ReadBody(ctx, http.NewResponseController(w), httptest.NewRequest("POST", "/mcp", strings.NewReader(strings.Repeat(" ", size))), limits)
		return v, e
	}
	large := int(limits.MaxFrame)
	first := g.visit(who)
	var release []func()
	for range bounds.PrincipalReading / limits.MaxFrame {
		f, err := first.usage.ReserveReading(t.Context(), limits.MaxFrame)
		if err != nil {
			t.Fatal(err)
		}
		release = append(release, f)
	}
	v, e := read(10*time.Millisecond, large)
	if e == nil || e.Code != protocol.RateLimited {
		t.Errorf("one more: %v", e)
	}
	v.Leave()
	v, e = read(testkit.Patience, 1000) // a small one does not wait
	if e != nil {
		t.Error(e)
	}
	v.Leave()
	for _, f := range release {
		f()
	}
	var held []*Visit
	for range bounds.PrincipalRequests / limits.MaxFrame {
		v, e := read(testkit.Patience, large)
		if e != nil {
			t.Fatal(e)
		}
		held = append(held, v)
	}
	if v, e = read(testkit.Patience, 1000); e == nil || e.Code != protocol.RateLimited {
		t.Errorf("more than may be held: %v", e)
	}
	v.Leave()
	held[0].Leave()
	if v, e = read(testkit.Patience, large); e != nil {
		t.Error(e)
	}
	for _, v := range append(held[1:], v, first) {
		v.Leave()
	}
	if n := g.clients.usages.Total.Requests.Load(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}
