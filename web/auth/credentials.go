package auth

import (
	"encoding/base64"
	"net/http"
	"strings"
	"time"
)

// Role says what a principal may do with what belongs to it.
type Role string

// The roles, from the least. A viewer only reads: it lists, attaches, watches and waits, and changes nothing. An admin may do with everybody's
// sessions, by their ids, what it may do with its own.
const (
	Viewer Role = "viewer"
	User   Role = "user"
	Admin  Role = "admin"
)

func (r Role) isValid() bool { return r == Viewer || r == User || r == Admin }

// Principal names a client. Everything that the client makes belongs to its subject.
type Principal struct {
	Subject string
	Role    Role
}

// local is the principal of every client if there is no authentication.
var local = Principal{Subject: "local", Role: Admin}

const (
	// Prefixes of Subprotocol entries. A browser cannot set headers on a WebSocket, so it sends a token or a ticket there.
	tokenProtocol  = "trl.token."
	ticketProtocol = "trl.ticket."
)

// method is the kind of a credential. The list is closed; it is a label of trl_auth_total.
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

// Outcome is the result of checking a credential. The list is closed; it is the other label of trl_auth_total. Clients are not told the outcome.
type Outcome string

const (
	Accepted            Outcome = "ok"
	missing             Outcome = "missing"     // no credential, or none of a kind that is accepted
	malformedCredential Outcome = "malformed"   // not of a form that could be right
	Unknown             Outcome = "unknown"     // wrong, used up or revoked
	expired             Outcome = "expired"     // it was valid once
	throttled           Outcome = "throttled"   // not checked, because too many wrong ones came from that address
	unavailable         Outcome = "unavailable" // it could not be checked: an identity provider, or the node of a share link, does not answer
)

var outcomes = []Outcome{Accepted, missing, malformedCredential, Unknown, expired, throttled, unavailable}

// An authenticator checks one kind of credential, or a few kinds that come in the same place.
type authenticator interface {
	// authenticate checks the credential of its kind in r. If there is none, the outcome is missing, and the next authenticator is asked. Every other
	// outcome is final, so that another credential does not make up for a wrong one.
	authenticate(r *http.Request) (*Grant, method, Outcome)
}

// bearer accepts tokens and JWTs, in the Authorization header or in a Subprotocol entry.
type bearer struct {
	tokens           Tokens // nil: none are taken
	jwt              *JWT   // nil: none are taken
	wrongCredentials *wrongCredentials
}

func (b *bearer) authenticate(r *http.Request) (*Grant, method, Outcome) {
	text, found, ok := bearerText(r)
	switch {
	case !found:
		return nil, byNothing, missing
	case !ok:
		b.wrongCredentials.add(ClientAddr(r), time.Now())
		return nil, byToken, malformedCredential
	}
	return b.verify(r, text)
}

// verify finds out whose credential text is. While the client's address is slowed down, it accepts only tokens that trl has made, see wrongCredentials.
func (b *bearer) verify(r *http.Request, text string) (*Grant, method, Outcome) {
	addr := ClientAddr(r)
	slow := b.wrongCredentials.wait(addr, time.Now()) > 0
	var g *Grant
	by, why := byToken, Unknown
	switch {
	case b.jwt != nil && strings.Count(text, ".") == 2 && strings.HasPrefix(text, "eyJ"): // tokens that trl makes have no dots
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
		b.wrongCredentials.add(addr, time.Now())
	}
	return g, by, why
}

// bearerText returns the first bearer credential; ok means that its form could be right.
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

// offeredProtocol returns the rest of the first Subprotocol entry that begins with prefix.
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
