package auth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"time"

	"trl/protocol"
)

const (
	// ticketLifetime is the time in which a ticket must be used. A page asks for one when it dials.
	ticketLifetime = 30 * time.Second
	// How many unused tickets there may be in all, and of one subject.
	maxTickets    = 4096
	maxOwnTickets = 64
)

// tickets open one WebSocket each. A browser without a cookie of the gateway shows one instead of the token, which every script of its page could
// keep. A new gateway does not know them; the client then asks for another one.
type tickets struct {
	otherAuthenticators []authenticator // set once; the other credentials that a request may bring
	others              Others          // set once; the nodes that have given out other tickets; nil: there are none
	wrongCredentials    *wrongCredentials
	restore             func(ctx context.Context, v *described) (*Grant, Outcome) // set once; makes the grant of another node's ticket

	mu     sync.Mutex
	now    func() time.Time             // guarded by mu; tests set it
	unused map[[sha256.Size]byte]ticket // guarded by mu; by hash, so that the time of a look-up tells nothing about a ticket
}

type ticket struct {
	grant  *Grant
	origin string // the origin of the page that asked for it; "": a program asked
	until  time.Time
}

// isExpired also uses the wall clock, because the monotonic clock stands still while the machine is suspended.
func (k ticket) isExpired(now time.Time) bool {
	return !now.Before(k.until) || !now.Round(0).Before(k.until.Round(0))
}

// issue makes a ticket with the rights of g. ok: there was room.
func (t *tickets) issue(g *Grant, origin string) (text string, ok bool) {
	text = withMark(t.others, rand.Text()+rand.Text()) // 2 × 130 bits, in letters and digits, as a Subprotocol requires
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	own := 0
	for hash, k := range t.unused {
		switch {
		case k.isExpired(now):
			delete(t.unused, hash)
		case k.grant.Subject == g.Subject:
			own++
		}
	}
	if own >= maxOwnTickets || len(t.unused) >= maxTickets {
		return "", false
	}
	t.unused[sha256.Sum256([]byte(text))] = ticket{g, origin, now.Add(ticketLifetime)}
	return text, true
}

// take uses up a ticket of this node.
func (t *tickets) take(hash [sha256.Size]byte) (ticket, Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, known := t.unused[hash]
	delete(t.unused, hash)
	now := t.now()
	switch {
	case !known:
		return ticket{}, Unknown
	case k.isExpired(now) || !k.grant.IsValid(now):
		return ticket{}, expired
	}
	return k, Accepted
}

// redeem uses up a ticket of this node for another one. The answer has no subject if the ticket is no good.
func (t *tickets) redeem(id string) (v described) {
	hash, _ := parseHash(id)
	k, why := t.take(hash)
	if why != Accepted {
		return described{}
	}
	v, _ = describe(k.grant)
	v.Origin = k.origin
	return v
}

// takeElsewhere uses up a ticket of another node.
func (t *tickets) takeElsewhere(ctx context.Context, hash [sha256.Size]byte, mark string) (ticket, Outcome) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var v described
	e := t.others.Ask(ctx, mark, ticketPath, hex.EncodeToString(hash[:]), &v)
	switch {
	case e != nil && e.Code != protocol.SessionLost:
		return ticket{}, unavailable
	case v.Subject == "":
		return ticket{}, Unknown
	}
	g, why := t.restore(ctx, &v)
	return ticket{grant: g, origin: v.Origin}, why
}

// authenticate uses up the ticket, whatever the outcome, so that a copy of it becomes worthless. A ticket is valid only for the page that asked for
// it, and, if the request has another credential, only for that principal.
func (t *tickets) authenticate(r *http.Request) (*Grant, method, Outcome) {
	text, found := offeredProtocol(r, ticketProtocol)
	if !found {
		return nil, byTicket, missing
	}
	hash := sha256.Sum256([]byte(text))
	var k ticket
	var why Outcome
	if mark := markOf(t.others, text); mark == "" {
		k, why = t.take(hash)
	} else {
		why = t.wrongCredentials.guard(r, func() (why Outcome) {
			k, why = t.takeElsewhere(r.Context(), hash, mark)
			return why
		})
	}
	switch {
	case why != Accepted:
		return nil, byTicket, why
	case k.origin != "" && k.origin != r.Header.Get("Origin"):
		return nil, byTicket, Unknown
	}
	if g, _, why := firstCredential(r, t.otherAuthenticators); why != missing && (why != Accepted || g.Subject != k.grant.Subject) {
		return nil, byTicket, Unknown
	}
	return k.grant, byTicket, Accepted
}

// ServeTicket serves POST /v1/tickets.
func (c *Checker) ServeTicket(w http.ResponseWriter, r *http.Request) {
	g, by, why := c.identify(r)
	if by == byTicket && why == Accepted { // tickets for tickets would never end
		why = Unknown
	}
	if d := c.recordOutcome(r, by, why, nil); d != nil {
		Deny(w, d)
		return
	}
	if !c.AdmitRequest(w, g) {
		return
	}
	defer g.EndRequest()
	text, ok := c.tickets.issue(g, r.Header.Get("Origin"))
	if !ok {
		w.Header().Set("Retry-After", fmt.Sprint(int(ticketLifetime.Seconds())))
		Refuse(w, http.StatusTooManyRequests, "too many tickets are open")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "{\"ticket\":%q,\"expires_in_s\":%d}\n", text, int(ticketLifetime.Seconds()))
}
