package web

import (
	"net/http"
	"testing"
	"time"

	"trl/internal/testkit/gateway"
	"trl/web/auth"
)

func (g *server) ready() int {
	g.T.Helper()
	resp, err := http.Get("http://" + g.Addr() + "/readyz")
	if err != nil {
		g.T.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

func TestDrainLetsNobodyNewIn(t *testing.T) {
	g := start(t, func(c *Config) {
		c.AuthNone = false
		c.Tokens = gateway.Tokens{"admin": {Subject: "root", Role: auth.Admin}, "user": {Subject: "alice", Role: auth.User}}
	})
	c, admin := g.Dial("user"), g.Dial("admin")
	id := c.Session(object{"name": "old"})
	if f := c.Try("system.drain", object{}); f.Code() != "FORBIDDEN" {
		t.Errorf("system.drain of a user was answered with %+v", f)
	}
	if d := admin.Call("system.drain", object{}); d["draining"] != true || d.Num("active_sessions") != 1 {
		t.Errorf("%v", d)
	}
	if g.ready() != http.StatusServiceUnavailable || g.Metric("trl_draining") != 1 {
		t.Error("/readyz or the metric does not show the drain")
	}
	for _, method := range []string{"session.create", "exec.run"} { // exec.run: of the default session, which is not there
		f := c.Try(method, map[string]object{"session.create": {}, "exec.run": {"command": "true"}}[method])
		if f.Code() != "SHUTTING_DOWN" || f.Error.Details["draining"] != true {
			t.Errorf("%s: %+v", method, f)
		}
	}
	if f := c.Try("session.create", object{"name": "old", "if_exists": "return"}); !f.OK {
		t.Errorf("%+v", f)
	}
	if got := g.Dial("user").Run(id, "echo works").Stdout(); got != "works\n" { // also on a new connection
		t.Errorf("%q", got)
	}
	admin.Call("system.drain", object{"undo": true})
	if g.ready() != http.StatusOK || g.Metric("trl_draining") != 0 {
		t.Error("the drain was not taken back")
	}
	second := c.Session()
	admin.Call("system.drain", object{"wait_s": 3600})
	c.Call("session.destroy", object{"session_id": second})
	select {
	case <-g.Drained():
		t.Fatal("the drain ended although a session lives")
	default:
	}
	c.Call("session.destroy", object{"session_id": id})
	select {
	case <-g.Drained():
	case <-time.After(patience):
		t.Fatal("the drain did not end although no session lives")
	}
}

func TestDrainIsOverAfterItsTime(t *testing.T) {
	g := start(t)
	c := g.Dial()
	c.Session()
	c.Call("system.drain", object{"wait_s": 3600})
	c.Call("system.drain", object{"wait_s": 0.05}) // another time
	select {
	case <-g.Drained():
	case <-time.After(patience):
		t.Fatal("the drain goes on")
	}
}

// A gateway without a cluster has nowhere to move its sessions: it says so, and does not drain.
func TestDrainThatMovesNeedsACluster(t *testing.T) {
	g := start(t)
	if f := g.Dial().Try("system.drain", object{"move": true}); f.Code() != "NOT_SUPPORTED" || f.Error.Details["field"] != "move" || g.ready() != http.StatusOK {
		t.Errorf("%+v", f.Error)
	}
}
