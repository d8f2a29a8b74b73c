package web

import (
	"cmp"
	"fmt"
	"net/http"

	"trl/pool"
)

// connLimit is clients that share a number of places.
type connLimit struct {
	connGroup
	limit  int
	status int // what HTTP says when it is full
}

// The bounds that a connection can be refused for: the label of trl_connections_refused_total.
const (
	groupAll       = "all"
	groupPrincipal = "principal"
	groupGuests    = "guests"
	groupShare     = "share"
	groupStrangers = "strangers"
)

// connGroup says whose the places are.
type connGroup struct {
	kind string // the metric's label
	name string // which of these; "": there is one
}

func (c *connLimit) String() string {
	return fmt.Sprintf("too many connections: %d of %s", c.limit, c.kind)
}

// connLimits are all that a client is one of. Guests have places of their own, and a quarter of all is kept from them: they shall not keep their
// host out, nor anybody else. An eighth is kept from each principal that is no admin, and of the guests' places from the guests of each.
func (s *Server) connLimits(g *Grant) []connLimit {
	cfg := &s.cfg
	each, guests := cmp.Or(cfg.MaxConnsOfPrincipal, pool.AllButReserve(cfg.MaxConns)), cfg.MaxConns-max(1, cfg.MaxConns/4)
	if cfg.MaxConnsOfPrincipal == 0 && g.Role == Admin {
		each = cfg.MaxConns
	}
	all := connLimit{connGroup{groupAll, ""}, cfg.MaxConns, http.StatusServiceUnavailable}
	if g.share == nil {
		return []connLimit{{connGroup{groupPrincipal, g.Subject}, each, http.StatusTooManyRequests}, all}
	}
	return []connLimit{
		{connGroup{groupShare, g.share.ID()}, cfg.MaxGuests, http.StatusTooManyRequests},
		{connGroup{groupPrincipal, "guests of " + g.Subject}, cmp.Or(cfg.MaxConnsOfPrincipal, pool.AllButReserve(guests)), http.StatusTooManyRequests}, // no subject has spaces
		{connGroup{groupGuests, ""}, guests, http.StatusServiceUnavailable},
		all,
	}
}

// admitConn gives a client a place until leave is called, or says where there is none.
func (s *Server) admitConn(g *Grant) (leave func(), full *connLimit) {
	limits := s.connLimits(g)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range limits {
		if c := &limits[i]; s.connCounts[c.connGroup] >= c.limit {
			s.m.ClientsRefused.WithLabelValues(c.kind).Inc()
			return nil, c
		}
	}
	for _, c := range limits {
		s.connCounts[c.connGroup]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range limits {
			if s.connCounts[c.connGroup]--; s.connCounts[c.connGroup] == 0 {
				delete(s.connCounts, c.connGroup)
			}
		}
	}, nil
}
