package web

import (
	"context"
	"time"

	"trl/protocol"
)

// A drain: no new sessions, those that live go on, /readyz says so; over when none lives, or when its time is. The owner of the server,
// who hears of it by Drained, then calls Shutdown.

// Drained is closed when a drain is over.
func (s *Server) Drained() <-chan struct{} { return s.drained }

// Draining: a drain has begun, and was not taken back.
func (s *Server) Draining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopDrain != nil
}

// DrainingForGood: a drain has begun that no client can take back.
func (s *Server) DrainingForGood() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forGood
}

// Drain begins a drain, or gives the one that there is another time. At most for so long; below 0: until no session lives. forGood: who
// supervises us counts on the end, so no client may put it off.
func (s *Server) Drain(most time.Duration, forGood bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.forGood {
		return
	}
	s.forGood = forGood
	if s.stopDrain != nil {
		s.stopDrain()
	}
	ctx, cancel := context.WithCancel(s.ctx)
	var late <-chan time.Time
	if most >= 0 {
		late = time.After(most)
	}
	s.stopDrain = cancel
	empty := s.pool.Drain()
	s.connTasks.Add(1)
	go func() { // waits for the drain to be over; ends with ctx; Shutdown waits for it
		defer s.connTasks.Done()
		defer cancel()
		select {
		case <-empty:
		case <-late:
		case <-ctx.Done(): // taken back, given another time, or we end anyway
			return
		}
		s.log.Info().Int("sessions", s.pool.LiveCount()).Msg("drained")
		s.drainedOnce.Do(func() { close(s.drained) })
	}()
	s.log.Info().Bool("bounded", most >= 0).Dur("at_most_ms", max(0, most)).Int("sessions", s.pool.LiveCount()).Msg("draining: no new sessions")
}

// Undrain takes it back, unless it is for good.
func (s *Server) Undrain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopDrain == nil {
		return nil
	}
	if s.forGood {
		return protocol.Errorf(protocol.ShuttingDown, "a signal began this drain, and who sent it counts on the end")
	}
	s.stopDrain()
	s.stopDrain = nil
	s.pool.Undrain()
	s.log.Info().Msg("drain taken back")
	return nil
}

func systemDrain(k *call, q *protocol.Drain) (any, bool, error) {
	if k.c.principal.Role != Admin {
		return nil, false, protocol.Errorf(protocol.Forbidden, "only an admin may drain the server")
	}
	s := k.c.srv
	switch {
	case q.Undo:
		if err := s.Undrain(); err != nil {
			return nil, false, err
		}
	case q.Wait == nil:
		s.Drain(-1, false)
	default:
		s.Drain(q.Wait.Duration(), false)
	}
	return &protocol.Drained{Draining: s.Draining(), ActiveSessions: s.pool.LiveCount()}, false, nil
}
