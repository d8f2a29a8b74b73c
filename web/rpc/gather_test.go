package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"trl/cluster/link"
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

// silentNodes are many nodes that cannot be dialled before the caller gives up.
type silentNodes struct {
	cluster.Nodes
	epochs []string

	mu    sync.Mutex
	now   int // guarded by mu; dials under way
	most  int // guarded by mu
	asked int // guarded by mu
}

func (s *silentNodes) Self() protocol.Node { return protocol.Node{Node: "gate"} }
func (s *silentNodes) Degraded() bool      { return false }

func (s *silentNodes) Find(epoch string) (protocol.Node, cluster.Standing) {
	return protocol.Node{Node: "node " + epoch, Epoch: epoch}, cluster.Known
}

func (s *silentNodes) Presence(context.Context, string) []string { return s.epochs }

func (s *silentNodes) Dial(ctx context.Context, _ string, _ *link.Hello) (*link.Conn, error) {
	s.mu.Lock()
	s.now++
	s.asked++
	s.most = max(s.most, s.now)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
	return nil, errors.New("silent")
}

// TestGatheringIsBounded: a list asks so many nodes at the same time, and all that have not answered are named.
func TestGatheringIsBounded(t *testing.T) {
	t.Parallel()
	nodes := &silentNodes{}
	for i := range maxGathered + 40 {
		nodes.epochs = append(nodes.epochs, fmt.Sprintf("epoch%03d", i))
	}
	c := startNode(t, func(*pool.Config) {}, func(c *config) { c.nodes = nodes }).Dial()
	partial := c.Call("session.list", nil)["partial"].([]any)
	nodes.mu.Lock()
	defer nodes.mu.Unlock()
	if len(partial) != len(nodes.epochs) || nodes.most != maxGathered || nodes.asked != maxGathered {
		t.Errorf("%d of %d nodes are named, %d were asked at a time, %d in all", len(partial), len(nodes.epochs), nodes.most, nodes.asked)
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
