package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/rs/zerolog"

	"trl/internal/rig"
	"trl/internal/testkit"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/transport"
)

// TestRelayedSession: a client of a gateway that owns nothing uses a session of another node.
func TestRelayedSession(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"})
	gate, one := cl.node("gate"), cl.node("one")
	c := gate.Dial()
	created := c.Call("session.create", object{"name": "work"})
	s := created.Str("session_id")
	if created.Str("node") != "one" || gate.Pool.LiveCount() != 0 || one.Pool.LiveCount() != 1 {
		t.Fatalf("created %v", created)
	}
	if at := c.Call("session.locate", object{"session": "work"}); at.Str("node") != "one" || at.Str("session_id") != s {
		t.Errorf("located at %v", at)
	}

	t.Run("run", func(t *testing.T) {
		if r := c.Run(s, "cd /usr; X=1; echo $X"); r.Stdout() != "1\n" || r.Str("working_dir") != "/usr" {
			t.Error(r)
		}
		if r := c.Call("exec.run", object{"session": "work", "command": "pwd; echo $X"}); r.Stdout() != "/usr\n1\n" {
			t.Error(r)
		}
		if r := c.Call("exec.run", object{"session": "work", "command": "cat", "stdin": strings.Repeat("x", 1<<20)}); len(r.Stdout()) != 1<<20 {
			t.Errorf("%d bytes", len(r.Stdout()))
		}
		if code := c.Try("exec.run", object{"session_id": s, "command": 7}).Code(); code != "INVALID_PARAMS" {
			t.Error(code)
		}
	})
	t.Run("ids", func(t *testing.T) { // verbatim, and those of equal ids in their order
		for _, id := range []string{`"a\"\\b,"`, `1.50`, `"ü\u0041"`} {
			c.SendText(`{"id":` + id + `,"method":"exec.run","params":{"session_id":"` + s + `","command":"echo ` + "hi" + `"}}`)
			var want any
			json.Unmarshal([]byte(id), &want)
			if f := c.Answer(want); f.Data.Stdout() != "hi\n" {
				t.Errorf("%s: %+v", id, f)
			}
		}
	})
	t.Run("stream and resume", func(t *testing.T) {
		st := c.Stream(s, "seq 1 2000; sleep 0.05; seq 2001 4000")
		want := c.Run(s, "seq 1 4000").Stdout()
		got, exit := c.Output(st.Str("stream_id"), 0)
		if got != want || exit.Num("exit_code") != 0 {
			t.Errorf("%d bytes, want %d", len(got), len(want))
		}
		c.Call("exec.attach", object{"exec_id": st.Str("exec_id"), "offset": 1000})
		if got, _ = c.Output(st.Str("stream_id"), 1000); got != want[1000:] {
			t.Errorf("%d bytes after a resume, want %d", len(got), len(want)-1000)
		}
	})
	t.Run("stdin", func(t *testing.T) {
		st := c.Stream(s, "cat", object{"interactive_stdin": true})
		c.Call("exec.input", object{"exec_id": st.Str("exec_id"), "data": "typed\n", "eof": true})
		if got, _ := c.Output(st.Str("stream_id"), 0); got != "typed\n" {
			t.Errorf("%q", got)
		}
	})
	t.Run("cancel by request_id", func(t *testing.T) {
		for _, ref := range []object{{"session_id": s}, {"session": "work"}} {
			id := c.Begin("exec.run", rig.With(ref, object{"command": "sleep 300"}))
			if a := c.Call("exec.cancel", object{"request_id": id}); !a.Yes("cancelled") {
				t.Error(a)
			}
			if r := c.Answer(id).Data; !r.Yes("cancelled") {
				t.Error(r)
			}
		}
		other := gate.Dial() // whose connection has not looked the name up
		id := other.Begin("exec.run", object{"session": "work", "command": "sleep 300"})
		if a := other.Call("exec.cancel", object{"request_id": id}); !a.Yes("cancelled") {
			t.Error(a)
		}
		other.Answer(id)
	})
	t.Run("terminal", func(t *testing.T) {
		term := c.OpenTerminal(s)
		term.Keys("echo $((40+2))\r")
		term.Expect("42")
		c.Call("term.close", object{"term_id": term.Id})
	})
	t.Run("watch", func(t *testing.T) {
		w := gate.Dial()
		if info := w.Call("session.watch", object{"session": "work"}); info.Str("node") != "one" {
			t.Error(info)
		}
		c.Run(s, "echo watched")
		if exit := w.Event("exec.exit"); exit.Num("stdout_bytes") != len("watched\n") {
			t.Error(exit)
		}
	})
	t.Run("a second session elsewhere", func(t *testing.T) {
		cl.placeOn("two")
		s2 := c.Session(object{"name": "more"})
		a, b := c.Begin("exec.run", object{"session_id": s, "command": "echo a"}), c.Begin("exec.run", object{"session_id": s2, "command": "echo b"})
		if c.Answer(a).Data.Stdout() != "a\n" || c.Answer(b).Data.Stdout() != "b\n" {
			t.Error("wrong answers")
		}
		list := c.Call("session.list", nil)
		if got := fmt.Sprint(list.Objs("sessions")[0].Str("node"), list.Objs("sessions")[1].Str("node"), list["partial"]); got != "one two <nil>" && got != "onetwo<nil>" {
			t.Errorf("listed %s", got)
		}
		if stats := c.Call("system.stats", nil); stats.Num("active_sessions") != 2 {
			t.Error(stats)
		}
	})
	t.Run("destroyed and made again on another node", func(t *testing.T) {
		c.Call("exec.run", object{"session": "work", "command": ":"})
		gate.Dial().Call("session.destroy", object{"session": "work"})
		cl.placeOn("two")
		if again := gate.Dial().Call("session.create", object{"name": "work"}); again.Str("node") != "two" {
			t.Error(again)
		}
		if r := c.Call("exec.run", object{"session": "work", "command": "echo there"}); r.Stdout() != "there\n" {
			t.Error(r)
		}
		if code := c.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != "SESSION_TERMINATED" {
			t.Error(code)
		}
	})
	t.Run("default session", func(t *testing.T) {
		cl.placeOn("one")
		d := gate.Dial()
		if a := d.Call("exec.cancel", nil); a.Yes("cancelled") || one.Pool.HasOpen("local", "default") {
			t.Error(a)
		}
		first, second := d.Begin("exec.run", object{"command": "D=7"}), d.Begin("exec.run", object{"command": "echo $D"})
		d.Answer(first)
		if r := d.Answer(second).Data; r.Stdout() != "7\n" || !one.Pool.HasOpen("local", "default") {
			t.Error(r)
		}
	})
	t.Run("pipelined create", func(t *testing.T) {
		p := gate.Dial()
		a, b := p.Begin("session.create", object{"name": "piped"}), p.Begin("exec.run", object{"session": "piped", "command": "echo ok"})
		if p.Answer(a).Data.Str("node") != "one" || p.Answer(b).Data.Stdout() != "ok\n" {
			t.Error("not in order")
		}
	})
	t.Run("http", func(t *testing.T) {
		for _, body := range []string{`{"method":"exec.run","params":{"session":"piped","command":"echo over http"}}`, `{"id":"x","method":"exec.run","params":{"session":"piped","command":"echo over http"}}`} {
			status, text := post(t, gate, body, "")
			if status != 200 || !strings.Contains(text, `"stdout":"over http\n"`) || strings.HasPrefix(text, `{"id":"x",`) != strings.Contains(body, `"id"`) || !strings.Contains(text, `"ok":true`) {
				t.Errorf("%d %s", status, text)
			}
		}
		if status, text := post(t, gate, `{"method":"exec.run","params":{"session_id":"`+s+`","command":":"}}`, ""); status != 409 || !strings.HasPrefix(text, `{"ok":false,"error":{"code":"SESSION_TERMINATED"`) {
			t.Errorf("%d %s", status, text)
		}
		_, text := post(t, gate, `{"method":"exec.stream","params":{"session":"piped","command":"echo 1; sleep 0.05; echo 2"}}`, "application/x-ndjson")
		if lines := strings.Split(strings.TrimSpace(text), "\n"); !strings.HasPrefix(lines[0], `{"ok":true`) || !strings.Contains(lines[len(lines)-1], `"event":"exec.exit"`) {
			t.Errorf("followed %s", text)
		}
		if status, text := post(t, gate, `{"method":"exec.stream","params":{"session":"piped","command":":","window_bytes":5}}`, "application/x-ndjson"); status != 501 {
			t.Errorf("%d %s", status, text)
		}
	})
}

