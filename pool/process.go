package pool

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
)

// maxProcesses bounds a session's live processes and terminals: each costs three goroutines, two pipes and up to a ring.
const maxProcesses = 256

// Process is one background command: running or ended. Ended, it stays readable while it is retained.
type Process struct {
	// set once in startProcess
	stream    string // "st-" and the process's id
	session   *Session
	name      string
	text      string // its beginning: the whole is not needed once it has started
	journal   *journal.Journal
	key       keyRef        // zero when the request had none
	params    fingerprint   // of that request
	timeout   time.Duration // 0: none
	startedAt time.Time     // as people are told
	beganAt   time.Time     // the same as this process counts
	process   *runtime.Process
	pid       int
	done      chan struct{} // closed when it has ended and that has been told

	waitCount atomic.Int32 // process.wait under way

	// set by watch before done is closed, read after
	status    runtime.Status
	timedOut  bool
	endedAt   time.Time
	endOffset int64 // the journal's size at the end
}

// StartProcess starts a background command from the session's present state.
func (s *Session) StartProcess(ctx context.Context, q *protocol.ProcessStart) (*Process, error) {
	return s.startOnce(ctx, q, nil)
}

// startOnce: by is the guest's share, nil for the owner.
func (s *Session) startOnce(ctx context.Context, q *protocol.ProcessStart, by *Share) (*Process, error) {
	if err := s.pool.checkEnv(q.Env); err != nil {
		return nil, err
	}
	if q.RequestKey == "" {
		return s.startProcess(ctx, q, keyRef{}, fingerprint{}, by)
	}
	ref := s.newKeyRef(q.RequestKey, q.SessionRef, by)
	asked := *q
	asked.SessionRef = protocol.SessionRef{} // id or name, it is this session
	params := fingerprintOf("process.start", &asked)
	p, err := once(ctx, s.pool, ref, params, func() (*Process, error) {
		return s.startProcess(context.WithoutCancel(ctx), q, ref, params, by) // who joined must not fail because the first one left
	})
	if err == nil {
		s.pool.requestKeys.complete(ref, time.Now())
	}
	return p, err
}

func (s *Session) startProcess(ctx context.Context, q *protocol.ProcessStart, ref keyRef, params fingerprint, by *Share) (*Process, error) {
	if err := s.awaitShell(ctx); err != nil {
		return nil, err
	}
	s.resetGate.RLock() // a shell that is being replaced on request has no state to start from
	defer s.resetGate.RUnlock()
	p := &Process{
		stream:  ids.New(ids.StreamPrefix, 'p', s.pool.epoch, s.tag, ids.MemberLen),
		session: s, name: q.Name, text: truncateText(q.Command), journal: journal.New(s.pool.config.Load().RingBytes), key: ref, params: params, done: make(chan struct{}),
	}
	if q.Timeout != nil {
		p.timeout = q.Timeout.Duration()
	}
	if err := s.reserveSlot(&s.liveProcesses, by); err != nil {
		return nil, err
	}
	p.startedAt = time.Now()
	p.beganAt = p.startedAt
	process, err := s.shell.PrepareProcess(runtime.ProcessSpec{
		Text: q.Command, Dir: q.WorkingDir, Env: withoutID(q.Env), OpenStdin: q.Stdin == "open", Journal: p.journal,
	})
	if err != nil {
		return nil, s.releaseSlot(&s.liveProcesses, err)
	}
	p.process, p.pid = process, process.Pid()
	s.mu.Lock()
	s.touchLocked(time.Now())
	s.processes[p.ID()] = p
	s.appendLog(entry{Process: p.entry()})
	s.publishLocked("process.started", func() any { return p.Info() })
	s.mu.Unlock()
	process.Start() // not before it was written down
	go p.watch()    // #nosec G118 -- outlives its request; records the end; ended by it, which the session's end brings about; finish waits for it
	return p, nil
}

