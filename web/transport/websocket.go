package transport

import (
	"bufio"
	"bytes"
	"context"
	encoding "encoding/binary"
	"io"
	"net"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
)

const (
	// StallLimit is how long a message may take from its first byte to its last: 4 MiB at 420 KiB/s.
	StallLimit = 10 * time.Second
	// maxControls is how many pings and pongs a client may send per second. Browsers send none, proxies one in some seconds.
	maxControls = 50
	// readBuffer is the size of the buffer for frame headers and short messages. It is smaller than net/http's, because each idle connection has one.
	readBuffer = 1 << 10
	// CloseTimeout bounds the close handshake at shutdown: a client that never answers cannot hold up the gateway. A client that broke the rules gets
	// less time, because all that it sends meanwhile is read and dropped.
	CloseTimeout          = 3 * time.Second
	violationCloseTimeout = 300 * time.Millisecond
)

// WebSocket is a connection over a WebSocket. coder/websocket accepts it and reads from it. Data, pings and pongs go out through the Outbox in frames
// of our own, because the library's writer makes two system calls for a large message, and drops the connection if a control frame takes five
// seconds; a client that pauses may take Config.SlowClient. The library's close frames go the same way, through closeWriter.
type WebSocket struct {
	ws     *websocket.Conn
	in     *frames // below ws; above TLS, or above sock without TLS
	sock   *Socket
	out    *Outbox
	limits Limits

	buf        []byte        // owned by read
	large      func() error  // set once in BeforeLarge
	pong       chan []byte   // the payload of the latest ping, which KeepAlive answers
	flood      chan struct{} // holds a token after too many pings
	countSince time.Time     // owned by Read; when count began
	count      int           // owned by Read; pings and pongs since countSince

	lastHeard atomicTime // the last sign of life
}

