package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/natsrig"
	"trl/internal/rig"
	"trl/internal/testkit"
)

// lease is how long a node counts after it last wrote its entry into the directory.
const lease = 15 * time.Second

// Two nodes fall silent: links to the first one carry nothing any more, and the second one is stopped. Clients of their sessions are told within 15 s,
// and others notice nothing. The first node keeps its place in the cluster and its sessions; the names of the second one are free when its lease has
// run out. When both answer again, no session is lost and no command has run twice.
func TestSilentNodes(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	flags, link := n.behindProxy()
	gate, far, stopped := n.start("gate"), n.start("far", flags...), n.start("stopped")
	for _, g := range []*rig.Server{gate, far, stopped} {
		sees(t, g, "far", "gate", "stopped")
	}
	own := gate.Dial(t)
	here := own.Session(object{"node": "gate"})
	type client struct {
		*rig.Client
		session string
		trace   string // a file in which a command leaves a line
		command object
	}
	clients := map[string]*client{}
	for _, name := range []string{"far", "stopped"} {
		c := &client{Client: gate.Dial(t), trace: filepath.Join(t.TempDir(), "trace")}
		c.session = c.Session(object{"node": name, "name": name})
		rig.Expect(t, c.Run(c.session, "X=7"), 0, "", "")
		c.command = object{"session_id": c.session, "command": fmt.Sprintf("echo once >>%s; sleep 1; echo done", c.trace), "request_key": "once"}
		clients[name] = c
	}
	start := time.Now()
	for _, c := range clients {
		c.Begin("exec.run", c.command)
	}
	for _, c := range clients {
		testkit.Eventually(t, "the command runs", func() bool { _, err := os.Stat(c.trace); return err == nil })
	}
	link.Hold()
	resume := stopNode(t, stopped)

	var told sync.WaitGroup
	for name, c := range clients {
		told.Go(func() {
			if code := c.CloseStatus(); code != websocket.StatusServiceRestart {
				t.Errorf("%s: closed with %d", name, code)
			}
			rig.Within(t, "the news of silence", start, lease)
		})
	}
	rig.Expect(t, own.Run(here, "echo hi"), 0, "hi\n", "")
	rig.Expect(t, own.Run(own.Session(object{"node": "gate", "name": "meanwhile"}), "echo hi"), 0, "hi\n", "")
	told.Wait()

	for _, c := range clients {
		c.Client = gate.Dial(t)
	}
	f := clients["far"].Try("exec.run", clients["far"].command)
	if f.Code() != "NODE_UNREACHABLE" || f.Error.Details["node"] != "far" || f.Error.Details.Num("retry_after_ms") < 1 || f.Error.Details.Num("retry_after_ms") > 8000 {
		t.Errorf("of a node that cannot be reached: %+v", f.Error)
	}
	for _, node := range own.Call("system.nodes", nil).Objs("nodes") {
		if node.Str("node") == "far" && node.Str("unreachable") == "" {
			t.Errorf("a node that cannot be reached is shown as %v", node)
		}
	}
	testkit.Eventually(t, "the sessions of the stopped node are said to be lost", func() bool {
		f := clients["stopped"].Try("exec.run", clients["stopped"].command)
		if f.Code() != "NODE_UNREACHABLE" && f.Code() != "SESSION_LOST" {
			t.Fatalf("of a stopped node: %+v", f)
		}
		return f.Code() == "SESSION_LOST"
	})
	second := own.Session(object{"name": "stopped", "node": "gate"}) // the name is free now
	sees(t, gate, "far", "gate")

	link.Release()
	resume()
	sees(t, gate, "far", "gate", "stopped")
	for name, c := range clients {
		testkit.Eventually(t, "the command's result", func() bool {
			c.Client = gate.Redial(t)
			f := c.Try("exec.run", c.command)
			if f.OK {
				rig.Expect(t, f.Data, 0, "done\n", "")
			} else if f.Code() != "NODE_UNREACHABLE" {
				t.Fatalf("%s: %+v", name, f.Error)
			}
			return f.OK
		})
		rig.Expect(t, c.Run(c.session, "echo $X"), 0, "7\n", "")
		if text, err := os.ReadFile(c.trace); string(text) != "once\n" {
			t.Errorf("the command of %s has left %q, %v", name, text, err)
		}
	}
	if got := own.Call("session.info", object{"session": "stopped"}).Str("session_id"); got != second {
		t.Errorf("the name is of %s, want %s", got, second)
	}
	testkit.Eventually(t, "the node says that it has lost the name", func() bool { return strings.Contains(stopped.Log(), "given this session's name away") })
}

