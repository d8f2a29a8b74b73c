package web

import (
	"cmp"
	"fmt"
	"net/http"

	"trl/pool"
)

// crowd is clients that share a number of places.
type crowd struct {
	crowdName
	limit  int
	status int // what HTTP says when it is full
}

// The bounds that a connection can be refused for: the label of trl_connections_refused_total.
const (
	ofAll       = "all"
	ofPrincipal = "principal"
	ofGuests    = "guests"
	ofShare     = "share"
	ofStrangers = "strangers"
)

// crowdName says whose the places are.
type crowdName struct {
	of  string // the metric's label
	who string // which of these; "": there is one
}

func (c *crowd) String() string { return fmt.Sprintf("too many connections: %d of %s", c.limit, c.of) }

// crowds are all that a client is one of. Guests have places of their own, and a quarter of all is kept from them: they shall not keep their
// host out, nor anybody else. An eighth is kept from each principal that is no admin, and of the guests' places from the guests of each.
func (s *Server) crowds(g *Grant) []crowd {
	cfg := &s.cfg
	each, guests := cmp.Or(cfg.MaxConnsOf, pool.AllButReserve(cfg.MaxConns)), cfg.MaxConns-max(1, cfg.MaxConns/4)
	if cfg.MaxConnsOf == 0 && g.Role == Admin {
		each = cfg.MaxConns
	}
	all := crowd{crowdName{ofAll, ""}, cfg.MaxConns, http.StatusServiceUnavailable}
	if g.share == nil {
		return []crowd{{crowdName{ofPrincipal, g.Subject}, each, http.StatusTooManyRequests}, all}
	}
	return []crowd{
		{crowdName{ofShare, g.share.ID()}, cfg.MaxGuests, http.StatusTooManyRequests},
		{crowdName{ofPrincipal, "guests of " + g.Subject}, cmp.Or(cfg.MaxConnsOf, pool.AllButReserve(guests)), http.StatusTooManyRequests}, // no subject has spaces
		{crowdName{ofGuests, ""}, guests, http.StatusServiceUnavailable},
		all,
	}
}

// place gives a client a place until leave is called, or says where there is none.
func (s *Server) place(g *Grant) (leave func(), full *crowd) {
	crowds := s.crowds(g)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range crowds {
		if c := &crowds[i]; s.places[c.crowdName] >= c.limit {
			s.m.ClientsRefused.WithLabelValues(c.of).Inc()
			return nil, c
		}
	}
	for _, c := range crowds {
		s.places[c.crowdName]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range crowds {
			if s.places[c.crowdName]--; s.places[c.crowdName] == 0 {
				delete(s.places, c.crowdName)
			}
		}
	}, nil
}
