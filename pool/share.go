package pool

import (
	"context"
	"slices"
	"syscall"
	"time"

	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/ids"
	"trl/pool/share"
	"trl/protocol"
)

// maxShares is how many links a session may have at the same time.
const maxShares = 64

// Share is a share link, and the session that it opens. sessionTables.shares and Session.shares have those that have not ended.
type Share struct {
	*share.Link
	session *Session
}

// Share makes a link, and its token. credentialID is the id of the credential that makes it, until is when that expires; zero: never.
func (s *Session) Share(q *protocol.ShareCreate, credentialID string, until time.Time) (sh *Share, token string, err error) {
	l, token := share.New(ids.New("", 'l', s.pool.epoch, s.tag, ids.MemberLen), q, credentialID, until)
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending != nil:
		return nil, "", s.errEndedLocked()
	case q.TermID != "" && s.terminals[q.TermID] == nil:
		return nil, "", faults.NoTerminal()
	case len(s.shares) >= maxShares:
		return nil, "", protocol.Errorf(protocol.LimitExceeded, "session has %d share links", maxShares).With("limit", maxShares)
	}
	s.appendLog(entry.Entry{Share: l.Entry()})
	return s.addShareLocked(l), token, nil
}

// addShareLocked adds a link to the tables. s.pool.mu and s.mu are held, or nobody knows s yet.
func (s *Session) addShareLocked(l *share.Link) *Share {
	sh := &Share{l, s}
	s.shares = append(s.shares, sh)
	s.pool.shares[l.Hash()] = sh
	return sh
}

// Shares lists the links that have not expired, oldest first.
func (s *Session) Shares() []protocol.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []protocol.Share{}
	for _, sh := range s.shares {
		if !sh.Expired(time.Now()) {
			all = append(all, sh.Info())
		}
	}
	return all
}

// FindShare finds the link of a token, if it has not ended. It looks for the token's hash, so the time that this takes tells nothing about tokens.
func (p *Pool) FindShare(token string) (*Share, bool) {
	hash := share.HashOf(token)
	sh := lookUp(p, func() *Share { return p.shares[hash] })
	if sh == nil || sh.Expired(time.Now()) {
		return nil, false
	}
	return sh, true
}

// Revoke ends a link of who's.
func (p *Pool) Revoke(who, id string) error {
	s := p.sessionOfID(who, 'l', id)
	if s == nil || !s.endShares(func(sh *Share) bool { return sh.ID() == id }) {
		return p.notFoundError('l', id, faults.NoShare())
	}
	return nil
}

// endShares ends the links for which which returns true, and reports whether there were any.
func (s *Session) endShares(which func(*Share) bool) (any bool) {
	s.mu.Lock()
	none := !slices.ContainsFunc(s.shares, which)
	s.mu.Unlock()
	if none { // the reaper calls this every second, and shall not take the pool's lock each time
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

// cancelGuestCommands cancels the waiting commands that came by a link that has ended. A running command goes on: only the owner ends it.
func (s *Session) cancelGuestCommands() {
	s.mu.Lock()
	var left []*Exec
	for _, e := range s.waiting.All() {
		if e.guest != "" && !slices.ContainsFunc(s.shares, func(sh *Share) bool { return sh.ID() == e.guest }) {
			s.waiting.Remove(e)
			left = append(left, e)
		}
	}
	s.mu.Unlock()
	for _, e := range left {
		e.cancelQueued(syscall.SIGTERM)
	}
}

// endSharesLocked is endShares with s.pool.mu and s.mu held.
func (s *Session) endSharesLocked(which func(*Share) bool) (any bool) {
	s.shares = slices.DeleteFunc(s.shares, func(sh *Share) bool {
		if !which(sh) {
			return false
		}
		any = true
		delete(s.pool.shares, sh.Hash())
		s.appendLog(entry.Entry{Unshared: sh.ID()})
		sh.End()
		return true
	})
	return any
}

// Exec is Session.Exec for a client of the link, and so are the three methods below. A request_key belongs to the link, not to the owner.
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
func (sh *Share) Info() protocol.Share { return sh.Link.Info(sh.session.id) }

// Owner returns the principal whose session it opens.
func (sh *Share) Owner() string { return sh.session.owner }

// Session returns the session that it opens.
func (sh *Share) Session() *Session { return sh.session }
