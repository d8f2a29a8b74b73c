package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/statemachine"
)

// A recovery is the time in which the sessions of a gateway that died are brought back. The pool answers already: who asks for a session
// waits for that one, who asks for something that any session may know waits for all.
type recovery struct {
	bySession map[string]chan struct{} // by session id; closed when that one is there, or lost
	all       chan struct{}            // closed when all are
}

// recoveryTimeout bounds that wait: what is kept of a session is bounded, and so is the time that reading it takes.
const recoveryTimeout = 30 * time.Second

// awaitRecovered waits for the session with this id, or for all where it is empty.
func (p *Pool) awaitRecovered(id string) error {
	c := p.recovery.Load()
	if c == nil {
		return nil
	}
	back := c.all
	if id != "" {
		if back = c.bySession[id]; back == nil {
			return nil
		}
	}
	select {
	case <-back:
		return nil
	case <-time.After(recoveryTimeout):
		return protocol.Errorf(protocol.SessionBusy, "sessions are being brought back")
	}
}

// isRecovering: the session is being brought back.
func (p *Pool) isRecovering(id string) bool {
	c := p.recovery.Load()
	if c == nil {
		return false
	}
	select {
	case <-c.bySession[id]:
		return false
	default:
		return c.bySession[id] != nil
	}
}

// Recover begins to bring back the sessions of a gateway that died, before Start and before anybody can ask. What was never given
// to anybody, warm shells and sessions that were just being made, ends. Recovered says when it is done.
func (p *Pool) Recover(from []runtime.HeldSession) {
	p.recordings.Load()
	c := &recovery{bySession: map[string]chan struct{}{}, all: make(chan struct{})}
	todo := make(chan runtime.HeldSession, len(from))
	for _, in := range from {
		c.bySession[in.ID] = make(chan struct{})
		todo <- in
	}
	close(todo)
	p.recovery.Store(c)
	p.tasks.Add(1) // reads the session logs; ended by that; Close waits for it
	go func() {
		defer p.tasks.Done()
		var readers sync.WaitGroup
		for range min(len(from), goruntime.GOMAXPROCS(0)) {
			readers.Go(func() {
				for in := range todo {
					p.recoverSession(in)
					close(c.bySession[in.ID])
				}
			})
		}
		readers.Wait()
		p.mu.Lock() // some go on already, and may end
		slices.SortStableFunc(p.retained, func(a, b *Session) int { return a.final.at.Compare(b.final.at) })
		p.mu.Unlock()
		p.requestKeys.sort()
		p.recovery.Store(nil)
		close(c.all)
		p.trim()
	}()
}

// Recovered returns when all sessions are there that can be brought back.
func (p *Pool) Recovered() {
	if c := p.recovery.Load(); c != nil {
		<-c.all
	}
}

func (p *Pool) recoverSession(in runtime.HeldSession) {
	a := p.base.Adopt(in)
	err := p.recoverAdopted(a, in.ID)
	if err == nil {
		return
	}
	if !errors.Is(err, errNobodys) {
		p.log.Error().Err(err).Str("session", in.ID).Msg("session is lost")
	}
	p.tasks.Add(1) // KILL, and forget; ended by that; Close waits for it
	go func() {
		defer p.tasks.Done()
		if err := a.Discard(context.Background()); err != nil {
			p.log.Error().Err(err).Str("session", in.ID).Msg("session not ended")
		}
	}()
}

// lostConnIdle is how long a session with on_disconnect: destroy, whose connection went with the last gateway, may rest.
const lostConnIdle = time.Minute

var errNobodys = errors.New("nobody's")

func (p *Pool) recoverAdopted(a *runtime.Adoption, id string) (err error) {
	defer func() { // whatever is written there, it is this session's misfortune alone
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
	}()
	m := loggedSession{id: id}
	if err := a.ReadSessionLog(m.readLine); err != nil {
		return err
	}
	if m.session == nil || m.shell == nil {
		return errNobodys
	}
	if err := m.check(); err != nil {
		return err
	}
	return p.revive(a, &m)
}

