// Package cluster is how a gateway sees the other nodes of its cluster: what it asks of the directory, links to nodes with errors for clients, and single
// requests to nodes.
package cluster

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/cluster/link"
	"trl/protocol"
	"trl/web/auth"
)

// Nodes is what a gateway asks of its cluster. Several goroutines may call its methods at once. An epoch is the part of ids that says which node made
// them: it is what pool.Epoch returns.
type Nodes interface {
	// Self returns this node. It does not wait.
	Self() protocol.Node
	// All returns all known nodes by name, this one among them. It does not wait.
	All() []protocol.Node
	// Find returns the node with an epoch, and whether it is known, gone, or may live although it is not known. It does not wait.
	Find(epoch string) (protocol.Node, Standing)
	// Dial makes a link to a known node, for the client that h describes. ctx bounds only the dialling. The link ends with its Close, and at the latest
	// with the gateway. The error is a *link.UnreachableError, or a *protocol.Error for the client; any other error counts as unreachable.
	Dial(ctx context.Context, epoch string, h *link.Hello) (*link.Conn, error)
	// FindName returns the epoch of the node whose session has a principal's name, or "" if there is none, or if its node is no longer known. It may wait
	// for the directory; the error is then a *protocol.Error DIRECTORY_UNAVAILABLE.
	FindName(ctx context.Context, principal, name string) (epoch string, err error)
	// FindKey is FindName for the request key of a session.create.
	FindKey(ctx context.Context, principal, key string) (epoch string, err error)
	// FindMoved is FindName for a session that has moved to another node. mark is that of an id, see ids.MarkOf.
	FindMoved(ctx context.Context, mark string) (epoch string, err error)
	// Place returns the epochs of the nodes to ask for a new session, the best one first; this node may be among them. where has labels that the node
	// must have, node the name of the only node to ask; both may be empty. The error is a *protocol.Error for the client: INVALID_PARAMS about node or
	// where if no node has that name or those labels, MAX_SESSIONS_REACHED or SHUTTING_DOWN if those that have take no sessions. It does not wait. It may
	// count the session at the first node at once.
	Place(where map[string]string, node string) (epochs []string, err error)
	// Presence returns the epochs of the other nodes where a principal has sessions, as far as the directory knows. If the directory does not answer
	// within ctx, it returns all other known nodes.
	Presence(ctx context.Context, principal string) (epochs []string)
	// Degraded reports whether the directory does not work now. It does not wait.
	Degraded() bool
}

// Standing is what a gateway knows of the node with an epoch.
type Standing int

const (
	// Gone means that no node has this epoch, or that its lease has run out.
	Gone Standing = iota
	// MayLive means that the gateway does not know all nodes yet, because it has just started or was cut off from the directory. Requests about such a
	// node fail with UnknownYet.
	MayLive
	// Known means that the node's lease runs. While the directory is degraded, known nodes stay known.
	Known
)

// UnknownYet returns the error for a request about a node that may live although this one does not know it.
func UnknownYet() *protocol.Error {
	return protocol.Errorf(protocol.NodeUnreachable, "this node does not know all others yet").With("retry_after_ms", unknownYetRetry.Milliseconds())
}

// StillMoves returns the error for a request that has waited for long enough for the move of its session. It was not carried out.
func StillMoves() *protocol.Error {
	return protocol.Errorf(protocol.NodeUnreachable, "the session moves from node to node").With("retry_after_ms", unknownYetRetry.Milliseconds())
}

// unknownYetRetry is when a client may try again after UnknownYet. Nodes write their entries every 5 s, and a new node asks for them at once.
const unknownYetRetry = time.Second

// Unreachable returns the error for a request to a node that cannot be reached.
func Unreachable(node string, wait time.Duration) *protocol.Error {
	return protocol.Errorf(protocol.NodeUnreachable, "node %s cannot be reached", node).With("node", node).With("retry_after_ms", wait.Milliseconds())
}

