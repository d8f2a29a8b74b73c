package web

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"trl/metrics"
	"trl/web/listen"
)

// A denial is why a request was not let in.
type denial struct {
	method     authMethod
	outcome    authOutcome
	retryAfter time.Duration // of a throttled one
}

// refusalLog is how many denials are logged: ten at once, then one a second, which tells how many were left out.
type refusalLog struct {
	limiter *rate.Limiter
	skipped atomic.Int64
}

// authenticate finds out who sent the request. The first credential found counts.
func (s *Server) authenticate(r *http.Request) (*Grant, *denial) {
	g, by, why := s.identify(r)
	return g, s.recordOutcome(r, by, why, nil)
}

func (s *Server) identify(r *http.Request) (*Grant, authMethod, authOutcome) {
	if s.cfg.AuthNone {
		return &Grant{Principal: local}, byNothing, accepted
	}
	return firstCredential(r, s.chain)
}

func firstCredential(r *http.Request, chain []authenticator) (*Grant, authMethod, authOutcome) {
	for _, a := range chain {
		if g, by, why := a.authenticate(r); why != missing {
			return g, by, why
		}
	}
	return nil, byNothing, missing
}

// recordOutcome counts and logs what came of a credential, and of cause what the log may have. nil: it was accepted.
func (s *Server) recordOutcome(r *http.Request, by authMethod, why authOutcome, cause error) *denial {
	s.m.Auth.WithLabelValues(string(by), string(why)).Inc()
	if why == accepted {
		listen.MarkAuthenticated(r)
		return nil
	}
	d := &denial{method: by, outcome: why}
	if why == throttled {
		d.retryAfter = s.throttle.wait(clientAddr(r), time.Now())
	}
	if why == missing { // whoever opens the page for the first time
		return d
	}
	s.auditRefusal(r, string(by))
	if !s.refusalLog.limiter.Allow() {
		s.refusalLog.skipped.Add(1)
		return d
	}
	s.log.Info().Stringer("address", clientAddr(r)).Str("method", string(by)).Str("why", string(why)).AnErr("cause", cause).
		Int64("not_logged", s.refusalLog.skipped.Swap(0)).Msg("client refused")
	return d
}

// deny answers a request that is not let in. The answer is the same for everything that is wrong with a credential.
func deny(w http.ResponseWriter, d *denial) {
	status, words := d.answer(w.Header())
	refuse(w, status, words)
}

// answer is the status and the words of the answer, whose header it completes.
func (d *denial) answer(h http.Header) (status int, words string) {
	switch d.outcome {
	case missing:
		return http.StatusUnauthorized, "a token is needed"
	case throttled:
		h.Set("Retry-After", strconv.Itoa(1+int(d.retryAfter.Seconds())))
		return http.StatusTooManyRequests, "too many wrong tokens came from this address"
	case unavailable:
		return http.StatusServiceUnavailable, "tokens of this kind cannot be checked at the moment"
	}
	return http.StatusUnauthorized, "this token is not valid"
}

// buildAuthChain makes the chain: what a client says on purpose comes before what its browser or its TLS library says by itself.
func (s *Server) buildAuthChain() {
	s.bearer = &bearer{tokens: s.cfg.Tokens, jwt: s.cfg.JWT, throttle: &s.throttle}
	s.logins = newLogins(s.cfg.Tokens, s.log)
	others := []authenticator{s.bearer, s.logins}
	if s.cfg.ClientCerts != nil {
		s.certs = &clientCerts{c: *s.cfg.ClientCerts}
		others = append(others, s.certs)
	}
	s.tickets = &tickets{otherAuthenticators: others, now: time.Now, unused: map[[32]byte]ticket{}}
	s.chain = append([]authenticator{s.tickets}, others...)
	if s.cfg.OIDC != nil {
		s.oidc = newOIDC(*s.cfg.OIDC)
	}
	s.refusalLog.limiter = rate.NewLimiter(1, 10)
	for _, by := range authMethods {
		metrics.AtZero(s.m.Auth.MustCurryWith(prometheus.Labels{"method": string(by)}), authOutcomes...)
	}
}

func (s *Server) openCredentials() error {
	if s.certs != nil {
		if err := s.certs.open(s.log); err != nil {
			return err
		}
	}
	return s.logins.open(s.cfg.LoginsFile)
}

func (s *Server) closeCredentials() {
	if s.certs != nil && s.certs.reload != nil {
		s.certs.reload.Close()
	}
	s.logins.Close()
}
