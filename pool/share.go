package pool

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/protocol"
)

// maxShares is how many links a session may have at a time.
const maxShares = 64

// shareToken begins the token of every share link, so that nobody takes one for a principal's.
const shareToken = "trlshare_"

// Share is a link to a session, or to one terminal of it. Whoever has its token may look, in control type too, until it expires, is
// revoked, or its session is let go. The token is told once; what is kept is its hash.
type Share struct {
	// set once in newShare
	id           string
	session      *Session
	hash         shareHash
	term         string // "": all of the session
	control      bool
	name         string
	credentialID string // id of the credential that it was made with; "": of none that can be withdrawn
	created      time.Time
	expires      time.Time  // as people are told
	expiresBoot  clock.Boot // the same; 0: the credential that it was made with expires then, by the wall clock

	clients atomic.Int64
	ended   chan struct{} // closed when it has been taken out of its session, under s.mu
}

type shareHash [sha256.Size]byte

func errShareOver() error { return protocol.Errorf(protocol.Forbidden, "this share link has ended") }

func errNoShare() error { return protocol.Errorf(protocol.ShareNotFound, "no such share link") }

// IsShareToken tells a share's token from all others.
func IsShareToken(token string) bool { return strings.HasPrefix(token, shareToken) }

// Share makes a link, and its token. maker is the id of the credential that it is made with, until is when that expires; zero: never.
func (s *Session) Share(q *protocol.ShareCreate, maker string, until time.Time) (sh *Share, token string, err error) {
	var secret [32]byte
	rand.Read(secret[:]) // never fails (crypto/rand)
	token = shareToken + base64.RawURLEncoding.EncodeToString(secret[:])
	life := time.Duration(protocol.ShareTime) * time.Second
	if q.ExpiresIn != nil {
		life = q.ExpiresIn.Duration()
	}
	now := time.Now()
	expires, end := now.Add(life), clock.BootAt(now.Add(life))
	if !until.IsZero() && until.Before(expires) {
		expires, end = until.Round(0), 0
	}
	sh = &Share{
		id: ids.New("", 'l', s.pool.epoch, s.tag, ids.MemberLen), session: s, hash: sha256.Sum256([]byte(token)),
		term: q.TermID, control: q.Mode == "control", name: q.Name, credentialID: maker, created: now, expires: expires, expiresBoot: end, ended: make(chan struct{}),
	}
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending != nil:
		return nil, "", s.errEndedLocked()
	case q.TermID != "" && s.terminals[q.TermID] == nil:
		return nil, "", errNoTerminal()
	case len(s.shares) >= maxShares:
		return nil, "", protocol.Errorf(protocol.LimitExceeded, "session has %d share links", maxShares).With("limit", maxShares)
	}
	s.addShareLocked(sh)
	s.appendLog(entry.Entry{Share: sh.entry()})
	return sh, token, nil
}

// addShareLocked enters it into the tables. s.pool.mu and s.mu are held.
func (s *Session) addShareLocked(sh *Share) {
	s.shares = append(s.shares, sh)
	s.pool.shares[sh.hash] = sh
}

// Shares is those that have not ended, oldest first.
func (s *Session) Shares() []protocol.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []protocol.Share{}
	for _, sh := range s.shares {
		if !sh.expired(time.Now()) {
			all = append(all, sh.Info())
		}
	}
	return all
}

// FindShare gives the link that a token opens, as long as it does. The table is asked for the hash: how long that takes tells nothing
// about a token.
func (p *Pool) FindShare(token string) (*Share, bool) {
	hash := sha256.Sum256([]byte(token))
	look := func() *Share {
		p.mu.RLock()
		defer p.mu.RUnlock()
		return p.shares[hash]
	}
	sh := look()
	if sh == nil && p.awaitRecovered("") == nil { // of a session that comes back
		sh = look()
	}
	if sh == nil || sh.expired(time.Now()) {
		return nil, false
	}
	return sh, true
}

// Revoke ends who's link.
func (p *Pool) Revoke(who, id string) error {
	s := p.sessionOfID(who, 'l', id)
	if s == nil || !s.endShares(func(sh *Share) bool { return sh.id == id }) {
		return p.notFoundError('l', id, errNoShare())
	}
	return nil
}

// endShares ends those that which picks, and reports whether there were any.
func (s *Session) endShares(which func(*Share) bool) (any bool) {
	s.mu.Lock()
	none := !slices.ContainsFunc(s.shares, which)
	s.mu.Unlock()
	if none { // the reaper asks every second: not for the lock of the pool
		return false
	}
	s.pool.mu.Lock()
	s.mu.Lock()
	any = s.endSharesLocked(which)
	s.mu.Unlock()
	s.pool.mu.Unlock()
	s.cancelGuestCommands()
	return any
}

