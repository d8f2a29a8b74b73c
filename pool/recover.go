package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/statemachine"
)

// Recover brings back the sessions of a gateway that died, before Start and before anybody can ask. What was never given
// to anybody, warm shells and sessions that were just being made, ends.
func (p *Pool) Recover(from []runtime.Inherited) {
	p.recordings.load()
	for _, in := range from {
		a := p.base.Adopt(in)
		err := p.recover(a, in.ID)
		if err == nil {
			continue
		}
		if !errors.Is(err, errNothing) {
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
	p.mu.Lock() // some go on already, and may end
	slices.SortFunc(p.retained, func(a, b *Session) int { return a.burial.at.Compare(b.burial.at) })
	p.mu.Unlock()
	p.keys.sort()
}

// tetheredIdle is how long a session with on_disconnect: destroy, whose connection went with the last gateway, may rest.
const tetheredIdle = time.Minute

var errNothing = errors.New("nobody's")

func (p *Pool) recover(a *runtime.Adoption, id string) (err error) {
	defer func() { // whatever is written there, it is this session's misfortune alone
		if fault := recover(); fault != nil {
			err = fmt.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
	}()
	texts, err := a.Ledger()
	if err != nil {
		return err
	}
	m := remembered{id: id}
	for _, text := range texts {
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("ledger: %w", err)
		}
		m.read(&e)
	}
	if m.session == nil || m.shell == nil {
		return errNothing
	}
	if err := m.check(); err != nil {
		return err
	}
	return p.revive(a, &m)
}

// revive makes the session anew from what is remembered.
func (p *Pool) revive(a *runtime.Adoption, m *remembered) error {
	q := m.session
	s := newSession(p, m.id, q.Owner, q.Name, terms{
		shell: q.Shell, dir: q.Dir, env: q.Env, labels: q.Labels, timeout: time.Duration(q.Timeout), idle: time.Duration(q.Idle), restore: q.Restore, tethered: q.Tethered, limits: q.Limits, record: parseRecorded(q.Record),
	})
	s.tag, s.created, s.key, s.commands, s.last = q.Tag, q.Created, q.Key, q.Commands+m.begun, m.last
	s.dir, s.revived = cmp.Or(m.dir, s.dir), m.revived
	s.shellRecord.Store(m.shell)
	m.want(a)
	config := runtime.ShellConfig{ID: m.id, Path: q.Shell, Restore: q.Restore, Limits: q.Limits}
	var err error
	switch {
	case m.over != nil || m.ending != nil && !a.Whole(*m.shell): // the latter's end had come further than was written: what is left ends below
		config.Dir = m.shell.Dir
		s.shell = a.Remains(config)
	case m.reset: // the runner goes on with it
		s.shell, err = a.Vacant(config, *m.shell)
		s.resetting++
	default:
		s.shell, err = a.Shell(config, *m.shell)
	}
	if err != nil {
		return err
	}
	s.ledger = s.shell.Ledger()
	if s.terms.tethered { // to a connection that is no more: its client has a while to come back
		s.terms.idle = tetheredIdle
	}
	running, err := s.reviveWork(a, m)
	if err != nil {
		return err
	}
	s.retainRemembered(m)
	close(s.opened)
	p.adopt(s, m)
	if m.over != nil {
		a.Finish()
		return nil
	}
	s.goOn(a, m, running)
	return nil
}

// reviveWork makes anew all that the session did. running is the command that its shell is at; nil: none.
func (s *Session) reviveWork(a *runtime.Adoption, m *remembered) (running *Exec, err error) {
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

// goOn lets a session that is whole again go on where it was.
func (s *Session) goOn(a *runtime.Adoption, m *remembered, running *Exec) {
	s.shell.SetRecorder(s.recordShell)
	s.dismissGuests() // a link's end may be written down, and not what it brought about
	s.mu.Lock()
	s.fireLocked(statemachine.Ready, "")
	if running != nil {
		s.running = running
		s.fireLocked(statemachine.Began, "")
	} else if next := s.nextLocked(); next != nil {
		s.turn <- next
	}
	s.mu.Unlock()
	a.Finish()
	for _, watch := range m.watches { // not before: they use what was written here without a lock
		go watch() // as in startProcess and openTerminal
	}
	s.pool.tasks.Add(1) // the runner, as in register
	go func() {
		defer s.pool.tasks.Done()
		for e := running; e != nil; { // before serve looks at anything else: a dead shell is this command's to replace
			e = s.finish(e, s.shell.Run(e.command))
		}
		if m.reset {
			_ = s.reset() // who asked for it is gone; it ends the session where it fails
		}
		s.serve()
		s.bury()
	}()
	if m.ending != nil {
		s.end(m.ending.Reason, time.Duration(m.ending.Grace))
	}
}

// adopt enters the session into the tables.
func (p *Pool) adopt(s *Session, m *remembered) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions[s.id], p.tags[s.tag] = s, s
	if other := p.names[nameRef{s.owner, s.name}]; s.name != "" && (other == nil || other.closed) {
		p.names[nameRef{s.owner, s.name}] = s
	}
	if s.key.Key != "" {
		p.keys.restore(keyRef{who: s.owner, key: s.key.Key}, s.key.Params, s, s.created)
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
	s.burial = burial{at: m.over.At, facts: facts{dir: m.over.Dir, envs: m.over.Envs}, held: s.records.weight}
	s.closed = true
	_, _, _ = s.state.Fire(statemachine.Ended)
	s.mu.Unlock()
	close(s.ended)
	p.buriedLocked(s, true)
}

// reviveExec makes an exec anew; live: it has not ended.
func (s *Session) reviveExec(a *runtime.Adoption, x *rememberedExec) (live bool, err error) {
	e := &Exec{
		stream: x.Stream, session: s, text: x.Text, clean: x.Clean, most: x.Most, timeout: time.Duration(x.Timeout), grace: time.Duration(x.Grace),
		journal: journal.New(s.pool.rules.Load().RingBytes), queuedAt: x.Queued, stdin: x.Stdin, done: make(chan struct{}),
		recording: x.Recording, accepted: true, guest: x.Guest,
	}
	x.exec = e
	if x.Key.Key != "" {
		e.key = x.Key.ref(s)
		copy(e.params[:], x.Key.Params)
	}
	c := runtime.NewCommand(x.Text)
	c.Env, c.Dir, c.OpenStdin, c.Journal = x.Env, x.Dir, x.OpenStdin, e.journal
	c.Timeout, c.NoOutput, c.Grace, c.Began, c.Nudged = e.timeout, time.Duration(x.NoOutput), e.grace, e.begins, s.tidyNow
	e.command = c
	if x.Keeps {
		e.keepText()
	}
	if d := x.done; d != nil {
		e.command, e.husk, e.lane = nil, d.Husk, d.Lane
		e.exit, e.failure, e.endedAt, e.end, e.died = d.Exit, d.Failure, d.At, d.End, d.Died
		if d.Lane == nil {
			e.journal = journal.Gone(d.Exit.StdoutBytes, d.Exit.StderrBytes) // what never had one wrote nothing
		}
		if d.Exit.ExitCode != nil {
			e.code = *d.Exit.ExitCode
		}
		e.ends.limit = &[2]int64{d.Exit.StdoutBytes, d.Exit.StderrBytes}
		if d.Lane != nil {
			if err := a.Bring(e.journal, d.Lane.Log, d.Span); err != nil { // it has ended; its session shall not
				s.log.Error().Err(err).Str("exec", e.ID()).Msg("output is lost")
				e.journal.Close()
			}
		}
		if s.pool.recordings.unfinished(e.recording) {
			s.pool.recordings.follow(e.subject()).end(e.end, e.exit.ExitCode)
		}
		if !e.journal.Closed() {
			a.Follow(e.journal, d.Lane)
		}
		close(e.done)
		return false, nil
	}
	s.execs[e.ID()] = e
	if e.key != (keyRef{}) {
		s.pool.keys.restore(e.key, x.Key.Params, e, time.Time{})
	}
	if x.begun == nil {
		if len(x.Stdin) > 0 {
			a.Furnished(c, x.Stdin)
		}
		return true, nil
	}
	e.startedAt, e.lane, e.begun, e.cancel = x.begun.At, &x.begun.Command.Lane, x.begun, x.cancel
	if err := a.Bring(e.journal, x.begun.Command.Lane.Log, x.begun.Command.Span); err != nil {
		return false, err
	}
	if err := a.Resuming(c, x.begun.Command, x.begun.At); err != nil {
		return false, err
	}
	if e.recording != "" && !s.pool.recordings.hasEnded(e.recording) {
		e.recorder = s.pool.recordings.follow(e.subject())
	}
	if x.cancel != nil {
		c.Cancel(syscall.SIGTERM, max(0, time.Duration(x.cancel.Grace)-time.Since(x.cancel.At)))
	}
	return true, nil
}

func (s *Session) reviveProcess(a *runtime.Adoption, x *rememberedProcess, m *remembered) error {
	p := &Process{
		stream: x.Stream, session: s, name: x.Name, text: x.Text, journal: journal.New(s.pool.rules.Load().RingBytes),
		timeout: time.Duration(x.Timeout), startedAt: x.Started, pid: x.Process.Pid, done: make(chan struct{}), timedOut: x.expired,
	}
	x.process = p
	if x.Key.Key != "" {
		p.key = x.Key.ref(s)
		copy(p.params[:], x.Key.Params)
		done := x.Started
		s.pool.keys.restore(p.key, x.Key.Params, p, done)
	}
	span := x.Process.Span
	if x.exited != nil {
		span = x.exited.Span
	}
	husk := x.exited != nil && x.exited.Husk
	if husk {
		p.journal.Close()
	} else if err := a.Bring(p.journal, x.Process.Lane.Log, span); err != nil {
		return err
	}
	if d := x.exited; d != nil {
		p.status, p.timedOut, p.endedAt, p.end = runtime.Status{Code: d.Code, Signal: d.Signal}, d.TimedOut, d.At, d.End
		p.process = a.Ended(x.Process, p.status)
		if !p.journal.Closed() {
			a.Follow(p.journal, &x.Process.Lane)
		}
		close(p.done)
		return nil
	}
	var err error
	p.process, err = a.Process(x.Process, p.journal)
	if errors.Is(err, runtime.ErrShellGone) { // killed with its session, whose last gateway did not come to write that down
		p.status, p.endedAt, p.end = runtime.Status{Code: 128 + int(syscall.SIGKILL), Signal: syscall.SIGKILL}, time.Now(), p.journal.Size()
		p.process = a.Ended(x.Process, p.status)
		x.exited = p.exitedEntry()
		close(p.done)
		return nil
	}
	if err != nil || m.over != nil {
		return err
	}
	s.processes[p.ID()] = p
	s.working++
	s.watching.Add(1)
	m.watches = append(m.watches, p.watch)
	return nil
}

func (s *Session) reviveTerminal(a *runtime.Adoption, x *rememberedTerminal, m *remembered) error {
	t := newTerminal(s, x.Stream, x.Text, x.Nonce)
	t.startedAt, t.pid, t.recording = x.Started, x.Terminal.Pid, x.Recording
	x.terminal = t
	if x.Key.Key != "" {
		t.key = x.Key.ref(s)
		copy(t.params[:], x.Key.Params)
		s.pool.keys.restore(t.key, x.Key.Params, t, x.Started)
	}
	if x.closed != nil && x.closed.Husk {
		t.journal.Close()
	} else if err := a.Bring(t.journal, x.Terminal.Line.Log, x.span()); err != nil {
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
		t.shown.resized(0, max(1, gone.Cols), max(1, gone.Rows))
		t.terminal = a.GoneTerminal(x.Terminal, t.status)
		t.journal.Close()
		if s.pool.recordings.unfinished(t.recording) {
			s.pool.recordings.follow(t.subject()).end(t.journal.Size(), t.exitInfo().ExitCode)
		}
		close(t.done)
		return nil
	}
	t.cols, t.rows = t.terminal.Size()
	t.shown.resized(0, t.cols, t.rows)
	if t.recording != "" && !s.pool.recordings.hasEnded(t.recording) {
		t.recorder = s.pool.recordings.follow(t.subject())
	}
	s.terminals[t.ID()] = t
	s.termsOpen++
	s.watching.Add(1)
	m.watches = append(m.watches, t.watch)
	return nil
}

// retainRemembered keeps what has ended, in the order of the ends.
func (s *Session) retainRemembered(m *remembered) {
	type done struct {
		at     time.Time
		record record
	}
	var all []done
	for _, x := range m.execs {
		if x.done == nil {
			continue
		}
		if x.exec.husk {
			s.husks = append(s.husks, x.exec)
		} else {
			all = append(all, done{x.done.At, x.exec})
		}
		if x.exec.key != (keyRef{}) && x.exec.failure == nil {
			s.pool.keys.restore(x.exec.key, x.Key.Params, x.exec, x.done.At)
		}
	}
	for _, x := range m.procs {
		switch {
		case x.exited == nil:
		case x.exited.Husk:
			s.huskProcesses = append(s.huskProcesses, x.process)
		default:
			all = append(all, done{x.exited.At, x.process})
		}
	}
	for _, x := range m.terms {
		switch {
		case x.closed == nil:
		case x.closed.Husk:
			s.huskTerminals = append(s.huskTerminals, x.terminal)
		default:
			all = append(all, done{x.closed.At, x.terminal})
		}
	}
	slices.SortStableFunc(all, func(a, b done) int { return a.at.Compare(b.at) })
	for _, d := range all {
		switch r := d.record.(type) {
		case *Exec:
			s.execs[r.ID()] = r
		case *Process:
			s.processes[r.ID()] = r
		case *Terminal:
			s.terminals[r.ID()] = r
		}
		s.retainLocked(d.record)
	}
}
