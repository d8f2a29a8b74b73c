package rpc

import (
	"context"
	"testing"

	"trl/internal/testkit/gateway"
	"trl/pool"
	"trl/protocol"
	"trl/web/rpc/bounds"
	"trl/web/rpc/cluster"
)

// TestNamesAreFoundWithoutTheDirectory: sessions that are there can be used by their names, and nothing is made under a name that may be taken.
func TestNamesAreFoundWithoutTheDirectory(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"})
	first := cl.node("gate").Dial()
	first.Call("session.create", object{"name": "work"})
	first.Call("exec.run", object{"command": "x=default"}) // the default session

	cl.setDown(protocol.Errorf(protocol.DirectoryUnavailable, "down"))
	for _, node := range []string{"gate", "one", "two"} {
		c := cl.node(node).Dial()
		if r := c.Call("exec.run", object{"session": "work", "command": "echo hi"}); r.Stdout() != "hi\n" {
			t.Errorf("over %s: %v", node, r)
		}
		if r := c.Call("exec.run", object{"command": "echo $x"}); r.Stdout() != "default\n" {
			t.Errorf("over %s, the default session: %v", node, r)
		}
	}
	if r := first.Call("session.create", object{"name": "work", "if_exists": "return"}); r.Str("node") != "one" {
		t.Error(r)
	}
	for method, q := range map[string]object{"exec.run": {"session": "other", "command": ":"}, "session.create": {"name": "other"}} {
		if code := first.Try(method, q).Code(); code != string(protocol.DirectoryUnavailable) {
			t.Errorf("%s of a name that nobody has: %s", method, code)
		}
	}
	cl.setDown(nil)
	if code := first.Try("exec.run", object{"session": "other", "command": ":"}).Code(); code != string(protocol.SessionNotFound) {
		t.Error(code)
	}
}

// TestGatheringIsBounded: a list asks so many nodes at the same time, and all that have not answered are named.
func TestGatheringIsBounded(t *testing.T) {
	t.Parallel()
	nodes := gateway.NewSilentNodes(maxGathered+40, cluster.Known)
	c := startNode(t, func(*pool.Config) {}, func(c *config) { c.nodes, c.gatherWait = nodes, gatherTimeout }).Dial()
	partial := c.Call("session.list", nil)["partial"].([]any)
	if d := nodes.Dials(); len(partial) != len(nodes.Epochs) || d.Most != maxGathered || d.All != maxGathered {
		t.Errorf("%d of %d nodes are named, %d were asked at a time, %d in all", len(partial), len(nodes.Epochs), d.Most, d.All)
	}
}

// TestLargeRelayedAnswersAreBounded: so many answers above link.KeepBuffer of other nodes are on their way to clients of one principal; more wait.
func TestLargeRelayedAnswersAreBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := &conn{ctx: ctx, usage: bounds.New().Of(), srv: &Clients{}}
	var relays []*relay
	for range bounds.PrincipalAnswers / relayedLarge {
		r := &relay{c: c}
		if err := r.beginLarge(); err != nil {
			t.Fatal(err)
		}
		relays = append(relays, r)
	}
	began := make(chan error)
	next := &relay{c: c}
	go func() { began <- next.beginLarge() }()
	select {
	case err := <-began:
		t.Fatalf("one more: %v", err)
	default:
	}
	relays[0].endLarge()
	if err := <-began; err != nil {
		t.Error(err)
	}
	go func() { began <- (&relay{c: c}).beginLarge() }()
	cancel()
	if err := <-began; err == nil {
		t.Error("a client that is gone goes on")
	}
}
