package auth

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"trl/protocol"
	"trl/web/listen"
)

// A Denial says why a request was not let in.
type Denial struct {
	method     method
	outcome    Outcome
	retryAfter time.Duration // when the client may try again, if it was throttled

	fault *protocol.Error // why the node that could check it cannot be asked now; nil: another reason
}

// refusalLog bounds how many denials are logged: ten at once, then one a second, which says how many were left out.
type refusalLog struct {
	limiter *rate.Limiter
	skipped atomic.Int64
}

// Authenticate finds out who sent the request. The first credential that it finds counts.
func (c *Checker) Authenticate(r *http.Request) (*Grant, *Denial) {
	g, by, why := c.identify(r)
	return g, c.recordOutcome(r, by, why, nil)
}

func (c *Checker) identify(r *http.Request) (*Grant, method, Outcome) {
	if c.c.None {
		return &Grant{Principal: local}, byNothing, Accepted
	}
	return firstCredential(r, c.chain)
}

func firstCredential(r *http.Request, chain []authenticator) (*Grant, method, Outcome) {
	for _, a := range chain {
		if g, by, why := a.authenticate(r); why != missing {
			return g, by, why
		}
	}
	return nil, byNothing, missing
}

// recordOutcome counts the outcome of a credential and logs it, with the part of cause that may be logged. It returns nil if the credential was
// accepted.
func (c *Checker) recordOutcome(r *http.Request, by method, why Outcome, cause error) *Denial {
	c.m.Auth.WithLabelValues(string(by), string(why)).Inc()
	if why == Accepted {
		listen.MarkAuthenticated(r)
		return nil
	}
	d := &Denial{method: by, outcome: why}
	if why == throttled {
		d.retryAfter = c.wrongCredentials.wait(ClientAddr(r), time.Now())
	}
	if why == missing { // every browser that opens the page for the first time
		return d
	}
	if why == unavailable && (by == byLogin || by == byTicket) {
		d.fault = protocol.Errorf(protocol.NodeUnreachable, "the node that gave this %s out cannot be asked now", by).With("retry_after_ms", nodeRetry*1000)
		return d
	}
	c.c.Refused(r, string(by))
	if !c.refusalLog.limiter.Allow() {
		c.refusalLog.skipped.Add(1)
		return d
	}
	c.log.Info().Stringer("address", ClientAddr(r)).Str("method", string(by)).Str("why", string(why)).AnErr("cause", cause).
		Int64("not_logged", c.refusalLog.skipped.Swap(0)).Msg("client refused")
	return d
}

// Deny answers a request that is not let in. The answer is the same whatever is wrong with a credential.
func Deny(w http.ResponseWriter, d *Denial) {
	status, words := d.Answer(w.Header())
	Refuse(w, status, words)
}

// NoCredential reports whether the request brought no credential.
func (d *Denial) NoCredential() bool { return d.outcome == missing }

// OfLogin reports whether a browser's login is over.
func (d *Denial) OfLogin() bool { return d.method == byLogin && d.outcome != unavailable }

// IsForNow reports whether the credential may be good, and cannot be checked now.
func (d *Denial) IsForNow() bool { return d.outcome == unavailable }

// Answer returns the status and the text of the answer, and sets its header.
func (d *Denial) Answer(h http.Header) (status int, words string) {
	switch d.outcome {
	case missing:
		return http.StatusUnauthorized, "a token is needed"
	case throttled:
		h.Set("Retry-After", strconv.Itoa(1+int(d.retryAfter.Seconds())))
		return http.StatusTooManyRequests, "too many wrong tokens came from this address"
	case unavailable:
		if d.fault != nil {
			h.Set("Retry-After", strconv.Itoa(nodeRetry))
			return http.StatusServiceUnavailable, d.fault.Message
		}
		return http.StatusServiceUnavailable, "tokens of this kind cannot be checked at the moment"
	}
	return http.StatusUnauthorized, "this token is not valid"
}

// nodeRetry is after how many seconds a client whose node cannot be asked may try again.
const nodeRetry = 2

// Fault returns the answer as an error of the protocol. words is the text of the answer.
func (d *Denial) Fault(words string) *protocol.Error {
	switch {
	case d.fault != nil:
		return d.fault
	case d.outcome == throttled:
		return protocol.Errorf(protocol.RateLimited, "%s", words)
	case d.outcome == unavailable:
		return protocol.Errorf(protocol.InternalError, "%s", words)
	}
	return protocol.Errorf(protocol.AuthFailed, "%s", words)
}

// Refuse answers a request with a status and a reason.
func Refuse(w http.ResponseWriter, status int, why string) {
	Challenge(w.Header(), status)
	http.Error(w, why, status)
}

// Challenge sets the header of an answer that asks for credentials.
func Challenge(h http.Header, status int) {
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="trl"`)
	}
}