// reserveSlot counts one more process or terminal, whose goroutine ends with watching.Done, or says why there is no place for it.
func (s *Session) reserveSlot(live *int, by *Share) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending != nil:
		return s.errEndedLocked()
	case by != nil && by.IsOver():
		return errShareOver()
	case s.liveProcesses+s.openTerminals >= maxProcesses:
		return protocol.Errorf(protocol.LimitExceeded, "session has %d processes and terminals", maxProcesses).With("limit", maxProcesses)
	}
	*live++
	s.processTasks.Add(1)
	return nil
}

// releaseSlot takes back what reserveSlot did, for what could not be started because of err, and says what a client is told.
func (s *Session) releaseSlot(live *int, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touchLocked(time.Now())
	*live--
	s.processTasks.Done()
	if s.ending != nil {
		return s.errEndedLocked()
	}
	if errors.Is(err, runtime.ErrNoTerminal) {
		return protocol.Errorf(protocol.LimitExceeded, "server is out of terminals or descriptors").WithCause(err)
	}
	return unrunFault(err)
}

// watch waits for the end, brings it about when the time is over, and tells.
func (p *Process) watch() {
	s := p.session
	defer s.processTasks.Done()
	if p.timeout > 0 && !p.timedOut { // else the gateway before us has found that out
		timer := time.NewTimer(time.Until(p.beganAt.Add(p.timeout)))
		defer timer.Stop()
		select {
		case <-p.process.Exited():
		case <-timer.C:
			s.mu.Lock()
			p.timedOut = true
			s.appendLog(entry{Expired: p.ID()})
			s.mu.Unlock()
		}
	}
	if p.timedOut {
		err := p.process.Kill(context.Background(), defaultGrace)
		s.log.Info().Err(err).Str("process", p.ID()).Str("outcome", "timeout").Dur("duration_ms", time.Since(p.beganAt)).Msg("process ended")
	}
	<-p.process.Exited()
	s.mu.Lock()
	p.status, p.endedAt, p.endOffset = p.process.Status(), time.Now(), p.journal.Size()
	s.liveProcesses--
	s.touchLocked(p.endedAt)
	s.publishLocked("process.exit", func() any { return p.exitInfo() })
	s.retainLocked(p)
	s.appendLog(entry{Exited: p.exitedEntry()})
	s.mu.Unlock()
	p.process.Release() // not before it was written down
	code, signal := p.exit()
	s.pool.reportEnd(End{Owner: s.owner, Session: s.id, Kind: ProcessEnd, ID: p.ID(), Code: &code, Signal: signal, RequestedAt: p.beganAt, StartedAt: p.beganAt, EndedAt: p.endedAt})
	close(p.done)
}

// liveProcessesLocked counts those that run or are being started. s.mu is held.
func (s *Session) liveProcessesLocked() int { return s.liveProcesses }

// Processes is all that are known, oldest first.
func (s *Session) Processes() []*Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Process, 0, len(s.processes))
	for _, p := range s.processes {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Process) int { return a.startedAt.Compare(b.startedAt) })
	return all
}

// ID is the process's.
func (p *Process) ID() string { return p.stream[len(ids.StreamPrefix):] }

// StreamID is that of its output.
func (p *Process) StreamID() string { return p.stream }

// Session is the one it belongs to.
func (p *Process) Session() *Session { return p.session }

// Done is closed when the process has ended and what it wrote is in the journal.
func (p *Process) Done() <-chan struct{} { return p.done }

// EndOffset is, after Done, the journal's size when the process ended; what follows its children wrote.
func (p *Process) EndOffset() int64 { return p.endOffset }

// Journal is its output, closed when nobody holds that any more.
func (p *Process) Journal() *journal.Journal { return p.journal }

// Info is what process.info answers.
func (p *Process) Info() protocol.ProcessInfo {
	select {
	case <-p.done:
		return p.exitInfo()
	default:
	}
	return p.info("running")
}

// InfoWithTree is Info with what only looking at the processes tells, for people: a walk through proc(5).
func (p *Process) InfoWithTree() protocol.ProcessInfo {
	i := p.Info()
	if i.State == "running" {
		i.Ports = p.process.Ports()
	}
	return i
}

