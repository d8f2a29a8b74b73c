package bounds

import (
	"cmp"
	"fmt"
	"net/http"
	"sync"

	"trl/pool/places"
	"trl/protocol"
	"trl/web/auth"

	"github.com/prometheus/client_golang/prometheus"
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

// Conns counts the connections of a gateway, also before their upgrade. A zero bound is that of rpc.Config.
type Conns struct {
	Max         int // all clients
	OfPrincipal int // 0: seven eighths of all, or of the places for guests; for an admin all
	OfShare     int
	Refused     *prometheus.CounterVec // by group

	mu     sync.Mutex
	counts map[connGroup]int // guarded by mu
}

// Groups are the labels of Refused.
var Groups = []string{groupAll, groupPrincipal, groupGuests, groupShare, GroupStrangers}

// limits returns every limit that counts this client. Guests have places of their own, at most three quarters of all, so they cannot keep out
// their host or other users. Of all places, an eighth is out of reach for each principal that is not an admin; the same holds for the guests of each
// principal and the places for guests.
func (c *Conns) limits(g *auth.Grant) []ConnLimit {
	each, guests := cmp.Or(c.OfPrincipal, places.AllButReserve(c.Max)), c.Max-max(1, c.Max/4)
	if c.OfPrincipal == 0 && g.Role == auth.Admin {
		each = c.Max
	}
	all := ConnLimit{connGroup{groupAll, ""}, c.Max, http.StatusServiceUnavailable}
	guest := g.GuestID()
	if guest == "" {
		return []ConnLimit{{connGroup{groupPrincipal, g.Subject}, each, http.StatusTooManyRequests}, all}
	}
	return []ConnLimit{
		{connGroup{groupShare, guest}, c.OfShare, http.StatusTooManyRequests},
		{connGroup{groupPrincipal, "guests of " + g.Subject}, cmp.Or(c.OfPrincipal, places.AllButReserve(guests)), http.StatusTooManyRequests}, // no subject has spaces
		{connGroup{groupGuests, ""}, guests, http.StatusServiceUnavailable},
		all,
	}
}

// Admit gives a client a place until leave is called, or returns the limit that has been reached.
func (c *Conns) Admit(g *auth.Grant) (leave func(), full *ConnLimit) {
	limits := c.limits(g)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[connGroup]int{}
	}
	for i := range limits {
		if l := &limits[i]; c.counts[l.connGroup] >= l.limit {
			c.Refused.WithLabelValues(l.kind).Inc()
			return nil, l
		}
	}
	for _, l := range limits {
		c.counts[l.connGroup]++
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, l := range limits {
			if c.counts[l.connGroup]--; c.counts[l.connGroup] == 0 {
				delete(c.counts, l.connGroup)
			}
		}
	}, nil
}
