package pool

import (
	"context"
	"errors"
	"slices"
	"time"

	"trl/pool/claims"
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/pool/moved"
	"trl/pool/requestkey"
	"trl/protocol"
	"trl/statemachine"
)

// Move is the move of a session, at either node. See moved.Move for the steps.
type Move struct {
	*moved.Move
	s       *Session
	resume  func() // of an arriving session: starts its runner; set once
	abandon func() // of an arriving session that an earlier gateway has made; set once
	settled bool   // guarded by s.mu; Keep or Drop was called
}

// Session returns the session that moves.
func (m *Move) Session() *Session { return m.s }

func (m *Move) fault() *protocol.Error { return m.Fault(m.s.away.Load() == m).WithCause(m) }

// elsewhere returns the error for requests about a session that is on another node, or not yet here.
func (s *Session) elsewhere() error {
	if m := s.away.Load(); m != nil {
		return m.fault()
	}
	return nil
}

// HasMoved reports whether the session is on another node now.
func (s *Session) HasMoved() bool {
	m := s.away.Load()
	return m != nil && !m.Arriving
}

// pinnedLocked returns why the session cannot be moved, or "": what it has that cannot go along. s.mu is held.
func (s *Session) pinnedLocked() string {
	switch a := s.arrived; {
	case s.shell == nil || s.running != nil || s.waiting.Len() > 0 || s.resetting > 0:
		return "commands"
	case s.liveProcesses > 0:
		return "processes"
	case s.openTerminals > 0:
		return "terminals"
	case s.retained.MayGrow():
		return "jobs"
	case len(s.shares) > 0:
		return "shares"
	case s.spec.EndsWithConn:
		return "connection"
	case a != nil && !a.IsTold():
		return "move"
	}
	return ""
}

// BeginMove begins the move of the session to the node with this epoch. The caller calls Stop in the end.
func (s *Session) BeginMove(ctx context.Context, to string) (*Move, error) {
	if err := s.awaitShell(ctx); err != nil {
		return nil, err
	}
	m := &Move{Move: moved.NewMove(ids.Random(ids.RandomLen), to, s.id), s: s}
	m.Info = s.Info()
	s.mu.Lock()
	if s.ending != nil {
		defer s.mu.Unlock()
		return nil, s.errEndedLocked()
	}
	why := s.pinnedLocked()
	if why == "" {
		s.ending = &ending{move: m}
	}
	s.mu.Unlock()
	if why == "" && len(s.Background()) > 0 {
		m.Stop()
		why = "jobs"
	}
	if why != "" {
		return nil, moved.ErrBusy(s.id, why)
	}
	return m, nil
}