// AcceptWebSocket upgrades a request that has passed all checks. If it returns an error, the answer has been written.
func AcceptWebSocket(w http.ResponseWriter, r *http.Request, limits Limits) (*WebSocket, error) {
	out := &Outbox{seal: sealWebSocket, long: frameHeader}
	t := &WebSocket{out: out, limits: limits, pong: make(chan []byte, 1), flood: make(chan struct{}, 1)}
	t.noteHeard()
	ws, err := websocket.Accept(&hijackWriter{w, t}, r, &websocket.AcceptOptions{
		Subprotocols:       []string{SubprotocolBinary, Subprotocol}, // the first one that the client offers, too
		InsecureSkipVerify: true,                                     // originAllowed has checked the origin, more strictly
		OnPingReceived: func(_ context.Context, p []byte) bool {
			if t.countControl() {
				t.answerPing(p)
			}
			return false
		},
		OnPongReceived: func(context.Context, []byte) { t.countControl() },
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(t.in.most)
	t.ws = ws
	return t, nil
}

// hijackWriter stands between coder/websocket and net/http. It gets hold of the connection and routes close frames through the Outbox.
type hijackWriter struct {
	http.ResponseWriter
	t *WebSocket
}

func (h *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.SetDeadline(time.Time{})
	h.t.in, h.t.sock, h.t.out.w = &frames{Conn: c, most: h.t.limits.MaxFrame}, SocketOf(c), c
	early, _ := rw.Reader.Peek(rw.Reader.Buffered()) // bytes that came before the answer; the library reads them from the buffer
	h.t.in.follow(early)
	in := bufio.NewReaderSize(bytes.NewReader(early), max(readBuffer, len(early)))
	_, _ = in.Peek(len(early))
	return h.t.in, bufio.NewReadWriter(in, bufio.NewWriterSize(closeWriter{h.t.out}, 256)), nil // a control frame is at most 127 bytes
}

// WriteHeader makes a refusal the last answer of its connection, as guard wants it; for some refusals the library sets another header.
func (h *hijackWriter) WriteHeader(status int) {
	if status != http.StatusSwitchingProtocols {
		h.Header().Set("Connection", "close")
	}
	h.ResponseWriter.WriteHeader(status)
}

// closeWriter takes the close frames that coder/websocket writes, each in one Write. The library answers a close with the client's own text and does
// not check it. If that text is not UTF-8, closeWriter answers 1007 (RFC 6455, section 8.1).
type closeWriter struct{ out *Outbox }

func (c closeWriter) Write(p []byte) (int, error) {
	if len(p) > 4 && !utf8.Valid(p[4:]) {
		return len(p), c.out.frame(controlFrame(opClose, encoding.BigEndian.AppendUint16(nil, uint16(websocket.StatusInvalidFramePayloadData))), true)
	}
	if err := c.out.frame(p, true); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Name is WebSocketName.
func (t *WebSocket) Name() string { return WebSocketName }

// Outbox is the way out.
func (t *WebSocket) Outbox() *Outbox { return t.out }

// IsBinary reports whether the client wants output in binary frames.
func (t *WebSocket) IsBinary() bool { return t.ws.Subprotocol() == SubprotocolBinary }

// TakesInput is IsBinary.
func (t *WebSocket) TakesInput() bool { return t.IsBinary() }

func (t *WebSocket) noteHeard() { t.lastHeard.set(time.Now()) }

// Read returns the next message.
func (t *WebSocket) Read() ([]byte, error) {
	if cap(t.buf) > KeepBuffer {
		t.buf = nil
	}
	kind, r, err := t.ws.Reader(context.Background()) // without a deadline, because an expired one would end the connection; KeepAlive watches the time
	if err != nil {
		return nil, err
	}
	t.buf, err = readInto(t.buf[:0], r, t.large)
	t.noteHeard()
	if err == nil && kind != websocket.MessageText {
		err = ErrBinary
	}
	return t.buf, err
}

// BeforeLarge sets what Read calls before a message above KeepBuffer.
func (t *WebSocket) BeforeLarge(f func() error) { t.large = f }

// readInto is io.ReadAll into a given buffer. It calls large before the buffer has more than KeepBuffer.
func readInto(buf []byte, r io.Reader, large func() error) ([]byte, error) {
	if cap(buf) == 0 {
		buf = make([]byte, 0, 1<<10)
	}
	for {
		if len(buf) == cap(buf) {
			if 2*len(buf) > KeepBuffer {
				if err := large(); err != nil {
					return buf, err
				}
			}
			buf = append(buf, make([]byte, len(buf))...)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

// countControl counts a ping or pong, on the reading goroutine, and reports whether there were few enough.
func (t *WebSocket) countControl() bool {
	now := time.Now()
	t.lastHeard.set(now)
	if now.Sub(t.countSince) > time.Second {
		t.countSince, t.count = now, 0
	}
	if t.count++; t.count <= maxControls {
		return true
	}
	select {
	case t.flood <- struct{}{}:
	default:
	}
	return false
}

// answerPing leaves the pong to KeepAlive, because the Outbox may wait for a slow client and reading must go on. Only the latest ping needs an answer
// (RFC 6455, section 5.5.3).
func (t *WebSocket) answerPing(p []byte) {
	select {
	case <-t.pong:
	default:
	}
	t.pong <- append([]byte(nil), p...) // there is room, because only this goroutine sends into it
}

// KeepAlive sends pings, and ends the connection when the peer is silent, stalls or floods.
func (t *WebSocket) KeepAlive(ctx context.Context, end func(CloseReason), sent func(error)) {
	tick := time.NewTicker(min(t.limits.PingEvery, t.limits.PeerSilence, 2*t.limits.Stall) / 4) // ticks are most of what an idle connection costs
	defer tick.Stop()
	pinged := time.Now()
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-t.flood:
			end(ReasonFlood)
		case p := <-t.pong:
			err = t.out.frame(controlFrame(opPong, p), false)
		case now := <-tick.C:
			waits := t.in.since.ago(now)
			switch {
			case waits != never && waits > t.limits.Stall:
				end(ReasonStalled)
			case min(t.lastHeard.ago(now), t.sock.lastTaken.ago(now)) > t.limits.PeerSilence:
				// A client that is slow to read output gets the pings late. Reading output is a sign of life, too.
				end(ReasonSilent)
			case now.Sub(pinged) >= t.limits.PingEvery*7/8: // the ticker jitters
				pinged = now
				err = t.out.frame(controlFrame(opPing, nil), false)
			}
		}
		sent(err)
	}
}

// AwaitHangup returns at once: a WebSocket has no half-closed state.
func (t *WebSocket) AwaitHangup() {}

// closeCodes has the close code and the text for each reason, see "Closing" in PROTOCOL.md. A client is not told any other reason, because then it is
// gone.
var closeCodes = map[CloseReason]struct {
	code websocket.StatusCode
	text string
}{
	ReasonTooBig:    {websocket.StatusMessageTooBig, "message too big"}, // sent by coder/websocket when it sees the size
	ReasonStalled:   {websocket.StatusPolicyViolation, "message not finished"},
	ReasonFlood:     {websocket.StatusPolicyViolation, "too many pings or fragments"},
	ReasonMalformed: {websocket.StatusProtocolError, "protocol error"},
	ReasonAuthOver:  {4401, "what you logged in with is no longer good"},
	ReasonShutdown:  {websocket.StatusServiceRestart, "server is shutting down"},
	ReasonUnshared:  {4403, "this link has expired or was revoked"},
	ReasonPanic:     {websocket.StatusInternalError, "internal error"},
	ReasonNodeGone:  {websocket.StatusServiceRestart, "connection to the session's node was lost"},
}

// SendClose does the close handshake, for a short time.
func (t *WebSocket) SendClose(why CloseReason) {
	bye, ok := closeCodes[why]
	if !ok {
		t.sock.Close()
		return
	}
	timeout := violationCloseTimeout
	if why == ReasonShutdown {
		timeout = CloseTimeout
	}
	t.sock.setFinalDeadline(timeout) // also for a writer that waits, and for the client's half of the handshake
	t.ws.Close(bye.code, bye.text)
}

// Close drops the connection.
func (t *WebSocket) Close() {
	t.sock.Close()
	t.ws.CloseNow()
}

const (
	opText   = 0x1
	opBinary = 0x2
	opClose  = 0x8
	opPing   = 0x9
	opPong   = 0xa
	fin      = 0x80
)

// sealWebSocket writes the header of a final frame into the headroom before msg (RFC 6455, section 5.2; a server does not mask frames).
func sealWebSocket(msg []byte, binary bool) []byte {
	n := len(msg) - headroom
	switch {
	case n < 126:
		msg = msg[headroom-2:]
		msg[1] = byte(n)
	case n < 1<<16:
		msg = msg[headroom-4:]
		msg[1] = 126
		encoding.BigEndian.PutUint16(msg[2:], uint16(n))
	default:
		msg = msg[headroom-10:]
		msg[1] = 127
		encoding.BigEndian.PutUint64(msg[2:], uint64(n))
	}
	msg[0] = fin | opText
	if binary {
		msg[0] = fin | opBinary
	}
	return msg
}

// frameHeader returns the header of a final text frame of n bytes; n is above 65,535.
func frameHeader(n int64) (before, after []byte) {
	return encoding.BigEndian.AppendUint64([]byte{fin | opText, 127}, uint64(n)), nil
}

// controlFrame returns a ping, pong or close frame. p has at most 125 bytes, as any control frame.
func controlFrame(op byte, p []byte) []byte {
	return append([]byte{fin | op, byte(len(p))}, p...)
}
