package web

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/web/auth"
)

func TestSilentPeerIsDropped(t *testing.T) { // J2, I10
	t.Parallel() // it mostly waits
	// The silence is longer than a busy machine keeps the lively peer's answers waiting.
	g := start(t, func(c *Config) { c.PingEvery, c.PeerSilence = 50*time.Millisecond, 5*time.Second })
	lively := g.Dial()
	raw := g.Raw()
	pings := 0
	for {
		op, _, err := raw.Next()
		if err != nil {
			break
		}
		if op == pingFrame {
			pings++ // and no pong
		}
	}
	if pings < 2 {
		t.Errorf("%d pings", pings)
	}
	testkit.Eventually(t, "it is gone", func() bool { return g.Metric("trl_connections_closed_total") == 1 })
	lively.Call("system.ping", nil) // its library answers pings, which is all it takes
}

func TestStalledMessageIsDropped(t *testing.T) {
	g := start(t, func(c *Config) { c.stall = 100 * time.Millisecond })
	raw := g.Raw()
	raw.Write([]byte{0x81, 0x80 | 100, 0, 0, 0, 0, '{'}) // 99 bytes to go
	op, payload, err := raw.Next()
	for err == nil && op != 0x8 {
		op, payload, err = raw.Next()
	}
	if err != nil || len(payload) < 2 || int(payload[0])<<8|int(payload[1]) != 1008 {
		t.Fatalf("%x %q %v", op, payload, err)
	}
}

func TestPingFloodIsEnded(t *testing.T) {
	g := start(t)
	raw := g.Raw()
	raw.Write([]byte{0x89, 0x80 | 2, 0, 0, 0, 0, 'h', 'i'})
	if op, payload, err := raw.Next(); op != pongFrame || string(payload) != "hi" {
		t.Fatalf("%x %q %v", op, payload, err)
	}
	raw.Write(bytes.Repeat([]byte{0x89, 0x80, 0, 0, 0, 0}, 1000))
	for {
		op, payload, err := raw.Next()
		if err != nil {
			t.Fatal(err)
		}
		if op == 0x8 {
			if code := int(payload[0])<<8 | int(payload[1]); code != 1008 {
				t.Fatalf("code %d", code)
			}
			return
		}
	}
}

func TestThousandAbortsLeaveNothing(t *testing.T) { // J13
	g := start(t)
	keep := g.Dial()
	id := keep.Session()
	const rounds, at = 1000, 8
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for i := range rounds / at {
				raw, err := rig.Upgrade(g.Addr(), "")
				if err != nil {
					t.Error(err)
					return
				}
				raw.Text(`{"id":1,"method":"session.watch","params":{"session_id":"` + id + `"}}`)
				if i%2 == 0 {
					raw.Conn.(*net.TCPConn).SetLinger(0) // RST
				}
				raw.Close()
			}
		})
	}
	wg.Wait()
	testkit.Eventually(t, "all are gone", func() bool { return g.Metric("trl_connections") == 1 })
	if log := g.Log.String(); strings.Contains(log, `"error"`) { // J7
		t.Error(log)
	}
}

func TestShutdown(t *testing.T) { // J11
	g := start(t)
	c := g.Dial()
	mute := g.Raw() // never answers the close
	id := c.Session(object{"on_disconnect": "destroy"})
	c.Begin("exec.run", object{"session_id": id, "command": "echo part; trap '' TERM; sleep 300"})
	testkit.Eventually(t, "it runs", func() bool { return c.Call("session.info", object{"session_id": id}).Str("state") == "RUNNING" })
	d := g.Dial() // its command obeys: the result comes before the close
	brief := d.Begin("exec.run", object{"session_id": d.Session(), "command": "echo part; exec sleep 300"})
	testkit.Eventually(t, "that runs too", func() bool { return g.Pool.Stats().Running == 2 })
	stuck := g.Raw() // reads nothing
	stuck.Text(`{"id":1,"method":"exec.stream","params":{"command":"yes"}}`)
	testkit.Eventually(t, "it is stuck", func() bool {
		n := g.Metric("trl_bytes_out_total")
		time.Sleep(50 * time.Millisecond)
		return n > 1<<20 && g.Metric("trl_bytes_out_total") == n
	})
	stopped := make(chan error, 1)
	begun := time.Now()
	go func() { stopped <- g.stop() }()
	c.Event("server.shutdown")
	d.Event("server.shutdown")
	if f := d.Answer(brief); f.Data["cancelled"] != true || f.Data.Str("stdout") != "part\n" {
		t.Errorf("%+v", f)
	}
	<-c.Done
	if code := websocket.CloseStatus(c.Err); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %v", c.Err)
	}
	if d := time.Since(begun); d > 20*time.Second {
		t.Errorf("told after %s", d)
	}
	saw1012 := false
	for {
		op, payload, err := mute.Next()
		if err != nil {
			break
		}
		saw1012 = saw1012 || op == 0x8 && int(payload[0])<<8|int(payload[1]) == 1012
	}
	if !saw1012 {
		t.Error("the mute client was not told 1012")
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", g.Addr()); err == nil {
		t.Error("still listening")
	}
	if log := g.Log.String(); strings.Contains(log, `"level":"error"`) {
		t.Error(log)
	}
}

