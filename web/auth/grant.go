package auth

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"trl/pool"
	"trl/protocol"
)

// Terms are the bounds of a credential. The zero value has no bound.
type Terms struct {
	Expires     time.Time
	MaxSessions int     // how many live sessions its subject may have
	MaxInFlight int     // how many requests may be in flight, over all its connections
	Rate        float64 // how many requests a second, over all its connections
}

// credentialState is one valid credential, shared by all connections that use it. Its Terms may change.
type credentialState struct {
	valid    context.Context // ends when the credential is revoked
	withdraw context.CancelFunc
	terms    atomic.Pointer[Terms]
	inFlight atomic.Int64
	limiter  *rate.Limiter

	mu     sync.Mutex
	timers map[*expiryTimer]struct{} // guarded by mu; the expiry timers of connections that use it
}

func newCredentialState(t Terms) *credentialState {
	s := &credentialState{limiter: rate.NewLimiter(rate.Inf, 1), timers: map[*expiryTimer]struct{}{}}
	s.valid, s.withdraw = context.WithCancel(context.Background())
	s.setTerms(t)
	return s
}

func (s *credentialState) setTerms(t Terms) {
	s.terms.Store(&t)
	s.mu.Lock()
	for c := range s.timers { // the expiry may have changed
		c.checkNow()
	}
	s.mu.Unlock()
	if t.Rate > 0 {
		s.limiter.SetBurst(max(1, int(2*t.Rate))) // the requests of two seconds, because clients send bursts
		s.limiter.SetLimit(rate.Limit(t.Rate))
		return
	}
	s.limiter.SetLimit(rate.Inf)
}

// inUse reports whether a connection uses the credential.
func (s *credentialState) inUse() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.timers) > 0
}

// A Grant is what a client may do: its principal, and the credentials on which that rests.
type Grant struct {
	Principal
	token       string             // id of the token from which it comes, if any
	login       loginID            // the login from which it comes, if any
	guessable   bool               // a token that a person may have chosen
	Elsewhere   *Elsewhere         // the same for a share link of another node; that node judges every request
	Share       *pool.Share        // it opens only this share link; nil: everything that belongs to its subject
	credentials []*credentialState // it is valid as long as all of these are; none: for ever
}

// Elsewhere is a share link of another node.
type Elsewhere struct {
	Epoch   string // that node's
	Token   string
	ShareID string
}

// GuestID returns the id of the share link with which a guest came, or "" if it is no guest.
func (g *Grant) GuestID() string {
	switch {
	case g.Share != nil:
		return g.Share.ID()
	case g.Elsewhere != nil:
		return g.Elsewhere.ShareID
	}
	return ""
}

// newGrant returns a Grant with a credentialState of its own.
func newGrant(who Principal, t Terms) *Grant {
	return &Grant{Principal: who, credentials: []*credentialState{newCredentialState(t)}}
}

// ForLink returns the grant of a client that another node has authenticated. That node also bounds the client's requests.
func ForLink(who Principal, credential string, expires time.Time) *Grant {
	g := newGrant(who, Terms{Expires: expires})
	g.token = credential
	return g
}

// Expires returns when the first of its credentials expires; zero: never.
func (g *Grant) Expires() (at time.Time) {
	for _, s := range g.credentials {
		if t := s.terms.Load().Expires; !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

func (g *Grant) IsValid(now time.Time) bool {
	if g.Share != nil && g.Share.IsOver() {
		return false
	}
	for _, s := range g.credentials {
		if s.valid.Err() != nil {
			return false
		}
	}
	at := g.Expires()
	return at.IsZero() || now.Before(at)
}

// ExpiredError returns the error for a client whose credential is no longer valid, or nil.
func (g *Grant) ExpiredError() *protocol.Error {
	switch {
	case g.IsValid(time.Now()):
		return nil
	case g.Share != nil:
		return protocol.Errorf(protocol.Forbidden, "this share link has ended")
	}
	return protocol.Errorf(protocol.AuthFailed, "what you logged in with is no longer good")
}

// expiryCheckInterval is how often an expiry is checked. One long timer would not do: timers stand still while the machine sleeps, and an expiry may
// be moved.
const expiryCheckInterval = 30 * time.Second

// OnExpiry calls f, once and in a goroutine of its own, when the grant is no longer valid. stop cancels that.
func (g *Grant) OnExpiry(f func()) (stop func()) {
	once := sync.OnceFunc(f)
	f = func() { go once() } // ends with f, which may wait until a close frame is written
	var stops []func() bool
	for _, s := range g.credentials {
		stops = append(stops, context.AfterFunc(s.valid, f))
	}
	c := g.newExpiryTimer(f)
	for _, s := range g.credentials {
		s.mu.Lock()
		s.timers[c] = struct{}{}
		s.mu.Unlock()
		stops = append(stops, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.timers, c)
			return true
		})
	}
	c.checkNow()
	stops = append(stops, c.stop)
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// expiryTimer calls f when the grant has expired.
type expiryTimer struct {
	g *Grant
	f func()

	mu    sync.Mutex
	timer *time.Timer // guarded by mu; nil: stopped
}

func (g *Grant) newExpiryTimer(f func()) *expiryTimer {
	c := &expiryTimer{g: g, f: f}
	c.timer = time.AfterFunc(expiryCheckInterval, c.check) // unless checkNow comes first
	return c
}

func (c *expiryTimer) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.g.Expires()
	left := time.Until(at.Round(0)) // by the wall clock
	switch {
	case c.timer == nil, at.IsZero():
	case left <= 0:
		c.f()
	default:
		c.timer.Reset(min(left, expiryCheckInterval))
	}
}

// checkNow checks again soon, in another goroutine.
func (c *expiryTimer) checkNow() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Reset(0)
	}
}

func (c *expiryTimer) stop() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil {
		return false
	}
	defer func() { c.timer = nil }()
	return c.timer.Stop()
}

// BeginRequest admits one request, which EndRequest ends, or returns the error of the bound that is reached.
func (g *Grant) BeginRequest() *protocol.Error {
	for i, s := range g.credentials {
		t := s.terms.Load()
		e := (*protocol.Error)(nil)
		if n := s.inFlight.Add(1); t.MaxInFlight > 0 && n > int64(t.MaxInFlight) {
			e = protocol.Errorf(protocol.RateLimited, "%d requests of this token are in flight", t.MaxInFlight).With("limit", t.MaxInFlight)
		} else if !s.limiter.Allow() {
			e = protocol.Errorf(protocol.RateLimited, "this token is good for %g requests a second", t.Rate).With("limit", t.Rate)
		}
		if e != nil {
			for _, s := range g.credentials[:i+1] {
				s.inFlight.Add(-1)
			}
			return e
		}
	}
	return nil
}

func (g *Grant) EndRequest() {
	for _, s := range g.credentials {
		s.inFlight.Add(-1)
	}
}
