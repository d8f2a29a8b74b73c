package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc"
	"trl/web/rpc/cluster"
)

// request makes a request with a token and returns the response with its body read.
func (g *server) request(method, path, token string) (*http.Response, string) {
	g.T.Helper()
	req, err := http.NewRequest(method, "http://"+g.Addr()+path, nil)
	if err != nil {
		g.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		g.T.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		g.T.Fatal(err)
	}
	return res, string(text)
}

// auditedCluster is a cluster whose nodes have audit logs and recordings below dir.
func auditedCluster(t *testing.T, dir string, more func(*Config), names ...string) *testCluster {
	t.Helper()
	tuned, changed := 0, 0
	return newCluster(t, func(c *pool.Config) {
		c.Record.Dir = filepath.Join(dir, fmt.Sprint("recordings", tuned))
		tuned++
	}, func(c *Config) {
		c.AuthNone, c.Tokens = false, gateway.RoleTokens
		log, err := audit.Open(audit.Config{Path: filepath.Join(dir, fmt.Sprint("audit", changed)), Commands: audit.HashCommands}, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		c.Audit = log
		changed++
		more(c)
	}, names...)
}

// TestDownloadFromAnyNode: a recording can be downloaded at every node, as at its own.
func TestDownloadFromAnyNode(t *testing.T) {
	dir := t.TempDir()
	cl := auditedCluster(t, dir, func(*Config) {}, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	c := a.server.Gateway.Dial(gateway.UserToken)
	id := c.Call("session.create", object{"name": "work", "record": "terminals"}).Str("session_id")
	term := c.Call("term.open", object{"session_id": id, "cols": 80, "rows": 24, "command": "yes | head -n 60000; echo here; read x"})
	rec := term.Str("recording_id")
	path := "/v1/recordings/" + rec
	testkit.Eventually(t, "all of it is recorded", func() bool {
		_, body := a.request("GET", path, gateway.UserToken)
		return strings.Contains(body, "here")
	})
	if e := rec[2:10]; e != a.Pool.Epoch() {
		t.Fatalf("%s is not of node a, %s", rec, a.Pool.Epoch())
	}

	for _, query := range []string{"", "?format=v2", "?format=v1"} {
		for _, method := range []string{"GET", "HEAD"} {
			for _, token := range []string{gateway.UserToken, gateway.AdminToken, gateway.ViewToken, "wrong"} {
				want, wantBody := a.request(method, path+query, token)
				got, body := b.request(method, path+query, token)
				want.Header.Del("Date")
				got.Header.Del("Date")
				if got.StatusCode != want.StatusCode || body != wantBody || fmt.Sprint(got.Header) != fmt.Sprint(want.Header) {
					t.Errorf("%s %s of %.5s: %d, %d bytes, %v; at its node %d, %d bytes, %v", method, query, token,
						got.StatusCode, len(body), got.Header, want.StatusCode, len(wantBody), want.Header)
				}
			}
		}
	}
	if _, body := b.request("GET", path, gateway.UserToken); !strings.Contains(body, "here") || len(body) < 64<<10 {
		t.Errorf("%d bytes", len(body))
	}
	none, noneBody := b.request("GET", "/v1/recordings/"+rec[:len(rec)-8]+"aaaaaaaa", gateway.ViewToken)
	if res, body := b.request("GET", path, gateway.ViewToken); res.StatusCode != 404 || none.StatusCode != 404 || body != noneBody {
		t.Errorf("another's: %d %q; none: %d %q", res.StatusCode, body, none.StatusCode, noneBody)
	}

	// An admin's download is audited at both nodes, with the same id of the connection.
	downloads := func(node int) (all []audit.Entry) {
		text, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint("audit", node)))
		for line := range strings.Lines(string(text)) {
			var e audit.Entry
			if json.Unmarshal([]byte(line), &e) == nil && e.Action == audit.ActionDownload && e.Conn != "" {
				all = append(all, e)
			}
		}
		return all
	}
	testkit.Eventually(t, "both nodes have written", func() bool { return len(downloads(0)) > 0 && len(downloads(0)) == len(downloads(1)) })
	theirs, ours := downloads(0)[0], downloads(1)[0]
	if ours.Node != "a" || ours.Conn != theirs.Conn || ours.Recording != rec || ours.Owner != "bob" || ours.Principal != "ann" || !strings.HasPrefix(ours.Remote, "127.0.0.1:") {
		t.Errorf("at the client's node: %+v", ours)
	}
	if theirs.Node != "" || theirs.Recording != rec || theirs.Principal != "ann" || theirs.Remote != "127.0.0.1" {
		t.Errorf("at the recording's node: %+v", theirs)
	}

	// A node that may be alive is no reason to say that there is no such recording; neither is one that cannot be reached.
	cl.forget(a, true)
	if res, body := b.request("GET", path, gateway.UserToken); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" {
		t.Errorf("a node that is not known: %d %q", res.StatusCode, body)
	}
	cl.forget(a, false)
	if res, body := b.request("GET", path, gateway.UserToken); res.StatusCode != 404 || body != noneBody {
		t.Errorf("a node that is gone: %d %q", res.StatusCode, body)
	}
	cl.mu.Lock()
	a.gone = false
	cl.mu.Unlock()
	a.cutOff()
	if res, body := b.request("GET", path, gateway.UserToken); res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(body, "node a") {
		t.Errorf("a node that cannot be reached: %d %q", res.StatusCode, body)
	}
}

