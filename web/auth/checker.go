// Package auth finds out who sends a request: tokens, JWTs, logins of browsers, OpenID Connect, tickets, client certificates, links of guests;
// and what the credential allows: role, sessions, rate limit, expiry (grant.go).
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"trl/metrics"
	"trl/pool"
	"trl/protocol"
	"trl/web/listen"
)

// Config says which credentials are accepted over HTTP. Unless None, at least one kind is set.
type Config struct {
	None        bool // no authentication: every client is the principal local
	Tokens      Tokens
	JWT         *JWT
	OIDC        *OIDCConfig
	ClientCerts *ClientCertsConfig
	LoginsFile  string // the file that keeps the logins of browsers; empty: in memory

	Refused func(r *http.Request, why string) // called for each request with a wrong credential

	Others Others // the other nodes; nil: there are none

	// GuestElsewhere returns the grant of a share link of another node, or nil. It asks that node; the error says that this is not possible now. nil: there
	// is no other node.
	GuestElsewhere func(ctx context.Context, token string) (*Grant, *protocol.Error)
}

// Checker finds out who sends a request. Call Open before the first request and Close after the last one.
type Checker struct {
	c    Config
	pool *pool.Pool // knows the share links
	m    *metrics.Metrics
	log  zerolog.Logger

	chain   []authenticator // set once; the first one that finds a credential decides
	bearer  *bearer
	logins  *logins
	tickets *tickets
	certs   *ClientCerts // nil: clients are not asked for certificates
	oidc    *oidcLogin   // nil: no OpenID provider

	wrongCredentials wrongCredentials
	refusalLog       refusalLog
}

// New makes the chain. Credentials that a client sends on purpose come before those that its browser or its TLS library sends by itself.
func New(config Config, p *pool.Pool, m *metrics.Metrics, log zerolog.Logger) *Checker {
	c := &Checker{c: config, pool: p, m: m, log: log}
	c.bearer = &bearer{tokens: config.Tokens, jwt: config.JWT, wrongCredentials: &c.wrongCredentials}
	c.logins = newLogins(config.Tokens, log)
	c.logins.wrongCredentials = &c.wrongCredentials
	if config.Others != nil {
		c.logins.far = newFarLogins(config.Others)
	}
	others := []authenticator{c.bearer, c.logins}
	if config.ClientCerts != nil {
		c.certs = &ClientCerts{c: *config.ClientCerts}
		others = append(others, c.certs)
	}
	c.tickets = &tickets{
		otherAuthenticators: others, others: config.Others, wrongCredentials: &c.wrongCredentials, restore: c.restore, now: time.Now, unused: map[[32]byte]ticket{},
	}
	c.chain = append([]authenticator{c.tickets}, others...)
	if config.OIDC != nil {
		c.oidc = newOIDC(config.OIDC)
	}
	c.refusalLog.limiter = rate.NewLimiter(1, 10)
	for _, by := range methods {
		metrics.AtZero(m.Auth.MustCurryWith(prometheus.Labels{"method": string(by)}), outcomes...)
	}
	return c
}

// Open reads the files of client CAs and of logins, and watches them until Close.
func (c *Checker) Open() error {
	if c.certs != nil {
		if err := c.certs.open(c.log); err != nil {
			return err
		}
	}
	return c.logins.open(c.c.LoginsFile)
}

// Close stops watching the files.
func (c *Checker) Close() {
	if c.certs != nil && c.certs.reload != nil {
		c.certs.reload.Close()
	}
	c.logins.Close()
}

// Accepts reports whether any credential could be accepted.
func (c *Checker) Accepts() bool {
	return c.c.None || c.c.Tokens != nil || c.c.JWT != nil || c.c.OIDC != nil || c.c.ClientCerts != nil
}

// RequestCertificates makes base ask clients for certificates, if these are accepted.
func (c *Checker) RequestCertificates(base *tls.Config) {
	if c.certs != nil {
		c.certs.requestOn(base)
	}
}

// MarkKnown records that a request's connection is no stranger's, if the request has a right credential. Without one it does nothing.
func (c *Checker) MarkKnown(r *http.Request) {
	if _, _, why := c.identify(r); why == Accepted {
		listen.MarkAuthenticated(r)
	}
}

// CheckLogin checks the credential of a login to the page: the text of the form, which may be empty, or the header of a script.
func (c *Checker) CheckLogin(r *http.Request, form bool, text string) (*Grant, *Denial) {
	var g *Grant
	by, why := byToken, missing
	switch {
	case !form:
		g, by, why = c.bearer.authenticate(r)
	case text != "":
		g, by, why = c.bearer.verify(r, text)
	}
	return g, c.recordOutcome(r, by, why, nil)
}

// BeginLogin gives the browser a login with the rights of g, for at most life. path is the path of its cookie.
func (c *Checker) BeginLogin(w http.ResponseWriter, r *http.Request, g *Grant, life time.Duration) (path string, err error) {
	secret, until, err := c.logins.begin(g, life)
	if err != nil {
		return "", err
	}
	setCookie(w, r, secret, until)
	return loginPath(secret), nil
}

// EndLogin ends the browser's login and the connections of all its tabs, at every node. ErrNotLoggedOut means that the login goes on. Any other error
// means that it is still in the file.
func (c *Checker) EndLogin(w http.ResponseWriter, r *http.Request) error {
	secret, ctx := loginCookie(r), context.WithoutCancel(r.Context()) // the browser may not wait for the answer
	hash := sha256.Sum256([]byte(secret))
	was, err := c.logins.endOwn(hash)
	if far := c.logins.far; far != nil {
		switch mark := markOf(far.others, secret); {
		case was:
			far.tell(ctx, newLoginID(hash, far.others.Mark()), far.others.Marks())
		case mark != "":
			why := c.wrongCredentials.guard(r, func() Outcome { return far.endEverywhere(ctx, newLoginID(hash, mark)) })
			if why == unavailable || why == throttled {
				return ErrNotLoggedOut
			}
		}
	}
	DropCookie(w, r)
	return err
}

// AdmitRequest counts an HTTP request against the bounds of its credential, like a request over a connection. EndRequest of g ends it. If a bound is
// reached, it answers 429 and returns false.
func (c *Checker) AdmitRequest(w http.ResponseWriter, g *Grant) bool {
	e := g.BeginRequest()
	if e != nil {
		c.m.RateLimited.Inc()
		w.Header().Set("Retry-After", "1")
		Refuse(w, http.StatusTooManyRequests, e.Message)
	}
	return e == nil
}
