package cluster

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

type object = rig.Object

// A name belongs to one session of all nodes, whatever happens to gateways, until its node is gone.
func TestNamesAreOfTheWholeCluster(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, err := rig.StartGateway(n.flags("a")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop() }) // it was killed
	b := n.start("b")
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	epoch := epochOf(t, a)

	ac, bc := a.Dial(t), b.Dial(t)
	id := ac.Call("session.create", object{"name": "work", "node": "a"}).Str("session_id")
	taken := func() {
		t.Helper()
		bc = b.Redial(t) // a connection ends with the link to a node whose gateway has ended
		f := bc.Try("session.create", object{"name": "work"})
		if f.Code() != "SESSION_EXISTS" || f.Error.Details["session_id"] != id {
			t.Errorf("a second session with the name: %+v", f.Error)
		}
	}
	taken()
	a.KillGateway(t)
	if now := epochOf(t, a); now != epoch {
		t.Errorf("epoch %s after the death of the gateway, was %s", now, epoch)
	}
	taken()
	a.Upgrade(t)
	if now := epochOf(t, a); now != epoch {
		t.Errorf("epoch %s after an upgrade, was %s", now, epoch)
	}
	sees(t, b, "a", "b")
	taken()

	ac = a.Redial(t)
	ac.Call("session.rename", object{"session_id": id, "name": "other"})
	second := bc.Call("session.create", object{"name": "work", "node": "b"}).Str("session_id")
	bc.Call("session.destroy", object{"session_id": second})
	third := ac.Call("session.create", object{"name": "work", "node": "a"}).Str("session_id") // free as soon as the destroy was answered
	if third == second {
		t.Error("the ended session was found")
	}

	killNode(t, a)
	bc = b.Redial(t) // the old one has ended if it had a link to the node
	testkit.Eventually(t, "the name is free again", func() bool {
		return bc.Try("session.create", object{"name": "other", "if_exists": "return"}).OK
	})
	sees(t, b, "b")
}

// A name or a request key that is in use is found on full nodes, too.
func TestExistingSessionOnFullNodes(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, b := n.start("a", "--max-sessions", "1"), n.start("b", "--max-sessions", "1")
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	ac, bc := a.Dial(t), b.Dial(t)
	id := ac.Call("session.create", object{"name": "x", "request_key": "k", "node": "a"}).Str("session_id")
	for _, full := range []bool{false, true} {
		if full {
			bc.Call("session.create", object{"node": "b"})
			testkit.Eventually(t, "both nodes are full", func() bool {
				return bc.Try("session.create", nil).Code() == "MAX_SESSIONS_REACHED" && ac.Try("session.create", nil).Code() == "MAX_SESSIONS_REACHED"
			})
		}
		for _, c := range []*rig.Client{ac, bc} {
			if f := c.Try("session.create", object{"name": "x"}); f.Code() != "SESSION_EXISTS" || f.Error.Details["session_id"] != id {
				t.Errorf("full %v: a taken name: %+v", full, f.Error)
			}
			for _, same := range []object{{"name": "x", "if_exists": "return"}, {"name": "x", "request_key": "k", "node": "a"}} {
				if f := c.Try("session.create", same); !f.OK || f.Data.Str("session_id") != id {
					t.Errorf("full %v: %v: %+v %v", full, same, f.Error, f.Data)
				}
			}
			if f := c.Try("exec.run", object{"session": "x", "command": "echo hi"}); !f.OK {
				t.Errorf("full %v: %+v", full, f.Error)
			}
		}
	}
}

// Without NATS everything goes on that needs no directory, over the nodes known by then and for longer than a lease, and a node that starts meanwhile
// joins later.
func TestNodesWithoutDirectory(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, other := n.start("a"), n.start("other")
	sees(t, a, "a", "other")
	sees(t, other, "a", "other")
	c := a.Dial(t)
	id := c.Session(object{"name": "before", "node": "a"})
	n.nats.Servers[0].Kill()
	gone := time.Now()
	testkit.Eventually(t, "the directory is degraded", func() bool { return c.Call("system.ping", nil).Yes("degraded") })
	if page := a.Get(t, "/readyz?verbose"); !strings.Contains(page, "degraded") {
		t.Errorf("/readyz?verbose: %s", page)
	}
	if page := a.Get(t, "/metrics"); !strings.Contains(page, "trl_directory_degraded 1") {
		t.Error("trl_directory_degraded is not 1")
	}
	b := n.start("b") // alone
	bc := b.Dial(t)
	for _, c := range []*rig.Client{c, bc} {
		rig.Expect(t, c.Run(c.Session(), "echo hi"), 0, "hi\n", "")
	}
	rig.Expect(t, c.Run(id, "echo hi"), 0, "hi\n", "")
	unnamed := c.Session(object{"node": "other"})
	waiting := []int{c.Begin("session.create", object{"name": "meanwhile"}), c.Begin("session.create", object{"request_key": "meanwhile"}), c.Begin("session.rename", object{"session_id": id, "name": "renamed"})}
	rig.Expect(t, c.Run(unnamed, "echo hi"), 0, "hi\n", "") // they do not hold up the connection
	oc := other.Dial(t)
	rig.Expect(t, oc.Call("exec.run", object{"session": "before", "command": "echo hi"}), 0, "hi\n", "") // the nodes ask each other
	for _, waits := range waiting {
		if f := c.Answer(waits); f.Code() != "DIRECTORY_UNAVAILABLE" {
			t.Errorf("a new name without the directory: %+v", f.Error)
		}
	}
	time.Sleep(time.Until(gone.Add(lease + time.Second))) // nothing is forgotten by then
	for _, c := range []*rig.Client{c, oc} {
		rig.Expect(t, c.Run(id, "echo hi"), 0, "hi\n", "")
		rig.Expect(t, c.Run(unnamed, "echo hi"), 0, "hi\n", "")
	}
	n.nats.Servers[0].Start()
	for _, g := range []*rig.Server{a, b, other} {
		sees(t, g, "a", "b", "other")
	}
	if f := bc.Try("session.create", object{"name": "before"}); f.Code() != "SESSION_EXISTS" {
		t.Errorf("a second session with the name: %+v", f.Error)
	}
}

