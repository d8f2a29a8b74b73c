package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Clients use sessions of every node over any gateway, also over one that makes none; each name, default session and request key is one session.
func TestSessionsAreReachedOverEveryNode(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 3)
	a, err := rig.StartGateway(n.flags("a", "--node-label", "zone=east")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop() }) // it is killed
	b, g := n.start("b", "--node-label", "zone=west"), n.start("g", "--no-sessions")
	gateways := []*rig.Server{a, b, g}
	for _, at := range gateways {
		sees(t, at, "a", "b")
	}
	clients := make([]*rig.Client, 3)
	for i, at := range gateways {
		clients[i] = at.Dial(t)
	}
	ac, bc, gc := clients[0], clients[1], clients[2]

	work := gc.Call("session.create", object{"name": "work", "where": object{"zone": "east"}})
	id := work.Str("session_id")
	if work.Str("node") != "a" {
		t.Errorf("made on %q, want a", work.Str("node"))
	}
	rig.Expect(t, bc.Call("exec.run", object{"session": "work", "command": "x=1; cd /usr"}), 0, "", "")
	rig.Expect(t, ac.Run(id, "echo $x $PWD"), 0, "1 /usr\n", "")
	rig.Expect(t, gc.Run(id, "echo $x $PWD"), 0, "1 /usr\n", "")
	for i, c := range clients {
		if f := c.Try("session.create", object{"name": "work"}); f.Code() != "SESSION_EXISTS" {
			t.Errorf("gateway %d: a second session with the name: %+v", i, f)
		}
		if again := c.Call("session.create", object{"name": "work", "if_exists": "return"}).Str("session_id"); again != id {
			t.Errorf("gateway %d: if_exists return gives %s, want %s", i, again, id)
		}
	}

	// Everybody asks for the default session at once, and for one with the same name, and for one with the same key.
	var mu sync.Mutex
	got := map[string]map[string]bool{"default": {}, "named": {}, "keyed": {}}
	saw := func(what, session string) {
		mu.Lock()
		defer mu.Unlock()
		got[what][session] = true
	}
	rig.Together(6, func(i int) {
		c := gateways[i%3].Dial(t)
		saw("default", c.Call("exec.run", object{"command": "true"}).Str("session_id"))
		saw("named", c.Call("session.create", object{"name": "one", "if_exists": "return"}).Str("session_id"))
		saw("keyed", c.Call("session.create", object{"request_key": "key"}).Str("session_id"))
	})
	for what, sessions := range got {
		if len(sessions) != 1 {
			t.Errorf("%s: %v, want one session", what, sessions)
		}
	}
	for i, c := range clients {
		named := map[string]int{}
		for _, s := range c.Call("session.list", nil).Objs("sessions") {
			named[s.Str("name")]++
		}
		if fmt.Sprint(named) != "map[:1 default:1 one:1 work:1]" {
			t.Errorf("gateway %d lists %v", i, named)
		}
	}

	// The end of a node is told: connections that use it end, and its sessions are unreachable first and lost then.
	gc.Call("exec.stream", object{"session_id": id, "command": "sleep 1000"})
	killNode(t, a)
	if code := gc.CloseStatus(); code != 1012 {
		t.Errorf("the connection was closed with %d, want 1012", code)
	}
	gc = g.Dial(t)
	unreachable := 0
	testkit.Eventually(t, "the session is lost", func() bool {
		f := gc.Try("exec.run", object{"session_id": id, "command": "true"})
		switch f.Code() {
		case "NODE_UNREACHABLE":
			unreachable++
			time.Sleep(time.Duration(f.Error.Details["retry_after_ms"].(float64)) * time.Millisecond) // as clients do
		case "SESSION_LOST":
			return true
		default:
			t.Errorf("%+v", f)
		}
		return false
	})
	if unreachable == 0 {
		t.Log("the lease had run out before the first request")
	}
	testkit.Eventually(t, "the name is free", func() bool { // for b, too, which may have heard of a some milliseconds later than g
		f := gc.Try("session.create", object{"name": "work", "if_exists": "return"})
		return f.OK && f.Data.Str("node") == "b"
	})
}
