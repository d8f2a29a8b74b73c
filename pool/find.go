package pool

import (
	"cmp"
	"slices"

	"trl/pool/faults"
	"trl/pool/ids"
	"trl/pool/token"
	"trl/protocol"
)

// findNamed returns the open session of who's with that name, or nil.
func (p *Pool) findNamed(who, name string) *Session {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.findNamedLocked(who, name)
}

// HasOpen reports whether who has an open session with that name.
func (p *Pool) HasOpen(who, name string) bool { return p.findNamed(who, name) != nil }

func (p *Pool) findNamedLocked(who, name string) *Session {
	if s := p.names[nameRef{who, name}]; s != nil && s.IsOpen() {
		return s
	}
	return nil
}

// byID returns the session with an id, or nil.
func (p *Pool) byID(id string) *Session {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.sessions[id]
}

// Find finds a session of who's by id or by name, also an ended one that is retained. Without both it returns the default session, and makes it on
// first use; its shell may still be starting then.
func (p *Pool) Find(who, id, name string) (*Session, error) {
	switch {
	case id != "":
		if err := p.awaitRecovered(id); err != nil {
			return nil, err
		}
		s := p.byID(id)
		if s != nil && s.owner == who {
			return s, s.elsewhere()
		}
		return nil, p.notFoundError('s', id, faults.NoSession())
	case name != "":
		if err := p.awaitRecovered(""); err != nil {
			return nil, err
		}
		p.mu.RLock()
		s := p.names[nameRef{who, name}]
		p.mu.RUnlock()
		if s == nil {
			return nil, faults.NoSession()
		}
		return s, s.elsewhere()
	}
	s, _, err := p.reserve(who, &protocol.SessionCreate{Name: defaultSession, IfExists: "return"}, false)
	if err == nil {
		err = s.elsewhere()
	}
	return s, err
}

// notFoundError returns another error for an id of an earlier epoch than for an id that never was, or is not the caller's.
func (p *Pool) notFoundError(kind byte, id string, otherwise error) error {
	if epoch, ok := ids.EpochOf(kind, id); ok && epoch != p.epoch {
		return faults.SessionLost()
	}
	return otherwise
}

// sessionOfID finds the session of an exec, process, terminal or share link by the id of that.
func (p *Pool) sessionOfID(who string, kind byte, id string) *Session {
	if s := p.sessionByTag(kind, id); s != nil && s.owner == who {
		return s
	}
	return nil
}

// sessionByTag finds the session that has given out an id of this kind.
func (p *Pool) sessionByTag(kind byte, id string) *Session {
	epoch, ok := ids.EpochOf(kind, id)
	if !ok || kind == 's' {
		return nil
	}
	return lookUp(p, func() *Session { return p.tags[epoch+ids.TagOf(id)] })
}

// lookUp calls in with p.mu held. If there is nothing yet, it waits for sessions that are being restored, and calls in again.
func lookUp[T any](p *Pool, in func() *T) *T {
	look := func() *T {
		p.mu.RLock()
		defer p.mu.RUnlock()
		return in()
	}
	if x := look(); x != nil || p.awaitRecovered("") != nil {
		return x
	}
	return look()
}

// findWork finds an exec, a process or a terminal of who's. in looks for it in its session, with s.mu held.
func findWork[T any](p *Pool, who string, kind byte, id string, missing error, in func(*Session) *T) (*T, error) {
	if s := p.sessionOfID(who, kind, id); s != nil {
		if err := s.elsewhere(); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if x := in(s); x != nil {
			return x, nil
		}
	}
	return nil, p.notFoundError(kind, id, missing)
}

// FindExec finds an exec of who's: queued, running or retained.
func (p *Pool) FindExec(who, id string) (*Exec, error) {
	return findWork(p, who, 'x', id, faults.NoExec(), func(s *Session) *Exec {
		if x := s.endedExecs[id]; x != nil {
			return x.toExec()
		}
		return s.execs[id]
	})
}

// FindProcess finds a process of who's, running or retained.
func (p *Pool) FindProcess(who, id string) (*Process, error) {
	return findWork(p, who, 'p', id, faults.NoProcess(), func(s *Session) *Process { return s.processes[id] })
}

// FindTerminal finds a terminal of who's, open or retained.
func (p *Pool) FindTerminal(who, id string) (*Terminal, error) {
	return findWork(p, who, 't', id, faults.NoTerminal(), func(s *Session) *Terminal { return s.terminals[id] })
}

// Owner returns the owner and the session of the session, exec, process or terminal with this id, or "".
func (p *Pool) Owner(id string) (who, session string) {
	var s *Session
	if len(id) > 0 && id[0] != 's' {
		s = p.sessionByTag(id[0], id)
	} else if p.awaitRecovered(id) == nil {
		s = p.byID(id)
	}
	if s == nil {
		return "", ""
	}
	return s.owner, s.id
}

// List lists the sessions of who, of q.Owner or of all, oldest first: the live ones, or those in the state asked for.
func (p *Pool) List(who string, q *protocol.SessionList) []protocol.SessionInfo {
	infos := []protocol.SessionInfo{} // never null on the wire
	_ = p.awaitRecovered("")
	who = cmp.Or(q.Owner, who)
	for _, s := range p.all() {
		if s.owner != who && !q.All || !q.HasLabel(s.settings.Load().Labels) {
			continue
		}
		m := s.away.Load()
		if m != nil && (m.Arriving || m.IsTold()) {
			continue
		}
		info := s.Info()
		if m != nil { // until the other node lists it
			info = m.Info
		}
		if q.State == info.State || q.State == "" && info.State != stateTerminated {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b protocol.SessionInfo) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.SessionID, b.SessionID))
	})
	return infos
}

// all returns the sessions, so that code can use them without holding the lock of the table.
func (p *Pool) all() []*Session {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := make([]*Session, 0, len(p.sessions))
	for _, s := range p.sessions {
		all = append(all, s)
	}
	return all
}

// IsLive reports whether processes with this session id belong to a session that is not TERMINATED, or to a warm shell. The orphan scan calls it.
func (p *Pool) IsLive(id string) bool {
	if p.recovery.Load().Contains(id) || p.warm.Contains(id) { // asked first: warm knows a shell until its session is in the table
		return true
	}
	s := p.byID(id)
	return s != nil && !token.IsClosed(s.ended)
}
