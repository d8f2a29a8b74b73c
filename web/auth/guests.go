package auth

import (
	"net/http"
	"strings"
	"time"

	"trl/pool"
	"trl/pool/share"
)

// Authorize is Authenticate for routes that guests may use. A request with a share link's token is a guest's, or refused. Only the WebSocket and
// POST /v1/rpc are open to guests.
func (c *Checker) Authorize(r *http.Request) (*Grant, *Denial) {
	token, _, _ := bearerText(r)
	if !share.IsToken(token) {
		return c.Authenticate(r)
	}
	g, why := c.guest(token) // also while the address is slowed down, because nobody can guess a link
	if why == Unknown && c.c.GuestElsewhere != nil && c.wrongCredentials.wait(ClientAddr(r), time.Now()) == 0 {
		far, fault := c.c.GuestElsewhere(r.Context(), token)
		if fault != nil {
			c.m.Auth.WithLabelValues(string(byShare), string(unavailable)).Inc()
			return nil, &Denial{method: byShare, outcome: unavailable, fault: fault}
		}
		if far != nil {
			g, why = far, Accepted
		}
	}
	if why == Unknown {
		c.wrongCredentials.add(ClientAddr(r), time.Now())
	}
	return g, c.recordOutcome(r, byShare, why, nil)
}

// Guest returns the grant of the token of a share link of this node.
func (c *Checker) Guest(token string) (g *Grant, ok bool) {
	g, why := c.guest(token)
	return g, why == Accepted
}

// guest returns the grant of a share link's token; nil unless it is accepted.
func (c *Checker) guest(token string) (*Grant, Outcome) {
	sh, ok := c.pool.FindShare(token)
	if !ok {
		return nil, Unknown
	}
	g := &Grant{Principal: Principal{Subject: sh.Owner(), Role: Viewer}, Share: sh}
	if sh.Control() {
		g.Role = User
	}
	if sh.CredentialID() != "" { // a link rests on its maker's credential, and its requests count for that credential
		maker := c.ByID(sh.CredentialID())
		if maker == nil || !maker.IsValid(time.Now()) || !maker.mayShare(sh.Owner()) {
			return nil, expired
		}
		g.credentials = maker.credentials
	}
	return g, Accepted
}

// AuthorizeRequest is Authorize for a request that changes something without a WebSocket. A browser's login counts only for the gateway's own pages: their
// origin is in the request. The browser sends the cookie of a login by itself, and a page of another origin on this host could make it do that.
func (c *Checker) AuthorizeRequest(r *http.Request) (*Grant, *Denial) {
	if loginCookie(r) == "" || strings.EqualFold(r.Header.Get("Origin"), r.URL.Scheme+"://"+r.Host) {
		return c.Authorize(r)
	}
	r = r.Clone(r.Context())
	r.Header.Del("Cookie")
	return c.Authorize(r)
}

// ByID returns the Grant of the token with this id, or of a login that comes from no token; nil: it no longer exists.
func (c *Checker) ByID(id string) *Grant {
	if c.c.Tokens != nil {
		if g := c.c.Tokens.ByID(id); g != nil {
			return g
		}
	}
	return c.logins.byID(id)
}

// ForShare returns the token from which g comes, as long as that exists, else g. A share link rests on it. It does not rest on a login, because
// people end their login when they leave.
func (c *Checker) ForShare(g *Grant) *Grant {
	if token := c.ByID(g.token); token != nil {
		return token
	}
	return g
}

// CredentialID returns the id of the token or login on which g rests; "": there is none.
func (g *Grant) CredentialID() string { return g.token }

func (g *Grant) mayShare(owner string) bool {
	return g.Role == Admin || g.Role == User && g.Subject == owner
}

// Reaches reports whether g opens the part of the session with this id. The empty id stands for what belongs to the whole session.
func (g *Grant) Reaches(s *pool.Session, term string) bool {
	sh := g.Share
	return sh == nil || sh.Session() == s && (sh.Terminal() == "" || sh.Terminal() == term)
}