func (p *Process) info(state string) protocol.ProcessInfo {
	return protocol.ProcessInfo{
		ProcessID: p.ID(), SessionID: p.session.id, StreamID: p.stream, Pid: p.pid, Name: p.name, Command: truncateText(p.text),
		State: state, StartedAt: p.startedAt, OutputBytes: p.journal.Size(), StateLost: p.stateLost(),
	}
}

// stateLost is nil of a process that is no longer retained.
func (p *Process) stateLost() []string {
	if p.process == nil {
		return nil
	}
	return p.process.Saved().Lost
}

// exitInfo is the info once watch has seen the end.
func (p *Process) exitInfo() protocol.ProcessInfo {
	i := p.info("exited")
	code, signal := p.exit()
	ended := p.endedAt
	if u := p.status; u.MaxRSS > 0 { // not known of a copy of the shell
		i.Usage = &protocol.Usage{CPUMS: float64(u.CPU) / float64(time.Millisecond), MaxRSSBytes: u.MaxRSS}
	}
	i.ExitCode, i.Signal, i.TimedOut, i.EndedAt, i.OutputBytes = &code, signal, p.timedOut, &ended, max(i.OutputBytes, p.endOffset)
	return i
}

// exit is the exit code, 128+N for signal N, and that signal's name.
func (p *Process) exit() (code int, signal string) {
	if p.status.Signal != 0 {
		return protocol.SignalExitCode(p.status.Signal), protocol.SignalName(p.status.Signal)
	}
	return p.status.Code, ""
}

// Input writes to the stdin of a process that was started with it open. It never waits.
func (p *Process) Input(b []byte, eof bool) error {
	_ = p.session.Touch() // the process is asked, whatever its session does
	return inputFault(p.process.Input(b, eof))
}

// Kill ends the process and all that it started: TERM, grace, KILL. It returns when that is done and told.
func (p *Process) Kill(ctx context.Context, grace time.Duration) error {
	_ = p.session.Touch()
	if p.isSessionOver() {
		return nil
	}
	if err := p.process.Kill(ctx, min(grace, maxGrace)); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Signal sends sig to the process and all that it started. To one that has ended it is nothing.
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

// isSessionOver: the session is gone, and with it whatever could be signalled.
func (p *Process) isSessionOver() bool {
	select {
	case <-p.session.ended:
		return true
	default:
		return false
	}
}

// endProcesses ends the live ones, all at once.
func (s *Session) endProcesses(ctx context.Context, grace time.Duration) {
	live := slices.DeleteFunc(s.Processes(), func(p *Process) bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	killed := make(chan error, len(live))
	for _, p := range live {
		go func() { killed <- p.Kill(ctx, grace) }()
	}
	for range live {
		if err := <-killed; err != nil {
			s.log.Warn().Err(err).Msg("process not ended")
		}
	}
}

func (p *Process) endTime() time.Time { return p.endedAt }

func (p *Process) mayGrow() bool { return !p.journal.Closed() }

// workWeight is what an ended process or terminal takes beside its text and its output.
const workWeight = 4 << 10

func (p *Process) weight() int64 { return workWeight + int64(len(p.text)) + p.journal.Memory() }

// discard is endedExec's. s.mu is held.
func (p *Process) discard() {
	p.journal.Drop()
	if p.key == (keyRef{}) {
		return
	}
	x := &workTombstone{
		kind: 'p', session: p.session, stream: p.stream, name: p.name, request: p.session.pool.requestKeys.find(p.key), startedAt: nanos(p.startedAt), endedAt: nanos(p.endedAt), startUptime: int64(uptimeAt(p.beganAt)),
		pid: int64(p.pid), code: int64(p.status.Code), signal: int64(p.status.Signal), endOffset: p.endOffset,
	}
	if p.timedOut {
		x.timedOut = 1
	}
	p.session.keepTombstoneLocked(x)
}
