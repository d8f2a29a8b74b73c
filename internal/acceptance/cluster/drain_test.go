package cluster

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// trl starts a command of the program against a gateway. The returned function waits for its end and returns the exit code.
func trl(t *testing.T, g *rig.Server, words ...string) (output *testkit.LogBook, wait func() int) {
	t.Helper()
	output = &testkit.LogBook{}
	cmd := exec.Command(rig.Binary, append(words, "--url", "http://"+g.Addr)...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := testkit.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // ends with the process
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return output, func() int {
		t.Helper()
		err := <-ended
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode()
		} else if err != nil {
			t.Error(err)
		}
		return 0
	}
}

// A node is drained through another one: new sessions go elsewhere, those that it has go on, and it ends with the last of them.
func TestDrainOfAnotherNode(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	dir := t.TempDir()
	logs := map[string]string{"a": filepath.Join(dir, "a"), "b": filepath.Join(dir, "b")}
	a, b := n.start("a", "--audit-log", logs["a"]), n.start("b", "--audit-log", logs["b"])
	sees(t, a, "a", "b")
	sees(t, b, "a", "b")
	c := a.Dial(t)
	s := c.Call("session.create", object{"name": "work", "node": "b"}).Str("session_id")
	goesOn := func() {
		t.Helper()
		rig.Expect(t, c.Run(s, "echo on"), 0, "on\n", "")
	}
	ready := func(want int) {
		t.Helper()
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + b.Addr + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("/readyz answers %d, want %d", resp.StatusCode, want)
		}
	}

	first, firstEnds := trl(t, a, "drain", "--node", "b", "--wait", "1h")
	testkit.Eventually(t, "the drain has begun", func() bool { return strings.Contains(first.String(), "node b is draining, 1 sessions live") })
	ready(http.StatusServiceUnavailable)
	testkit.Eventually(t, "the other node knows it", func() bool {
		list, ends := trl(t, a, "nodes")
		return ends() == 0 && strings.Contains(list.String(), "draining")
	})
	if f := c.Try("session.create", object{"node": "b"}); f.Code() != "SHUTTING_DOWN" {
		t.Errorf("a session on a node that is being drained: %+v", f.Error)
	}
	if made := c.Call("session.create", nil); made.Str("node") != "a" {
		t.Errorf("made on %q", made.Str("node"))
	}
	goesOn()

	if _, ends := trl(t, a, "drain", "--node", "b", "--undo"); ends() != 0 {
		t.Error("the drain cannot be undone")
	}
	if code := firstEnds(); code != 1 || !strings.Contains(first.String(), "somebody undid the drain") {
		t.Errorf("the command that waited ended with %d: %s", code, first)
	}
	ready(http.StatusOK)
	testkit.Eventually(t, "the node takes sessions again", func() bool { return c.Try("session.create", object{"node": "b", "name": "again"}).OK })
	c.Call("session.destroy", object{"session": "again"})

	second, secondEnds := trl(t, a, "drain", "--node", "b")
	testkit.Eventually(t, "the second drain has begun", func() bool { return strings.Contains(second.String(), "1 sessions live") })
	b.KillGateway(t) // the next one does not know of the drain
	c.CloseStatus()
	c = a.Redial(t)
	testkit.Eventually(t, "it is asked for again", func() bool { return strings.Count(second.String(), "is draining") > 1 })
	goesOn()
	c.Call("session.destroy", object{"session_id": s})
	if code := secondEnds(); code != 0 {
		t.Errorf("trl drain ended with %d: %s", code, second)
	}
	<-b.Exited
	testkit.Eventually(t, "the other node knows of its end", func() bool {
		list, ends := trl(t, a, "nodes")
		return ends() == 0 && !strings.Contains(list.String(), "draining")
	})
	if out, ends := trl(t, a, "drain", "--node", "b"); ends() == 0 || !strings.Contains(out.String(), `no node "b"`) {
		t.Errorf("a node that is gone: %s", out)
	}

	for node, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		drains := 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, `"action":"system.drain"`) && strings.Contains(line, `"outcome":"ok"`) && strings.Contains(line, `"node":"b"`) == (node == "a") {
				drains++
			}
		}
		if drains < 4 { // two drains, one of them asked for twice, and one that was undone
			t.Errorf("node %s wrote %d entries:\n%s", node, drains, text)
		}
	}
}

