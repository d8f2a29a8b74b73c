// Package restoring lets requests wait for sessions that a gateway is restoring from the one before it.
package restoring

import (
	"runtime"
	"sync"
	"sync/atomic"
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

// Restore calls restore for each of the ids, by their index, on as many goroutines as there are processors. It returns when all of them are done.
func (s *Sessions) Restore(ids []string, restore func(i int)) {
	var workers sync.WaitGroup
	var next atomic.Int64
	for range min(len(ids), runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(ids); i = int(next.Add(1)) - 1 {
				restore(i)
				s.Done(ids[i])
			}
		})
	}
	workers.Wait()
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
func (s *Sessions) All() <-chan struct{} {
	if s == nil {
		return none
	}
	return s.all
}

// none is closed: no session is being restored.
var none = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
