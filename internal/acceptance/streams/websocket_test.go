package streams

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// J1: with the defaults the server pings a quiet connection at least every 30 s, and what answers stays connected. What
// a proxy with proxy_read_timeout 60s needs; the client here only reads.
func TestServerPingsAQuietConnection(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "j")
	pinged := make(chan time.Time, 100)
	ws, err := g.Open(t, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
		pinged <- time.Now()
		return true
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	gone := ws.CloseRead(ctx).Done()
	defer func() { cancel(); <-gone }()
	last := time.Now()
	for range rig.Pick(1, 15) { // 15: the line's five minutes
		select {
		case at := <-pinged:
			if d := at.Sub(last); d > 60*time.Second {
				t.Errorf("no ping for %s", d)
			}
			last = at
		case <-gone:
			t.Fatal("closed")
		case <-time.After(2 * testkit.Patience):
			t.Fatal("no ping")
		}
	}
}

// J3: 64 KiB and 1 MiB arrive; above the limit is closed with 1009, the session and everybody else live on.
func TestMessagesAboveTheLimitAreClosed(t *testing.T) {
	g := rig.Shared(t, "j")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c, other := g.Dial(t), g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, n := range []int{64 << 10, 1<<20 - 64} {
			text := strings.Repeat("x", n)
			if r := c.Run(s, "v="+text+"; printf %s \"${#v}\""); r.Stdout() != fmt.Sprint(n) {
				t.Errorf("%d: %s", n, rig.Brief(fmt.Sprint(r)))
			}
		}
		go c.Ws.Write(context.Background(), websocket.MessageText, make([]byte, 5<<20)) //nolint:errcheck // it is refused half-way
		<-c.Done
		if websocket.CloseStatus(c.Err) != websocket.StatusMessageTooBig {
			t.Errorf("%v", c.Err)
		}
		if r := other.Run(s, "printf %s \"${#v}\""); r.Stdout() != fmt.Sprint(1<<20-64) {
			t.Errorf("%v", r)
		}
	})
}

// J4: a message without end and one that says it is compressed are ended, and cost no memory.
func TestEndlessAndCompressedMessagesAreEnded(t *testing.T) {
	g := rig.Shared(t, "j")
	before := g.Rss(t)
	endless := g.DialRaw(t, "")
	piece := make([]byte, 64<<10)
	err := endless.Frame(0x01, piece)
	sent := len(piece)
	for ; err == nil && sent < 1<<30; sent += len(piece) {
		err = endless.Frame(0x00, piece)
	}
	if code := endless.Closed(); err == nil || code != 0 && code != 1009 {
		t.Errorf("took %d bytes, closed with %d", sent, code)
	}
	huge := g.DialRaw(t, "") // says it is 1 EiB, sends nothing
	if _, err := huge.Write([]byte{0x81, 0x80 | 127, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Error(err)
	}
	_ = huge.Frame(0x00, piece)
	packed := g.DialRaw(t, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n")
	if e := packed.Head.Get("Sec-WebSocket-Extensions"); e != "" {
		t.Errorf("compression %q without being configured", e)
	}
	_ = packed.Frame(0xC1, piece) // FIN, RSV1, text
	if code := packed.Closed(); code != 1002 && code != 0 {
		t.Errorf("a compressed frame: %d", code)
	}
	if grown := g.Peak(t) - before; grown > 64<<20 {
		t.Errorf("RSS grew by %d", grown)
	}
	g.Dial(t).Call("system.ping", nil)
}

// J6: what is pending when a command ends comes, then its exit, then a clean close; and nothing is lost by a client that
// begins to read late.
func TestPendingOutputThenExitThenClose(t *testing.T) {
	g := rig.Shared(t, "j")
	rig.EachShell(t, func(t *testing.T, sh string) {
		gate := make(chan struct{})
		c := g.DialPaced(t, func(int) { <-gate })
		s := g.Dial(t)
		id := s.Session(object{"shell": sh})
		const n = 1 << 20
		request := c.Begin("exec.stream", object{"session_id": id, "command": "head -c 1048575 /dev/zero | tr '\\0' x; echo"})
		testkit.Eventually(t, "it runs or has ended", func() bool { return s.Info(id).Num("commands_run") == 1 })
		time.Sleep(50 * time.Millisecond) // nobody reads; more or less of it is pending
		close(gate)
		x := c.Answer(request).Data
		text, exit := c.Output(x.Str("stream_id"), 0)
		if len(text) != n || exit.Num("exit_code") != 0 || exit.Num("stdout_bytes") != n {
			t.Errorf("%d bytes, %v", len(text), exit)
		}
		if err := c.Ws.Close(websocket.StatusNormalClosure, ""); err != nil { // waits for the server's answer
			t.Errorf("close: %v", err)
		}
		<-c.Done
		if code := websocket.CloseStatus(c.Err); code != websocket.StatusNormalClosure && code != -1 {
			t.Errorf("%v", c.Err)
		}
	})
	raw := g.DialRaw(t, "") // a close behind a request: the answer may come, the close must
	_ = raw.Frame(0x81, []byte(`{"id":1,"method":"system.ping"}`))
	_ = raw.Frame(0x88, []byte{0x03, 0xe8})
	if code := raw.Closed(); code != 1000 {
		t.Errorf("closed with %d", code)
	}
}

// J7: that clients come and go, politely or not, is nothing that a log at its usual level tells, and never an error.
func TestDisconnectIsNotLoggedAsAnError(t *testing.T) {
	g := rig.Gateway(t, "--log-level", "debug").Front()
	testkit.Eventually(t, "the rig's own are gone", func() bool { return g.Metric(t, "trl_connections") == 0 })
	before := int(g.Metric(t, "trl_connections_closed_total"))
	for _, code := range []websocket.StatusCode{1000, 1001, 3000} {
		ws, err := g.Open(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = ws.Close(code, "")
	}
	_ = g.DialRaw(t, "").Frame(0x88, nil) // 1005
	g.Dial(t).Close()                     // 1006
	reset := g.DialRaw(t, "")
	_ = reset.Conn.(*net.TCPConn).SetLinger(0)
	reset.Close()
	half := g.DialRaw(t, "")
	_, _ = half.Write([]byte{0x81})
	half.Close()
	if c, err := net.Dial("tcp", g.Addr); err == nil { // before a request, and in it
		c.Close()
	}
	if c, err := net.Dial("tcp", g.Addr); err == nil {
		fmt.Fprint(c, "GET /v1/ws HT")
		c.Close()
	}
	testkit.Eventually(t, "all are gone", func() bool {
		return g.Metric(t, "trl_connections") == 0 && strings.Count(g.Log(), "client disconnected") == before+7
	})
	_, log, _ := strings.Cut(g.Log(), `"message":"listening"`) // before it an ordinary user is warned of kill -9 $PPID
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
			t.Error(line)
		}
		if strings.Contains(line, "client ") && !strings.Contains(line, `"level":"debug"`) {
			t.Errorf("at the usual level: %s", line)
		}
	}
}
