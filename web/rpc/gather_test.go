package rpc

import (
	"testing"

	"trl/protocol"
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
