package transport

import (
	"context"
	"errors"
	"fmt"
	"net"

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
	large  func() error // set once in BeforeLarge
}

// NewLink returns the transport over an accepted link, for the client that h describes.
func NewLink(l *link.Conn, h *link.Hello) *Link {
	t := &Link{link: l, client: h.LogPrefix, binary: h.Binary, out: &Outbox{w: l.Frames(), seal: sealWebSocket, long: frameHeader}}
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

// HalfClose is the message with which the other node says that the client sends no more and still reads: it is empty, which no request is.
const HalfClose = ""

// Read returns the client's next message.
func (t *Link) Read() ([]byte, error) {
	kind, msg, err := t.link.Read()
	switch {
	case err == nil && kind != link.Text:
		return nil, errBinary
	case err == nil && len(msg) == len(HalfClose):
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

// AwaitHangup reads until the link is over. The other node sends nothing more.
func (t *Link) AwaitHangup() {
	for {
		if _, _, err := t.link.Read(); err != nil {
			return
		}
	}
}

// SendClose closes the link with the code that the client is to get.
func (t *Link) SendClose(why CloseReason) {
	bye, ok := closeCodes[why]
	if !ok {
		bye.code = websocket.StatusNormalClosure
	}
	t.link.Close(int(bye.code), bye.text)
}

// Close drops the link.
func (t *Link) Close() { t.link.Drop() }

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
