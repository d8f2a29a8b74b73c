// Package gone knows of which sessions the keeper still has something although the pool has forgotten them.
package gone

import (
	"context"
	"sync"
)

// Sessions are the sessions that goroutines make the keeper forget. A session with one of their ids may be made only after that. The zero value is empty.
type Sessions struct {
	mu    sync.Mutex
	going map[string]*going
}

// going is one session. Guarded by Sessions.mu.
type going struct {
	calls int           // of Begin without done
	over  chan struct{} // closed with the last one
}

// Begin notes that the caller makes the keeper forget a session. The caller calls done afterwards.
func (s *Sessions) Begin(id string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.going == nil {
		s.going = map[string]*going{}
	}
	g := s.going[id]
	if g == nil {
		g = &going{over: make(chan struct{})}
		s.going[id] = g
	}
	g.calls++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if g.calls--; g.calls == 0 {
			delete(s.going, id)
			close(g.over)
		}
	}
}

// Await returns when the keeper has nothing of the session any more, or when ctx is done.
func (s *Sessions) Await(ctx context.Context, id string) error {
	s.mu.Lock()
	g := s.going[id]
	s.mu.Unlock()
	if g == nil {
		return nil
	}
	select {
	case <-g.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
