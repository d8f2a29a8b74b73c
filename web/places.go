package web

import (
	"fmt"
	"net/http"
)

// crowd is why a client finds no place.
type crowd struct {
	of     string // whose connections there are too many of, and the metric's label
	status int    // what HTTP says
	limit  int
}

func (c *crowd) String() string { return fmt.Sprintf("too many connections: %d of %s", c.limit, c.of) }

// place gives a client a place until leave is called, or says that there is none.
func (s *Server) place(who string) (leave func(), full *crowd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch most := s.cfg.MaxConnsOf; {
	case most > 0 && s.places[who] >= most:
		full = &crowd{"principal", http.StatusTooManyRequests, most}
	case s.taken >= s.cfg.MaxConns:
		full = &crowd{"all", http.StatusServiceUnavailable, s.cfg.MaxConns}
	}
	if full != nil {
		s.m.ClientsRefused.WithLabelValues(full.of).Inc()
		return nil, full
	}
	s.places[who]++
	s.taken++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken--
		if s.places[who]--; s.places[who] == 0 {
			delete(s.places, who)
		}
	}, nil
}