// revive makes the session anew from what is remembered.
func (p *Pool) revive(a *runtime.Adoption, m *loggedSession) error {
	q := m.session
	s := newSession(p, m.id, q.Owner, q.Name, sessionSpec{
		shell: q.Shell, dir: q.Dir, env: q.Env, labels: q.Labels, timeout: time.Duration(q.Timeout), idle: time.Duration(q.Idle), restore: q.Restore, endsWithConn: q.EndsWithConn, limits: q.Limits, record: recording.ParseSet(q.Record),
	})
	s.tag, s.created, s.key, s.commands, s.last = q.Tag, q.Created, q.Key, q.Commands+m.commandsBegun, m.last
	s.dir, s.revived = cmp.Or(m.dir, s.dir), m.revived
	s.savedShell.Store(m.shell)
	m.reserveLogs(a)
	config := runtime.ShellConfig{ID: m.id, Path: q.Shell, Restore: q.Restore, Limits: q.Limits}
	var err error
	switch {
	case m.over != nil || m.ending != nil && !a.IsComplete(*m.shell): // the latter's end had come further than was written: what is left ends below
		config.Dir = m.shell.Dir
		s.shell = a.OpenEnded(config)
	case m.reset: // the runner goes on with it
		s.shell, err = a.OpenForReset(config, *m.shell)
		s.resetting++
	default:
		s.shell, err = a.Shell(config, *m.shell)
	}
	if err != nil {
		return err
	}
	s.sessionLog = s.shell.SessionLog()
	s.sessionLog.SetCompactSize(m.compactBytes)
	if s.spec.endsWithConn { // to a connection that is no more: its client has a while to come back
		s.connLost.Store(true)
	}
	running, err := s.reviveWork(a, m)
	if err != nil {
		return err
	}
	if last := m.lastBegun(); running == nil && m.over == nil && last != nil {
		a.LastEnded(last.Command)
	}
	if err := s.retainLogged(a, m); err != nil {
		return err
	}
	close(s.opened)
	p.addRecovered(s, m)
	if m.over != nil {
		a.KillUnrecorded()
		s.shell.CloseLogs()
		return nil
	}
	s.resume(a, m, running)
	return nil
}

// reviveWork makes anew all that the session did. running is the command that its shell is at; nil: none.
func (s *Session) reviveWork(a *runtime.Adoption, m *loggedSession) (running *Exec, err error) {
	for _, x := range m.execs {
		live, err := s.reviveExec(a, x)
		if err != nil {
			return nil, fmt.Errorf("exec: %w", err)
		}
		if live && x.begun != nil && running == nil {
			running = x.exec
		} else if live {
			s.waiting.push(x.exec)
		}
	}
	for _, x := range m.procs {
		if err := s.reviveProcess(a, x, m); err != nil {
			return nil, fmt.Errorf("process: %w", err)
		}
	}
	for _, x := range m.terms {
		if err := s.reviveTerminal(a, x, m); err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
	}
	return running, nil
}

// resume lets a session that is whole again go on where it was.
func (s *Session) resume(a *runtime.Adoption, m *loggedSession, running *Exec) {
	s.shell.SetEntryWriter(entryWriter{s})
	s.cancelGuestCommands() // a link's end may be written down, and not what it brought about
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
	for _, watch := range m.afterRecovery { // not before: they use what was written here without a lock
		go watch() // as in startProcess and openTerminal
	}
	s.pool.tasks.Add(1) // the runner, as in register
	go func() {
		defer s.pool.tasks.Done()
		for e := running; e != nil; { // before serve looks at anything else: a dead shell is this command's to replace
			e = s.finishExec(e, s.shell.Run(e.command))
		}
		if m.reset {
			_ = s.reset() // who asked for it is gone; it ends the session where it fails
		}
		s.serve()
		s.finish()
	}()
	if m.ending != nil {
		s.end(m.ending.Reason, time.Duration(m.ending.Grace))
	}
}

