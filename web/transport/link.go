package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/coder/websocket"

	"trl/cluster/link"
)

// LinkName is the name of the transport over a link.
const LinkName = "link"

// Link is the connection of a client of another node, over the link from that node. Its messages are those of the client.
type Link struct {
	link   *link.Conn
	out    *Outbox
	client string // the id of the client's connection
	binary bool
	inputs bool
	large  func() error // set once in BeforeLarge

	keep       bool          // the link serves another client afterwards
	halfClosed atomic.Bool   // the client sends nothing more
	done       chan struct{} // closed by SendClose
	handedBack atomic.Bool   // the client is done, and the link goes on
}

// NewLink returns the transport over an accepted link, for the client that h describes.
func NewLink(l *link.Conn, h *link.Hello) *Link {
	t := &Link{link: l, client: h.LogPrefix, binary: h.Binary, inputs: h.Inputs, keep: h.Keep, done: make(chan struct{}), out: &Outbox{w: l.Frames(), seal: sealWebSocket, long: frameHeader}}
	l.BeforeLarge(func() error { return t.large() })
	return t
}

// Name is LinkName.
func (t *Link) Name() string { return LinkName }

// ClientID returns the id that the client's connection has on its own node; it may be empty.
func (t *Link) ClientID() string { return t.client }

// Outbox returns the connection's Outbox.
func (t *Link) Outbox() *Outbox { return t.out }

// IsBinary reports whether the client wants output in binary frames.
func (t *Link) IsBinary() bool { return t.binary }

// TakesInput reports whether the client may send binary frames, and its node passes them on.
func (t *Link) TakesInput() bool { return t.inputs }

// Read returns the client's next message.
func (t *Link) Read() ([]byte, error) {
	kind, msg, err := t.link.Read()
	switch {
	case err == nil && kind != link.Text:
		return msg, ErrBinary
	case err == nil && link.IsEnd(kind, msg): // the client sends no more, and still reads
		t.halfClosed.Store(true)
		return nil, ErrHalfClosed
	case err == nil:
		return msg, nil
	case errors.Is(err, websocket.ErrMessageTooBig), errors.Is(err, context.Canceled):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", net.ErrClosed, err) // the client, or its node, is gone
}

// BeforeLarge sets what Read calls before a message above KeepBuffer.
func (t *Link) BeforeLarge(f func() error) { t.large = f }

// KeepAlive does nothing: a link keeps itself alive.
func (t *Link) KeepAlive(context.Context, func(CloseReason), func(error)) {}

// AwaitHangup reads until the link is over, or until the end of a client after which the link goes on. The other node sends nothing more for this client.
func (t *Link) AwaitHangup() {
	if t.keep {
		select {
		case <-t.link.AwaitNext():
		case <-t.done:
		}
		return
	}
	for {
		if _, _, err := t.link.Read(); err != nil {
			return
		}
	}
}

// SendClose closes the link with the code that the client is to get, unless the client is done and the link goes on.
func (t *Link) SendClose(why CloseReason) {
	defer close(t.done)
	if t.keep && why == ReasonClient && t.halfClosed.Load() {
		t.handedBack.Store(true)
		return
	}
	bye, ok := closeCodes[why]
	if !ok {
		bye.code = websocket.StatusNormalClosure
	}
	t.link.Close(int(bye.code), bye.text)
}

// Close drops the link, unless it goes on.
func (t *Link) Close() {
	if !t.handedBack.Load() {
		t.link.Drop()
	}
}

// ReasonOfLink returns why the connection of a client ends when a link of it has ended with err: as its owner says, if that closed the link for a reason
// that concerns the client, else because the node is gone.
func ReasonOfLink(err error) CloseReason {
	if bye, ok := errors.AsType[*link.CloseError](err); ok {
		for _, why := range []CloseReason{ReasonAuthOver, ReasonUnshared, ReasonPanic, ReasonTooBig} {
			if bye.Code == int(closeCodes[why].code) {
				return why
			}
		}
	}
	return ReasonNodeGone
}
