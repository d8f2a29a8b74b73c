package pool

import (
	"context"
	"syscall"
	"time"

	"trl/pool/entry"
	"trl/pool/shells"
	"trl/protocol"
	"trl/runtime"
)

// resetGrace leaves time for KILL within the 6 s that a reset may take.
const resetGrace = 3 * time.Second

// Reset gives the session a fresh shell: what runs and what waits is cancelled, processes end, state is dropped.
func (s *Session) Reset(ctx context.Context) error {
	if err := s.awaitShell(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	if s.ending != nil {
		defer s.mu.Unlock()
		return s.errEndedLocked()
	}
	s.resetting++ // from here on until reset is done nobody gets the turn
	waited := s.waiting.takeAll()
	running := s.runningCommandLocked()
	s.touchLocked(time.Now())
	s.mu.Unlock()
	if running != nil {
		running.Cancel(syscall.SIGTERM, resetGrace)
	}
	for _, e := range waited {
		e.cancelQueued(syscall.SIGTERM)
	}
	s.endChildren(context.WithoutCancel(ctx), resetGrace) // while the command has its grace; both have had it then
	done := make(chan error, 1)                           // the runner does not wait for who asked
	select {
	case s.resets <- done:
	case <-s.ended: // the runner has gone
		return s.errEnded()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reset is the runner's part of Reset. No command runs. What is still there, and has had its TERM or is a job that a
// command left behind, is killed.
func (s *Session) reset() error {
	s.mu.Lock()
	s.appendLog(entry.Entry{Reset: true})
	s.mu.Unlock()
	s.resetGate.Lock()
	err := s.shell.Reset(s.ctx, s.spec.dir, s.pool.environ(s.id, s.spec))
	s.resetGate.Unlock()
	scarce := err != nil && runtime.Scarce(err) // the session stays, and gets its shell when there is what it takes
	if err != nil && s.ctx.Err() == nil && !scarce {
		s.log.Error().Err(err).Msg("shell not reset")
		s.end(protocol.ReasonShellFailed, 0)
		return shells.Fault(err, s.spec.dir)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetting--
	s.revived = nil
	if s.ending != nil {
		return s.errEndedLocked()
	}
	if next := s.beginNextLocked(); next != nil { // who came during the reset
		s.turn <- next
	}
	if scarce {
		return shells.Fault(err, s.spec.dir)
	}
	return nil
}
