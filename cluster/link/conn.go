package link

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
)

// Kind is the kind of a message.
type Kind = websocket.MessageType

// The kinds of messages.
const (
	Text   = websocket.MessageText
	Binary = websocket.MessageBinary
)

// Limits bound a link in time and size. A zero field has its default.
type Limits struct {
	PingEvery  time.Duration // 5 s
	Silence    time.Duration // how long nothing need come before the link is dead: 15 s
	Stall      time.Duration // how long the other end may take nothing: 60 s, because a slow client of a gateway has 30 s (--slow-client)
	Handshake  time.Duration // how long connecting may take, from the first packet to the welcome: 5 s
	MaxMessage int64         // bytes of a message that comes: 1 GiB, because an answer can be this long
}

func (l Limits) withDefaults() Limits {
	return Limits{
		PingEvery: cmp.Or(l.PingEvery, 5*time.Second), Silence: cmp.Or(l.Silence, 15*time.Second), Stall: cmp.Or(l.Stall, time.Minute),
		Handshake: cmp.Or(l.Handshake, 5*time.Second), MaxMessage: cmp.Or(l.MaxMessage, 1<<30),
	}
}

// KeepBuffer is the largest buffer that a link keeps between two messages.
const KeepBuffer = 256 << 10

// Conn is a link after its handshake. One goroutine reads; any goroutine may write and close. There is no queue: a write waits until the other end has
// taken enough, and nothing is read from the network but by Read.
type Conn struct {
	ws      *websocket.Conn
	wire    *wire
	peer    Node
	version int
	large   func() error  // set once in BeforeLarge
	buf     []byte        // owned by Read
	over    chan struct{} // closed when the link is over
	ended   sync.Once

	transcript *transcript // of the handshake
	hellos     int         // how many have been sent or taken; owned by whoever has the link
	begun      time.Time   // the end of the handshake
	keep       func() bool // gives the link back to its dialer, if that has a place for it; nil: it is not kept

	ahead   *ahead // owned by Read; what AwaitNext has begun to read
	reading sync.WaitGroup
}

// newConn makes the Conn of a connection whose handshake has not begun.
func newConn(ws *websocket.Conn, w *wire) *Conn {
	ws.SetReadLimit(maxHandshake)
	return &Conn{ws: ws, wire: w, over: make(chan struct{})}
}

// begin makes a Conn whose handshake is done carry messages. When ctx ends, bye ends it. onEnd is called when the link has ended, last of all.
func (c *Conn) begin(ctx context.Context, peer Node, version int, l Limits, bye, onEnd func()) {
	c.peer, c.version, c.begun = peer, version, time.Now()
	c.ws.SetReadLimit(l.MaxMessage)
	go func() { // pings; ends when the link is over; whoever gave onEnd waits for it
		defer onEnd()
		tick := time.NewTicker(l.PingEvery)
		defer tick.Stop()
		for {
			select {
			case <-c.over:
				return
			case <-ctx.Done():
				bye()
				return
			case <-tick.C:
				c.wire.ping()
			}
		}
	}()
}

// Peer returns the node at the other end, which has proved that it belongs to the cluster.
func (c *Conn) Peer() Node { return c.peer }

// Version returns the version of the link protocol that both ends speak.
func (c *Conn) Version() int { return c.version }

// Over is closed when the link has ended at this end: by Close, by Drop, or after an error of Read.
func (c *Conn) Over() <-chan struct{} { return c.over }

// BeforeLarge sets a function, once for each client and before Read. Read calls it before it reads more than KeepBuffer of a message. If it fails, Read returns its
// error as it is, and the only thing left to do is to answer and to close.
func (c *Conn) BeforeLarge(f func() error) { c.large = f }

// Read returns the next message, which is valid until the next Read. After an error the link is over: a *CloseError if the other end has closed it,
// else one that is ErrBroken, ErrSilent, ErrClosed or websocket.ErrMessageTooBig.
func (c *Conn) Read() (Kind, []byte, error) {
	if a := c.ahead; a != nil {
		<-a.came
		c.ahead = nil
		return a.kind, a.msg, a.err
	}
	return c.read()
}

