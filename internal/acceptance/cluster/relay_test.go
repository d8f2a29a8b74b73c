package cluster

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// A client of a node that owns no sessions works as on one node, and loses no byte when the gateway of the other node is killed, or its own.
func TestNodeThatOwnsNoSessions(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	gate := n.start("gate", "--no-sessions")
	owner := n.start("owner")
	c := gate.Dial(t)
	testkit.Eventually(t, "the gate knows the owner", func() bool {
		for _, other := range c.Call("system.nodes", nil).Objs("nodes") {
			if other.Str("node") == "owner" && other.Num("max_sessions") > 0 {
				return true
			}
		}
		return false
	})
	created := c.Call("session.create", object{"name": "far", "request_key": "k"})
	s := created.Str("session_id")
	if created.Str("node") != "owner" || c.Call("session.locate", object{"session": "far"}).Str("node") != "owner" {
		t.Fatalf("created %v", created)
	}
	if again := gate.Dial(t).Call("session.create", object{"name": "far", "request_key": "k"}); again.Str("session_id") != s {
		t.Errorf("the same request made %v", again)
	}
	rig.Expect(t, c.Call("exec.run", object{"session": "far", "command": "X=7; echo $X"}), 0, "7\n", "")
	rig.Expect(t, c.Call("exec.run", object{"command": "echo default"}), 0, "default\n", "")
	if list := listed(t, c); len(list) != 2 {
		t.Errorf("listed %v", list)
	}

	c = streamThrough(t, c, s, owner, websocket.StatusServiceRestart, gate)
	// The client's own gateway dies: every other one goes on with the stream.
	c = streamThrough(t, c, s, gate, -1, owner) // without a close frame
	sees(t, gate, "owner")
	rig.Expect(t, c.Call("exec.run", object{"session": "far", "command": "echo $X"}), 0, "7\n", "")
	answer, err := http.Post("http://"+gate.Addr+"/v1/rpc", "application/json", strings.NewReader(`{"method":"exec.run","params":{"session":"far","command":"echo $X"}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != 200 || !strings.Contains(string(text), `"stdout":"7\n"`) {
		t.Errorf("over HTTP: %d %s %v", answer.StatusCode, text, err)
	}

	// Its recording is read through the gate, too: by the page's and the CLI's way, and as a resource for agents.
	recorded := c.Call("session.create", object{"name": "recorded", "record": "all"}).Str("session_id")
	rig.Expect(t, c.Run(recorded, "echo on the record"), 0, "on the record\n", "")
	rec := c.Call("recording.list", object{"session_id": recorded}).Objs("recordings")[0].Str("recording_id")
	get := exec.Command(rig.Binary, "recordings", "get", rec, "--url", "http://"+gate.Addr)
	if out, err := get.Output(); err != nil || !strings.Contains(string(out), "on the record") {
		t.Errorf("trl recordings get: %s %v", out, err)
	}
	read := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"trl://recordings/%s"}}`, rec)
	req, err := http.NewRequest(http.MethodPost, "http://"+gate.Addr+"/mcp", strings.NewReader(read))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	resource, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resource.Body.Close()
	if text, err := io.ReadAll(resource.Body); err != nil || !strings.Contains(string(text), "on the record") {
		t.Errorf("as a resource of /mcp: %s %v", text, err)
	}
}

// streamThrough reads the output of a command, kills a gateway meanwhile, which must end the connection with this code, and reads the rest over the next
// gateway. It returns the client of that one.
func streamThrough(t *testing.T, c *rig.Client, session string, dies *rig.Server, want websocket.StatusCode, next *rig.Server) *rig.Client {
	t.Helper()
	const lines = 120_000                                                                   // less than what is kept of a command that nobody follows
	st := c.Stream(session, fmt.Sprintf("seq %d", lines), object{"window_bytes": 64 << 10}) // nothing is acknowledged: the rest is still to come
	var got strings.Builder
	got.WriteString(c.Event("exec.output").Str("data"))
	dies.KillGateway(t)
	if code := c.CloseStatus(); code != want {
		t.Errorf("closed with %d, want %d", code, want)
	}
	for _, f := range c.Seen("exec.output") { // those that came before the end
		got.WriteString(f.Data.Str("data"))
	}
	start := time.Now()
	c = next.Dial(t)
	testkit.Eventually(t, "the stream goes on", func() bool {
		f := c.Try("exec.attach", object{"exec_id": st.Str("exec_id"), "offset": got.Len(), "on_slow": "block"})
		if !f.OK && f.Code() != "NODE_UNREACHABLE" {
			t.Fatalf("attach: %+v", f.Error)
		}
		return f.OK
	})
	rig.Within(t, "the way back", start, 2*time.Second)
	rest, exit := c.Output(st.Str("stream_id"), got.Len())
	got.WriteString(rest)
	var all strings.Builder
	for i := range lines {
		fmt.Fprintln(&all, i+1)
	}
	if got.String() != all.String() || exit.Num("exit_code") != 0 {
		t.Errorf("%d bytes, want %d; %v", got.Len(), all.Len(), exit)
	}
	return c
}

// A new session waits for the only node that may have it while the gateway there is replaced: it is never refused for good.
func TestReplacedGatewayRefusesNoSession(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	gate, owner := n.start("gate", "--no-sessions"), n.start("owner")
	sees(t, gate, "owner")
	for range 3 {
		before := owner.GatewayPid()
		owner.KillGateway(t)
		c := gate.Redial(t)
		testkit.Eventually(t, "a session is made", func() bool {
			f := c.Try("session.create", nil)
			if !f.OK && f.Code() != "NODE_UNREACHABLE" {
				t.Fatalf("refused: %+v", f.Error)
			}
			return f.OK
		})
		c.Close()
		if owner.GatewayPid() == before {
			t.Error("the gateway was not replaced")
		}
	}
}
