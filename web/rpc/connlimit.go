package rpc

import (
	"cmp"
	"fmt"
	"net/http"

	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
)

// ConnLimit is clients that share a number of places.
type ConnLimit struct {
	connGroup
	limit  int
	Status int // what HTTP says when it is full
}

// The bounds that a connection can be refused for: the label of trl_connections_refused_total.
const (
	groupAll       = "all"
	groupPrincipal = "principal"
	groupGuests    = "guests"
	groupShare     = "share"
	GroupStrangers = "strangers"
)

// connGroup says whose the places are.
type connGroup struct {
	kind string // the metric's label
	name string // which of these; "": there is one
}

func (c *ConnLimit) String() string {
	return fmt.Sprintf("too many connections: %d of %s", c.limit, c.kind)
}

// Fault is for a client that is told over its connection.
func (c *ConnLimit) Fault() *protocol.Error {
	return protocol.Errorf(protocol.LimitExceeded, "%s", c).With("limit", c.limit)
}

// connLimits are all that a client is one of. Guests have places of their own, and a quarter of all is kept from them: they shall not keep their
// host out, nor anybody else. An eighth is kept from each principal that is no admin, and of the guests' places from the guests of each.
func (cs *Clients) connLimits(g *auth.Grant) []ConnLimit {
	cfg := &cs.config
	each, guests := cmp.Or(cfg.MaxConnsOfPrincipal, pool.AllButReserve(cfg.MaxConns)), cfg.MaxConns-max(1, cfg.MaxConns/4)
	if cfg.MaxConnsOfPrincipal == 0 && g.Role == auth.Admin {
		each = cfg.MaxConns
	}
	all := ConnLimit{connGroup{groupAll, ""}, cfg.MaxConns, http.StatusServiceUnavailable}
	if g.Share == nil {
		return []ConnLimit{{connGroup{groupPrincipal, g.Subject}, each, http.StatusTooManyRequests}, all}
	}
	return []ConnLimit{
		{connGroup{groupShare, g.Share.ID()}, cfg.MaxGuests, http.StatusTooManyRequests},
		{connGroup{groupPrincipal, "guests of " + g.Subject}, cmp.Or(cfg.MaxConnsOfPrincipal, pool.AllButReserve(guests)), http.StatusTooManyRequests}, // no subject has spaces
		{connGroup{groupGuests, ""}, guests, http.StatusServiceUnavailable},
		all,
	}
}

// Admit gives a client a place until leave is called, or says where there is none.
func (cs *Clients) Admit(g *auth.Grant) (leave func(), full *ConnLimit) {
	limits := cs.connLimits(g)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for i := range limits {
		if c := &limits[i]; cs.connCounts[c.connGroup] >= c.limit {
			cs.m.ClientsRefused.WithLabelValues(c.kind).Inc()
			return nil, c
		}
	}
	for _, c := range limits {
		cs.connCounts[c.connGroup]++
	}
	return func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		for _, c := range limits {
			if cs.connCounts[c.connGroup]--; cs.connCounts[c.connGroup] == 0 {
				delete(cs.connCounts, c.connGroup)
			}
		}
	}, nil
}