func TestNotReadyWhileStopping(t *testing.T) {
	g := start(t)
	g.stopping.Store(true)
	if resp, _ := get(t, g.URL()+"/readyz"); resp.StatusCode != 503 {
		t.Errorf("%d", resp.StatusCode)
	}
	if resp, _ := get(t, g.URL()+"/healthz"); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	if _, resp, err := g.DialWith(nil); err == nil || resp.StatusCode != 503 {
		t.Errorf("%v", err)
	}
}

func TestSecretsStayOutOfLogs(t *testing.T) { // K4, K16, K19
	const secret = "hunter2-planted"
	g := start(t, func(c *Config) {
		c.AuthNone = false
		c.Tokens = gateway.Tokens{secret + "-token": {Subject: "ann", Role: auth.Admin}}
	})
	c := g.Dial(secret + "-token")
	id := c.Session(object{"env": object{"PASSWORD": secret}})
	c.Run(id, "echo "+secret+" $PASSWORD")
	c.Call("exec.run", object{"session_id": id, "command": "cat", "stdin": secret})
	c.Try("exec.run", object{"session_id": id, "command": secret, "working_dir": "/nowhere"})
	c.Try("exec.run", object{"session_id": id, secret: secret})
	c.Try(secret, nil)
	c.SendText(secret)
	get(t, g.URL()+"/metrics?token="+secret)
	get(t, g.URL()+"/v1/ws", "Authorization", "Bearer "+secret)
	get(t, g.URL()+"/v1/ws", "Host", secret+".example")
	get(t, g.URL()+"/v1/ws", "Authorization", "Bearer "+secret+"-token") // no upgrade
	_, body := get(t, g.URL()+"/metrics", "Authorization", "Bearer "+secret+"-token")
	if strings.Contains(body, secret) {
		t.Error("in the metrics")
	}
	c.Close()
	g.stop()
	if log := g.Log.String(); strings.Contains(log, secret) {
		t.Error(log)
	}
}

func TestMetricsOnTheirOwnListener(t *testing.T) {
	addr := fmt.Sprint("127.0.0.1:", testkit.Port(t))
	g := start(t, withTokens, func(c *Config) { c.MetricsListen = addr })
	if resp, body := get(t, "http://"+addr+"/metrics"); resp.StatusCode != 200 || !strings.Contains(body, "go_goroutines") {
		t.Errorf("%d", resp.StatusCode)
	}
	for _, url := range []string{"http://" + addr + "/v1/ws", g.URL() + "/metrics"} {
		if resp, _ := get(t, url); resp.StatusCode != 404 {
			t.Errorf("%s: %d", url, resp.StatusCode)
		}
	}
	if resp, _ := get(t, "http://"+addr+"/metrics", "Host", "evil.example"); resp.StatusCode != 421 {
		t.Errorf("%d", resp.StatusCode)
	}
}

// TestProfilesTakeTheirTime: who is served on AdminListen is no stranger, and may wait for longer than a request may take to come.
func TestProfilesTakeTheirTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "admin")
	start(t, func(c *Config) { c.AdminListen = path })
	b := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	const seconds = 11 // above StrangerLifetime and requestTimeout
	began := time.Now()
	resp, err := b.Get(fmt.Sprintf("http://trl/debug/pprof/trace?seconds=%d", seconds))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%d %v", resp.StatusCode, err)
	}
	if time.Since(began) < seconds*time.Second {
		t.Errorf("it was cut off after %v", time.Since(began))
	}
}