func (c *Conn) read() (Kind, []byte, error) {
	if cap(c.buf) > KeepBuffer {
		c.buf = nil
	}
	kind, r, err := c.ws.Reader(context.Background()) // without a deadline: wire.Read has one
	if err == nil {
		c.buf, err = c.readAll(c.buf[:0], r)
	}
	if no, ok := err.(notRead); ok {
		return 0, nil, no.error
	}
	if err != nil {
		return 0, nil, c.failed(err)
	}
	return kind, c.buf, nil
}

// notRead is an error of the function of BeforeLarge.
type notRead struct{ error }

func (c *Conn) readAll(buf []byte, r io.Reader) ([]byte, error) {
	if cap(buf) == 0 {
		buf = make([]byte, 0, 4<<10)
	}
	for {
		if len(buf) == cap(buf) {
			if 2*len(buf) > KeepBuffer && c.large != nil {
				if err := c.large(); err != nil {
					return buf, notRead{err}
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

// Send writes a message. It waits as long as the other end takes something within the time of Limits.Stall. After an error nothing more can be sent.
// Read then fails within a second, and its error is the one that counts: the other end may have closed the link.
func (c *Conn) Send(kind Kind, p []byte) error {
	switch err := c.wire.send(kind, p); {
	case err == nil:
		return nil
	case err == ErrClosed || c.isOver():
		return ErrClosed
	default:
		return fmt.Errorf("%w: %w", ErrBroken, err)
	}
}

// Frames returns a writer for an accepted link. Who writes to it makes the frames of a WebSocket server itself, each in one or several calls and none
// inside another; the header of each lies in one call. So web/transport's Outbox writes to a link as it writes to a client. It returns nil for a link
// that was dialled, whose frames are masked.
func (c *Conn) Frames() io.Writer {
	if c.wire.masks {
		return nil
	}
	return frameWriter{c.wire}
}

// failed ends the link after an error of a read and returns the error that callers see.
func (c *Conn) failed(err error) error {
	var bye websocket.CloseError
	switch {
	case errors.As(err, &bye):
		err = &CloseError{int(bye.Code), bye.Reason}
		if bye.Code == websocket.StatusNoStatusRcvd { // such a code cannot be passed on
			err = &CloseError{Code: int(websocket.StatusNormalClosure)}
		}
	case errors.Is(err, websocket.ErrMessageTooBig):
	case c.isOver():
		err = ErrClosed
	default:
		_, write := c.wire.errors()
		err = fmt.Errorf("%w: %w", ErrBroken, cmp.Or(write, err))
	}
	c.Drop()
	return err
}

func (c *Conn) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// closeTimeout bounds the close handshake.
const closeTimeout = time.Second

// Close ends the link with a close frame, within about a second. A code that no frame can carry becomes BrokenCode. Only the first end of a link
// counts.
func (c *Conn) Close(code int, reason string) {
	c.end(func() {
		c.wire.sock.expireAfter(closeTimeout) // also for a writer that waits, and for the other end's half of the handshake
		_ = c.ws.Close(sendable(code), cutReason(reason))
	})
}

// Drop ends the link without a word.
func (c *Conn) Drop() { c.end(func() {}) }

func (c *Conn) end(how func()) {
	c.ended.Do(func() {
		close(c.over)
		how()
		c.wire.sock.Close()
		_ = c.ws.CloseNow()
	})
}

// sendable returns the code if a close frame can carry it (RFC 6455, section 7.4).
func sendable(code int) websocket.StatusCode {
	switch {
	case code >= 3000 && code <= 4999, code >= 1000 && code <= 1003, code >= 1007 && code <= 1014:
		return websocket.StatusCode(code)
	}
	return websocket.StatusServiceRestart
}

// cutReason cuts a reason to the 123 bytes that a close frame has, between characters.
func cutReason(reason string) string {
	const most = 123
	if len(reason) <= most {
		return reason
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(reason[cut]) {
		cut--
	}
	return reason[:cut]
}
