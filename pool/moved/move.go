package moved

import (
	"sync/atomic"

	"trl/pool/entry"
	"trl/protocol"
)

// Move is what the nodes between which a session moves know of it.
//
// A session moves in this order. Each step may be the last one of either gateway; the next gateway goes on from there.
//
//  1. BeginMove: the old node's session takes no requests. They wait for the end of the move.
//  2. Export, Receive: the new node makes a shell with the session's state, and writes everything down. Nobody can use that session yet.
//  3. Commit: the old node writes down that the session has moved. From here on it is the new node's; before, it was the old one's.
//  4. Keep: the new node writes down that the session is its own, and serves it. If it was killed before, it asks the old node (Commit) again.
//  5. The new node takes the session's name over in the directory. Until Told, the old node keeps the name from others.
//
// The old node's session ends after Commit. It is retained like any session that has ended, and tells where the session is.
type Move struct {
	ID        string
	Peer      string // the epoch of the other node
	SessionID string
	Arriving  bool                 // the session comes to this node
	Info      protocol.SessionInfo // of a session that leaves, before that

	// Guarded by the session's lock.
	Decided bool     // Over is closed
	Lost    []string // the state that the new node could not take

	over chan struct{}
	told atomic.Bool // the nodes know where the session is
}

// NewMove returns a Move that is not decided.
func NewMove(id, peer, session string) *Move {
	return &Move{ID: id, Peer: peer, SessionID: session, over: make(chan struct{})}
}

// Decided returns a Move that an earlier gateway has finished, but maybe for Told.
func Decided(id, peer, session string, told bool) *Move {
	m := NewMove(id, peer, session)
	m.told.Store(told)
	m.Decide()
	return m
}

// Decide closes Over, once, and reports whether it did. The session's lock is held.
func (m *Move) Decide() bool {
	if m.Decided {
		return false
	}
	m.Decided = true
	close(m.over)
	return true
}

// Over is closed when it is decided where the session is.
func (m *Move) Over() <-chan struct{} { return m.over }

// IsTold reports whether the nodes know where the session is.
func (m *Move) IsTold() bool { return m.told.Load() }

// SetTold notes that they do, once, and reports whether they did before.
func (m *Move) SetTold() (before bool) { return m.told.Swap(true) }

// Error makes a Move the cause of the error for requests about its session.
func (m *Move) Error() string { return "session moves" }

// Left returns the entry of a session that has moved away.
func (m *Move) Left() entry.Entry {
	return entry.Entry{Moved: &entry.Moved{Move: m.ID, To: m.Peer, Lost: m.Lost, Ended: m.IsTold()}}
}

// Arrived returns the entry of a session that has come, or comes. ours says that the old node has given it up.
func (m *Move) Arrived(ours bool) entry.Entry {
	return entry.Entry{Arrived: &entry.Arrived{Move: m.ID, From: m.Peer, Ours: ours, Told: m.IsTold()}}
}

// Fault returns the error for requests about the session. left says that it is the other node's now.
func (m *Move) Fault(left bool) *protocol.Error {
	e := protocol.Errorf(Code, "session is moving").With("session_id", m.SessionID)
	if left && !m.Arriving {
		e = e.With("epoch", m.Peer)
	}
	return e
}

// ErrBusy is for a session that cannot be moved because of something that it has: "move" means that an earlier move is not over.
func ErrBusy(session, why string) *protocol.Error {
	return protocol.Errorf(protocol.SessionBusy, "session cannot be moved, because of its %s", why).With("reason", why).With("session_id", session)
}

// ErrNone is for a move that has ended.
func ErrNone() error {
	return protocol.Errorf(protocol.SessionNotFound, "the session is not being moved any more")
}