// stopNode stops a whole node until the returned function is called.
func stopNode(t *testing.T, g *rig.Server) (resume func()) {
	t.Helper()
	pids := []int{g.Pid, g.Serving(t)}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	resume = sync.OnceFunc(func() {
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(resume) // before the node is ended
	return resume
}

// The leader of the names dies, and then one of three servers of NATS is cut off from the others, with a node: whatever needs no directory goes on, that
// node claims no name, and the others do.
func TestDividedNATS(t *testing.T) {
	t.Parallel()
	n := newNodesWith(t, 3, natsrig.Options{Divisible: true})
	servers := n.nats.Servers
	few := rig.Gateway(t, n.flagsAt([]string{servers[0].URL()}, "few")...)
	many := rig.Gateway(t, n.flagsAt([]string{servers[1].URL(), servers[2].URL()}, "many")...)
	sees(t, few, "few", "many")
	sees(t, many, "few", "many")
	fc, mc := few.Dial(t), many.Dial(t)
	on := map[string]string{}
	for _, name := range []string{"few", "many"} {
		on[name] = fc.Session(object{"node": name, "name": "on-" + name})
	}
	goesOn := func() {
		t.Helper()
		for _, c := range []*rig.Client{fc, mc} {
			for _, id := range on {
				rig.Expect(t, c.Run(id, "echo hi"), 0, "hi\n", "")
				st := c.Stream(id, "seq 3")
				if text, _ := c.Output(st.Str("stream_id"), 0); text != "1\n2\n3\n" {
					t.Errorf("a stream: %q", text)
				}
			}
		}
		a, b := fc.Session(object{"node": "few"}), mc.Session(object{"node": "many"})
		if a == b {
			t.Errorf("two nodes made %s", a)
		}
	}
	mayClaim := func(name string, f *rig.Frame) bool {
		t.Helper()
		if !f.OK && (f.Code() != "DIRECTORY_UNAVAILABLE" || f.Error.Details.Num("retry_after_ms") <= 0) {
			t.Fatalf("claim of %q: %+v", name, f.Error)
		}
		return f.OK
	}

	var leader *natsrig.Server
	nc := n.nats.Connect()
	testkit.Eventually(t, "the names have a leader among the two", func() bool {
		if leader = n.nats.Leader("KV_trl_names"); leader == servers[0] {
			_, _ = nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_trl_names", nil, time.Second)
		}
		return leader != servers[0]
	})
	leader.Kill()
	waits := mc.Begin("session.create", object{"name": "without-leader", "node": "many"})
	goesOn()
	mayClaim("without-leader", mc.Answer(waits))
	leader.Start()
	for _, c := range []*rig.Client{fc, mc} {
		testkit.Eventually(t, "names can be claimed again", func() bool {
			return mayClaim("after", c.Try("session.create", object{"name": "after", "node": "many", "if_exists": "return"}))
		})
	}

	servers[0].Isolate()
	waits = fc.Begin("session.create", object{"name": "of-few", "node": "few"})
	goesOn()
	testkit.Eventually(t, "the majority claims a name", func() bool {
		return mayClaim("of-many", mc.Try("session.create", object{"name": "of-many", "node": "many", "if_exists": "return"}))
	})
	if f := fc.Answer(waits); f.Code() != "DIRECTORY_UNAVAILABLE" {
		t.Errorf("the minority has claimed a name: %+v", f)
	}
	rig.Expect(t, fc.Call("exec.run", object{"session": "of-many", "command": "echo hi"}), 0, "hi\n", "") // the nodes ask each other

	servers[0].Rejoin()
	sees(t, few, "few", "many")
	sees(t, many, "few", "many")
	if f := fc.Try("session.create", object{"name": "of-many", "node": "few"}); f.Code() != "SESSION_EXISTS" {
		t.Errorf("a name has two sessions: %+v", f)
	}
	testkit.Eventually(t, "the name that could not be claimed is free", func() bool {
		return mayClaim("of-few", mc.Try("session.create", object{"name": "of-few", "node": "many", "if_exists": "return"}))
	})
	goesOn()
}

// A node of the next version works with this one, and one of a version far apart is refused, shown, and given nothing to do.
func TestVersionsOfNodes(t *testing.T) {
	t.Parallel()
	n := newNodes(t, 1)
	program := buildWithLinkVersion(t)
	start := func(version string) *rig.Server {
		path := program + "." + version
		if err := os.Link(program, path); err != nil {
			t.Fatal(err)
		}
		return rig.StartTuned(t, func(cmd *exec.Cmd) { cmd.Path = path }, n.flags("v"+version)...)
	}
	one, two, four := n.start("v1"), start("2"), start("4")
	for _, g := range []*rig.Server{one, two, four} {
		sees(t, g, "v1", "v2", "v4")
	}
	over := func(g *rig.Server, node string) {
		t.Helper()
		c := g.Dial(t)
		rig.Expect(t, c.Run(c.Session(object{"node": node}), "echo hi"), 0, "hi\n", "")
	}
	over(one, "v2")
	over(two, "v1")

	theirs := four.Dial(t).Session(object{"node": "v4"})
	c := one.Dial(t)
	if f := c.Try("session.create", object{"node": "v4"}); f.Code() != "NODE_UNREACHABLE" || f.Error.Details.Num("retry_after_ms") <= 0 {
		t.Errorf("a session on a node of a version far apart: %+v", f)
	}
	if f := c.Try("exec.run", object{"session_id": theirs, "command": "true"}); f.Code() != "NODE_UNREACHABLE" || f.Error.Details["node"] != "v4" {
		t.Errorf("a request to it: %+v", f)
	}
	for range 8 {
		if node := c.Call("session.create", nil).Str("node"); node == "v4" {
			t.Error("a session was made there")
		}
	}
	testkit.Eventually(t, "a list lacks v4, and what does not answer within a second", func() bool { return fmt.Sprint(c.Call("session.list", nil)["partial"]) == "[v4]" })
	const ours, other = "this node speaks 1 to 1", "the other one 3 to 4"
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, rig.Binary, "nodes", "--url", "http://"+one.Addr).CombinedOutput()
	if line := regexp.MustCompile(`(?m)^v4 .*`).FindString(string(out)); err != nil || !strings.Contains(line, ours) || !strings.Contains(line, other) {
		t.Errorf("trl nodes: %v\n%s", err, out)
	}
	testkit.Eventually(t, "both nodes log both versions", func() bool {
		return strings.Contains(one.Log(), ours+", "+other) && strings.Contains(four.Log(), "this node speaks 3 to 4, the other one 1 to 1")
	})
}

// buildWithLinkVersion builds a gateway whose newest version of the link protocol is the last letter of its path.
func buildWithLinkVersion(t *testing.T) string {
	t.Helper()
	return buildChanged(t, "trl-version", "../../../cluster/link/handshake.go",
		"import (\n", "import (\n\t\"os\"\n",
		"const Version = 1\n", `var Version = func() int {
	path, _ := os.Executable()
	return int(path[len(path)-1] - '0')
}()
`)
}

// buildChanged builds a gateway after a change of one of its source files: pairs of an old and a new text.
func buildChanged(t *testing.T, name, file string, changes ...string) string {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	changed := string(text)
	for i := 0; i < len(changes); i += 2 {
		if strings.Count(changed, changes[i]) != 1 {
			t.Fatalf("%s has not exactly one %q", file, changes[i])
		}
		changed = strings.Replace(changed, changes[i], changes[i+1], 1)
	}
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay")
	for path, text := range map[string]string{replacement: changed, overlay: fmt.Sprintf(`{"Replace":{%q:%q}}`, file, replacement)} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, name)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := rig.BuildProgram(program, name, ".", "trl/cmd/trl", "-overlay", overlay); err != nil {
		t.Fatal(err)
	}
	return program
}