// A drain with --move empties a node: idle sessions go to the other nodes with their state, and the others as soon as they are idle. Clients go on.
func TestDrainThatMoves(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	logs, gateLogs := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit")
	gate := n.start("gate", "--no-sessions", "--audit-log", gateLogs)
	full, from := n.start("full", "--max-sessions", "1"), n.start("from", "--audit-log", logs)
	sees(t, gate, "from", "full")
	sees(t, from, "from", "full")
	sees(t, full, "from", "full")
	c := gate.Dial(t)
	c.Call("session.create", object{"name": "blocks", "node": "full"})
	made := func(name string) (id string) {
		t.Helper()
		id = c.Call("session.create", object{"name": name, "node": "from"}).Str("session_id")
		c.Run(id, "cd /usr; V="+name)
		return id
	}
	idle, viewed, busy := made("idle"), made("viewed"), made("busy")
	term := c.Call("term.open", object{"session_id": viewed, "cols": 80, "rows": 24}).Str("term_id")
	started := filepath.Join(t.TempDir(), "go")
	running := gate.Dial(t)
	request := running.Begin("exec.run", object{"session_id": busy, "command": "while [ ! -e " + started + " ]; do sleep 0.1; done; echo waited"})
	testkit.Eventually(t, "the command runs", func() bool { return c.Call("session.info", object{"session_id": busy}).Str("state") == "RUNNING" })
	where := func(id string) string { return c.Call("session.locate", object{"session_id": id}).Str("node") }
	goesOn := func(id, name string) {
		t.Helper()
		rig.Expect(t, c.Run(id, "pwd; echo $V"), 0, "/usr\n"+name+"\n", "")
	}

	first, firstEnds := trl(t, gate, "drain", "--node", "from", "--move")
	for _, why := range []string{"no node has room", viewed + " stays because of its terminals", busy + " stays because of its commands"} {
		testkit.Eventually(t, "it says "+why, func() bool { return strings.Contains(first.String(), why) })
	}
	if where(idle) != "from" {
		t.Fatal("the session has moved to a node that is full")
	}
	to := n.start("to")
	testkit.Eventually(t, "the idle session has moved", func() bool { return where(idle) == "to" })
	goesOn(idle, "idle")
	testkit.Eventually(t, "it says so", func() bool { return strings.Contains(first.String(), "1 sessions moved") })
	if where(viewed) != "from" || where(busy) != "from" {
		t.Error("a session that cannot be moved has moved")
	}

	if _, ends := trl(t, gate, "drain", "--node", "from", "--undo"); ends() != 0 || firstEnds() != 1 {
		t.Error("the drain was not undone")
	}
	c.Call("term.close", object{"term_id": term})
	stays := c.Call("session.create", object{"name": "stays", "node": "to"}).Str("session_id")
	testkit.Eventually(t, "the node takes sessions again", func() bool {
		return c.Try("session.move", object{"session_id": stays, "node": "from"}).OK
	})
	var stats *rig.Frame
	testkit.Eventually(t, "the node answers within the second that it has", func() bool {
		stats = c.Try("system.stats", object{"node": "from"})
		return stats.Code() != "NODE_UNREACHABLE"
	})
	if !stats.OK || stats.Data.Has("moves") || where(viewed) != "from" {
		t.Errorf("after the undo: %+v", stats)
	}

	second, secondEnds := trl(t, gate, "drain", "--node", "from", "--move", "--json")
	for _, id := range []string{viewed, stays} {
		testkit.Eventually(t, "the others have moved", func() bool { return where(id) == "to" })
	}
	goesOn(viewed, "viewed")
	if where(busy) != "from" {
		t.Error("the command's session has moved")
	}
	if err := os.WriteFile(started, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := running.Answer(request); f.Data.Stdout() != "waited\n" {
		t.Errorf("%+v", f)
	}
	if code := secondEnds(); code != 0 || !strings.Contains(second.String(), `"moved":`) {
		t.Errorf("ended with %d: %s", code, second)
	}
	<-from.Exited
	c.Close() // its link to the node has ended
	c = gate.Redial(t)
	testkit.Eventually(t, "the last session has moved", func() bool { // clients try again, too, while the gate cannot reach the node
		return c.Try("session.locate", object{"session_id": busy}).Data.Str("node") == "to"
	})
	goesOn(busy, "busy")
	if all := listed(t, to.Dial(t)); len(all) != 5 {
		t.Errorf("%d sessions are left", len(all))
	}
	text, err := os.ReadFile(logs)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), `"reason":"drain"`); n != 4 || !strings.Contains(string(text), `"from":"from","to":"to"`) {
		t.Errorf("%d entries of moves, want 4:\n%s", n, text)
	}
	testkit.Eventually(t, "the move that a client asked for is in the logs of both other nodes", func() bool {
		gates, err := os.ReadFile(gateLogs)
		if err != nil {
			t.Fatal(err)
		}
		return hasEntry(gates, `"action":"session.move","outcome":"ok"`, `"node":"to","from":"to","to":"from"`) &&
			hasEntry(text, `"action":"session.arrived"`, `"from":"to","to":"from"`)
	})
}

// SIGTERM with --on-term move moves what it can, waits for the rest no longer than the grace, and ends.
func TestTermThatMoves(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	gate := n.start("gate", "--no-sessions")
	from := n.start("from", "--on-term", "move", "--drain-timeout", "20s") // far longer than a move takes
	n.start("to")
	sees(t, gate, "from", "to")
	sees(t, from, "from", "to")
	c := gate.Dial(t)
	idle := c.Call("session.create", object{"node": "from"}).Str("session_id")
	c.Run(idle, "V=1")
	pinned := c.Call("session.create", object{"node": "from"}).Str("session_id")
	c.Call("process.start", object{"session_id": pinned, "command": "sleep 1000"})
	if err := syscall.Kill(from.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-from.Exited
	c = gate.Redial(t)
	var f *rig.Frame
	testkit.Eventually(t, "the gate knows that the node is gone", func() bool { // clients try again, too
		f = c.Try("exec.run", object{"session_id": idle, "command": "echo $V"})
		return f.Code() != "NODE_UNREACHABLE"
	})
	if f.Data.Stdout() != "1\n" {
		t.Errorf("%+v", f)
	}
	testkit.Eventually(t, "the other session is lost", func() bool {
		f := c.Try("session.info", object{"session_id": pinned})
		return f.Code() == "SESSION_LOST" || f.Code() == "SESSION_NOT_FOUND"
	})
}

// hasEntry reports whether a line of an audit log has all of these texts.
func hasEntry(log []byte, all ...string) bool {
	for line := range strings.Lines(string(log)) {
		if !slices.ContainsFunc(all, func(part string) bool { return !strings.Contains(line, part) }) {
			return true
		}
	}
	return false
}
