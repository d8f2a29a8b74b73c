package web

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// A denial is why a request was not let in.
type denial struct {
	by   method
	why  outcome
	wait time.Duration // of a throttled one
}

// refusals is how many denials are logged: ten at once, then one a second, which tells how many were left out.
type refusals struct {
	pace    *rate.Limiter
	skipped atomic.Int64
}

// authenticate finds out who sent the request. The first credential found counts.
func (s *Server) authenticate(r *http.Request) (*Grant, *denial) {
	g, by, why := s.identify(r)
	return g, s.decided(r, by, why, nil)
}

func (s *Server) identify(r *http.Request) (*Grant, method, outcome) {
	if s.cfg.AuthNone {
		return &Grant{Principal: local}, byNothing, accepted
	}
	return first(r, s.chain)
}

func first(r *http.Request, chain []authenticator) (*Grant, method, outcome) {
	for _, a := range chain {
		if g, by, why := a.authenticate(r); why != missing {
			return g, by, why
		}
	}
	return nil, byNothing, missing
}

// decided counts and logs what came of a credential, and of cause what the log may have. nil: it was accepted.
func (s *Server) decided(r *http.Request, by method, why outcome, cause error) *denial {
	s.m.Auth.WithLabelValues(string(by), string(why)).Inc()
	if why == accepted {
		known(r)
		return nil
	}
	d := &denial{by: by, why: why}
	if why == throttled {
		d.wait = s.throttle.wait(clientAddr(r), time.Now())
	}
	if why == missing { // whoever opens the page for the first time
		return d
	}
	s.refused(r, string(by))
	if !s.refusals.pace.Allow() {
		s.refusals.skipped.Add(1)
		return d
	}
	s.log.Info().Stringer("address", clientAddr(r)).Str("method", string(by)).Str("why", string(why)).AnErr("cause", cause).
		Int64("not_logged", s.refusals.skipped.Swap(0)).Msg("client refused")
	return d
}

// known takes the connection off the strangers: it has shown who it is.
func known(r *http.Request) {
	if s, ok := r.Context().Value(socketKey{}).(*socket); ok {
		s.known()
	}
}

// deny answers a request that is not let in. The answer is the same for everything that is wrong with a credential.
func deny(w http.ResponseWriter, d *denial) {
	status, words := d.answer(w.Header())
	refuse(w, status, words)
}

// answer is the status and the words of the answer, whose header it completes.
func (d *denial) answer(h http.Header) (status int, words string) {
	switch d.why {
	case missing:
		return http.StatusUnauthorized, "a token is needed"
	case throttled:
		h.Set("Retry-After", strconv.Itoa(1+int(d.wait.Seconds())))
		return http.StatusTooManyRequests, "too many wrong tokens came from this address"
	case unavailable:
		return http.StatusServiceUnavailable, "tokens of this kind cannot be checked at the moment"
	}
	return http.StatusUnauthorized, "this token is not valid"
}

// admit makes the chain: what a client says on purpose comes before what its browser or its TLS library says by itself.
func (s *Server) admit() {
	s.bearer = &bearer{tokens: s.cfg.Tokens, jwt: s.cfg.JWT, throttle: &s.throttle}
	s.logins = newLogins(s.cfg.Tokens, s.log)
	others := []authenticator{s.bearer, s.logins}
	if s.cfg.ClientCerts != nil {
		s.certs = &clientCerts{c: *s.cfg.ClientCerts}
		others = append(others, s.certs)
	}
	s.tickets = &tickets{others: others, now: time.Now, open: map[[32]byte]ticket{}}
	s.chain = append([]authenticator{s.tickets}, others...)
	if s.cfg.OIDC != nil {
		s.oidc = newOIDC(*s.cfg.OIDC)
	}
	s.refusals.pace = rate.NewLimiter(1, 10)
	for _, by := range methods {
		for _, why := range outcomes {
			s.m.Auth.WithLabelValues(string(by), string(why))
		}
	}
}

func (s *Server) openCredentials() error {
	if s.certs != nil {
		if err := s.certs.open(s.log); err != nil {
			return err
		}
	}
	return s.logins.open(s.cfg.Logins)
}

func (s *Server) closeCredentials() {
	if s.certs != nil && s.certs.reload != nil {
		s.certs.reload.Close()
	}
	s.logins.Close()
}