// post sends a request over HTTP.
func post(t testing.TB, to *testNode, body, accept string) (status int, text string) {
	t.Helper()
	return postAs(t, to, "", body, accept)
}

func postAs(t testing.TB, to *testNode, token, body, accept string) (status int, text string) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://"+to.Address+"/v1/rpc", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Errorf("%v after %s", err, b.String())
	}
	return resp.StatusCode, b.String()
}

// TestStreamNumbersNeverCollide: streams of this node and of two others on one connection with binary frames.
func TestStreamNumbersNeverCollide(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"})
	gate := cl.node("gate")
	setup := gate.Dial()
	var sessions []string
	for _, name := range []string{"gate", "one", "two"} {
		cl.placeOn(name)
		s := setup.Call("session.create", object{"name": "on-" + name})
		if s.Str("node") != name {
			t.Fatal(s)
		}
		sessions = append(sessions, s.Str("session_id"))
	}
	ws, _, err := gate.DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	const each = 4
	want := map[string]string{} // output by stream id
	for i := range each * len(sessions) {
		text := fmt.Sprintf(`{"id":%d,"method":"exec.stream","params":{"session_id":%q,"command":"seq %d %d"}}`, i, sessions[i%len(sessions)], i*1000, i*1000+999)
		if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	opened, got, ended := map[uint64]string{}, map[uint64]string{}, 0
	for ended < each*len(sessions) {
		kind, msg, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageBinary {
			no, n := binary.Uvarint(msg[1:])
			_, m := binary.Uvarint(msg[1+n:]) // the offset
			if opened[no] == "" {
				t.Fatalf("output of stream %d before its answer", no)
			}
			got[no] += string(msg[1+n+m:])
			continue
		}
		var f struct {
			ID    int
			Event string
			Data  struct {
				StreamID string `json:"stream_id"`
				StreamNo uint64 `json:"stream_no"`
			}
		}
		if err := json.Unmarshal(msg, &f); err != nil {
			t.Fatal(err)
		}
		switch f.Event {
		case "":
			if opened[f.Data.StreamNo] != "" || f.Data.StreamNo == 0 {
				t.Fatalf("two streams have the number %d", f.Data.StreamNo)
			}
			opened[f.Data.StreamNo] = f.Data.StreamID
			var b strings.Builder
			for n := f.ID * 1000; n < f.ID*1000+1000; n++ {
				fmt.Fprintln(&b, n)
			}
			want[f.Data.StreamID] = b.String()
		case "exec.exit":
			ended++
		}
	}
	for no, id := range opened {
		if got[no] != want[id] {
			t.Errorf("stream %d has %d bytes, want %d", no, len(got[no]), len(want[id]))
		}
	}
}

// TestSlowClientHoldsUpARelayedCommand: neither this node nor the owner reads ahead for a client that reads nothing, or that acknowledges nothing.
func TestSlowClientHoldsUpARelayedCommand(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"})
	gate := cl.node("gate")
	count := func(c *rig.Client, s, file string) int {
		n, _ := strconv.Atoi(strings.TrimSpace(c.Run(s, "wc -l < "+file).Stdout()))
		return n
	}
	other := gate.Dial()
	watcher := other.Session()
	dir := t.TempDir()
	for _, window := range []int{0, 64 << 10} {
		file := fmt.Sprintf("%s/%d", dir, window)
		ws, _, err := gate.DialWith(&websocket.DialOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			t.Fatal(err)
		}
		s := other.Session()
		const lines = 200
		text, _ := json.Marshal(object{"id": 1, "method": "exec.stream", "params": object{
			"session_id": s, "window_bytes": window, "command": fmt.Sprintf("for i in $(seq %d); do head -c 262144 /dev/zero | tr '\\0' x; echo >> %s; done", lines, file),
		}})
		ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		if err := ws.Write(ctx, websocket.MessageText, text); err != nil {
			t.Fatal(err)
		}
		c := ws
		if window > 0 { // it reads, and acknowledges nothing
			defer func() { c.CloseNow() }()
			go func() {
				for {
					if _, _, err := c.Read(context.Background()); err != nil {
						return
					}
				}
			}()
		}
		still, since := -1, time.Now()
		testkit.Eventually(t, "the command waits", func() bool {
			if n := count(other, watcher, file+" 2>/dev/null || echo 0"); n != still {
				still, since = n, time.Now()
			}
			return time.Since(since) > 500*time.Millisecond
		})
		if still >= lines-1 {
			t.Errorf("window %d: the command wrote all of its output to a client that takes none", window)
		}
		c.CloseNow() // the command no longer waits
		testkit.Eventually(t, "the command goes on without its client", func() bool { return count(other, watcher, file) == lines })
	}
}

// TestLinkCut: when a link breaks, its client's connection is closed with 1012, and every byte can be had once by a resume. While the owner is away the
// requests fail as retryable; when its lease has run out the session is lost.
func TestLinkCut(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"})
	gate, one := cl.node("gate"), cl.node("one")
	c := gate.Dial()
	s := c.Session(object{"name": "cut"})
	proceed := t.TempDir() + "/go"
	st := c.Stream(s, "for i in $(seq 1 3000); do echo $i; done; until [ -e "+proceed+" ]; do sleep 0.05; done; echo end")
	first := c.Event("exec.output")
	c.Begin("exec.run", object{"session_id": s, "command": ":"}) // waits for the stream, and is not answered any more
	testkit.Eventually(t, "the request is on its way", func() bool { return c.Call("session.info", object{"session_id": s}).Num("queue_length") == 1 })
	one.proxy.setAway(true)
	one.proxy.cut()
	if code := c.CloseStatus(); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %d", code)
	}
	c = gate.Dial()
	f := c.Try("exec.attach", object{"exec_id": st.Str("exec_id"), "offset": len(first.Str("data"))})
	if f.Code() != string(protocol.NodeUnreachable) || f.Error.Details.Str("node") != "one" || f.Error.Details.Num("retry_after_ms") <= 0 {
		t.Errorf("%+v", f.Error)
	}
	if status, text := post(t, gate, `{"method":"session.info","params":{"session_id":"`+s+`"}}`, ""); status != 503 {
		t.Errorf("%d %s", status, text)
	}
	for result, want := range map[string]float64{"ok": 3, "failed": 0, "unreachable": 2, "lost": 1} {
		if n := gate.Series("trl_relayed_requests_total", result); n < want || want < 2 && n != want {
			t.Errorf("%v requests are counted as %s", n, result)
		}
	}
	if n, m := gate.Series("trl_relayed_bytes_total", "to_owner"), gate.Series("trl_relayed_bytes_total", "to_client"); n <= 0 || m <= n {
		t.Errorf("%v bytes to the owner, %v to the client", n, m)
	}
	testkit.Eventually(t, "no relay is left", func() bool { return gate.Metric("trl_relays") == 0 })
	if f := c.Try("system.ping", nil); !f.OK { // the connection goes on
		t.Error(f)
	}
	one.proxy.setAway(false)
	testkit.Eventually(t, "the owner is there again", func() bool {
		return c.Try("exec.attach", object{"exec_id": st.Str("exec_id"), "offset": len(first.Str("data"))}).OK
	})
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range 3000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("end\n")
	rest, _ := c.Output(st.Str("stream_id"), len(first.Str("data")))
	if got := first.Str("data") + rest; got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}

	one.proxy.setAway(true)
	cl.mu.Lock()
	one.hidden = true
	cl.mu.Unlock()
	fresh := gate.Dial()
	if code := fresh.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != string(protocol.SessionLost) {
		t.Error(code)
	}
	cl.placeOn("gate") // its name is free again
	if again := fresh.Call("session.create", object{"name": "cut"}); again.Str("node") != "gate" {
		t.Error(again)
	}
}

