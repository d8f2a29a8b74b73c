package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/moved"
	"trl/pool/places"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/pool/spec"
	"trl/pool/timeouts"
	"trl/protocol"
	"trl/statemachine"
)

// Receive makes a session from what Export of the node from has said. The session can be used after Keep; the caller calls Keep or Drop. lost is what the
// session lacks of its state.
func (p *Pool) Receive(ctx context.Context, move, from string, x *moved.Session) (m *Move, lost []string, err error) {
	if err := p.awaitRecovered(""); err != nil { // all of the sessions that are being restored count
		return nil, nil, err
	}
	if err := p.makeRoom(ctx, x.ID); err != nil {
		return nil, nil, err
	}
	s, err := p.arriving(x)
	if err != nil {
		return nil, nil, err
	}
	m = s.arrive(move, from)
	m.resume = func() {
		s.mu.Lock()
		s.fireLocked(statemachine.Ready, "")
		s.mu.Unlock()
		go s.loop(nil, false)
	}
	if err := p.addArrival(s); err != nil {
		return nil, nil, err
	}
	if lost, err = s.takeMoved(x, m.Arrived(false)); err != nil {
		m.Drop()
		return nil, nil, shells.Fault(err, s.spec.Dir)
	}
	return m, lost, nil
}

// arriving makes a session from the entry that it had on another node, within the settings of this one.
func (p *Pool) arriving(x *moved.Session) (*Session, error) {
	q := x.Session
	t, err := spec.Moved(q, p.config.Load(), p.base.Keeper.Unenforceable())
	if err != nil {
		return nil, err
	}
	s := newSession(p, x.ID, q.Owner, q.Name, t)
	s.created, s.key, s.earlier, s.commands, s.last, s.dir, s.revived = q.Created, q.Key, q.Earlier, q.Commands, q.Last, cmp.Or(q.Cwd, t.Dir), x.Revived
	s.lastActive.Store(int64(time.Since(idleBase) - time.Duration(x.Idle)))
	return s, nil
}

// arrive makes the session one that nobody can use before the end of its move. Nobody else knows it yet.
func (s *Session) arrive(move, from string) *Move {
	m := &Move{Move: moved.NewMove(move, from, s.id), s: s}
	m.Arriving = true
	s.ending, s.arrived = &ending{move: m}, m
	s.away.Store(m)
	return m
}

// addArrival adds an arriving session to the tables.
func (p *Pool) addArrival(s *Session) error {
	bounds := places.BoundsFor(s.owner, p.config.Load(), p.isExempt, p.claims)
	bounds.Principal, bounds.Token = 0, 0 // the session counts already, on its old node
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closing:
		return faults.Shutdown()
	case p.sessions[s.id] != nil:
		return moved.ErrBusy(s.id, "move")
	}
	if err := p.live.Check(s.owner, bounds); err != nil {
		return err
	}
	p.addLocked(s)
	s.nameLocked() // the old node may send requests by name before this one knows that the session is its own
	p.countLocked(s.owner, 1)
	p.tasks.Add(1) // the runner, or Drop; Close waits for it
	return nil
}

// takeMoved opens the session's shell and gives it the state, and writes everything down. The entry of the shell comes last: without it the session is
// nobody's.
func (s *Session) takeMoved(x *moved.Session, a entry.Entry) (lost []string, err error) {
	sh, err := s.newShell()
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.shell, s.sessionLog = sh, sh.SessionLog()
	s.mu.Unlock()
	close(s.opened)
	if lost, err = sh.TakeState(x.State); err != nil {
		return nil, err
	}
	if lost = slices.Concat(x.Lost, lost); len(lost) > 0 { // the next command tells, because a drain has nobody to tell
		s.revived = s.revived.With(lost)
	}
	log := recovered{id: s.id}
	if err := x.Write(s.sessionLog, log.ReadLine); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.appendLog(entry.Entry{Session: s.entry()})
	s.appendLog(a)
	if s.revived != nil {
		s.appendLog(entry.Entry{Revived: s.revived})
	}
	log.Session = s.entry()
	s.mu.Unlock()
	if err := log.Check(); err != nil {
		return nil, err
	}
	old := sh.Moved()
	defer old.CloseRest()
	log.ReserveLogs(old)
	if _, err := s.reviveWork(old, &log); err != nil {
		return nil, err
	}
	sh.SetEntryWriter(entryWriter{s})
	return lost, nil
}