// addRecovered enters the session into the tables.
func (p *Pool) addRecovered(s *Session, m *loggedSession) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions[s.id], p.tags[s.tag] = s, s
	ref := nameRef{s.owner, s.name}
	if other := p.names[ref]; s.name != "" && (other == nil || other.closed && (m.over == nil || other.created.Before(s.created))) {
		p.names[ref] = s
	}
	if s.key.Key != "" {
		p.requestKeys.restore(s.owner, s.key.newRequest(keyRef{owner: s.owner, key: s.key.Key}), s, m.session.Uptime.time(s.created))
	}
	for _, x := range m.shares {
		s.reviveShareLocked(x)
	}
	p.live++
	p.liveOf[s.owner]++
	if m.over == nil {
		return
	}
	s.mu.Lock()
	s.ending = &ending{reason: protocol.ReasonShellFailed}
	if m.ending != nil {
		s.ending.reason = m.ending.Reason
	}
	s.cancel(errors.New("session ended before this gateway"))
	s.final = finalState{at: m.over.At, facts: facts{dir: m.over.Dir, envs: m.over.Envs}}
	s.closed = true
	_, _, _ = s.state.Fire(statemachine.Ended)
	s.mu.Unlock()
	close(s.ended)
	p.retireLocked(s, true)
}

// reviveExec makes an exec anew; live: it has not ended.
func (s *Session) reviveExec(a *runtime.Adoption, x *loggedExec) (live bool, err error) {
	e := &Exec{
		stream: x.Stream, session: s, text: x.Text, clean: x.Clean, maxOutput: x.Most, timeout: time.Duration(x.Timeout), grace: time.Duration(x.Grace),
		journal: journal.New(s.pool.config.Load().RingBytes), queuedAt: x.Queued, stdin: x.Stdin, done: make(chan struct{}),
		recording: x.Recording, accepted: true, guest: x.Guest, resultOutput: &resultOutput{},
	}
	x.exec = e
	if x.Key.Key != "" {
		e.key = x.Key.ref(s)
		copy(e.params[:], x.Key.Params)
	}
	c := runtime.NewCommand(x.Text)
	c.Env, c.Dir, c.OpenStdin, c.Journal = x.Env, x.Dir, x.OpenStdin, e.journal
	c.Timeout, c.NoOutput, c.Grace = e.timeout, time.Duration(x.NoOutput), e.grace
	e.command = c
	if x.Keeps {
		e.keepText()
	}
	if d := x.done; d != nil {
		if e.command, e.pipes = nil, d.Pipes; x.forgotten {
			e.pipes = nil
		}
		e.exit, e.failure, e.endedAt, e.endOffset, e.shellDied = d.Exit, d.Failure, d.Uptime.time(d.At), d.End, d.Died
		if e.pipes == nil {
			e.journal = journal.NewLengthOnly(d.Exit.StdoutBytes, d.Exit.StderrBytes) // what never had one wrote nothing
		}
		if d.Exit.ExitCode != nil {
			e.code = *d.Exit.ExitCode
		}
		e.resultOutput.limit = &[2]int64{d.Exit.StdoutBytes, d.Exit.StderrBytes}
		if e.pipes != nil {
			if err := a.ReplayLog(e.journal, d.Pipes.Log, d.Span); err != nil { // it has ended; its session shall not
				s.log.Error().Err(err).Str("exec", e.ID()).Msg("output is lost")
				e.journal.Close()
			}
		}
		if s.pool.recordings.Unfinished(e.recording) {
			s.pool.recordings.Start(e.recordingSource()).Finish(e.endOffset, e.exit.ExitCode)
		}
		if !e.journal.Closed() {
			a.ReadOn(e.journal, e.pipes)
		}
		close(e.done)
		return false, nil
	}
	s.execs[e.ID()] = e
	if e.key != (keyRef{}) {
		s.pool.requestKeys.restore(s.owner, x.Key.newRequest(e.key), e, time.Time{})
	}
	if x.begun == nil {
		if len(x.Stdin) > 0 {
			a.RestoreStdin(c, x.Stdin)
		}
		return true, nil
	}
	e.startedAt, e.beganAt, e.pipes, e.begun, e.cancel = x.begun.At, x.begun.Uptime.time(x.begun.At), &x.begun.Command.Pipes, x.begun, x.cancel
	if err := a.ReplayLog(e.journal, x.begun.Command.Pipes.Log, x.begun.Command.Span); err != nil {
		return false, err
	}
	if err := a.Resume(c, x.begun.Command, e.beganAt); err != nil {
		return false, err
	}
	if e.recording != "" && !s.pool.recordings.HasEnded(e.recording) {
		e.recorder = s.pool.recordings.Start(e.recordingSource())
	}
	if x.cancel != nil {
		// The last gateway may not have come to send TERM, so some of the grace is left however late this one comes.
		grace := time.Duration(x.cancel.Grace)
		c.Cancel(syscall.SIGTERM, max(min(grace, minGraceOfNext), grace-elapsed(x.cancel.Uptime.time(x.cancel.At), time.Now())))
	}
	return true, nil
}

