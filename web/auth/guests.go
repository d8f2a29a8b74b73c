package auth

import (
	"net/http"
	"time"

	"trl/pool"
	"trl/pool/share"
)

// Authorize is Authenticate for those who may be guests: who came with a share's token is one, or nobody. Nothing but the WebSocket is for guests.
func (c *Checker) Authorize(r *http.Request) (*Grant, *Denial) {
	token, _, _ := bearerText(r)
	if !share.IsToken(token) {
		return c.Authenticate(r)
	}
	sh, ok := c.pool.FindShare(token) // also while the address is slowed down: nobody guesses one
	if !ok {
		c.throttle.wrong(ClientAddr(r), time.Now())
		return nil, c.recordOutcome(r, byShare, Unknown, nil)
	}
	g := &Grant{Principal: Principal{Subject: sh.Owner(), Role: Viewer}, Share: sh}
	if sh.Control() {
		g.Role = User
	}
	if sh.CredentialID() != "" { // a link is worth what its maker is, and what is asked over it counts as his
		maker := c.ByID(sh.CredentialID())
		if maker == nil || !maker.IsValid(time.Now()) || !maker.mayShare(sh.Owner()) {
			return nil, c.recordOutcome(r, byShare, expired, nil)
		}
		g.credentials = maker.credentials
	}
	return g, c.recordOutcome(r, byShare, Accepted, nil)
}

// byID is the token, or the login that goes back to none, with this id; nil: it is there no more.
func (c *Checker) ByID(id string) *Grant {
	if c.c.Tokens != nil {
		if g := c.c.Tokens.ByID(id); g != nil {
			return g
		}
	}
	return c.logins.file.ByID(id)
}

// ForShare is the token that g goes back to, as long as it is there, else g: a share link that is made with g rests on it. A login, which people end
// when they leave, would be over too early.
func (c *Checker) ForShare(g *Grant) *Grant {
	if token := c.ByID(g.token); token != nil {
		return token
	}
	return g
}

// CredentialID names the token that it goes back to; "": there is none.
func (g *Grant) CredentialID() string { return g.token }

func (g *Grant) mayShare(owner string) bool {
	return g.Role == Admin || g.Role == User && g.Subject == owner
}

// Reaches reports whether the session's member with this id is open to it; empty stands for what belongs to the whole session.
func (g *Grant) Reaches(s *pool.Session, term string) bool {
	sh := g.Share
	return sh == nil || sh.Session() == s && (sh.Terminal() == "" || sh.Terminal() == term)
}
