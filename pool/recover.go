package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"trl/pool/requestkey"
	"trl/pool/restoring"
	"trl/pool/share"
	"trl/pool/spec"
	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/shell"
	"trl/statemachine"
)

// awaitRecovered waits until the session with this id is restored, or all are if id is empty.
func (p *Pool) awaitRecovered(id string) error { return p.recovery.Load().Await(id) }

// Recover begins to restore the sessions of a gateway that died. It is called before Start, and before any request. What no client was told of
// (warm shells, and sessions that were being made) ends. The pool answers meanwhile: a request for a session waits for that one, and a request
// for something that any session may have waits for all. Recovered waits for the end.
func (p *Pool) Recover(from []own.HeldSession) {
	p.recordings.Load()
	ids := make([]string, len(from))
	for i, in := range from {
		ids[i] = in.ID
	}
	c := restoring.New(ids)
	p.recovery.Store(c)
	p.tasks.Add(1) // reads the session logs, and ends then; Close waits for it
	go func() {
		defer p.tasks.Done()
		c.Restore(ids, func(i int) { p.recoverSession(from[i]) })
		p.mu.Lock() // some sessions go on already, and may end
		slices.SortStableFunc(p.retained, func(a, b *Session) int { return a.final.at.Compare(b.final.at) })
		p.claims.Rebuild(p.ownedLocked)
		p.mu.Unlock()
		p.requestKeys.Sort()
		p.recovery.Store(nil)
		c.AllDone()
		p.trim()
	}()
}

// Recovered returns when all sessions are restored that can be.
func (p *Pool) Recovered() { <-p.recovery.Load().All() }

func (p *Pool) recoverSession(in own.HeldSession) {
	a := p.base.Adopt(in)
	err := p.recoverAdopted(a, in.ID)
	if err == nil {
		return
	}
	if !errors.Is(err, errNobodys) {
		p.log.Error().Err(err).Str("session", in.ID).Msg("session is lost")
	}
	p.tasks.Add(1) // kills the session and forgets it; bounded; Close waits for it
	done := p.gone.Begin(in.ID)
	go func() {
		defer p.tasks.Done()
		defer done()
		if err := a.Discard(context.Background()); err != nil {
			p.log.Error().Err(err).Str("session", in.ID).Msg("session not ended")
		}
	}()
}

// lostConnIdle is how long a session with on_disconnect: destroy, whose connection ended with the last gateway, may be idle.
const lostConnIdle = time.Minute

var errNobodys = errors.New("nobody's")

func (p *Pool) recoverAdopted(a *shell.Adoption, id string) (err error) {
	defer func() { // a session log that causes a panic costs only this session
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
	}()
	m := recovered{id: id}
	if err := a.ReadSessionLog(m.ReadLine); err != nil {
		return err
	}
	if m.Session == nil || m.Shell == nil {
		return errNobodys
	}
	if err := m.Check(); err != nil {
		return err
	}
	return p.revive(a, &m)
}

// revive restores the session from its log.
func (p *Pool) revive(a *shell.Adoption, m *recovered) error {
	q := m.Session
	s := newSession(p, m.id, q.Owner, q.Name, spec.Logged(q))
	s.earlier = q.Earlier
	s.tag, s.created, s.key, s.commands, s.last = q.Tag, q.Created, q.Key, q.Commands+m.CommandsBegun, m.Last
	s.dir, s.revived = cmp.Or(m.Dir, s.dir), m.Revived
	s.savedShell.Set(m.Shell)
	m.ReserveLogs(a)
	config := shell.ShellConfig{ID: m.id, Path: q.Shell, Restore: q.Restore, Limits: q.Limits}
	var err error
	switch {
	case m.Over != nil || m.Moved != nil || m.Ending != nil && !a.IsComplete(*m.Shell): // the end had come further than its entries: what is left is killed below
		config.Dir = m.Shell.Dir
		s.shell = a.OpenEnded(config)
	case m.Reset: // the runner continues the reset
		s.shell, err = a.OpenForReset(config, *m.Shell)
		s.resetting++
	default:
		s.shell, err = a.Shell(config, *m.Shell)
	}
	if err != nil {
		return err
	}
	s.sessionLog = s.shell.SessionLog()
	s.sessionLog.SetCompactSize(m.CompactBytes)
	if s.spec.EndsWithConn { // its connection is gone: the client has a while to come back
		s.connLost.Store(true)
	}
	running, err := s.reviveWork(a, m)
	if err != nil {
		return err
	}
	if last := m.LastBegun(); running == nil && m.Over == nil && last != nil {
		a.LastEnded(last.Command)
	}
	close(s.opened)
	s.recoverMove(m, func() { s.resume(a, m, running) }, a.KillUnrecorded)
	p.addRecovered(s, m)
	if m.Over != nil {
		a.KillUnrecorded()
		s.shell.CloseLogs()
		return nil
	}
	switch mv := s.away.Load(); {
	case mv == nil:
		s.resume(a, m, running)
	case !mv.Arriving: // else the end of its move decides
		a.KillUnrecorded()
		mv.leave()
	}
	return nil
}

// resume lets a restored session continue.
func (s *Session) resume(a *shell.Adoption, m *recovered, running *Exec) {
	s.shell.SetEntryWriter(entryWriter{s})
	s.cancelGuestCommands() // the log may have the end of a link without the end of its commands
	s.mu.Lock()
	s.fireLocked(statemachine.Ready, "")
	if running != nil {
		s.running = running
		s.fireLocked(statemachine.Began, "")
	} else if next := s.beginNextLocked(); next != nil {
		s.turn <- next
	}
	s.mu.Unlock()
	a.KillUnrecorded()
	for _, watch := range m.watch { // only now, because they use what was restored here without a lock
		go watch() // as in startProcess and openTerminal
	}
	s.pool.tasks.Add(1) // the runner, as in register
	go s.loop(running, m.Reset)
	if m.Ending != nil {
		s.end(m.Ending.Reason, time.Duration(m.Ending.Grace))
	}
}

// addRecovered adds the session to the tables.
func (p *Pool) addRecovered(s *Session, m *recovered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addIDsLocked(s)
	ref, mv := nameRef{s.owner, s.name}, s.away.Load()
	if mv != nil && mv.IsTold() {
		ref.name = "" // the other node's session has it
	}
	if other := p.names[ref]; ref.name != "" && (other == nil || other.closed && (m.Over == nil || other.created.Before(s.created))) {
		p.names[ref] = s
	}
	if s.key.Key != "" && (mv == nil || !mv.Arriving) { // else Keep does it, and after Drop the other node has the session
		p.requestKeys.Restore(s.owner, requestkey.New(requestkey.Ref{Owner: s.owner, Key: s.key.Key}, s.key.Params), s, m.Session.Uptime.Time(s.created))
	}
	for _, x := range m.Shares {
		s.addShareLocked(share.Restore(x))
	}
	p.countLocked(s.owner, 1)
	if m.Over == nil {
		return
	}
	s.mu.Lock()
	s.ending = &ending{reason: protocol.ReasonShellFailed, move: s.away.Load()}
	if m.Ending != nil {
		s.ending.reason = m.Ending.Reason
	}
	s.cancel(errors.New("session ended before this gateway"))
	s.final = finalState{at: m.Over.At, facts: facts{dir: m.Over.Dir, envs: m.Over.Envs}}
	s.closed = true
	_, _, _ = s.state.Fire(statemachine.Ended)
	s.watchers.Close()
	s.mu.Unlock()
	close(s.ended)
	p.retireLocked(s, true)
}