// minGraceOfNext is what a command that is being cancelled gets of its grace from a gateway that takes over.
const minGraceOfNext = time.Second

func (s *Session) reviveProcess(a *runtime.Adoption, x *loggedProcess, m *loggedSession) error {
	p := &Process{
		stream: x.Stream, session: s, name: x.Name, text: x.Text, journal: journal.New(s.pool.config.Load().RingBytes),
		timeout: time.Duration(x.Timeout), startedAt: x.Started, beganAt: x.Uptime.time(x.Started), pid: x.Process.Pid, done: make(chan struct{}), timedOut: x.expired,
	}
	x.process = p
	if x.Key.Key != "" {
		p.key = x.Key.ref(s)
		copy(p.params[:], x.Key.Params)
		s.pool.requestKeys.restore(s.owner, x.Key.newRequest(p.key), p, p.beganAt)
	}
	span := x.Process.Span
	if x.exited != nil {
		span = x.exited.Span
	}
	if x.forgotten {
		p.journal.Close()
	} else if err := a.ReplayLog(p.journal, x.Process.Pipes.Log, span); err != nil {
		return err
	}
	if d := x.exited; d != nil {
		p.status, p.timedOut, p.endedAt, p.endOffset = runtime.Status{Code: d.Code, Signal: d.Signal}, d.TimedOut, d.At, d.End
		p.process = a.EndedProcess(x.Process, p.status)
		if !p.journal.Closed() {
			a.ReadOn(p.journal, &x.Process.Pipes)
		}
		close(p.done)
		return nil
	}
	var err error
	p.process, err = a.Process(x.Process, p.journal)
	if errors.Is(err, runtime.ErrShellGone) { // killed with its session, whose last gateway did not come to write that down
		p.status, p.endedAt, p.endOffset = runtime.SignalStatus(syscall.SIGKILL), time.Now(), p.journal.Size()
		p.process = a.EndedProcess(x.Process, p.status)
		x.exited = p.exitedEntry()
		close(p.done)
		return nil
	}
	if err != nil || m.over != nil {
		return err
	}
	s.processes[p.ID()] = p
	s.liveProcesses++
	s.processTasks.Add(1)
	m.afterRecovery = append(m.afterRecovery, p.watch)
	return nil
}

func (s *Session) reviveTerminal(a *runtime.Adoption, x *loggedTerminal, m *loggedSession) error {
	t := newTerminal(s, x.Stream, x.Text, x.Nonce)
	t.startedAt, t.pid, t.recording = x.Uptime.time(x.Started), x.Terminal.Pid, x.Recording
	x.terminal = t
	if x.Key.Key != "" {
		t.key = x.Key.ref(s)
		copy(t.params[:], x.Key.Params)
		s.pool.requestKeys.restore(s.owner, x.Key.newRequest(t.key), t, x.Uptime.time(x.Started))
	}
	if x.forgotten {
		t.journal.Close()
	} else if err := a.ReplayLog(t.journal, x.Terminal.PTY.Log, x.span()); err != nil {
		return err
	}
	t.marks.Live()
	gone := x.closed
	if gone == nil {
		var err error
		t.terminal, err = a.Terminal(x.Terminal, t.journal)
		if errors.Is(err, runtime.ErrShellGone) { // killed with its session, as in reviveProcess
			gone = &closedEntry{Signal: syscall.SIGKILL, At: time.Now(), Span: t.journal.Span()}
			gone.ID = t.ID()
			x.closed = gone
		} else if err != nil || m.over != nil {
			return err
		}
	}
	if gone != nil {
		t.status, t.endedAt, t.cols, t.rows = runtime.Status{Code: gone.Code, Signal: gone.Signal}, gone.At, gone.Cols, gone.Rows
		t.screenState.resized(0, max(1, gone.Cols), max(1, gone.Rows))
		t.terminal = a.EndedTerminal(x.Terminal, t.status)
		t.journal.Close()
		if s.pool.recordings.Unfinished(t.recording) {
			s.pool.recordings.Start(t.recordingSource()).Finish(t.journal.Size(), t.exitInfo().ExitCode)
		}
		close(t.done)
		return nil
	}
	t.cols, t.rows = t.terminal.Size()
	t.screenState.resized(0, t.cols, t.rows)
	if t.recording != "" && !s.pool.recordings.HasEnded(t.recording) {
		t.recorder = s.pool.recordings.Start(t.recordingSource())
	}
	s.terminals[t.ID()] = t
	s.openTerminals++
	s.processTasks.Add(1)
	m.afterRecovery = append(m.afterRecovery, t.watch)
	return nil
}