// HelloOf describes a client to another node. It returns an error if the client's credential has ended.
func HelloOf(g *auth.Grant, transport string, client netip.Addr) (*link.Hello, *protocol.Error) {
	h := &link.Hello{Principal: g.Subject, Role: string(g.Role), Credential: g.CredentialID(), Transport: transport, Client: client}
	if far := g.Elsewhere; far != nil {
		h.Share = far.Token
	}
	if !h.Terms.SetExpires(g.Expires()) {
		return nil, cmp.Or(g.ExpiredError(), protocol.Errorf(protocol.AuthFailed, "what you logged in with is about to end"))
	}
	return h, nil
}

// Dial makes a link to a node, for the client that h describes. The error is for the client.
func Dial(ctx context.Context, nodes Nodes, epoch string, h *link.Hello) (*link.Conn, *protocol.Error) {
	l, err := nodes.Dial(ctx, epoch, h)
	if err == nil {
		return l, nil
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return nil, e
	}
	n, standing := nodes.Find(epoch)
	switch standing {
	case MayLive:
		return nil, UnknownYet()
	case Gone: // its lease has run out meanwhile
		return nil, protocol.Errorf(protocol.SessionLost, "the session's node is gone")
	}
	wait := time.Second
	if u, ok := errors.AsType[*link.UnreachableError](err); ok {
		wait = max(u.RetryAfter, 100*time.Millisecond)
	}
	return nil, Unreachable(n.Node, wait).WithCause(err)
}

// Ask sends a request, whose id is 0, to a node and calls use with the data of the answer. ctx bounds it. large is what is called before a large answer is
// read. A failure that the node answers, and one to reach it, is a *protocol.Error.
func Ask(ctx context.Context, nodes Nodes, epoch string, h *link.Hello, request []byte, large func() error, use func(data jsontext.Value) error) error {
	h.Keep = h.Carries == link.ForMessages
	l, fault := Dial(ctx, nodes, epoch, h)
	if fault != nil {
		return fault
	}
	stop := context.AfterFunc(ctx, l.Drop)
	l.BeforeLarge(large)
	err := l.Send(link.Text, request)
	if err == nil && h.Keep {
		err = l.SendEnd()
	}
	if err == nil {
		err = readAnswer(l, use)
	}
	kept := err == nil && h.Keep && awaitEnd(l) == nil
	if stop() && kept {
		l.Release()
	} else {
		l.Drop()
	}
	return err
}

// readAnswer calls use with the data of the answer that comes over a link.
func readAnswer(l *link.Conn, use func(data jsontext.Value) error) error {
	for {
		_, msg, err := l.Read()
		if err != nil {
			return err
		}
		if id, _ := protocol.SplitAnswer(msg); string(id) != "0" {
			continue // an event
		}
		var answer struct {
			Data  jsontext.Value  `json:"data"`
			Error *protocol.Error `json:"error"`
		}
		switch err := json.Unmarshal(msg, &answer); {
		case err != nil:
			return err
		case answer.Error != nil:
			return answer.Error
		case answer.Data == nil:
			return errors.New("answer without data")
		}
		return use(answer.Data)
	}
}

// awaitEnd returns when the node has nothing more for the client.
func awaitEnd(l *link.Conn) error {
	for {
		if kind, msg, err := l.Read(); err != nil || link.IsEnd(kind, msg) {
			return err
		}
	}
}

// guestTimeout bounds the question of AskGuest.
const guestTimeout = 5 * time.Second

// AskGuest asks a node what its share link with this token allows. It returns nil if there is no such link. The error says that the node cannot be asked
// now.
func AskGuest(ctx context.Context, nodes Nodes, n protocol.Node, token string) (*protocol.Capabilities, *protocol.Error) {
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()
	can := new(protocol.Capabilities)
	h := &link.Hello{Principal: "guest", Role: "viewer", Share: token, Transport: "websocket"}
	err := Ask(ctx, nodes, n.Epoch, h, []byte(`{"id":0,"method":"system.capabilities"}`), nil, func(data jsontext.Value) error {
		return json.Unmarshal(data, can)
	})
	e, answered := errors.AsType[*protocol.Error](err)
	switch {
	case err != nil && !answered: // the link broke
		return nil, Unreachable(n.Node, time.Second)
	case err != nil && e.Code == protocol.NodeUnreachable:
		return nil, e
	case err != nil || can.Principal.Share == nil:
		return nil, nil
	}
	return can, nil
}
