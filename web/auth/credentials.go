package auth

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

// Role is what a principal may do with what is its own.
type Role string

// The roles, from the least. A viewer reads: it lists, attaches, watches and waits, and changes nothing. An admin may do with
// everybody's sessions, by their ids, what it may do with its own.
const (
	Viewer Role = "viewer"
	User   Role = "user"
	Admin  Role = "admin"
)

func (r Role) isValid() bool { return r == Viewer || r == User || r == Admin }

// Principal is who a client is: everything it makes belongs to its subject.
type Principal struct {
	Subject string
	Role    Role
}

// local is everyone where authentication is off.
var local = Principal{Subject: "local", Role: Admin}

const (
	// Subprotocol entries in which a browser, which cannot set headers on a WebSocket, brings a token or a ticket.
	tokenProtocol  = "trl.token."
	ticketProtocol = "trl.ticket."
)

// method is how somebody was, or was not, let in: a closed list, the label of trl_auth_total.
type method string

const (
	byNothing     method = "none"
	byToken       method = "token"
	byJWT         method = "jwt"
	byLogin       method = "login"
	byTicket      method = "ticket"
	byCertificate method = "certificate"
	byOIDC        method = "oidc"
	byShare       method = "share"
)

var methods = []method{byNothing, byToken, byJWT, byLogin, byTicket, byCertificate, byOIDC, byShare}

// Outcome is what came of a credential: a closed list, the other label of trl_auth_total. Clients are not told which.
type Outcome string

const (
	Accepted            Outcome = "ok"
	missing             Outcome = "missing"     // no credential, or nobody here takes its kind
	malformedCredential Outcome = "malformed"   // none that could be right
	Unknown             Outcome = "unknown"     // nobody's: wrong, used up or revoked
	expired             Outcome = "expired"     // it was somebody's
	throttled           Outcome = "throttled"   // not looked at: too many wrong ones came from there
	unavailable         Outcome = "unavailable" // it could not be judged: an identity provider does not answer
)

var outcomes = []Outcome{Accepted, missing, malformedCredential, Unknown, expired, throttled, unavailable}

// An authenticator knows one kind of credential, or a few that come in the same place.
type authenticator interface {
	// authenticate judges the credential of its kind that r brings. With none there the outcome is missing, and the next
	// authenticator is asked; every other outcome is final, so that a wrong credential is not made up for by another.
	authenticate(r *http.Request) (*Grant, method, Outcome)
}

// bearer is tokens and JWTs, in the Authorization header or in a Subprotocol entry.
type bearer struct {
	tokens   Tokens // nil: none are taken
	jwt      *JWT   // nil: none are taken
	throttle *throttle
}

func (b *bearer) authenticate(r *http.Request) (*Grant, method, Outcome) {
	text, found, ok := bearerText(r)
	switch {
	case !found:
		return nil, byNothing, missing
	case !ok:
		b.throttle.wrong(ClientAddr(r), time.Now())
		return nil, byToken, malformedCredential
	}
	return b.verify(r, text)
}

// verify finds out whose text is. While its address is slowed down only tokens that we made are taken: see throttle.
func (b *bearer) verify(r *http.Request, text string) (*Grant, method, Outcome) {
	addr := ClientAddr(r)
	slow := b.throttle.wait(addr, time.Now()) > 0
	var g *Grant
	by, why := byToken, Unknown
	switch {
	case b.jwt != nil && strings.Count(text, ".") == 2 && strings.HasPrefix(text, "eyJ"): // one that we make has no dots
		by = byJWT
		if !slow {
			g, why = b.jwt.verify(r.Context(), text)
		}
	case b.tokens != nil:
		g, why = b.tokens.Lookup(text)
	}
	switch {
	case slow && (g == nil || g.guessable):
		return nil, by, throttled
	case why == Unknown || why == malformedCredential:
		b.throttle.wrong(addr, time.Now())
	}
	return g, by, why
}

// bearerText is the first bearer credential; ok says that it can be one.
func bearerText(r *http.Request) (text string, found, ok bool) {
	if h := r.Header.Get("Authorization"); h != "" {
		scheme, text, _ := strings.Cut(h, " ")
		return strings.TrimSpace(text), true, strings.EqualFold(scheme, "Bearer")
	}
	if enc, found := offeredProtocol(r, tokenProtocol); found {
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(enc, "="))
		return string(text), true, err == nil
	}
	return "", false, false
}

// offeredProtocol is the rest of the first Subprotocol entry that begins with prefix.
func offeredProtocol(r *http.Request, prefix string) (rest string, found bool) {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for entry := range strings.SplitSeq(line, ",") {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(entry), prefix); ok {
				return rest, true
			}
		}
	}
	return "", false
}
