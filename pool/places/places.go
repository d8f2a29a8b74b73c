// Package places counts the live sessions, in all and of each principal, and refuses those beyond a bound.
package places

import (
	"trl/pool/claims"
	"trl/pool/settings"
	"trl/protocol"
)

// Places has the counts. The caller guards it. The zero value is empty.
type Places struct {
	Live int            // sessions that are not TERMINATED, also those that are being created
	of   map[string]int // by principal

	draining chan struct{} // not nil: no new sessions; closed when Live is 0
}

// Bounds are how many sessions there may be.
type Bounds struct {
	All       int // in all
	Here      int // of one principal on this node; 0: no bound
	Principal int // of one principal on all nodes; 0: no bound
	Token     int // the same, by its token
	Elsewhere int // sessions of the principal on other nodes
}

// BoundsFor returns how many sessions who may have. exempt is nil if nobody is exempt from the reserve.
func BoundsFor(who string, r *settings.Effective, exempt func(who string) bool, others *claims.Table) Bounds {
	b := Bounds{All: r.MaxSessions, Principal: r.MaxPerPrincipal}
	if b.Principal == 0 && !(exempt != nil && exempt(who)) {
		b.Here = AllButReserve(r.MaxSessions)
	}
	if r.MaxOfPrincipal != nil {
		b.Token = r.MaxOfPrincipal(who)
	}
	if b.Principal > 0 || b.Token > 0 {
		b.Elsewhere = others.LiveElsewhere(who)
	}
	return b
}

// Check returns the error for one session more of who.
func (p *Places) Check(who string, b Bounds) error {
	here := p.of[who]
	of := here + b.Elsewhere
	switch {
	case p.draining != nil:
		return protocol.Errorf(protocol.ShuttingDown, "the server takes no new sessions: it is being drained").With("draining", true)
	case p.Live >= b.All:
		return atMost("max_sessions", max(0, b.All)) // below 0: this gateway makes none
	case b.Here > 0 && here >= b.Here:
		return atMost("max_sessions_per_principal", b.Here)
	case b.Principal > 0 && of >= b.Principal:
		return atMost("max_sessions_per_principal", b.Principal)
	case b.Token > 0 && of >= b.Token:
		return atMost("max_sessions_of_token", b.Token)
	}
	return nil
}

// AllButReserve returns how many of n places one principal may have: an eighth is kept for others.
func AllButReserve(n int) int { return n - n/8 }

func atMost(what string, n int) error {
	return protocol.Errorf(protocol.MaxSessionsReached, "%s is %d", what, n).With(what, n).With("limit", n)
}

// Add counts more sessions of who, or fewer, and returns how many it has then.
func (p *Places) Add(who string, more int) int {
	if p.of == nil {
		p.of = map[string]int{}
	}
	p.Live += more
	n := p.of[who] + more
	if p.of[who] = n; n == 0 {
		delete(p.of, who)
	}
	p.closeDrained()
	return n
}

// Drain makes Check refuse all sessions. empty is closed when none lives. A second call returns the same channel.
func (p *Places) Drain() (empty <-chan struct{}) {
	if p.draining == nil {
		p.draining = make(chan struct{})
		p.closeDrained()
	}
	return p.draining
}

// Undrain undoes Drain.
func (p *Places) Undrain() { p.draining = nil }

// closeDrained closes the channel of a drain when no session lives. That happens once, because no new ones are accepted then.
func (p *Places) closeDrained() {
	if p.draining != nil && p.Live == 0 {
		select {
		case <-p.draining:
		default:
			close(p.draining)
		}
	}
}

// Of returns how many sessions each principal has. The caller must not change it.
func (p *Places) Of() map[string]int { return p.of }