// A gateway without --cluster has no goroutine of a cluster.
func TestOneNodeRunsNothingOfACluster(t *testing.T) {
	t.Parallel()
	admin := filepath.Join(t.TempDir(), "admin")
	g := rig.Gateway(t, "--admin-listen", admin)
	c := g.Dial(t)
	rig.Expect(t, c.Run(c.Session(object{"name": "x"}), "echo hi"), 0, "hi\n", "")
	pages := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", admin)
	}}}
	answer, err := pages.Get("http://localhost/debug/pprof/goroutine?debug=2")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stacks, err := io.ReadAll(answer.Body)
	if err != nil || !strings.Contains(string(stacks), "trl/web") {
		t.Fatalf("no stacks: %v", err)
	}
	for _, of := range []string{"trl/cluster", "trl/internal/member", "nats"} {
		if strings.Contains(string(stacks), of) {
			t.Errorf("a goroutine of %s runs:\n%s", of, stacks)
		}
	}
}

// A session is made where it is asked for, and not on a node that is being drained or full; why none takes it is said.
func TestPlacement(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, b, g := n.start("a", "--node-label", "zone=east", "--max-sessions", "2", "--on-term", "drain"), n.start("b", "--node-label", "zone=west"), n.start("g", "--no-sessions")
	for _, at := range []*rig.Server{a, b, g} {
		sees(t, at, "a", "b")
	}
	ac, c := a.Dial(t), g.Dial(t)
	refused := func(code, why string, q object) {
		t.Helper()
		testkit.Eventually(t, "a refusal with "+code, func() bool { // news of other nodes are up to a second old
			f := c.Try("session.create", q)
			if f.OK {
				c.Call("session.destroy", object{"session_id": f.Data["session_id"], "force": true})
				return false
			}
			nodes, _ := f.Error.Details["nodes"].(map[string]any)
			return f.Code() == code && nodes["a"] == why
		})
	}
	for _, q := range []object{{"node": "a"}, {"where": object{"zone": "east"}}} {
		if made := c.Call("session.create", q); made.Str("node") != "a" {
			t.Errorf("%v made it on %q", q, made.Str("node"))
		}
	}
	refused("MAX_SESSIONS_REACHED", "full", object{"node": "a"})
	if f := c.Try("session.create", object{"where": object{"zone": "north"}}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != "where" {
		t.Errorf("a label that no node has: %+v", f.Error)
	}
	if f := c.Try("session.create", object{"node": "nobody"}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != "node" {
		t.Errorf("a node that does not exist: %+v", f.Error)
	}
	ac.Call("system.drain", nil)
	refused("SHUTTING_DOWN", "draining", object{"node": "a"})
	for range 3 {
		if made := c.Call("session.create", nil); made.Str("node") != "b" {
			t.Errorf("made on %q, want b", made.Str("node"))
		}
	}
	ac.Call("system.drain", object{"undo": true})
	refused("MAX_SESSIONS_REACHED", "full", object{"node": "a"})
	testkit.Eventually(t, "the stats of the cluster count all", func() bool { return c.Call("system.stats", nil).Num("active_sessions") >= 2 })

	// SIGTERM drains, too. The node waits for its sessions, whose clients come over other nodes, and then it is gone at once.
	if err := syscall.Kill(a.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	refused("SHUTTING_DOWN", "draining", object{"node": "a"})
	for _, s := range listed(t, c) {
		if id := s.Str("session_id"); s.Str("node") == "a" {
			rig.Expect(t, c.Run(id, "echo hi"), 0, "hi\n", "")
			c.Call("session.destroy", object{"session_id": id})
		}
	}
	select {
	case <-a.Exited:
	case <-time.After(testkit.Patience):
		t.Fatal("the drained node has not ended")
	}
	sees(t, b, "b")
}

// A gateway whose keeper was killed tells the others that its sessions are gone, before it ends.
func TestDeathOfAKeeperIsTold(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	a, err := rig.StartGateway(n.flags("a")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Stop() }) // its keeper is killed
	b := n.start("b")
	sees(t, b, "a", "b")
	c := b.Dial(t)
	id := c.Call("session.create", object{"name": "work", "node": "a"}).Str("session_id")
	if err := syscall.Kill(a.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	c.CloseStatus() // it has a link to a
	sees(t, b, "b")
	rig.Within(t, "the others' knowledge of the end", start, 3*time.Second)
	c = b.Dial(t)
	testkit.Eventually(t, "the session is lost", func() bool { // a young gateway says NODE_UNREACHABLE first: it may not know all nodes yet
		return c.Try("exec.run", object{"session_id": id, "command": "true"}).Code() == "SESSION_LOST"
	})
	if again := c.Call("session.create", object{"name": "work"}); again.Str("node") != "b" {
		t.Errorf("the name is on %q, want b", again.Str("node"))
	}
}
