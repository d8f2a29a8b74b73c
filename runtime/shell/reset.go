package shell

import (
	"context"
	"maps"
	"slices"
	"syscall"
	"time"

	"trl/runtime/escalate"
	"trl/runtime/own"
)

// Reset kills all processes of the session and starts a fresh shell. The caller makes sure that no Run goes on. After a Scarce error
// the next command or Revive starts the shell.
func (s *Shell) Reset(ctx context.Context, dir string, env []string) error {
	if err := s.takeTurn(); err != nil {
		return err
	}
	defer s.giveTurn()
	if s.closing.Load() {
		return ErrShellGone
	}
	if err := s.endProcesses(ctx); err != nil {
		return err
	}
	s.state.Forget()
	s.mayTrapAbort, s.restorePostponed = false, false
	s.mayHaveFunctions.Store(false)
	group, err := s.b.Keeper.Group(s.cfg.ID)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.group, s.cfg.Dir, s.cfg.Env = group, dir, env
	limits := s.cfg.Limits
	s.mu.Unlock()
	s.dropGauge()
	if err := group.Limit(limits); err != nil {
		return err
	}
	return s.startEmptyShell(scarceTimeout)
}

// endProcesses kills all processes of the session and releases the shell process.
func (s *Shell) endProcesses(ctx context.Context) error {
	s.mu.Lock()
	group := s.group
	s.mu.Unlock()
	if err := group.Close(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	late, procs, terms, p := s.copiers, s.procs, maps.Clone(s.terms), s.p // a clone, because a terminal deletes itself from s.terms
	s.copiers, s.procs, s.p, s.leftScopes = nil, map[*Process]struct{}{}, nil, nil
	s.mu.Unlock()
	for pr := range procs {
		pr.dispose()
	}
	for t := range terms {
		t.dispose()
	}
	s.EndWarmTerminal()
	for _, c := range late {
		c.Stop()
	}
	if p != nil {
		p.release()
		group.Drop(p.held...)
	}
	return nil
}

// A pendingClose is a Close that goes on. Other callers of Close wait for it.
type pendingClose struct {
	done chan struct{} // closed when that Close has returned
	err  error         // the result; set before done is closed
}

// sessionKillTimeout is how long a KILL may take. A process in an uninterruptible sleep that lives longer is reported as an error.
const sessionKillTimeout = 30 * time.Second

// Close ends the session: it sends HUP to the shell and the terminals, TERM to all other processes, and KILL after grace. When it
// returns nil, no process of the session is left. A Run that goes on returns. A second call waits for the same end, and the
// smaller grace counts.
func (s *Shell) Close(grace time.Duration) (err error) {
	until := time.Now().Add(grace)
	s.mu.Lock()
	if s.closed != nil {
		if until.Before(s.killAt) {
			s.killAt = until
		}
		first := s.closed
		s.mu.Unlock()
		<-first.done
		return first.err
	}
	c := &pendingClose{done: make(chan struct{})}
	s.closed, s.killAt = c, until
	s.closing.Store(true)
	s.b.ready.remove(s)
	group, p := s.group, s.p
	terms := slices.Collect(maps.Keys(s.terms))
	s.mu.Unlock()
	defer func() { c.err = err; close(c.done) }()
	if group != nil && grace > 0 {
		terminate := escalate.Step{Signal: func() { endInOrder(group, p, terms) }, Until: s.killDeadline}
		escalate.Run(context.Background(), s.b.Metrics.KillEscalations.Inc, func() bool { return len(group.Members()) == 0 }, terminate)
	}
	ctx, cancel := context.WithTimeout(context.Background(), sessionKillTimeout)
	defer cancel()
	if group != nil {
		if err := group.Close(ctx); err != nil {
			s.mu.Lock()
			s.closed = nil // so that another Close can try again
			s.mu.Unlock()
			return err
		}
	}
	s.wake()
	<-s.turn // a Run ends, because its shell is dead
	err = s.endProcesses(ctx)
	s.dispose()
	s.turn <- struct{}{} // later callers find no shell
	return err
}

// endInOrder sends HUP to the shell and the terminals, and TERM to everything else of the session.
func endInOrder(group own.KeptGroup, p *shellProc, terms []*Terminal) {
	for _, t := range terms { // interactive shells ignore TERM; a stopped program handles no signal before CONT
		t.Signal(syscall.SIGHUP)
		t.Signal(syscall.SIGCONT)
	}
	shell := 0
	if p != nil {
		shell = p.child.Pid()
		_ = p.child.Signal(syscall.SIGHUP) // an interactive shell ignores TERM; at HUP it runs its EXIT trap
	}
	group.Signal(syscall.SIGTERM, shell)
}

// killDeadline is when KILL is due. A second Close can bring it forward.
func (s *Shell) killDeadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killAt
}

// dispose closes the session's descriptors and its confinement, and its group if no shell was started.
func (s *Shell) dispose() {
	if s.group != nil && s.p == nil {
		_ = s.group.Close(context.Background())
	}
	if s.state != nil {
		s.state.Close()
		if held := s.state.HeldFiles(); s.group != nil && held != nil {
			s.group.Drop(held...)
		}
	}
	s.closePipes()
	s.dropGauge()
	s.poll.Close()
	if s.group != nil {
		s.group.ReleaseConfinement()
	}
}

// Forget drops all that is kept for a closed session, above all the output of its commands.
func (s *Shell) Forget() {
	s.streamLogs.Close()
	if s.state != nil {
		s.state.SessionLog().Close()
	}
	if group := s.currentGroup(); group != nil {
		group.DropAll()
	}
}
