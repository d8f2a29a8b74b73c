package pool

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"trl/pool/command"
	"trl/pool/ends"
	"trl/pool/entry"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/pool/timeouts"
	"trl/pool/token"
	"trl/pool/waitfor"
	"trl/protocol"
	"trl/runtime/shell"
)

const (
	maxProcesses = 256 // live processes and terminals of a session: each costs three goroutines, two pipes and up to a ring
	maxWaits     = 64  // calls of Wait for one process: each may hold a reader, or dial twenty times a second
)

// Process is one background command: running or ended.
type Process struct {
	child
	name    string         // set once
	timeout time.Duration  // set once; 0: none
	process *shell.Process // set once, when it starts

	waitCount atomic.Int32 // calls of Wait under way
	timedOut  bool         // set by watch: the process was ended for its timeout
}

// StartProcess starts a background command from the session's current state.
func (s *Session) StartProcess(ctx context.Context, q *protocol.ProcessStart) (*Process, error) {
	return s.startProcess(ctx, q, nil)
}

// startProcess is StartProcess. by is the guest's share link, nil for the owner.
func (s *Session) startProcess(ctx context.Context, q *protocol.ProcessStart, by *Share) (*Process, error) {
	if err := shells.CheckEnv(q.Env, s.pool.config.Load().AllowEnv); err != nil {
		return nil, err
	}
	same := *q
	same.SessionRef = protocol.SessionRef{} // the session is known, whether it was given by id or by name
	return startOnce(ctx, s, "process.start", q.RequestKey, q.SessionRef, &same, by, func(ctx context.Context, r request) (*Process, error) {
		return s.beginProcess(ctx, q, r)
	})
}

func (s *Session) beginProcess(ctx context.Context, q *protocol.ProcessStart, r request) (*Process, error) {
	if err := s.awaitShell(ctx); err != nil {
		return nil, err
	}
	s.resetGate.RLock() // during a reset the shell has no state to start from
	defer s.resetGate.RUnlock()
	p := &Process{child: child{work: s.newWork('p', protocol.TruncateText(q.Command), s.pool.config.Load().RingBytes, r), live: &s.liveProcesses}, name: q.Name}
	if q.Timeout != nil {
		p.timeout = q.Timeout.Duration()
	}
	if err := s.reserveSlot(&p.child, r.by); err != nil {
		return nil, err
	}
	process, err := s.shell.PrepareProcess(shell.ProcessSpec{
		Text: q.Command, Dir: q.WorkingDir, Env: shells.WithoutID(q.Env), OpenStdin: q.Stdin == "open", Journal: p.journal,
	})
	if err != nil {
		return nil, s.releaseSlot(&p.child, err)
	}
	p.process, p.pid, p.lost = process, process.Pid(), process.Saved().Lost
	s.mu.Lock()
	s.touchLocked(time.Now())
	s.processes[p.ID()] = p
	s.appendLog(entry.Entry{Process: p.entry()})
	s.watchers.Publish("process.started", func() any { return p.Info() })
	s.mu.Unlock()
	process.Start() // only after it was written down
	go p.watch()    // #nosec G118 -- outlives its request; waits for the process's end, which the session's end brings about; finish waits for it
	s.pool.requestKeys.Complete(r.key, time.Now())
	return p, nil
}

// watch waits for the end and tells of it. When the timeout is over, it kills the process.
func (p *Process) watch() {
	s := p.session
	defer s.processTasks.Done()
	if p.timeout > 0 && !p.timedOut { // else an earlier gateway has seen the timeout
		timer := time.NewTimer(time.Until(p.beganAt.Add(p.timeout)))
		defer timer.Stop()
		select {
		case <-p.process.Exited():
		case <-timer.C:
			s.mu.Lock()
			p.timedOut = true
			s.appendLog(entry.Entry{Expired: p.ID()})
			s.mu.Unlock()
		}
	}
	if p.timedOut {
		err := p.process.Kill(context.Background(), timeouts.DefaultGrace)
		s.log.Info().Err(err).Str("process", p.ID()).Str("outcome", "timeout").Dur("duration_ms", time.Since(p.beganAt)).Msg("process ended")
	}
	<-p.process.Exited()
	s.finishChild(p, p.process, ends.Process)
}

