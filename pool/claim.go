package pool

import (
	"errors"
	"time"

	"trl/pool/claims"
	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/ids"
	"trl/protocol"
)

// foundTaken finds the session that has the name or the request key of a session.create. If it is on another node, the error is SESSION_EXISTS, and
// the session's id in it says where.
func (p *Pool) foundTaken(who string, q *protocol.SessionCreate, err error) (*Session, error) {
	taken, ok := errors.AsType[*claims.TakenError](err)
	if !ok {
		return nil, err
	}
	s := p.byID(taken.Session)
	if s != nil && s.owner == who && (q.IfExists == "return" || q.RequestKey != "" && s.key.Key == q.RequestKey) {
		return s, nil
	}
	return nil, faults.Exists(q.Name, taken.Session)
}

// isOpen reports whether an id is of this node, and whether its session is open.
func (p *Pool) isOpen(id string) (ours, open bool) {
	epoch, ok := ids.EpochOf('s', id)
	s := p.byID(id)
	return s != nil || ok && epoch == p.epoch, s != nil && s.IsOpen()
}

// countLocked counts live sessions. p.mu is held.
func (p *Pool) countLocked(who string, more int) {
	p.claims.SetLive(who, p.live.Add(who, more))
}

// ownedLocked returns what this node has in the directory. p.mu is held.
func (p *Pool) ownedLocked() (names []claims.Name, here []claims.Moved, live map[string]int) {
	for ref, s := range p.names {
		if m := s.away.Load(); s.IsOpen() && (m == nil || !m.Arriving) {
			names = append(names, claims.Name{Principal: ref.owner, Name: ref.name, Session: s.id, Left: s.HasMoved()})
		}
	}
	for _, s := range p.sessions {
		if s.arrived != nil && s.away.Load() == nil && s.IsOpen() {
			here = append(here, s.moveClaims())
		}
	}
	return names, here, p.live.Of()
}

// claimedLocked returns what the session has in the directory when it ends. A request key is free again only if the session never had a shell. s.mu is
// held.
func (s *Session) claimedLocked() claims.Moved {
	if s.ending.move != nil {
		return claims.Moved{}
	}
	w := s.moveClaimsLocked()
	if !s.ending.forget {
		w.Key = ""
	}
	return w
}

// Rename gives the session another name, which must be unique among its owner's live sessions.
func (s *Session) Rename(name string) error {
	claim, err := s.pool.claims.Take(claims.Wanted{Principal: s.owner, Name: name, Session: s.id})
	if taken, ok := errors.AsType[*claims.TakenError](err); ok {
		return faults.Exists(name, taken.Session)
	}
	if err != nil {
		return err
	}
	old, err := s.rename(name)
	claim.Settle(err == nil || old == name)
	if err == nil && old != name {
		<-s.pool.claims.Release(claims.Wanted{Principal: s.owner, Name: old, Session: s.id})
	}
	return err
}

// rename is Rename in this pool's tables.
func (s *Session) rename(name string) (old string, err error) {
	p := s.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if other := p.findNamedLocked(s.owner, name); name != "" && other != nil && other != s {
		return s.name, faults.Exists(name, other.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return s.name, s.errEndedLocked()
	}
	if was := (nameRef{s.owner, s.name}); p.names[was] == s {
		delete(p.names, was)
	}
	old, s.name = s.name, name
	s.appendLog(entry.Entry{Name: &name})
	if name != "" {
		p.names[nameRef{s.owner, name}] = s
	}
	s.touchLocked(time.Now())
	return old, nil
}

// LoseName takes the name from a session, because a session of another node got it while this node could not reach the directory. The session goes on,
// and clients reach it by its id.
func (p *Pool) LoseName(session string) {
	s := p.byID(session)
	if s == nil {
		return
	}
	if _, err := s.rename(""); err == nil {
		s.log.Warn().Msg("another node has given this session's name away; it has none now")
	}
}
