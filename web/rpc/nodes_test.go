package rpc

import (
	"testing"

	"trl/protocol"
)

// TestSingleNodeIsItsOnlyNode: session.locate, system.nodes and session.create's node and where on a server that is no cluster.
func TestSingleNodeIsItsOnlyNode(t *testing.T) {
	c := start(t).Dial()
	s := c.Session(object{"name": "here"})
	self := c.Call("session.locate", object{"session": "here"})
	if self.Str("session_id") != s || self.Str("node") == "" || self["url"] != nil {
		t.Errorf("located at %v", self)
	}
	nodes := c.Call("system.nodes", nil).Objs("nodes")
	if n := nodes[0]; len(nodes) != 1 || n.Str("node") != self.Str("node") || n["self"] != true || n.Num("active_sessions") != 1 {
		t.Errorf("nodes are %v", nodes)
	}
	if pong := c.Call("system.ping", nil); pong["node"] != nil || pong["degraded"] != nil {
		t.Errorf("ping tells of a cluster: %v", pong)
	}
	if info := c.Call("session.info", object{"session_id": s}); info["node"] != nil {
		t.Errorf("the session has a node: %v", info)
	}
	if code := c.Try("session.locate", object{"session": "nowhere"}).Code(); code != string(protocol.SessionNotFound) {
		t.Error(code)
	}

	name := self.Str("node")
	if stats := c.Call("system.stats", object{"node": name}); stats.Num("active_sessions") != 1 {
		t.Errorf("%v", stats)
	}
	if f := c.Try("system.stats", object{"node": name + "x"}); f.Code() != string(protocol.InvalidParams) || f.Error.Details["field"] != "node" {
		t.Errorf("%+v", f)
	}
	c.Call("session.create", object{"node": name, "where": object{"node": name}})
	for _, place := range []object{{"node": name + "x"}, {"where": object{"zone": "a"}}, {"where": object{"node": name + "x"}}} {
		f := c.Try("session.create", place)
		if f.Code() != string(protocol.InvalidParams) || place[f.Error.Details.Str("field")] == nil {
			t.Errorf("session.create %v: %+v", place, f.Error)
		}
	}
}
