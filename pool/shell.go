package pool

import (
	"context"
	"syscall"
	"time"

	"trl/pool/entry"
	"trl/pool/ids"
	"trl/pool/shells"
	"trl/pool/spec"
	"trl/pool/timeouts"
	"trl/pool/warm"
	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/shell"
	"trl/statemachine"
)

// openShell gets the session's shell, which is ws if that is not nil, and lets the commands in.
func (s *Session) openShell(ws *warm.Shell) error {
	shell, err := s.getShell(ws)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.sessionLog = shell.SessionLog()
	s.appendLog(entry.Entry{Session: s.entry()})
	s.shell = shell // s.mu stays held until all commands that came earlier have what they need from the shell
	refused := map[*Exec]error{}
	for _, e := range s.waiting.All() {
		if err := e.makeStdin(shell); err != nil {
			s.waiting.Remove(e)
			refused[e] = err
			continue
		}
		s.logAccepted(e, nil)
	}
	shell.SetEntryWriter(entryWriter{s}) // last: from now on the session can be restored
	if s.ending == nil {                 // else the shell came too late, and finish closes it
		s.fireLocked(statemachine.Ready, "")
		if next := s.beginNextLocked(); next != nil {
			s.turn <- next
		}
	}
	s.mu.Unlock()
	for e, err := range refused {
		e.failQueued(protocol.AsError(err))
	}
	s.pool.metrics.SessionsCreated.WithLabelValues("ok").Inc()
	close(s.opened)
	return nil
}

// getShell returns the warm shell, set up for the session, or a new one.
func (s *Session) getShell(ws *warm.Shell) (*shell.Shell, error) {
	if ws == nil {
		return s.newShell()
	}
	if alive, err := ws.SetUp(&s.spec); alive || err != nil {
		return ws.Shell, err
	}
	return s.newShell() // the warm shell had died
}

// newShell starts the session's shell. If something is short, warm shells make room for it.
func (s *Session) newShell() (*shell.Shell, error) {
	for {
		sh, err := s.pool.openShell(s.ctx, s.id, s.spec)
		if !own.Scarce(err) || !s.pool.warm.Evict() {
			return sh, err
		}
	}
}

func (p *Pool) openShell(ctx context.Context, id string, t spec.Spec) (*shell.Shell, error) {
	return p.base.OpenShell(ctx, t.ShellConfig(p.config.Load().BaseEnv, id))
}

// newWarmShells makes the set of warm shells, which are in the default directory.
func (p *Pool) newWarmShells() *warm.Shells {
	return warm.New(warm.Config{
		Want: func() (int, string, error) {
			r := p.config.Load()
			path, err := r.Allowed.Default()
			return r.WarmShells, path, err
		},
		NewID: p.newSessionID,
		Open: func(ctx context.Context, id, path string) (*shell.Shell, error) {
			return p.openShell(ctx, id, spec.Spec{Shell: path, Dir: p.config.Load().DefaultDir, Restore: true})
		},
		Log: p.log,
	})
}

func (p *Pool) newSessionID() string { return ids.New("", 's', p.epoch, "", ids.RandomLen) }

// awaitShell returns when the session can be used, or fails if it never will be.
func (s *Session) awaitShell(ctx context.Context) error {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openErr != nil {
		return s.openErr
	}
	return nil
}

const (
	reviveRetry        = time.Second            // the pause before another attempt to replace a dead shell, if something is short
	keeperGoneInterval = 100 * time.Millisecond // the pause between looks at a shell whose keeper is gone
)

// reviveShell replaces a shell that died while no command ran. If something is short, again says when to try once more; a command that comes
// earlier tries, too.
func (s *Session) reviveShell() (again <-chan time.Time) {
	if s.ctx.Err() != nil {
		return nil // the session ends, and its shell with it
	}
	if !s.spec.Restore {
		s.end(protocol.ReasonShellExited, timeouts.DefaultGrace)
		return nil
	}
	was := s.shell.Pid()
	lost, err := s.shell.Revive()
	switch {
	case err != nil && s.ctx.Err() != nil:
		return nil // the session ends meanwhile
	case own.Scarce(err):
		return time.After(reviveRetry)
	case err != nil:
		s.log.Error().Err(err).Msg("shell not restored")
		s.end(protocol.ReasonShellFailed, timeouts.DefaultGrace)
		return nil
	}
	if s.shell.Pid() == was { // as far as we know the shell lives: the keeper is gone, and this gateway will be soon
		select {
		case <-s.ctx.Done():
		case <-time.After(keeperGoneInterval):
		}
		return nil
	}
	s.mu.Lock()
	s.revived = s.revived.With(lost) // the shell's entry says the same
	s.mu.Unlock()
	s.log.Info().Strs("lost", lost).Msg("shell died while idle, restored")
	return nil
}

// resetGrace is the time between TERM and KILL in a reset. It leaves time for KILL within the 6 s that a reset may take.
const resetGrace = 3 * time.Second

// Reset gives the session a fresh shell. It cancels all commands, ends the processes and drops the shell's state.
func (s *Session) Reset(ctx context.Context) error {
	if err := s.awaitShell(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if s.ending != nil {
		defer s.mu.Unlock()
		return s.errEndedLocked()
	}
	s.resetting++ // no command gets the turn until reset is done
	waited := s.waiting.Clear()
	running := s.runningCommandLocked()
	s.touchLocked(time.Now())
	s.mu.Unlock()
	if running != nil {
		running.Cancel(syscall.SIGTERM, resetGrace)
	}
	for _, e := range waited {
		e.cancelQueued(syscall.SIGTERM)
	}
	s.endChildren(context.WithoutCancel(ctx), resetGrace) // during the grace of the command: both are over then
	done := make(chan error, 1)                           // capacity 1: the runner does not wait for the caller
	select {
	case s.resets <- done:
	case <-s.ended: // the runner has left
		return s.refusal()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reset is the runner's part of Reset, called when no command runs. It kills the session's processes that are left: those that had their TERM,
// and jobs that commands left behind.
func (s *Session) reset() error {
	s.mu.Lock()
	s.appendLog(entry.Entry{Reset: true})
	s.mu.Unlock()
	s.resetGate.Lock()
	err := s.shell.Reset(s.ctx, s.spec.Dir, s.spec.Environ(s.pool.config.Load().BaseEnv, s.id))
	s.resetGate.Unlock()
	scarce := err != nil && own.Scarce(err) // the session stays, and gets its shell when nothing is short any more
	if err != nil && s.ctx.Err() == nil && !scarce {
		s.log.Error().Err(err).Msg("shell not reset")
		s.end(protocol.ReasonShellFailed, 0)
		return shells.Fault(err, s.spec.Dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetting--
	s.revived = nil
	if s.ending != nil {
		return s.errEndedLocked()
	}
	if next := s.beginNextLocked(); next != nil { // a command that came during the reset
		s.turn <- next
	}
	if scarce {
		return shells.Fault(err, s.spec.Dir)
	}
	return nil
}