// TestSilentNodeIsPartial: a list names the nodes that did not answer in time.
func TestSilentNodeIsPartial(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"}, func(c *config) { c.gatherWait = gatherTimeout })
	gate := cl.node("gate")
	c := gate.Dial()
	for _, name := range []string{"one", "two"} {
		cl.placeOn(name)
		c.Session(object{"name": name})
	}
	cl.node("two").proxy.pause()
	other := gate.Dial()
	inTime := func(method string) (answer object) { // on a busy machine one may be late as well
		t.Helper()
		testkit.Eventually(t, "one answers, and two does not: "+method, func() bool {
			answer = other.Call(method, nil)
			return fmt.Sprint(answer["partial"]) == "[two]"
		})
		return answer
	}
	if sessions := inTime("session.list").Objs("sessions"); len(sessions) != 1 || sessions[0].Str("name") != "one" {
		t.Errorf("%v", sessions)
	}
	if stats := inTime("system.stats"); stats.Num("active_sessions") != 1 {
		t.Errorf("%v", stats)
	}
	var stats *rig.Frame
	testkit.Eventually(t, "one says what it has", func() bool {
		stats = other.Try("system.stats", object{"node": "one"})
		return stats.OK
	})
	if stats.Data.Num("active_sessions") != 1 || stats.Data["partial"] != nil {
		t.Errorf("%v", stats.Data)
	}
	if stats := other.Call("system.stats", object{"node": "gate"}); stats.Num("active_sessions") != 0 || stats["partial"] != nil {
		t.Errorf("%v", stats)
	}
	if f := other.Try("system.stats", object{"node": "two"}); f.Code() != "NODE_UNREACHABLE" || f.Error.Details["node"] != "two" {
		t.Errorf("%+v", f)
	}
	if f := other.Try("system.stats", object{"node": "nobody"}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != "node" {
		t.Errorf("%+v", f)
	}
	inTime("recording.list")
	if r := other.Call("exec.run", object{"session": "one", "command": "echo on"}); r.Stdout() != "on\n" {
		t.Error(r)
	}
	cl.node("two").proxy.resume()
}

// TestRolesOverARelay: a viewer, another principal and an admin may do at another node what they may do here.
func TestRolesOverARelay(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"}, twoUsers)
	gate := cl.node("gate")
	bob, ann, root, viewer := gate.Dial("bobs-token"), gate.Dial("anns-token"), gate.Dial("roots-token"), gate.Dial("bobs-viewer")
	s := bob.Session(object{"name": "bobs"})
	e := bob.Run(s, "echo mine").Str("exec_id")
	if code := ann.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != "SESSION_NOT_FOUND" {
		t.Error(code)
	}
	if code := ann.Try("exec.wait", object{"exec_id": e}).Code(); code != "EXEC_NOT_FOUND" {
		t.Error(code)
	}
	if code := ann.Try("exec.run", object{"session": "bobs", "command": ":"}).Code(); code != "SESSION_NOT_FOUND" {
		t.Error(code)
	}
	if code := viewer.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != "FORBIDDEN" {
		t.Error(code)
	}
	if r := viewer.Call("exec.wait", object{"exec_id": e}); r.Stdout() != "mine\n" {
		t.Error(r)
	}
	if r := root.Run(s, "echo root"); r.Stdout() != "root\n" {
		t.Error(r)
	}
	for _, c := range []*rig.Client{bob, viewer} {
		if code := c.Try("system.drain", object{"node": "one"}).Code(); code != "FORBIDDEN" {
			t.Error(code)
		}
	}
	if drained := root.Call("system.drain", object{"node": "one"}); drained.Str("node") != "one" {
		t.Error(drained)
	}
	if f := root.Try("system.drain", object{"node": "nobody"}); f.Code() != "INVALID_PARAMS" || f.Error.Details["field"] != "node" {
		t.Errorf("%+v", f.Error)
	}
	if list := root.Call("session.list", object{"all": true}).Objs("sessions"); len(list) != 1 || list[0].Str("owner") != "bob" {
		t.Error(list)
	}
	if list := ann.Call("session.list", nil).Objs("sessions"); len(list) != 0 {
		t.Error(list)
	}

	// Guests at the owner.
	link := bob.Call("share.create", object{"session_id": s})
	guest := cl.node("one").Dial(link.Str("token"))
	if code := guest.Try("exec.run", object{"session_id": s, "command": ":"}).Code(); code != "FORBIDDEN" {
		t.Error(code)
	}
	if info := guest.Call("session.info", object{"session_id": s}); info.Str("name") != "bobs" {
		t.Error(info)
	}
	bob.Call("share.revoke", object{"share_id": link.Str("share_id")})
	if code := guest.CloseStatus(); code != 4403 {
		t.Error(code)
	}
}

// TestCreateGoesWhereThereIsRoom: a node that refuses a new session is followed by the next one, and the last refusal is the answer.
func TestCreateGoesWhereThereIsRoom(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one", "two"})
	gate, one := cl.node("gate"), cl.node("one")
	one.Pool.Drain()
	c := gate.Dial()
	cl.placeOn("one", "two")
	if s := c.Call("session.create", object{"name": "named"}); s.Str("node") != "two" {
		t.Error(s)
	}
	if s := c.Call("session.create", nil); s.Str("node") != "two" {
		t.Error(s)
	}
	if r := c.Call("exec.run", object{"command": "echo default"}); r.Stdout() != "default\n" || !cl.node("two").Pool.HasOpen("local", "default") {
		t.Error(r)
	}
	cl.placeOn("one", "gate")
	if s := c.Call("session.create", object{"name": "here"}); s.Str("node") != "gate" {
		t.Error(s)
	}
	gate.Pool.Drain()
	for _, order := range [][]string{{"one", "gate"}, {"gate", "one"}} {
		cl.placeOn(order...)
		for _, params := range []object{{"name": "nowhere"}, nil} {
			if f := c.Try("session.create", params); f.Code() != string(protocol.ShuttingDown) {
				t.Errorf("%v: %+v", order, f)
			}
		}
	}
	cl.placeOn("gate", "two")
	if s := c.Call("session.create", object{"name": "there"}); s.Str("node") != "two" {
		t.Error(s)
	}
	cl.node("one").proxy.setAway(true) // and cannot be reached, from a connection that has no link to it
	cl.placeOn("one", "two")
	if s := gate.Dial().Call("session.create", object{"if_exists": "return", "name": "named too"}); s.Str("node") != "two" {
		t.Error(s)
	}
}

// TestRelayEnds: the links of a connection end with it and with its credential; the shutdown of an owner is not passed on.
func TestRelayEnds(t *testing.T) {
	token := &oneToken{grant: auth.ForLink(auth.Principal{Subject: "bob", Role: auth.User}, "", time.Time{})}
	cl := newCluster(t, []string{"gate", "one"}, func(c *config) { c.AuthNone, c.Tokens = false, token })
	gate, one := cl.node("gate"), cl.node("one")
	links := func() (n int) {
		one.clients.each(func(c *conn) {
			if c.transport.Name() == transport.LinkName {
				n++
			}
		})
		return n
	}
	c := gate.Dial("any")
	s := c.Call("session.create", object{"on_disconnect": "destroy"}).Str("session_id")
	c.Stream(s, "echo begun; sleep 300")
	c.Event("exec.output")
	if links() != 1 {
		t.Errorf("%d links", links())
	}
	c.Close()
	testkit.Eventually(t, "the link ends with its client, and so does the session", func() bool { return links() == 0 && one.Pool.LiveCount() == 0 })

	s = gate.Dial("any").Session()
	lasting := token.grant
	token.grant = auth.ForLink(auth.Principal{Subject: "bob", Role: auth.User}, "", time.Now().Add(5*time.Second))
	c = gate.Dial("any")
	c.Begin("exec.run", object{"session_id": s, "command": "sleep 300"})
	if code := c.CloseStatus(); code != 4401 {
		t.Errorf("closed with %d", code)
	}
	testkit.Eventually(t, "the link ends with the credential", func() bool { return links() == 1 })

	token.grant = lasting
	c = gate.Dial("any")
	c.Call("session.info", object{"session_id": s})
	soon, cancel := context.WithTimeout(context.Background(), ShutdownNotice)
	defer cancel()
	one.clients.Leave(soon, soon.Done())
	if code := c.CloseStatus(); code != websocket.StatusServiceRestart {
		t.Errorf("closed with %d", code)
	}
	if told := c.Seen("server.shutdown"); len(told) > 0 {
		t.Error("the client was told of another server's shutdown")
	}
}

// oneToken is one credential that every token names.
type oneToken struct{ grant *auth.Grant }

func (o *oneToken) Lookup(string) (*auth.Grant, auth.Outcome) { return o.grant, auth.Accepted }
func (o *oneToken) ByID(string) *auth.Grant                   { return nil }

// TestRelayedRequestsAreAudited: both nodes write an entry, with the same id of the connection; ours says which node it was.
func TestRelayedRequestsAreAudited(t *testing.T) {
	dir := t.TempDir()
	n := 0
	cl := newCluster(t, []string{"gate", "one"}, func(c *config) {
		n++
		log, err := audit.Open(audit.Config{Path: fmt.Sprintf("%s/%d", dir, n), Commands: audit.KeepCommands}, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		c.audit = log
	})
	c := cl.node("gate").Dial()
	s := c.Session()
	e := c.Run(s, "echo audited").Str("exec_id")
	c.Try("exec.run", object{"session_id": s, "command": "x", "working_dir": "/nowhere"})
	entries := func(file string) (all []object) {
		text, _ := os.ReadFile(dir + "/" + file)
		for line := range strings.Lines(string(text)) {
			o := object{}
			if json.Unmarshal([]byte(line), &o) == nil && o.Str("action") == "exec.run" {
				all = append(all, o)
			}
		}
		return all
	}
	testkit.Eventually(t, "both nodes have written", func() bool { return len(entries("1")) == 2 && len(entries("2")) == 2 })
	ours, theirs := entries("1"), entries("2")
	if o := ours[0]; o.Str("node") != "one" || o.Str("session") != s || o.Str("exec") != e || o.Str("outcome") != "ok" || o.Str("command") != "echo audited" {
		t.Error(o)
	}
	if o := ours[1]; o.Str("outcome") != "WORKING_DIR_NOT_FOUND" {
		t.Error(o)
	}
	for i := range ours {
		if o := theirs[i]; o.Str("conn") == "" || o.Str("conn") != ours[i].Str("conn") || o.Has("node") || !strings.HasPrefix(o.Str("remote"), "127.0.0.1") {
			t.Errorf("%v beside %v", o, ours[i])
		}
	}
}

// TestRequestsShareLinks: requests over HTTP, of agents in this process and of lists use links one after the other, each with the rights of its own client.
func TestRequestsShareLinks(t *testing.T) {
	cl := newCluster(t, []string{"gate", "one"}, twoUsers)
	gate, one := cl.node("gate"), cl.node("one")
	tokens := []string{"bobs-token", "anns-token", "roots-token"}
	links := func() int {
		one.proxy.mu.Lock()
		defer one.proxy.mu.Unlock()
		return one.proxy.accepted
	}
	ask := func(token, body string) string {
		t.Helper()
		_, text := postAs(t, gate, token, body, "")
		return text
	}
	var sessions []string
	for _, token := range tokens {
		text := ask(token, `{"method":"session.create","params":{"name":"work"}}`)
		var made struct{ Data protocol.SessionInfo }
		if err := json.Unmarshal([]byte(text), &made); err != nil || made.Data.Node != "one" {
			t.Fatal(text)
		}
		sessions = append(sessions, made.Data.SessionID)
	}
	for i := range 30 {
		token, mine, other := tokens[i%3], sessions[i%3], sessions[(i+1)%3]
		if text := ask(token, `{"method":"exec.run","params":{"session_id":"`+mine+`","command":"echo $((6*7))"}}`); !strings.Contains(text, `"stdout":"42\n"`) {
			t.Fatal(text)
		}
		text := ask(token, `{"method":"exec.run","params":{"session_id":"`+other+`","command":"echo $((6*7))"}}`)
		if isAdmin := token == "roots-token"; isAdmin != strings.Contains(text, `"stdout":"42\n"`) || !isAdmin && !strings.Contains(text, "SESSION_NOT_FOUND") {
			t.Fatalf("%s, session of another principal: %s", token, text)
		}
		if text := ask(token, `{"method":"session.list"}`); !strings.Contains(text, mine) || strings.Contains(text, other) {
			t.Fatalf("%s lists %s", token, text)
		}
	}
	for i := range 5 {
		v := gate.visit(auth.Principal{Subject: "bob", Role: auth.User})
		in, err := v.Connect()
		if err != nil {
			t.Fatal(err)
		}
		go fmt.Fprintf(in, `{"id":%d,"method":"exec.run","params":{"session":"work","command":"echo $((6*7))"}}`+"\n", i)
		if line, err := bufio.NewReader(in).ReadString('\n'); err != nil || !strings.Contains(line, `"stdout":"42\n"`) {
			t.Fatal(line, err)
		}
		in.Close()
		v.Leave()
	}
	if n := links(); n > 10 { // one, or others that were dialled while the owner was still busy with the end of the ones before
		t.Errorf("%d links were dialled", n)
	}

	// What lasts longer than its answer has a link of its own.
	before := links()
	for range 16 {
		if _, text := postAs(t, gate, tokens[0], `{"method":"exec.stream","params":{"session_id":"`+sessions[0]+`","command":"echo streamed"}}`, transport.NDJSON); !strings.Contains(text, "streamed") {
			t.Fatal(text)
		}
	}
	if n := links() - before; n < 5 { // the first ones may have got the idle links, and have ended them
		t.Errorf("%d links for sixteen streams", n)
	}

	// A client that leaves ends its wait at the owner.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+gate.Address+"/v1/rpc", strings.NewReader(`{"method":"exec.run","params":{"session_id":"`+sessions[0]+`","command":"echo on >&2; sleep 300"}}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+tokens[0])
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	serving := func() (n int) {
		one.clients.each(func(c *conn) { n++ })
		return n
	}
	testkit.Eventually(t, "the command runs", func() bool {
		return serving() == 1 && strings.Contains(ask(tokens[0], `{"method":"session.info","params":{"session_id":"`+sessions[0]+`"}}`), "RUNNING")
	})
	cancel()
	<-gone
	testkit.Eventually(t, "nobody waits at the owner", func() bool { return serving() == 0 })
	testkit.Eventually(t, "no relay is left", func() bool { return gate.Metric("trl_relays") == 0 })
}
