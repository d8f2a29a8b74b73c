package cluster

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A session moves between real nodes, also while their gateways are killed: afterwards one node has it, with its state, its name, and the output of its
// ended commands.
func TestMovesSurviveTheDeathOfGateways(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	gate := n.start("gate", "--no-sessions")
	owners := map[string]*rig.Server{"one": n.start("one"), "two": n.start("two")}
	sees(t, gate, "one", "two")
	c := gate.Dial(t)
	s := c.Call("session.create", object{"name": "far", "node": "one", "request_key": "k"}).Str("session_id")
	first := c.Run(s, "cd /usr; X=0; seq 10000")
	tried := func(method string, params object) *rig.Frame { // again until its node can be reached, through the gate
		var f *rig.Frame
		defer func() {
			if t.Failed() {
				t.Logf("%s %v: %+v", method, params, f.Error)
			}
		}()
		testkit.Eventually(t, method, func() bool {
			f = gate.Dial(t).Try(method, params)
			return f.Code() != "NODE_UNREACHABLE"
		})
		return f
	}
	where := func() string { return tried("session.locate", object{"session_id": s}).Data.Str("node") }
	check := func(x int) {
		t.Helper()
		if f := tried("exec.run", object{"session": "far", "command": "X=$((X+1)); echo $X; pwd"}); f.Data.Stdout() != fmt.Sprintf("%d\n/usr\n", x) {
			t.Fatalf("%q, want %d; %+v", f.Data.Stdout(), x, f.Error)
		}
		if f := tried("exec.wait", object{"exec_id": first.Str("exec_id")}); f.Data.Stdout() != first.Stdout() {
			t.Fatalf("the first command's output is %d bytes long; %+v", len(f.Data.Stdout()), f.Error)
		}
		testkit.Eventually(t, "one node has the session", func() bool {
			f := gate.Dial(t).Try("session.list", nil)
			all := f.Data.Objs("sessions")
			return f.OK && !f.Data.Has("partial") && len(all) == 1 && all[0].Str("session_id") == s && all[0].Str("name") == "far"
		})
		if again := tried("session.create", object{"name": "far", "node": "one", "request_key": "k"}); again.Data.Str("session_id") != s {
			t.Fatalf("the same request made %v; %+v", again.Data, again.Error)
		}
		for _, node := range []string{"one", "two"} { // whoever gets the request
			if code := tried("session.create", object{"name": "far", "node": node}).Code(); code != "SESSION_EXISTS" {
				t.Fatalf("the name is not the session's: %q", code)
			}
		}
	}
	if f := tried("session.move", object{"session_id": s, "node": "two"}); f.Data.Str("node") != "two" || where() != "two" {
		t.Fatalf("moved to %s: %+v", where(), f.Error)
	}
	check(1)
	for _, g := range owners { // what both have written down is enough
		g.KillGateway(t)
	}
	check(2)
	moved, killed := 0, ""
	for i := range 6 {
		from := where()
		to := map[string]string{"one": "two", "two": "one"}[from]
		dies := []string{from, to}[i%2]
		moving := make(chan struct{})
		mover := gate.Dial(t)
		id := mover.Begin("session.move", object{"session_id": s, "node": to})
		go func() { // ends with the kill; waited for below
			defer close(moving)
			time.Sleep(rand.N(300 * time.Millisecond)) // somewhere in the move
			owners[dies].KillGateway(t)
		}()
		<-moving
		_ = id // its answer may be lost with its connection
		check(3 + i)
		if where() == to {
			moved++
		}
		killed += dies + " "
	}
	t.Logf("%d of 6 moves were made; killed: %s", moved, strings.TrimSpace(killed))
	tried("session.destroy", object{"session_id": s})
	testkit.Eventually(t, "the name is free", func() bool {
		return gate.Dial(t).Try("session.create", object{"name": "far"}).Code() == ""
	})
}

// TestSessionKeepsWhere: the labels that a session was made with count for every node that it gets, also after its gateway's death and after a move.
func TestSessionKeepsWhere(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	gate, from := n.start("gate", "--no-sessions"), n.start("from", "--node-label", "zone=z1")
	n.start("other", "--node-label", "zone=z2")
	sees(t, gate, "from", "other")
	sees(t, from, "from", "other")
	c := gate.Dial(t)
	zone := object{"zone": "z1"}
	s := c.Call("session.create", object{"where": zone}).Str("session_id")
	free := c.Call("session.create", object{"node": "from"}).Str("session_id")
	c.Run(s, "V=kept")
	where := func(id string) string { return c.Call("session.locate", object{"session_id": id}).Str("node") }
	keeps := func(node string) {
		t.Helper()
		if got := c.Call("session.info", object{"session_id": s}).Obj("where"); where(s) != node || !reflect.DeepEqual(got, zone) {
			t.Errorf("it is on %s with where %v", where(s), got)
		}
		if f := c.Try("session.move", object{"session_id": s, "node": "other"}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != "node" {
			t.Errorf("a move to a node that lacks the label: %v, %v", f.Data, f.Error)
		}
		rig.Expect(t, c.Run(s, "echo $V"), 0, "kept\n", "")
	}
	keeps("from")
	from.KillGateway(t)
	sees(t, from, "from", "other")
	sees(t, gate, "from", "other")
	c = gate.Dial(t)
	testkit.Eventually(t, "its gateway is there again", func() bool { return c.Try("session.info", object{"session_id": s}).OK })
	keeps("from")

	for words, want := range map[string]string{"ls": "from +zone=z1\n", "info " + s: "node +from\nwhere +zone=z1\n"} {
		if out, ended := trl(t, gate, strings.Fields(words)...); ended() != 0 || !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("trl %s:\n%s", words, out)
		}
	}

	out, _ := trl(t, gate, "drain", "--node", "from", "--move")
	testkit.Eventually(t, "a session that may go anywhere has moved", func() bool { return where(free) == "other" })
	stays := s + " stays because no other node has the label zone=z1, with which the session was created (where)"
	testkit.Eventually(t, "it says which label the other node lacks", func() bool { return strings.Contains(out.String(), stays) })
	if where(s) != "from" {
		t.Error("it moved to a node that lacks the label")
	}
	n.start("to", "--node-label", "zone=z1")
	<-from.Exited // with its last session, and with it the connection that has a link to it
	c.Close()
	c = gate.Redial(t)
	testkit.Eventually(t, "it has moved to a node that has the label", func() bool { // clients try again, too, while the gate cannot reach the node
		return c.Try("session.locate", object{"session_id": s}).Data.Str("node") == "to"
	})
	keeps("to")
}