// FindMove returns the move of a session away from this node, if it is the one with this id.
func (p *Pool) FindMove(session, move string) (*Move, error) {
	if err := p.awaitRecovered(session); err != nil {
		return nil, err
	}
	s := p.byID(session)
	if s == nil {
		return nil, moved.ErrNone()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.ending; e != nil && e.move != nil && e.move.ID == move && !e.move.Arriving {
		return e.move, nil
	}
	return nil, moved.ErrNone()
}

// Stop ends the move, and the session goes on here, unless it has moved. lost is then what was lost of its state.
func (m *Move) Stop() (lost []string, moved bool) {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	m.stopLocked()
	return m.Lost, m.s.away.Load() == m
}

func (m *Move) stopLocked() {
	if !m.Arriving && m.Decide() {
		m.s.ending = nil
	}
}

// Export puts what the session consists of into x, whose Uptime is set.
func (m *Move) Export(x *moved.Session) error {
	s := m.s
	state, lost, err := s.shell.State()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m.Decided {
		return moved.ErrNone()
	}
	x.ID, x.State, x.Lost, x.Revived, x.Session = s.id, state, lost, s.revived, s.entry()
	x.Idle = entry.Duration(time.Since(idleBase) - time.Duration(s.lastActive.Load()))
	x.Session.Earlier = append(slices.Clone(s.earlier), s.pool.epoch+s.tag)
	return s.packLocked(x)
}

// packLocked adds the session's ended work to x, the newest first while there is room for its output. s.mu is held.
func (s *Session) packLocked(x *moved.Session) error {
	pack := moved.NewPacker(x, s.sessionLog)
	x.Session.Uptime += pack.Ahead
	for i := range s.retained.Len() {
		var err error
		switch r := s.retained.At(s.retained.Len() - 1 - i).(type) {
		case *endedExec:
			pack.Exec(r.EndedExec, r.journal, r.pipes)
		case *Process:
			err = pack.Process(r.entry(), r.journal, r.exitEntry())
		case *Terminal:
			err = pack.Terminal(r.entry(), r.journal, r.exitEntry())
		}
		if err != nil {
			return err
		}
	}
	for _, k := range slices.Backward(s.tombstones) {
		switch r := k.(type) {
		case *endedExec:
			pack.Exec(r.EndedExec, nil, nil)
		case *childTombstone:
			pack.Tombstone(r.ChildTombstone)
		}
	}
	slices.Reverse(x.Entries) // oldest first, as in a session log
	return nil
}

// Commit gives the session to the other node, which has made it. lost is what it could not take of the state.
func (m *Move) Commit(lost []string) error {
	s := m.s
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.HasMoved():
		return nil
	case m.Decided:
		return moved.ErrNone()
	}
	m.Lost = lost
	s.appendLog(m.Left())
	s.away.Store(m)
	s.pool.claims.MovesAway(s.moveClaimsLocked())
	s.endMovedLocked()
	m.Decide()
	return nil
}

// endMovedLocked ends what is left here of a session that has moved. s.mu is held.
func (s *Session) endMovedLocked() {
	s.watchers.Close()
	s.cancel(errors.New("session has moved"))
	s.pool.tasks.Add(1) // the runner or Recover, which are tasks, are still there; Close waits for it
	go s.finish(nil)
}

// leave goes on with the end of a session that has moved, in the place of a gateway that died.
func (m *Move) leave() {
	s := m.s
	close(s.runnerDone)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = &ending{move: m}
	s.fireLocked(statemachine.Ready, "")
	s.endMovedLocked()
}

// PeerGone says that the session is lost with the node to which it has moved, or that this node has not got it. Its name is free.
func (m *Move) PeerGone() {
	if !m.Arriving && !m.IsTold() {
		m.Told()
		<-m.s.pool.claims.Release(m.s.moveClaims().Wanted)
	}
}

// Told says that the session can be found at the other node. The old node gives up the name then.
func (m *Move) Told() {
	s, p := m.s, m.s.pool
	p.mu.Lock()
	if m.SetTold() {
		p.mu.Unlock()
		return
	}
	if ref := (nameRef{s.owner, s.name}); !m.Arriving && p.names[ref] == s {
		delete(p.names, ref)
	}
	s.mu.Lock()
	if m.Arriving {
		s.appendLog(m.Arrived(true))
	} else {
		s.appendLog(m.Left())
	}
	retires := !m.Arriving && s.closed
	s.mu.Unlock()
	if retires {
		p.retainSessionLocked(s, true)
	}
	p.mu.Unlock()
	if !m.Arriving {
		p.claims.GiveUp(s.moveClaims())
	}
}

// moveClaims returns what a session that is not where it was made has in the directory.
func (s *Session) moveClaims() claims.Moved {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moveClaimsLocked()
}

func (s *Session) moveClaimsLocked() claims.Moved {
	w := claims.Moved{Wanted: claims.Wanted{Principal: s.owner, Name: s.name, Session: s.id}}
	if time.Since(s.created) < requestkey.Retention {
		w.Key = s.key.Key
	}
	if len(s.earlier) > 0 {
		w.Marks = append(slices.Clone(s.earlier), s.id)
	}
	return w
}

// marks returns the marks of the session's ids.
func (s *Session) marks() []string { return append(slices.Clone(s.earlier), s.pool.epoch+s.tag) }
