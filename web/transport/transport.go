// Package transport carries messages between a client and the gateway: over a WebSocket, or as lines on a Unix socket.
package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// CloseReason says why a client's connection ended: a closed list, the same in the log and as a metric's label.
type CloseReason string

const (
	ReasonClient    CloseReason = "client"   // it closed, or is gone
	ReasonSlow      CloseReason = "slow"     // it took nothing for SlowClient
	ReasonSilent    CloseReason = "silent"   // not even a pong for PeerSilence
	ReasonStalled   CloseReason = "stalled"  // it began a message and did not finish it
	ReasonTooBig    CloseReason = "too_big"  // a message above MaxFrame
	ReasonFlood     CloseReason = "policy"   // pings or fragments without end
	ReasonMalformed CloseReason = "protocol" // not what RFC 6455 allows
	ReasonFull      CloseReason = "full"     // there is no place for it; never of one that was served
	ReasonShutdown  CloseReason = "shutdown" // ours
	ReasonUnshared  CloseReason = "unshared" // the share link that it came with has ended
	ReasonAuthOver  CloseReason = "auth"     // what it was let in with has expired, or was revoked
	ReasonPanic     CloseReason = "internal" // a panic in what it asked for
)

// CloseReasons is every reason that a served connection can end for.
var CloseReasons = []CloseReason{ReasonClient, ReasonSlow, ReasonSilent, ReasonStalled, ReasonTooBig, ReasonFlood, ReasonMalformed, ReasonShutdown, ReasonUnshared, ReasonAuthOver, ReasonPanic}

// The transports, by name: the label of trl_connections and trl_bytes_out_total.
const (
	WebSocketName = "websocket"
	UnixName      = "unix"
)

// Conn is one client's connection, seen as messages.
type Conn interface {
	Name() string
	Outbox() *Outbox
	// IsBinary reports whether the client wants output in binary frames.
	IsBinary() bool
	// Read returns the next message, valid until the next Read. An error that is a *protocol.Error is to be answered; after any but
	// REQUEST_TOO_LARGE reading goes on. ErrHalfClosed: the client will send no more and still listens.
	Read() ([]byte, error)
	// BeforeLarge is called once, before Read: f is called before more than KeepBuffer of a message is read, and may fail.
	BeforeLarge(f func() error)
	// KeepAlive keeps the connection alive until ctx ends. It calls end when the peer is dead or breaks a rule, and sent with what each of its
	// writes returned.
	KeepAlive(ctx context.Context, end func(CloseReason), sent func(error))
	// AwaitHangup returns when the client that has half-closed is gone altogether.
	AwaitHangup()
	// SendClose tells the client why its connection ends, within a second or so, and makes Read fail.
	SendClose(CloseReason)
	// Close releases everything. It may be called more than once.
	Close()
}

var (
	ErrHalfClosed = errors.New("client will send no more")
)

// ReasonOf reads a transport's error. What the network does (resets, timeouts, vanished peers) is the client going away.
func ReasonOf(err error) CloseReason {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return ReasonTooBig
	}
	if errors.Is(err, errPieces) {
		return ReasonFlood
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ReasonStalled
	}
	_, network := errors.AsType[*net.OpError](err)
	_, system := errors.AsType[syscall.Errno](err)
	if network || system || websocket.CloseStatus(err) != -1 ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
		return ReasonClient
	}
	return ReasonMalformed
}

// WriteFailure tells why a connection must end after a write to its Outbox that returned err. failed is false where it need not.
func WriteFailure(err error) (why CloseReason, failed bool) {
	switch {
	case err == nil, err == errClosing:
		return "", false
	case errors.Is(err, errSlow):
		return ReasonSlow, true
	}
	return ReasonClient, true
}

// EncodeFailure tells why a message could not be encoded, if that is why sending it returned err. Nothing of it was sent then.
func EncodeFailure(err error) (cause error, failed bool) {
	bad, failed := err.(unwritable)
	return bad.error, failed
}

// Limits are what a transport holds its client to.
type Limits struct {
	MaxFrame    int64         // bytes of an inbound message
	Stall       time.Duration // from the first byte of a message to its last; StallLimit
	PingEvery   time.Duration // of a WebSocket
	PeerSilence time.Duration // of a WebSocket
}

// The subprotocols of the WebSocket. SubprotocolBinary has output in binary frames.
const (
	Subprotocol       = "trl.v1"
	SubprotocolBinary = "trl.v1+bin"
)
