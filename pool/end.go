package pool

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"trl/pool/clock"
	"trl/pool/ends"
	"trl/pool/entry"
	"trl/pool/shells"
	"trl/pool/timeouts"
	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/shell"
	"trl/statemachine"
)

// ending is the end of a session.
type ending struct {
	reason protocol.Reason // the first one given
	grace  time.Duration   // between TERM and KILL
	forget bool            // the session never had a shell, so it is unknown afterwards
	move   *Move           // the session does not end, it moves to another node or from there
}

// finalState is what an ended session still tells.
type finalState struct {
	at    time.Time
	facts facts
}

// closeRetryInterval is the time between attempts to kill a process that survived KILL.
const closeRetryInterval = time.Second

// end begins the session's end and returns at once; ended is closed when it is done. The first reason counts.
func (s *Session) end(reason protocol.Reason, grace time.Duration) {
	s.mu.Lock()
	s.endLocked(reason, grace)
	running := s.runningCommandLocked()
	s.mu.Unlock()
	if running != nil {
		running.Cancel(syscall.SIGTERM, grace) // a second call with less grace shortens the grace
	}
}

// endLocked makes the session refuse new work and starts finish, once. s.mu is held.
func (s *Session) endLocked(reason protocol.Reason, grace time.Duration) {
	if s.ending != nil && s.ending.move != nil {
		s.ending.move.stopLocked()
	}
	if s.ending != nil {
		return
	}
	s.ending = &ending{reason: reason, grace: grace}
	s.appendLog(entry.Entry{Ending: &entry.Ending{Reason: reason, Grace: entry.Duration(grace)}})
	s.cancel(fmt.Errorf("session ended: %s", reason))
	s.pool.tasks.Add(1) // the runner, which is a task, is still there; Close waits for it
	go s.finish(s.waiting.Clear())
}

// finish is the end of a session from top to bottom, on a goroutine of its own. It ends when nothing of the session is left.
func (s *Session) finish(queue []*Exec) {
	p := s.pool
	defer p.tasks.Done()

	// Refuse the commands that wait.
	for _, e := range queue {
		e.failQueued(s.refusal())
	}

	// Wait for a shell that is being opened. The context tells openShell that the session ends.
	select {
	case <-s.opened:
	case <-s.runnerDone: // there is no shell
	}

	// The running command gets TERM before the shell, because its result shall say cancelled. Everything else that the session started gets TERM at
	// the same time, and KILL after the grace.
	s.mu.Lock()
	shell, running, reason, grace := s.shell, s.runningCommandLocked(), s.ending.reason, s.ending.grace
	freed := p.claims.ReleaseEnded(s.claimedLocked())
	s.mu.Unlock()
	if running != nil {
		running.Cancel(syscall.SIGTERM, grace)
	}
	if shell != nil {
		for err := shell.Close(grace); err != nil; err = shell.Close(0) {
			s.log.Error().Err(err).Msg("session not ended")
			time.Sleep(closeRetryInterval) // a process is in an uninterruptible sleep: a person must act, and we can only try again
		}
	}

	// Wait until the ends of the command, the processes and the terminals were told.
	<-s.runnerDone
	facts := s.facts()
	s.processTasks.Wait()

	// Make the end known at once: state, bounds, name, events.
	p.mu.Lock()
	s.mu.Lock()
	s.final = finalState{at: time.Now(), facts: facts}
	s.final.facts.pid, s.final.facts.background = 0, nil
	s.appendLog(entry.Entry{Over: &entry.Over{At: s.final.at, Dir: facts.dir, Envs: facts.envs}})
	s.closed = true
	s.fireLocked(statemachine.Ended, reason)
	s.watchers.Close()
	commands, bytes, forget := s.commands, s.retained.OutputBytes, s.ending.forget
	s.mu.Unlock()
	p.retireLocked(s, !forget)
	p.mu.Unlock()
	if shell != nil {
		shell.CloseLogs()
	}
	if !forget && !s.HasMoved() { // who knows of the end finds it counted
		p.metrics.SessionsEnded.WithLabelValues(string(reason)).Inc()
	}
	<-freed // a client that has seen the end may use the name anywhere
	close(s.ended)
	if shell == nil {
		close(s.opened)
	}
	if forget {
		return
	}
	if s.HasMoved() {
		s.log.Info().Msg("session has moved to another node")
		return
	}
	p.config.Load().OnEnd(ends.End{Owner: s.owner, Session: s.id, Kind: ends.Session, Reason: string(reason), RequestedAt: s.created, StartedAt: s.created, EndedAt: s.final.at})
	s.log.Info().Str("reason", string(reason)).Dur("duration_ms", clock.Elapsed(s.created, time.Now())).Int64("commands", commands).Int64("bytes", bytes).Msg("session ended")
}

// openFailed ends a session that got no shell. For clients it never existed, unless it was ended while it was being made.
func (s *Session) openFailed(err error) {
	fault := shells.Fault(err, s.spec.Dir)
	s.mu.Lock()
	if s.ending != nil {
		fault = s.errEndedLocked()
	} else {
		s.log.Warn().Err(err).Msg("session not created")
		s.endLocked(protocol.ReasonShellFailed, 0)
		s.ending.forget = true
	}
	if fault.Code == protocol.SessionLost { // the session never had a shell to lose
		fault = protocol.Errorf(protocol.ShuttingDown, "%s", fault.Message).WithCause(err)
	}
	s.openErr = fault
	s.mu.Unlock()
	s.pool.metrics.SessionsCreated.WithLabelValues(string(fault.Code)).Inc()
}

// endForgotten ends a session whose client is told that it was not made, and returns when nothing of it is left.
func (s *Session) endForgotten() {
	s.mu.Lock()
	if s.ending == nil {
		s.endLocked(protocol.ReasonClient, 0)
		s.ending.forget = true
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
	case <-time.After(timeouts.DefaultGrace): // a process survives KILL
	}
}

// runningCommandLocked returns the running command, or nil. s.mu is held.
func (s *Session) runningCommandLocked() *shell.Command {
	if s.running == nil {
		return nil
	}
	return s.running.command
}

// Destroy ends the session and returns when nothing of it is left. All calls get the same answer.
func (s *Session) Destroy(ctx context.Context, q *protocol.SessionDestroy) (protocol.Destroyed, error) {
	grace := timeouts.Grace(q.Grace)
	if q.Force {
		grace = 0
	}
	s.end(protocol.ReasonClient, grace)
	if err := s.elsewhere(); err != nil {
		return protocol.Destroyed{}, err
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		return protocol.Destroyed{}, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return protocol.Destroyed{SessionID: s.id, State: stateTerminated, Reason: s.ending.reason}, nil
}

// errEndedLocked is the error of a session that is ending or has ended. s.mu is held.
func (s *Session) errEndedLocked() *protocol.Error {
	if m := s.ending.move; m != nil {
		return m.fault()
	}
	if s.pool.base.Keeper.Gone() {
		return shells.KeeperGone(own.ErrKeeperGone)
	}
	return protocol.Errorf(protocol.SessionTerminated, "session has ended").With("reason", s.ending.reason)
}

// refusal is the error of requests that wait while the session ends. If the session got no shell, it says why.
func (s *Session) refusal() *protocol.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.openErr != nil {
		return s.openErr
	}
	return s.errEndedLocked()
}