// Keep makes the session this node's. The old node has given it up.
func (m *Move) Keep() error {
	s, p := m.s, m.s.pool
	s.mu.Lock()
	if m.settled {
		s.mu.Unlock()
		return moved.ErrNone()
	}
	m.settled = true
	s.appendLog(m.Arrived(true))
	s.mu.Unlock()
	if s.key.Key != "" {
		p.requestKeys.Restore(s.owner, requestkey.New(requestkey.Ref{Owner: s.owner, Key: s.key.Key}, s.key.Params), s, s.created)
	}
	m.resume() // before anybody can use the session
	p.mu.Lock()
	defer p.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = nil
	s.away.Store(nil)
	s.nameLocked()
	p.claims.TakeOver(s.moveClaimsLocked()) // before anybody can end the session
	if p.closing {                          // Close has not been able to end it
		s.endLocked(protocol.ReasonShutdown, timeouts.DefaultGrace)
	}
	m.Decide()
	return nil
}

// nameLocked adds the session to the names, unless another one has its name: the directory has given it away. p.mu is held.
func (s *Session) nameLocked() {
	ref := nameRef{s.owner, s.name}
	if other := s.pool.names[ref]; s.name != "" && (other == nil || other == s || !other.IsOpen()) {
		s.pool.names[ref] = s
	}
}

// Drop ends an arriving session that stays on its old node.
func (m *Move) Drop() {
	s, p := m.s, m.s.pool
	s.mu.Lock()
	settled := m.settled || m.Decided
	m.settled = true
	s.mu.Unlock()
	if settled {
		return
	}
	defer p.tasks.Done()
	s.cancel(errors.New("session has not moved"))
	if m.abandon != nil {
		m.abandon()
	}
	if sh := s.shell; sh != nil {
		for err := sh.Close(0); err != nil; err = sh.Close(0) {
			s.log.Error().Err(err).Msg("session not ended")
			time.Sleep(closeRetryInterval)
		}
	}
	p.mu.Lock()
	p.countLocked(s.owner, -1)
	p.unregisterLocked(s)
	s.mu.Lock()
	m.Decide()
	s.mu.Unlock()
	p.mu.Unlock()
	close(s.ended)
}

// makeRoom forgets what this node still has of a session that comes, because it was here before, or has come in vain.
func (p *Pool) makeRoom(ctx context.Context, id string) error {
	for s := p.byID(id); s != nil; s = p.byID(id) {
		m := s.away.Load()
		if m == nil {
			return moved.ErrBusy(id, "move")
		}
		over := m.Over() // of a session that comes: then it is in use here, or forgotten
		if !m.Arriving {
			over = s.ended
		}
		select {
		case <-over:
		case <-ctx.Done():
			return moved.ErrBusy(id, "move")
		}
		if m.Arriving {
			continue
		}
		p.mu.Lock()
		if i := slices.Index(p.retained, s); i >= 0 {
			p.retained = slices.Delete(p.retained, i, i+1)
		}
		p.unregisterLocked(s)
		p.mu.Unlock()
	}
	if p.gone.Await(ctx, id) != nil {
		return moved.ErrBusy(id, "move")
	}
	return nil
}

// Unfinished returns the moves that a gateway that died has not finished: of sessions that have come from other nodes, and of those that have gone there.
func (p *Pool) Unfinished() (all []*Move) {
	for _, s := range p.all() {
		for _, m := range []*Move{s.arrived, s.away.Load()} {
			if m != nil && !m.IsTold() && (m != s.arrived || m.Arriving && (m.abandon != nil || m.IsOurs())) && !slices.Contains(all, m) { // not one that is just being received
				all = append(all, m)
			}
		}
	}
	return all
}

// IsOurs reports whether an arriving session is this node's by now.
func (m *Move) IsOurs() bool {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	return m.Decided && m.s.away.Load() != m
}

// AwaitDirectory returns when the directory says that the session is here. It fails if the directory does not answer in time.
func (m *Move) AwaitDirectory() error { return m.s.pool.claims.AwaitTakeOver() }

// recoverMove goes on with the move of a session whose gateway died. resume starts its runner, and abandon ends what is left of it. Nobody else knows the
// session yet.
func (s *Session) recoverMove(log *recovered, resume, abandon func()) {
	switch a := log.Arrived; {
	case log.Moved != nil:
		m := &Move{Move: moved.Decided(log.Moved.Move, log.Moved.To, s.id, log.Moved.Ended), s: s}
		m.Lost, m.Info = log.Moved.Lost, s.Info()
		m.Info.State = string(statemachine.Idle)
		s.away.Store(m)
	case a != nil && a.Ours:
		s.arrived = &Move{Move: moved.Decided(a.Move, a.From, s.id, a.Told), s: s}
		s.arrived.Arriving = true
	case a != nil && log.Over == nil:
		m := s.arrive(a.Move, a.From)
		s.pool.tasks.Add(1) // Recover's task is still there; ended by Keep or Drop
		m.resume = func() { resume(); s.pool.tasks.Done() }
		m.abandon = abandon
	}
}

// Has reports whether the ids with a mark belong to a session that is here or arriving, also if another node has given them out.
func (p *Pool) Has(mark string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := cmp.Or(p.sessions[mark], p.tags[mark])
	return s != nil && !s.HasMoved()
}
