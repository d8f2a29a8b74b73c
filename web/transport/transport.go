// Package transport carries messages between a client and the gateway: over a WebSocket, or as lines on a Unix socket or inside this
// process, or as one HTTP request with its response, or over the link of another node that the client is connected to.
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

// CloseReason is the reason why a client's connection ended. The list is closed; the log and a metric's label use the same words.
type CloseReason string

const (
	ReasonClient    CloseReason = "client"   // the client closed the connection, or is gone
	ReasonSlow      CloseReason = "slow"     // it read nothing for SlowClient
	ReasonSilent    CloseReason = "silent"   // nothing came for PeerSilence, not even a pong
	ReasonStalled   CloseReason = "stalled"  // it began a message and did not finish it
	ReasonTooBig    CloseReason = "too_big"  // it sent a message above MaxFrame
	ReasonFlood     CloseReason = "policy"   // it sent too many pings or fragments
	ReasonMalformed CloseReason = "protocol" // it broke RFC 6455
	ReasonFull      CloseReason = "full"     // there was no place for it, so it was never served
	ReasonShutdown  CloseReason = "shutdown" // the gateway shuts down
	ReasonUnshared  CloseReason = "unshared" // its share link has ended
	ReasonAuthOver  CloseReason = "auth"     // its credential has expired or was revoked
	ReasonPanic     CloseReason = "internal" // a panic in one of its requests
	ReasonNodeGone  CloseReason = "node"     // a link to the node of one of its sessions has ended
)

// CloseReasons are the reasons for which a served connection can end.
var CloseReasons = []CloseReason{ReasonClient, ReasonSlow, ReasonSilent, ReasonStalled, ReasonTooBig, ReasonFlood, ReasonMalformed, ReasonShutdown, ReasonUnshared, ReasonAuthOver, ReasonPanic, ReasonNodeGone}

// The names of the transports: the label of trl_connections and trl_bytes_out_total.
const (
	WebSocketName = "websocket"
	UnixName      = "unix"
	HTTPName      = "http"
	InProcessName = "in_process"
)

// Conn is one client's connection, as messages.
type Conn interface {
	Name() string
	Outbox() *Outbox
	// IsBinary reports whether the client wants output in binary frames.
	IsBinary() bool
	// TakesInput reports whether the client may send binary frames.
	TakesInput() bool
	// Read returns the next message, which is valid until the next Read. A *protocol.Error is for the client; reading goes on after it, except after
	// REQUEST_TOO_LARGE. ErrHalfClosed means that the client sends no more and still reads. ErrBinary comes with a message: a binary frame.
	Read() ([]byte, error)
	// BeforeLarge sets a function, once and before Read. Read calls it before it reads more than KeepBuffer of a message; it may fail.
	BeforeLarge(f func() error)
	// KeepAlive keeps the connection alive until ctx ends. It calls end when the peer is dead or breaks a rule, and sent with the result of each of
	// its writes.
	KeepAlive(ctx context.Context, end func(CloseReason), sent func(error))
	// AwaitHangup returns when a client that has half-closed the connection is gone.
	AwaitHangup()
	// SendClose tells the client why its connection ends, within about a second, and makes Read fail.
	SendClose(CloseReason)
	// Close releases everything. It may be called more than once.
	Close()
}

var (
	ErrHalfClosed = errors.New("client will send no more")
	ErrBinary     = errors.New("the message is a binary frame")
	ErrHTTP       = errors.New("client speaks HTTP")
)

// ReasonOf returns the reason for a transport's error. Errors of the network (resets, timeouts, vanished peers) mean that the client has gone.
func ReasonOf(err error) CloseReason {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return ReasonTooBig
	}
	if err == ErrHTTP { // it goes on as another connection
		return ReasonClient
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

// WriteFailure returns why a connection must end after a write to its Outbox returned err. failed is false if it need not end.
func WriteFailure(err error) (why CloseReason, failed bool) {
	switch {
	case err == nil, err == errClosing:
		return "", false
	case errors.Is(err, errSlow):
		return ReasonSlow, true
	}
	return ReasonClient, true
}

// EncodeFailure returns why a message could not be encoded, if that is the cause of err. Nothing of the message was sent then.
func EncodeFailure(err error) (cause error, failed bool) {
	bad, failed := err.(unwritable)
	return bad.error, failed
}

// Limits bound what a client may do.
type Limits struct {
	MaxFrame    int64         // bytes of a message from the client
	Stall       time.Duration // time from the first byte of a message to its last; StallLimit
	PingEvery   time.Duration // of a WebSocket
	PeerSilence time.Duration // of a WebSocket
}

// The subprotocols of the WebSocket. With SubprotocolBinary, output comes in binary frames.
const (
	Subprotocol       = "trl.v1"
	SubprotocolBinary = "trl.v1+bin"
)
