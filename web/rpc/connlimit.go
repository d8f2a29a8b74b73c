package rpc

import (
	"cmp"
	"fmt"
	"net/http"

	"trl/pool/places"
	"trl/protocol"
	"trl/web/auth"
)

// ConnLimit is a number of places that some clients share.
type ConnLimit struct {
	connGroup
	limit  int
	Status int // the HTTP status when there is no place
}

// The bounds for which a connection may be refused: the label of trl_connections_refused_total.
const (
	groupAll       = "all"
	groupPrincipal = "principal"
	groupGuests    = "guests"
	groupShare     = "share"
	GroupStrangers = "strangers"
)

// connGroup says which clients share the places.
type connGroup struct {
	kind string // the metric's label
	name string // which one of this kind; "": there is only one
}

func (c *ConnLimit) String() string {
	return fmt.Sprintf("too many connections: %d of %s", c.limit, c.kind)
}

// Fault is the error for a client that gets it over its connection.
func (c *ConnLimit) Fault() *protocol.Error {
	return protocol.Errorf(protocol.LimitExceeded, "%s", c).With("limit", c.limit)
}

// connLimits returns every limit that counts this client. Guests have places of their own, at most three quarters of all, so they cannot keep out
// their host or other users. Of all places, an eighth is out of reach for each principal that is not an admin; the same holds for the guests of each
// principal and the places for guests.
func (cs *Clients) connLimits(g *auth.Grant) []ConnLimit {
	cfg := &cs.config
	each, guests := cmp.Or(cfg.MaxConnsOfPrincipal, places.AllButReserve(cfg.MaxConns)), cfg.MaxConns-max(1, cfg.MaxConns/4)
	if cfg.MaxConnsOfPrincipal == 0 && g.Role == auth.Admin {
		each = cfg.MaxConns
	}
	all := ConnLimit{connGroup{groupAll, ""}, cfg.MaxConns, http.StatusServiceUnavailable}
	guest := g.GuestID()
	if guest == "" {
		return []ConnLimit{{connGroup{groupPrincipal, g.Subject}, each, http.StatusTooManyRequests}, all}
	}
	return []ConnLimit{
		{connGroup{groupShare, guest}, cfg.MaxGuests, http.StatusTooManyRequests},
		{connGroup{groupPrincipal, "guests of " + g.Subject}, cmp.Or(cfg.MaxConnsOfPrincipal, places.AllButReserve(guests)), http.StatusTooManyRequests}, // no subject has spaces
		{connGroup{groupGuests, ""}, guests, http.StatusServiceUnavailable},
		all,
	}
}

// Admit gives a client a place until leave is called, or returns the limit that has been reached.
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
