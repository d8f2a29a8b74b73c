package link

import (
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

// Errors of a handshake that both ends may see. A refusal carries their names over the link.
var (
	// ErrInsecure means that a link would not be encrypted although it leaves this machine.
	ErrInsecure = errors.New("a link beyond loopback needs wss:// (or the option that allows it without)")
	// ErrUntrusted means that the other end has no certificate of the cluster's CA, or one that names another node.
	ErrUntrusted = errors.New("no certificate of this cluster for this node")
	// ErrSecret means that the other end does not know the cluster's secret, or that somebody in between has changed the handshake.
	ErrSecret = errors.New("wrong cluster secret")
	// ErrURL means that the dialer has dialled another URL than the acceptor has.
	ErrURL = errors.New("the node has another link URL")
	// ErrSelf means that the other end claims the name or the epoch of the node that it talks to.
	ErrSelf = errors.New("a node may not link to itself")
	// ErrPeer means that the acceptor does not believe that the dialer is this node with this epoch.
	ErrPeer = errors.New("name and epoch are those of no node")
	// ErrHandshake means that the other end does not speak the handshake of a link.
	ErrHandshake = errors.New("malformed handshake")
)

// Errors of a link in use. After any of them the link is over.
var (
	ErrSilent  = errors.New("the other node has been silent for too long")
	ErrStalled = errors.New("the other node takes nothing")
	ErrClosed  = errors.New("link is closed")
	// ErrBroken means that the link ended without a close frame; its cause may be wrapped beside it.
	ErrBroken = errors.New("link broke")
)

// Versions are the lowest and the highest version of the link protocol that a node speaks.
type Versions struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

func (v Versions) String() string { return fmt.Sprintf("%d to %d", v.Min, v.Max) }

// VersionError means that two nodes have no version of the link protocol in common.
type VersionError struct{ Ours, Theirs Versions }

func (e *VersionError) Error() string {
	return fmt.Sprintf("link protocol: this node speaks %v, the other one %v", e.Ours, e.Theirs)
}

// EpochError means that the node at an address has another name or epoch than the one that was wanted.
type EpochError struct{ Want, Got Node }

func (e *EpochError) Error() string {
	return fmt.Sprintf("want node %s of epoch %s, met %s of epoch %s", e.Want.Name, e.Want.Epoch, e.Got.Name, e.Got.Epoch)
}

// HelloError means that a field of a Hello is out of its bounds.
type HelloError struct{ Field, Why string }

func (e *HelloError) Error() string { return fmt.Sprintf("hello: %s %s", e.Field, e.Why) }

// UnreachableError means that a node could not be dialled. Cause says why, RetryAfter when the next Dial to it will try again.
type UnreachableError struct {
	Node       Node
	RetryAfter time.Duration
	Cause      error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("node %s is unreachable: %v", e.Node.Name, e.Cause)
}

func (e *UnreachableError) Unwrap() error { return e.Cause }

// CloseError means that the other end has closed the link with this code.
type CloseError struct {
	Code   int
	Reason string
}

func (e *CloseError) Error() string { return fmt.Sprintf("closed with %d %q", e.Code, e.Reason) }

// BrokenCode is the code with which a client's connection is closed when a link of it breaks: the client comes back and resumes.
const BrokenCode = int(websocket.StatusServiceRestart)

// CloseCode returns the code and the text for the close frame of the connection at the other end of a relay, after a link has failed with err. A close
// frame is passed on as it is.
func CloseCode(err error) (code int, reason string) {
	if bye, ok := errors.AsType[*CloseError](err); ok {
		return bye.Code, bye.Reason
	}
	return BrokenCode, "connection to the session's node was lost"
}