// TestOldRecordingAtAnyNode: a recording outlives its epoch, and every node finds the one that has it.
func TestOldRecordingAtAnyNode(t *testing.T) {
	dir := t.TempDir()
	cl := auditedCluster(t, dir, func(*Config) {}, "a", "b", "c")
	a, b := cl.node("a"), cl.node("b")
	c := a.server.Gateway.Dial(gateway.UserToken)
	s := c.Call("session.create", object{"record": "all"}).Str("session_id")
	c.Run(s, "echo recorded")
	rec := c.Call("recording.list", object{"session_id": s}).Objs("recordings")[0].Str("recording_id")
	c.Call("session.destroy", object{"session_id": s})
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	cl.forget(a, false)
	again := cl.add("a2", func(p *pool.Config) { p.Record.Dir = filepath.Join(dir, "recordings0") }, func(c *Config) { c.AuthNone, c.Tokens = false, gateway.RoleTokens })
	if again.Pool.Epoch() == a.Pool.Epoch() {
		t.Fatal("the epoch is the same")
	}
	for _, n := range []*testNode{again, b} {
		if res, body := n.request("GET", "/v1/recordings/"+rec, gateway.UserToken); res.StatusCode != 200 || !strings.Contains(body, "recorded") {
			t.Errorf("at %s: %d %q", n.name, res.StatusCode, body)
		}
		if res, body := n.request("GET", "/v1/recordings/"+rec, gateway.ViewToken); res.StatusCode != 404 {
			t.Errorf("another's at %s: %d %q", n.name, res.StatusCode, body)
		}
	}
}

// TestSearchIsBounded: a recording of an earlier epoch is searched for at so many nodes at the same time, and not for long.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	nodes := gateway.NewSilentNodes(maxAskedForOld+40, cluster.Gone)
	g := start(t, func(c *Config) { c.Cluster = rpc.Cluster{Node: "gate", Nodes: nodes} })
	grant := &auth.Grant{Principal: auth.Principal{Subject: "somebody", Role: auth.Admin}}
	client := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/recordings/r-old", nil)
	if found := (&elsewhere{s: g.Server, g: grant, epoch: "an old one", client: client}).search("/v1/recordings/r-old"); found != nil {
		t.Error("a silent node has it")
	}
	testkit.Eventually(t, "no dial is left", func() bool { return nodes.Dials().Now == 0 })
	if n := nodes.Dials().Most; n != maxAskedForOld {
		t.Errorf("%d nodes were asked at the same time", n)
	}
}

// TestDownloadsDialAgain: each download has a link of its own, which ends with it, so that no idle link can make a later download fail.
func TestDownloadsDialAgain(t *testing.T) {
	cl := auditedCluster(t, t.TempDir(), func(*Config) {}, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	c := a.server.Gateway.Dial(gateway.UserToken)
	s := c.Call("session.create", object{"record": "all"}).Str("session_id")
	c.Run(s, "echo recorded")
	path := "/v1/recordings/" + c.Call("recording.list", object{"session_id": s}).Objs("recordings")[0].Str("recording_id")
	for turn := range 3 {
		before, _ := a.links.counts()
		if res, body := b.request("GET", path, gateway.UserToken); res.StatusCode != 200 || !strings.Contains(body, "recorded") {
			t.Errorf("download %d: %d %q", turn, res.StatusCode, body)
		}
		if after, _ := a.links.counts(); after != before+1 {
			t.Errorf("download %d dialled %d links", turn, after-before)
		}
		testkit.Eventually(t, "the link has ended", func() bool { _, open := a.links.counts(); return open == 0 })
	}
}

// TestDownloadEndsWithItsClient: what passes a download on ends with the client, at both nodes, and does not read ahead of it.
func TestDownloadEndsWithItsClient(t *testing.T) {
	cl := auditedCluster(t, t.TempDir(), func(c *Config) { c.MaxConnsOfPrincipal = 2 }, "a", "b")
	a, b := cl.node("a"), cl.node("b")
	c := a.server.Gateway.Dial(gateway.UserToken)
	s := c.Call("session.create", object{"record": "all"}).Str("session_id")
	c.Run(s, "yes 0123456789012345678901234567890123456789 | head -c 30000000")
	rec := c.Call("recording.list", object{"session_id": s}).Objs("recordings")[0].Str("recording_id")
	path := "/v1/recordings/" + rec
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+b.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+gateway.UserToken)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if res, body := b.request("HEAD", path, gateway.UserToken); res.StatusCode != 503 {
		t.Errorf("a third connection of two: %d %q", res.StatusCode, body)
	}
	cancel()
	testkit.Eventually(t, "the recording's node has its place back", func() bool {
		res, _ := b.request("HEAD", path, gateway.UserToken)
		return res.StatusCode == 200
	})
}
