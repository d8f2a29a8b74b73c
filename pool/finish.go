package pool

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"trl/protocol"
	"trl/runtime"
	"trl/statemachine"
)

// A session ends in this order: nobody gets the turn any more (endLocked), what runs is told and the shell closed, which
// takes everything that the session started with it (closeShellLocked), the runner leaves serve, and when nothing is left
// the session is TERMINATED for all to see (finish).

// resetGrace leaves time for KILL within the 6 s that a reset may take.
const resetGrace = 3 * time.Second

// closeRetryInterval is the time between attempts at what withstood KILL.
const closeRetryInterval = time.Second

// end begins the session's end. The first reason given counts. It returns at once; ended says when it is done.
func (s *Session) end(reason protocol.Reason, grace time.Duration) {
	s.mu.Lock()
	dropped := s.endLocked(reason, grace)
	running := s.runningCommandLocked()
	s.mu.Unlock()
	if running != nil {
		running.Cancel(syscall.SIGTERM, grace) // asked again with less grace, this shortens it
	}
	s.rejectQueue(dropped)
}

// endLocked lets nobody have the turn any more and starts the closing of the shell. s.mu is held. The caller turns away
// those who waited.
func (s *Session) endLocked(reason protocol.Reason, grace time.Duration) (dropped []*Exec) {
	if s.ending != nil {
		return nil
	}
	s.ending = &ending{reason: reason, grace: grace}
	s.appendLog(entry{Ending: &endingEntry{reason, durationNS(grace)}})
	if s.shell != nil {
		s.closeShellLocked()
	}
	s.cancel(fmt.Errorf("session ended: %s", reason))
	return s.waiting.takeAll()
}

// runningCommandLocked is nil when there is none. s.mu is held.
func (s *Session) runningCommandLocked() *runtime.Command {
	if s.running == nil {
		return nil
	}
	return s.running.command
}

// closeShellLocked starts the goroutine that closes the shell: also below a command that runs, so that everything gets
// its TERM at the same time. It ends when nothing of the session is left; finish waits for it. s.mu is held.
func (s *Session) closeShellLocked() {
	shell, grace, gone, running := s.shell, s.ending.grace, make(chan struct{}), s.runningCommandLocked()
	s.ending.gone = gone
	go func() {
		defer close(gone)
		if running != nil {
			running.Cancel(syscall.SIGTERM, grace) // before the shell dies: the result shall say cancelled
		}
		for err := shell.Close(grace); err != nil; err = shell.Close(0) {
			s.log.Error().Err(err).Msg("session not ended")
			time.Sleep(closeRetryInterval) // something is in an uninterruptible sleep: a person must act, we can only look again
		}
	}()
}

// rejectQueue ends commands that waited for a turn that will not come.
func (s *Session) rejectQueue(waited []*Exec) {
	for _, e := range waited {
		e.failQueued(s.errEnded())
	}
}

// finish is the runner's last act: wait until nothing is left, then tell.
func (s *Session) finish() {
	select {
	case e := <-s.turn: // was given the turn while serve saw the end
		s.finishExec(e, runtime.Outcome{Err: runtime.ErrShellGone, Code: -1, Died: true})
	default:
	}
	s.mu.Lock()
	gone := s.ending.gone
	s.mu.Unlock()
	<-gone
	f := s.facts()
	s.processTasks.Wait() // the processes' ends have been told
	s.terminate(f, true)
}

// openFailed ends a session that got no shell: it never existed, unless it was ended while it was being made.
func (s *Session) openFailed(err error) {
	fault := shellFault(err, s.spec.dir)
	if fault.Code == protocol.SessionLost { // there never was one
		fault = protocol.Errorf(protocol.ShuttingDown, "%s", fault.Message).WithCause(err)
	}
	s.mu.Lock()
	asked := s.ending != nil
	dropped := s.endLocked(protocol.ReasonShellFailed, 0)
	if asked {
		fault = s.errEndedLocked()
	} else {
		s.log.Warn().Err(err).Msg("session not created")
	}
	s.openErr = fault
	s.mu.Unlock()
	s.pool.metrics.SessionsCreated.WithLabelValues(string(fault.Code)).Inc()
	for _, e := range dropped {
		e.failQueued(fault)
	}
	s.terminate(facts{dir: s.spec.dir}, asked)
	close(s.opened)
}

// terminate makes the end known, everywhere at once: state, bounds, name, events. keep: session.info may still ask.
func (s *Session) terminate(f facts, keep bool) {
	p := s.pool
	p.mu.Lock()
	s.mu.Lock()
	s.final = finalState{at: time.Now(), facts: f}
	s.final.facts.pid, s.final.facts.background = 0, nil
	s.appendLog(entry{Over: &overEntry{s.final.at, s.final.facts.dir, s.final.facts.envs}})
	s.closed = true
	reason := s.ending.reason
	s.fireLocked(statemachine.Ended, reason)
	s.endWatchersLocked()
	commands, bytes := s.commands, s.retained.outputBytes
	s.mu.Unlock()
	p.retireLocked(s, keep)
	p.mu.Unlock()
	if s.shell != nil {
		s.shell.CloseLogs()
	}
	close(s.ended)
	if !keep {
		return
	}
	p.metrics.SessionsEnded.WithLabelValues(string(reason)).Inc()
	p.reportEnd(End{Owner: s.owner, Session: s.id, Kind: SessionEnd, Reason: string(reason), RequestedAt: s.created, StartedAt: s.created, EndedAt: s.final.at})
	s.log.Info().Str("reason", string(reason)).Dur("duration_ms", elapsed(s.created, time.Now())).Int64("commands", commands).Int64("bytes", bytes).Msg("session ended")
}

// Destroy ends the session and returns when nothing of it is left. Every call gets the same answer.
func (s *Session) Destroy(ctx context.Context, q *protocol.SessionDestroy) (protocol.Destroyed, error) {
	grace := defaultGrace
	if q.Grace != nil {
		grace = min(q.Grace.Duration(), maxGrace)
	}
	if q.Force {
		grace = 0
	}
	s.end(protocol.ReasonClient, grace)
	select {
	case <-s.ended:
	case <-ctx.Done():
		return protocol.Destroyed{}, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return protocol.Destroyed{SessionID: s.id, State: stateTerminated, Reason: s.ending.reason}, nil
}

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
	s.appendLog(entry{Reset: true})
	s.mu.Unlock()
	s.resetGate.Lock()
	err := s.shell.Reset(s.ctx, s.spec.dir, s.pool.environment(s.id, s.spec.shell, s.spec.env))
	s.resetGate.Unlock()
	scarce := err != nil && runtime.Scarce(err) // the session stays, and gets its shell when there is what it takes
	if err != nil && s.ctx.Err() == nil && !scarce {
		s.log.Error().Err(err).Msg("shell not reset")
		s.end(protocol.ReasonShellFailed, 0)
		return shellFault(err, s.spec.dir)
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
		return shellFault(err, s.spec.dir)
	}
	return nil
}
