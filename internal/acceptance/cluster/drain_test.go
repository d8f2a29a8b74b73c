package cluster

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	if list, ends := trl(t, a, "nodes"); ends() != 0 || strings.Contains(list.String(), "draining") {
		t.Errorf("after the end of the node: %s", list)
	}
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
