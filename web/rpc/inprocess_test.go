package rpc

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"trl/client"
	"trl/internal/testkit"
	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
)

// inProcess is a Go client that reaches the server without a socket.
func (g *server) inProcess(who auth.Principal) *client.Client {
	g.T.Helper()
	c, err := client.Connect(g.T.Context(), client.Options{Dial: func(context.Context) (net.Conn, error) {
		return g.clients.Connect(&auth.Grant{Principal: who}, "test")
	}})
	if err != nil {
		g.T.Fatal(err)
	}
	g.T.Cleanup(func() { c.Close() })
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

func TestNoPlaceInProcess(t *testing.T) {
	g := start(t)
	g.clients.config.MaxConns = 1
	who := &auth.Grant{Principal: auth.Principal{Subject: "ann", Role: auth.Admin}}
	c, err := g.clients.Connect(who, "test")
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.clients.Connect(who, "test")
	testkit.WantCode(t, err, protocol.LimitExceeded)
	c.Close()
	testkit.Eventually(t, "there is a place again", func() bool {
		c, err := g.clients.Connect(who, "test")
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// TestShutdownInProcess: the connection of a client that reads nothing ends, too.
func TestShutdownInProcess(t *testing.T) {
	g := startWith(t, func(*pool.Config) {})
	c, err := g.clients.Connect(&auth.Grant{Principal: auth.Principal{Subject: "ann", Role: auth.User}}, "test")
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
