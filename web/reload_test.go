package web

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
	"trl/protocol"
	"trl/web/listen"
)

// TestReloadIsAllOrNothing: a reload changes what may change, for new connections only. A bad configuration changes nothing.
func TestReloadIsAllOrNothing(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	g := start(t, func(c *Config) { c.MaxFrame, c.Origins = 1<<20, []string{"http://old.example"} })
	before := g.Dial()

	get := func(origin string) int {
		q, _ := http.NewRequest("GET", "http://"+g.Addr()+"/healthz", nil)
		q.Header.Set("Origin", origin)
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	frames := func() int {
		return int(g.Dial().Call("system.capabilities", nil)["limits"].(map[string]any)["max_frame_bytes"].(float64))
	}
	next := Config{MaxFrame: 2 << 20, Origins: []string{"http://new.example"}, Capabilities: protocol.Capabilities{DefaultShell: "/bin/x"}}

	writeCertificate(t, cert, key, "x")
	withTLS := next
	withTLS.TLSCert, withTLS.TLSKey = cert, key
	if err := g.Reload(withTLS); err == nil {
		t.Error("the reload switched TLS on")
	}
	if get("http://old.example") != 200 || get("http://new.example") != 403 || frames() != 1<<20 {
		t.Error("a refused reload left something in force")
	}
	if err := g.Reload(next); err != nil {
		t.Fatal(err)
	}
	if get("http://old.example") != 403 || get("http://new.example") != 200 || frames() != 2<<20 {
		t.Error("the reload is not in force")
	}
	// A message that was too large is taken on a new connection.
	if f := g.Dial().Try("exec.run", object{"command": ":", "stdin": strings.Repeat("x", 3<<19)}); !f.OK {
		t.Errorf("%+v", f.Error)
	}
	if c := before.Call("system.capabilities", nil); c.Str("default_shell") != "/bin/x" {
		t.Errorf("%v", c)
	}
}

func TestReloadReplacesTheCertificateItself(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, cert, key, "first")
	g := start(t, withTokens, func(c *Config) { c.TLSCert, c.TLSKey = cert, key })
	if got := served(t, g.Addr()); got != "first" {
		t.Fatal(got)
	}
	other, otherKey := filepath.Join(dir, "cert2"), filepath.Join(dir, "key2")
	c := Config{Config: listen.Config{TLSCert: other, TLSKey: otherKey}, Origins: []string{"http://new.example"}}
	if err := g.Reload(c); err == nil {
		t.Error("the reload accepted a missing certificate")
	}
	if got := served(t, g.Addr()); got != "first" || len(g.live.Load().origins) != 0 {
		t.Fatal(got)
	}
	writeCertificate(t, other, otherKey, "second")
	if err := g.Reload(c); err != nil {
		t.Fatal(err)
	}
	if got := served(t, g.Addr()); got != "second" {
		t.Fatal(got)
	}
	writeCertificate(t, other, otherKey, "third") // and the new one is followed
	testkit.Eventually(t, "the third", func() bool { return served(t, g.Addr()) == "third" })
}

// TestFramesOfAReload: a connection to come takes messages of the size that is in force. rpc.TestLiveConfig has the time that a slow client gets.
func TestFramesOfAReload(t *testing.T) {
	g := start(t, func(c *Config) { c.MaxFrame = 10_000 })
	big := object{"session_id": g.Dial().Session(), "command": ": " + strings.Repeat("x", 50_000)}
	if err := g.Reload(Config{MaxFrame: 1 << 20, SlowClient: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	c := g.Dial()
	c.Call("exec.run", big)
	if got := c.Call("system.capabilities", nil).Obj("limits").Num("slow_client_s"); got != 5 {
		t.Errorf("slow_client is %d s", got)
	}
	if err := g.Reload(Config{MaxFrame: 10_000}); err != nil {
		t.Fatal(err)
	}
	c.Call("exec.run", big) // it came before
	c = g.Dial()
	c.Begin("exec.run", big)
	if code := c.CloseStatus(); code != websocket.StatusMessageTooBig {
		t.Errorf("closed with %d", code)
	}
}