// cancelGuestCommands withdraws the commands that wait and came by a link that is no more. What runs goes on: it is the owner's to end.
func (s *Session) cancelGuestCommands() {
	s.mu.Lock()
	var left []*Exec
	for _, e := range slices.Clone(s.waiting) {
		if e.guest != "" && !slices.ContainsFunc(s.shares, func(sh *Share) bool { return sh.id == e.guest }) {
			s.waiting.remove(e)
			left = append(left, e)
		}
	}
	s.mu.Unlock()
	for _, e := range left {
		e.cancelQueued(syscall.SIGTERM)
	}
}

// endSharesLocked: s.pool.mu and s.mu are held.
func (s *Session) endSharesLocked(which func(*Share) bool) (any bool) {
	s.shares = slices.DeleteFunc(s.shares, func(sh *Share) bool {
		if !which(sh) {
			return false
		}
		any = true
		delete(s.pool.shares, sh.hash)
		s.appendLog(entry.Entry{Unshared: sh.id})
		close(sh.ended)
		return true
	})
	return any
}

// Exec is Session.Exec for who came by the link, as the three below are: a request_key is the link's own, never the owner's.
func (sh *Share) Exec(q *protocol.Exec) (*Exec, error) { return sh.session.submit("exec.run", q, sh) }

// Stream is Session.Stream.
func (sh *Share) Stream(q *protocol.Exec) (*Exec, error) {
	return sh.session.submit("exec.stream", q, sh)
}

// StartProcess is Session.StartProcess.
func (sh *Share) StartProcess(ctx context.Context, q *protocol.ProcessStart) (*Process, error) {
	return sh.session.startProcess(ctx, q, sh)
}

// OpenTerminal is Session.OpenTerminal.
func (sh *Share) OpenTerminal(ctx context.Context, q *protocol.TermOpen) (*Terminal, error) {
	return sh.session.openTerminal(ctx, q, sh)
}

// Info is what share.list lists.
func (sh *Share) Info() protocol.Share {
	i := protocol.Share{
		ShareID: sh.id, SessionID: sh.session.id, TermID: sh.term, Mode: "view", Name: sh.name,
		CreatedAt: sh.created, ExpiresAt: sh.expires, Clients: int(sh.clients.Load()),
	}
	if sh.control {
		i.Mode = "control"
	}
	return i
}

// ID is no secret.
func (sh *Share) ID() string { return sh.id }

// Name is the label that people gave it.
func (sh *Share) Name() string { return sh.name }

// CredentialID is the id of the credential that it was made with; empty: of none that can be withdrawn.
func (sh *Share) CredentialID() string { return sh.credentialID }

// Owner is whose session it opens.
func (sh *Share) Owner() string { return sh.session.owner }

// Session is the one it opens.
func (sh *Share) Session() *Session { return sh.session }

// Control reports whether it lets one type.
func (sh *Share) Control() bool { return sh.control }

// Terminal is the id of the one terminal that it opens; empty: it opens all of the session.
func (sh *Share) Terminal() string { return sh.term }

// IsOver reports whether it opens nothing any more.
func (sh *Share) IsOver() bool {
	select {
	case <-sh.ended:
		return true
	default:
		return sh.expired(time.Now())
	}
}

// Ended is closed when it was revoked, or within a second or so after it expired or its session was let go.
func (sh *Share) Ended() <-chan struct{} { return sh.ended }

// Join counts a connection, until it leaves.
func (sh *Share) Join() { sh.clients.Add(1) }

// Leave undoes Join.
func (sh *Share) Leave() { sh.clients.Add(-1) }

func (sh *Share) expired(now time.Time) bool {
	if sh.expiresBoot == 0 {
		return !now.Before(sh.expires)
	}
	return clock.BootAt(now) >= sh.expiresBoot
}

func (sh *Share) entry() *entry.Share {
	return &entry.Share{ID: sh.id, Hash: sh.hash[:], Term: sh.term, Control: sh.control, Name: sh.name, CredentialID: sh.credentialID, Created: sh.created, Expires: sh.expires, Boot: sh.expiresBoot}
}

// reviveShareLocked makes a share anew. s.pool.mu and s.mu are held, or nobody knows s yet.
func (s *Session) reviveShareLocked(x *entry.Share) {
	sh := &Share{
		id: x.ID, session: s, term: x.Term, control: x.Control, name: x.Name, credentialID: x.CredentialID, created: x.Created, expires: x.Expires, expiresBoot: x.Boot, ended: make(chan struct{}),
	}
	copy(sh.hash[:], x.Hash)
	s.addShareLocked(sh)
}