// retainLogged keeps what has ended, in the order of the ends.
func (s *Session) retainLogged(a *runtime.Adoption, m *loggedSession) error {
	all := make([]endedWork, 0, len(m.ended)+len(m.execs))
	for _, x := range m.ended {
		if err := s.reviveEnded(a, x); err != nil {
			return fmt.Errorf("exec: %w", err)
		}
		if !x.forgotten {
			s.endedExecs[x.ID()] = x.endedExec
			all = append(all, x.endedExec)
		}
	}
	for _, x := range m.execs {
		if x.done == nil {
			continue
		}
		if x.exec.key != (keyRef{}) && x.exec.failure == nil {
			s.pool.requestKeys.restore(s.owner, x.Key.newRequest(x.exec.key), x.exec, x.exec.endedAt)
		}
		e := s.keepEndedLocked(x.exec)
		if x.forgotten {
			delete(s.endedExecs, e.ID())
			e.discard()
		} else {
			all = append(all, e)
		}
	}
	for _, x := range m.procs {
		switch {
		case x.exited == nil:
		case x.forgotten:
			x.process.discard()
		default:
			s.processes[x.process.ID()] = x.process
			all = append(all, x.process)
		}
	}
	for _, x := range m.terms {
		switch {
		case x.closed == nil:
		case x.forgotten:
			x.terminal.discard()
		default:
			s.terminals[x.terminal.ID()] = x.terminal
			all = append(all, x.terminal)
		}
	}
	for _, x := range m.tombstones {
		x.session = s
		if x.request != nil {
			s.pool.requestKeys.restore(s.owner, x.request, x, uptime(x.startUptime).time(fromNanos(x.startedAt)))
			s.tombstones = append(s.tombstones, x)
		}
	}
	slices.SortStableFunc(all, func(a, b endedWork) int { return a.endTime().Compare(b.endTime()) })
	for _, r := range all {
		s.retainLocked(r)
	}
	return nil
}

// reviveEnded makes a command that has ended, with what is kept of its output.
func (s *Session) reviveEnded(a *runtime.Adoption, x *loggedEnded) error {
	x.session = s
	if x.request != nil {
		s.pool.requestKeys.restore(s.owner, x.request, x.endedExec, x.endTime())
	}
	if x.forgotten {
		x.discard()
		return nil
	}
	if x.at == nil || x.at.Pipes == nil {
		return nil
	}
	e := x.toExec()
	e.journal = journal.New(s.pool.config.Load().RingBytes)
	if e.keepsText {
		e.tapText()
	}
	e.resultOutput.limit = &[2]int64{x.stdout, x.stderr}
	if err := a.ReplayLog(e.journal, x.at.Pipes.Log, x.at.Span); err != nil { // it has ended; its session shall not
		s.log.Error().Err(err).Str("exec", e.ID()).Msg("output is lost")
		e.journal.Close()
	}
	if s.pool.recordings.Unfinished(e.recording) {
		s.pool.recordings.Start(e.recordingSource()).Finish(e.endOffset, e.exit.ExitCode)
	}
	if !e.journal.Closed() {
		a.ReadOn(e.journal, x.at.Pipes)
	}
	x.output, x.pipes, x.resultOutput = e.journal, x.at.Pipes, e.resultOutput
	return nil
}