func (p *Process) exitEvent() (string, func() any) {
	return "process.exit", func() any { return p.exitInfo() }
}

// Processes returns the processes that run or are retained, oldest first.
func (s *Session) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return byStart(s.processes)
}

// Info is what process.info answers.
func (p *Process) Info() protocol.ProcessInfo {
	if p.hasEnded() {
		return p.exitInfo()
	}
	return p.info("running")
}

// InfoWithTree is Info with the ports on which the processes listen. It walks through proc(5).
func (p *Process) InfoWithTree() protocol.ProcessInfo {
	i := p.Info()
	if i.State == "running" {
		i.Ports = p.process.Ports()
	}
	return i
}

func (p *Process) info(state string) protocol.ProcessInfo {
	return protocol.ProcessInfo{
		ProcessID: p.ID(), SessionID: p.session.id, StreamID: p.stream, Pid: p.pid, Name: p.name, Command: protocol.TruncateText(p.text),
		State: state, StartedAt: p.startedAt, OutputBytes: p.journal.Size(), StateLost: p.lost,
	}
}

// exitInfo is the info after the end.
func (p *Process) exitInfo() protocol.ProcessInfo {
	i := p.info("exited")
	code, signal := p.exitCode()
	ended := p.endedAt
	if u := p.exit; u.MaxRSS > 0 { // not known if the process is a copy of the shell
		i.Usage = &protocol.Usage{CPUMS: float64(u.CPU) / float64(time.Millisecond), MaxRSSBytes: u.MaxRSS}
	}
	i.ExitCode, i.Signal, i.TimedOut, i.EndedAt, i.OutputBytes = &code, signal, p.timedOut, &ended, max(i.OutputBytes, p.endOffset)
	return i
}

// Wait returns when the condition is met or cannot be met any more. The process has ended then, or ctx's deadline (timeout_s) has passed, which
// is no error.
func (p *Process) Wait(ctx context.Context, until protocol.Until) (r protocol.WaitResult, err error) {
	if p.waitCount.Add(1) > maxWaits {
		p.waitCount.Add(-1)
		return r, protocol.Errorf(protocol.LimitExceeded, "process has %d waits", maxWaits).With("limit", maxWaits)
	}
	defer p.waitCount.Add(-1)
	if r.Match, r.Met, err = waitfor.Until(ctx, until, p.journal, p.done); err != nil {
		return r, err
	}
	if p.hasEnded() {
		code, signal := p.exitCode()
		r.ExitCode, r.Signal = &code, signal
		if !r.Met {
			r.Tail = waitfor.Tail(p.journal, p.endOffset)
		}
	}
	return r, nil
}

// Input adds a piece at offset at to the stdin of a process with open stdin, and returns where the input ends then. It never waits.
func (p *Process) Input(at int64, b []byte, eof bool) (end int64, err error) {
	if len(b) > 0 || eof { // else somebody asks where the input ends
		_ = p.session.Touch() // the process takes input also while its session ends
	}
	return command.Taken(p.process.Input(at, b, eof))
}

// Kill ends the process and all that it started: TERM, grace, KILL. It returns when the end was told.
func (p *Process) Kill(ctx context.Context, grace time.Duration) error {
	_ = p.session.Touch()
	if p.isSessionOver() {
		return nil
	}
	if err := p.process.Kill(ctx, min(grace, timeouts.MaxGrace)); err != nil {
		return err
	}
	return p.awaitEnd(ctx)
}

// Signal sends sig to the process and all that it started. It does nothing if they have ended.
func (p *Process) Signal(sig syscall.Signal) error {
	_ = p.session.Touch()
	if p.isSessionOver() {
		return nil
	}
	if err := p.process.Signal(sig); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// isSessionOver reports whether the session is TERMINATED, and no process of it is left.
func (p *Process) isSessionOver() bool { return token.IsClosed(p.session.ended) }

// Discard implements retained.Work. s.mu is held.
func (p *Process) Discard() {
	p.journal.Drop()
	if p.key == (requestkey.Ref{}) {
		return
	}
	x := p.tombstone('p')
	if x.Name = p.name; p.timedOut {
		x.SetTimedOut()
	}
	p.session.keepTombstoneLocked(x)
}
