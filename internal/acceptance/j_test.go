package acceptance

import (
	"bufio"
	"context"
	numbers "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// rawConn is a WebSocket without a library, for what a library does not do.
type rawConn struct {
	net.Conn
	r    *bufio.Reader
	head http.Header // of the answer to the upgrade
}

func (g *server) dialRaw(t testing.TB, headers string) rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	fmt.Fprintf(conn, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n%s\r\n", g.addr, headers)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v %v", resp, err)
	}
	return rawConn{conn, r, resp.Header}
}

// frame sends one, masked with zeros; head is its first byte.
func (c rawConn) frame(head byte, payload []byte) error {
	b := []byte{head, 0x80 | 127}
	b = numbers.BigEndian.AppendUint64(b, uint64(len(payload)))
	b = append(b, 0, 0, 0, 0)
	_, err := c.Write(append(b, payload...))
	return err
}

// next reads a frame.
func (c rawConn) next() (opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(c.r, head[:]); err != nil {
		return 0, nil, err
	}
	n := uint64(head[1])
	switch n {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(c.r, b[:])
		n = uint64(numbers.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(c.r, b[:])
		n = numbers.BigEndian.Uint64(b[:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(c.r, payload)
	return head[0] & 0xf, payload, err
}

// closed reads to the close frame and returns its code; 0 when the connection ended without one.
func (c rawConn) closed() int {
	for {
		op, payload, err := c.next()
		switch {
		case err != nil:
			return 0
		case op == 8 && len(payload) < 2:
			return 1005
		case op == 8:
			return int(numbers.BigEndian.Uint16(payload))
		}
	}
}

// J1: with the defaults the server pings a quiet connection at least every 30 s, and what answers stays connected. What
// a proxy with proxy_read_timeout 60s needs; the client here only reads.
func TestServerPingsAQuietConnection(t *testing.T) {
	t.Parallel()
	g := shared(t, "j")
	pinged := make(chan time.Time, 100)
	ws, err := g.open(t, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
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
	for range pick(1, 15) { // 15: the line's five minutes
		select {
		case at := <-pinged:
			if d := at.Sub(last); d > 60*time.Second {
				t.Errorf("no ping for %s", d)
			}
			last = at
		case <-gone:
			t.Fatal("closed")
		case <-time.After(2 * patience):
			t.Fatal("no ping")
		}
	}
}

// J2: a peer that has vanished is dropped (45 s; web's TestSilentPeerIsDropped has it in 200 ms), and its session obeys
// its policy.
func TestVanishedPeerIsDropped(t *testing.T) {
	if !soak {
		t.Skip("takes 45 s; TRL_SOAK=1 runs it, web's TestSilentPeerIsDropped and TestOnDisconnect are its short form")
	}
	t.Parallel()
	g := shared(t, "j")
	raw, nap := g.dialRaw(t, ""), sleeper()
	for name, policy := range map[string]string{"j2-keep": "keep", "j2-destroy": "destroy"} {
		_ = raw.frame(0x81, []byte(`{"id":1,"method":"session.create","params":{"name":"`+name+`","on_disconnect":"`+policy+`"}}`))
		_ = raw.frame(0x81, []byte(`{"id":2,"method":"process.start","params":{"session":"`+name+`","command":"`+nap+`"}}`))
	}
	eventually(t, "both run", func() bool { return len(running(nap)) == 2 })
	start := time.Now()
	for { // pings come, no pong goes
		if _, _, err := raw.next(); err != nil {
			break
		}
	}
	if d := time.Since(start); d < 30*time.Second || d > 110*time.Second {
		t.Errorf("dropped after %s", d)
	}
	c := g.dial(t)
	eventually(t, "one is destroyed", func() bool { return len(running(nap)) == 1 })
	if i := c.call("session.info", object{"session": "j2-keep"}); i.str("state") != "IDLE" || i.num("processes") != 1 {
		t.Errorf("%v", i)
	}
	c.call("session.destroy", object{"session": "j2-keep", "force": true})
}

// J3: 64 KiB and 1 MiB arrive; above the limit is closed with 1009, the session and everybody else live on.
func TestMessagesAboveTheLimitAreClosed(t *testing.T) {
	g := shared(t, "j")
	eachShell(t, func(t *testing.T, sh string) {
		c, other := g.dial(t), g.dial(t)
		s := c.session(object{"shell": sh})
		for _, n := range []int{64 << 10, 1<<20 - 64} {
			text := strings.Repeat("x", n)
			if r := c.run(s, "v="+text+"; printf %s \"${#v}\""); r.stdout() != fmt.Sprint(n) {
				t.Errorf("%d: %s", n, brief(fmt.Sprint(r)))
			}
		}
		go c.ws.Write(context.Background(), websocket.MessageText, make([]byte, 5<<20)) //nolint:errcheck // it is refused half-way
		<-c.done
		if websocket.CloseStatus(c.err) != websocket.StatusMessageTooBig {
			t.Errorf("%v", c.err)
		}
		if r := other.run(s, "printf %s \"${#v}\""); r.stdout() != fmt.Sprint(1<<20-64) {
			t.Errorf("%v", r)
		}
	})
}

// J4: a message without end and one that says it is compressed are ended, and cost no memory.
func TestEndlessAndCompressedMessagesAreEnded(t *testing.T) {
	g := shared(t, "j")
	before := g.rss(t)
	endless := g.dialRaw(t, "")
	piece := make([]byte, 64<<10)
	err := endless.frame(0x01, piece)
	sent := len(piece)
	for ; err == nil && sent < 1<<30; sent += len(piece) {
		err = endless.frame(0x00, piece)
	}
	if code := endless.closed(); err == nil || code != 0 && code != 1009 {
		t.Errorf("took %d bytes, closed with %d", sent, code)
	}
	huge := g.dialRaw(t, "") // says it is 1 EiB, sends nothing
	if _, err := huge.Write([]byte{0x81, 0x80 | 127, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Error(err)
	}
	_ = huge.frame(0x00, piece)
	packed := g.dialRaw(t, "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n")
	if e := packed.head.Get("Sec-WebSocket-Extensions"); e != "" {
		t.Errorf("compression %q without being configured", e)
	}
	_ = packed.frame(0xC1, piece) // FIN, RSV1, text
	if code := packed.closed(); code != 1002 && code != 0 {
		t.Errorf("a compressed frame: %d", code)
	}
	if grown := g.peak(t) - before; grown > 64<<20 {
		t.Errorf("RSS grew by %d", grown)
	}
	g.dial(t).call("system.ping", nil)
}

// J6: what is pending when a command ends comes, then its exit, then a clean close; and nothing is lost by a client that
// begins to read late.
func TestPendingOutputThenExitThenClose(t *testing.T) {
	g := shared(t, "j")
	eachShell(t, func(t *testing.T, sh string) {
		gate := make(chan struct{})
		c := g.dialPaced(t, func(int) { <-gate })
		s := g.dial(t)
		id := s.session(object{"shell": sh})
		const n = 1 << 20
		request := c.begin("exec.stream", object{"session_id": id, "command": "head -c 1048575 /dev/zero | tr '\\0' x; echo"})
		eventually(t, "it runs or has ended", func() bool { return s.info(id).num("commands_run") == 1 })
		time.Sleep(50 * time.Millisecond) // nobody reads; more or less of it is pending
		close(gate)
		x := c.answer(request).Data
		text, exit := c.output(x.str("stream_id"), 0)
		if len(text) != n || exit.num("exit_code") != 0 || exit.num("stdout_bytes") != n {
			t.Errorf("%d bytes, %v", len(text), exit)
		}
		if err := c.ws.Close(websocket.StatusNormalClosure, ""); err != nil { // waits for the server's answer
			t.Errorf("close: %v", err)
		}
		<-c.done
		if code := websocket.CloseStatus(c.err); code != websocket.StatusNormalClosure && code != -1 {
			t.Errorf("%v", c.err)
		}
	})
	raw := g.dialRaw(t, "") // a close behind a request: the answer may come, the close must
	_ = raw.frame(0x81, []byte(`{"id":1,"method":"system.ping"}`))
	_ = raw.frame(0x88, []byte{0x03, 0xe8})
	if code := raw.closed(); code != 1000 {
		t.Errorf("closed with %d", code)
	}
}

// J7: that clients come and go, politely or not, is nothing that a log at its usual level tells, and never an error.
func TestDisconnectIsNotLoggedAsAnError(t *testing.T) {
	g := gateway(t, "--log-level", "debug")
	for _, code := range []websocket.StatusCode{1000, 1001, 3000} {
		ws, err := g.open(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = ws.Close(code, "")
	}
	_ = g.dialRaw(t, "").frame(0x88, nil) // 1005
	g.dial(t).close()                     // 1006
	reset := g.dialRaw(t, "")
	_ = reset.Conn.(*net.TCPConn).SetLinger(0)
	reset.Close()
	half := g.dialRaw(t, "")
	_, _ = half.Write([]byte{0x81})
	half.Close()
	if c, err := net.Dial("tcp", g.addr); err == nil { // before a request, and in it
		c.Close()
	}
	if c, err := net.Dial("tcp", g.addr); err == nil {
		fmt.Fprint(c, "GET /v1/ws HT")
		c.Close()
	}
	eventually(t, "all are gone", func() bool {
		return g.metric(t, "trl_connections") == 0 && strings.Count(g.log(), "client disconnected") == 7
	})
	_, log, _ := strings.Cut(g.log(), `"message":"listening"`) // before it an ordinary user is warned of kill -9 $PPID
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"level":"warn"`) || strings.Contains(line, `"level":"error"`) {
			t.Error(line)
		}
		if strings.Contains(line, "client ") && !strings.Contains(line, `"level":"debug"`) {
			t.Errorf("at the usual level: %s", line)
		}
	}
}
