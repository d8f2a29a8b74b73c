package pool

import (
	"cmp"
	"slices"
	"strings"

	"trl/pool/ids"
	"trl/protocol"
)

// findNamed is who's session of that name that has not begun to end, else nil.
func (p *Pool) findNamed(who, name string) *Session {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.findNamedLocked(who, name)
}

// HasOpen reports whether who has a session of that name that has not begun to end.
func (p *Pool) HasOpen(who, name string) bool { return p.findNamed(who, name) != nil }

func (p *Pool) findNamedLocked(who, name string) *Session {
	if s := p.names[nameRef{who, name}]; s != nil && s.IsOpen() {
		return s
	}
	return nil
}

// Find gives who's session by id or by name, ended ones too while they are retained. With neither it is the default
// session, made on first use: its shell may still be starting.
func (p *Pool) Find(who, id, name string) (*Session, error) {
	switch {
	case id != "":
		if err := p.awaitRecovered(id); err != nil {
			return nil, err
		}
		p.mu.RLock()
		s := p.sessions[id]
		p.mu.RUnlock()
		if s != nil && s.owner == who {
			return s, nil
		}
		return nil, p.notFoundError('s', id, errNoSession())
	case name != "":
		if err := p.awaitRecovered(""); err != nil {
			return nil, err
		}
		p.mu.RLock()
		s := p.names[nameRef{who, name}]
		p.mu.RUnlock()
		if s == nil {
			return nil, errNoSession()
		}
		return s, nil
	}
	s, _, err := p.reserve(who, &protocol.SessionCreate{Name: defaultSession, IfExists: "return"}, false)
	return s, err
}

// notFoundError tells an id of an earlier epoch from one that never was, or is not the caller's.
func (p *Pool) notFoundError(kind byte, id string, otherwise error) error {
	if epoch, ok := ids.EpochOf(kind, id); ok && epoch != p.epoch {
		return errSessionLost()
	}
	return otherwise
}

// sessionOfID finds the session that an exec or process id belongs to.
func (p *Pool) sessionOfID(who string, kind byte, id string) *Session {
	if epoch, ok := ids.EpochOf(kind, id); !ok || epoch != p.epoch {
		return nil
	}
	if s := p.sessionByTag(ids.TagOf(id)); s != nil && s.owner == who {
		return s
	}
	return nil
}

// sessionByTag is the session with that tag, which those that come back may have.
func (p *Pool) sessionByTag(tag string) *Session {
	look := func() *Session {
		p.mu.RLock()
		defer p.mu.RUnlock()
		return p.tags[tag]
	}
	if s := look(); s != nil || p.awaitRecovered("") != nil {
		return s
	}
	return look()
}

// FindExec gives who's exec, queued, running or ended and retained.
func (p *Pool) FindExec(who, id string) (*Exec, error) {
	if s := p.sessionOfID(who, 'x', id); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e := s.execs[id]; e != nil {
			return e, nil
		}
		if x := s.endedExecs[id]; x != nil {
			return x.toExec(), nil
		}
	}
	return nil, p.notFoundError('x', id, errNoExec())
}

// FindProcess gives who's process, running or ended and retained.
func (p *Pool) FindProcess(who, id string) (*Process, error) {
	if s := p.sessionOfID(who, 'p', id); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if proc := s.processes[id]; proc != nil {
			return proc, nil
		}
	}
	return nil, p.notFoundError('p', id, errNoProcess())
}

// Owner tells whose the session, exec, process or terminal with this id is, and which session it belongs to; "": nobody's.
func (p *Pool) Owner(id string) (who, session string) {
	var s *Session
	if len(id) > 0 && id[0] != 's' {
		if epoch, ok := ids.EpochOf(id[0], id); ok && epoch == p.epoch {
			s = p.sessionByTag(ids.TagOf(id))
		}
	} else if p.awaitRecovered(id) == nil {
		p.mu.RLock()
		s = p.sessions[id]
		p.mu.RUnlock()
	}
	if s == nil {
		return "", ""
	}
	return s.owner, s.id
}

// List gives who's sessions, or those of q.Owner or everybody, oldest first: the live ones, or those in the state asked for.
func (p *Pool) List(who string, q *protocol.SessionList) []protocol.SessionInfo {
	infos := []protocol.SessionInfo{} // never null on the wire
	_ = p.awaitRecovered("")
	who = cmp.Or(q.Owner, who)
	for _, s := range p.all() {
		if s.owner != who && !q.All || !hasLabel(s.settings.Load().labels, q.Label) {
			continue
		}
		info := s.Info()
		if q.State == info.State || q.State == "" && info.State != stateTerminated {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b protocol.SessionInfo) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.SessionID, b.SessionID)
	})
	return infos
}

// hasLabel: want is "", key or key=value.
func hasLabel(labels map[string]string, want string) bool {
	if want == "" {
		return true
	}
	key, value, valued := strings.Cut(want, "=")
	got, ok := labels[key]
	return ok && (!valued || got == value)
}

// all is a snapshot of the table, so that nobody holds its lock while asking sessions.
func (p *Pool) all() []*Session {
	p.mu.RLock()
	defer p.mu.RUnlock()
	all := make([]*Session, 0, len(p.sessions))
	for _, s := range p.sessions {
		all = append(all, s)
	}
	return all
}

// IsLive reports whether processes tagged with this session id have an owner: a session that has not TERMINATED or a
// warm shell. For the orphan scan.
func (p *Pool) IsLive(id string) bool {
	if p.recovery.Load().Contains(id) || p.warm.Contains(id) { // first: register takes a warm one while it holds p.mu
		return true
	}
	p.mu.RLock()
	s := p.sessions[id]
	p.mu.RUnlock()
	if s == nil {
		return false
	}
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}
