// Package restoring lets requests wait for sessions that a gateway is restoring from the one before it.
package restoring

import (
	"time"

	"trl/protocol"
)

// maxWait bounds a wait. What is kept of a session is bounded, and so is the time that reading it takes.
const maxWait = 30 * time.Second

// Sessions is the sessions that are being restored. A nil *Sessions has none.
type Sessions struct {
	byID map[string]chan struct{} // closed when that session is restored, or lost
	all  chan struct{}            // closed when all are
}

// New makes the set of these sessions.
func New(ids []string) *Sessions {
	s := &Sessions{byID: map[string]chan struct{}{}, all: make(chan struct{})}
	for _, id := range ids {
		s.byID[id] = make(chan struct{})
	}
	return s
}

// Await waits for the session with this id, or for all if id is empty.
func (s *Sessions) Await(id string) error {
	if s == nil {
		return nil
	}
	restored := s.all
	if id != "" {
		if restored = s.byID[id]; restored == nil {
			return nil
		}
	}
	select {
	case <-restored:
		return nil
	case <-time.After(maxWait):
		return protocol.Errorf(protocol.SessionBusy, "sessions are being brought back")
	}
}

// Contains reports whether the session with this id is still being restored.
func (s *Sessions) Contains(id string) bool {
	if s == nil {
		return false
	}
	select {
	case <-s.byID[id]:
		return false
	default:
		return s.byID[id] != nil
	}
}

// Done says that a session is restored, or lost.
func (s *Sessions) Done(id string) { close(s.byID[id]) }

// AllDone says that all sessions are.
func (s *Sessions) AllDone() { close(s.all) }

// All is closed by AllDone.
func (s *Sessions) All() <-chan struct{} { return s.all }
