// Package share makes share links: a token that opens a session or one of its terminals, until a time.
package share

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"sync/atomic"
	"time"

	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/protocol"
)

// tokenPrefix begins the token of every link, which distinguishes it from a principal's token.
const tokenPrefix = "trlshare_"

// EpochOf returns the epoch of the node that made a link, which its token begins with: in a cluster, a guest may be connected to any node.
func EpochOf(token string) (epoch string, ok bool) {
	epoch, _, ok = strings.Cut(strings.TrimPrefix(token, tokenPrefix), ".")
	return epoch, ok && IsToken(token)
}

// Hash is what is kept of a token.
type Hash [sha256.Size]byte

// IsToken reports whether a token is that of a share link.
func IsToken(token string) bool { return strings.HasPrefix(token, tokenPrefix) }

// HashOf returns the hash of a token.
func HashOf(token string) Hash { return sha256.Sum256([]byte(token)) }

// Link is a share link. A client that has its token may watch, with control also type, until the link expires, is revoked, or its session is
// forgotten. The token is returned once; only its hash is kept.
type Link struct {
	// set once
	id           string
	hash         Hash
	term         string // "": all of the session
	control      bool
	name         string
	credentialID string // id of the credential that made it; "": of none that can be withdrawn
	created      time.Time
	expires      time.Time  // as people are told
	expiresBoot  clock.Boot // the same; 0: the link expires with the credential that made it, by the wall clock

	clients atomic.Int64
	ended   chan struct{} // closed by End
}

// New makes a link and its token. credentialID is the id of the credential that makes it, until is when that expires; zero: never.
func New(id string, q *protocol.ShareCreate, credentialID string, until time.Time) (l *Link, token string) {
	var secret [32]byte
	rand.Read(secret[:]) // never fails (crypto/rand)
	token = tokenPrefix
	if epoch, ok := ids.EpochOf('l', id); ok {
		token += epoch + "."
	}
	token += base64.RawURLEncoding.EncodeToString(secret[:])
	life := time.Duration(protocol.ShareTime) * time.Second
	if q.ExpiresIn != nil {
		life = q.ExpiresIn.Duration()
	}
	now := time.Now()
	expires, boot := now.Add(life), clock.BootAt(now.Add(life))
	if !until.IsZero() && until.Before(expires) {
		expires, boot = until.Round(0), 0
	}
	return &Link{
		id: id, hash: HashOf(token), term: q.TermID, control: q.Mode == "control", name: q.Name, credentialID: credentialID,
		created: now, expires: expires, expiresBoot: boot, ended: make(chan struct{}),
	}, token
}

// Restore makes the link that a session log has.
func Restore(x *entry.Share) *Link {
	l := &Link{
		id: x.ID, term: x.Term, control: x.Control, name: x.Name, credentialID: x.CredentialID,
		created: x.Created, expires: x.Expires, expiresBoot: x.Boot, ended: make(chan struct{}),
	}
	copy(l.hash[:], x.Hash)
	return l
}

// Entry is what the session log has of the link.
func (l *Link) Entry() *entry.Share {
	return &entry.Share{
		ID: l.id, Hash: l.hash[:], Term: l.term, Control: l.control, Name: l.name, CredentialID: l.credentialID,
		Created: l.created, Expires: l.expires, Boot: l.expiresBoot,
	}
}

// Info is what share.list lists.
func (l *Link) Info(session string) protocol.Share {
	i := protocol.Share{
		ShareID: l.id, SessionID: session, TermID: l.term, Mode: "view", Name: l.name,
		CreatedAt: l.created, ExpiresAt: l.expires, Clients: int(l.clients.Load()),
	}
	if l.control {
		i.Mode = "control"
	}
	return i
}

// ID returns the link's id, which is no secret.
func (l *Link) ID() string { return l.id }

// Hash returns the hash of its token.
func (l *Link) Hash() Hash { return l.hash }

// Name returns the label that people gave it.
func (l *Link) Name() string { return l.name }

// CredentialID returns the id of the credential that made it, or "" if that cannot be withdrawn.
func (l *Link) CredentialID() string { return l.credentialID }

// Control reports whether its clients may type.
func (l *Link) Control() bool { return l.control }

// Terminal returns the id of the one terminal that it opens, or "" if it opens all of the session.
func (l *Link) Terminal() string { return l.term }

// Expired reports whether its time is over.
func (l *Link) Expired(now time.Time) bool {
	if l.expiresBoot == 0 {
		return !now.Before(l.expires)
	}
	return clock.BootAt(now) >= l.expiresBoot
}

// IsOver reports whether it opens nothing any more.
func (l *Link) IsOver() bool {
	select {
	case <-l.ended:
		return true
	default:
		return l.Expired(time.Now())
	}
}

// Ended is closed when the link was revoked, or about a second after it expired or its session was forgotten.
func (l *Link) Ended() <-chan struct{} { return l.ended }

// End ends the link. It is called once.
func (l *Link) End() { close(l.ended) }

// Join counts a connection until Leave.
func (l *Link) Join() { l.clients.Add(1) }

// Leave undoes Join.
func (l *Link) Leave() { l.clients.Add(-1) }
