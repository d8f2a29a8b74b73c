package pool

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"trl/pool/answer"
	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/retained"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/shell"
)

// recovered is a session that is being restored.
type recovered struct {
	entry.Log
	id    string
	watch []func() // for goroutines of their own, once all of the session is restored
}

// A revivable is an *Exec, a *Process or a *Terminal that is being restored.
type revivable interface {
	// restoreEnd takes from the log how it ended. Its output is not replayed yet.
	restoreEnd(*entry.LoggedWork)
	// reviveEnded continues what may follow the end, and returns the retained form. Its output is replayed.
	reviveEnded(*shell.Adoption, *entry.LoggedWork) retained.Work
	// reviveLive continues running or waiting work. Its output is replayed. It fails with ErrShellGone for a process or terminal that was
	// killed with its session before the last gateway could write that down.
	reviveLive(*shell.Adoption, *entry.LoggedWork, *recovered) error
}

// reviveWork restores all work of the session, and retains what has ended in the order of the ends. running is the running command; nil: none.
func (s *Session) reviveWork(a *shell.Adoption, m *recovered) (running *Exec, err error) {
	var ended []retained.Work
	for _, x := range m.Ended {
		s.reviveEndedExec(a, x)
		if !x.Forgotten {
			ended = append(ended, s.endedExecs[x.ID()])
		}
	}
	for _, x := range m.Work {
		made, kept, err := s.revive(a, x, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.Request().Stream, err)
		}
		e, _ := made.(*Exec)
		switch {
		case kept != nil && x.Forgotten:
			s.removeLocked(kept.ID())
			kept.Discard()
		case kept != nil:
			ended = append(ended, kept)
		case e != nil && x.Begun != nil && running == nil:
			running = e
		case e != nil:
			s.waiting.Push(e, 0)
		}
	}
	for _, x := range m.Tombstones {
		if x.Request != nil {
			kept := &childTombstone{ChildTombstone: *x, session: s}
			s.pool.requestKeys.Restore(s.owner, x.Request, kept, x.StartTime())
			s.tombstones = append(s.tombstones, kept)
		}
	}
	slices.SortStableFunc(ended, func(a, b retained.Work) int { return a.EndTime().Compare(b.EndTime()) })
	for _, r := range ended {
		s.retainLocked(r)
	}
	return running, nil
}

// revive restores one exec, process or terminal. ended is nil if it has not ended.
func (s *Session) revive(a *shell.Adoption, x *entry.LoggedWork, m *recovered) (made revivable, ended retained.Work, err error) {
	made, w := s.make(x)
	if x.HasEnded() {
		made.restoreEnd(x)
	}
	s.reviveKey(x, made, w)
	if log, span, kept := x.Output(); !kept && x.Kind() != 'x' {
		w.journal.Close()
	} else if kept {
		err = a.Replay(w.journal, log, span)
	}
	if !x.HasEnded() {
		if err == nil {
			err = made.reviveLive(a, x, m)
		}
		if x.Kind() == 'x' || !errors.Is(err, shell.ErrShellGone) {
			return made, nil, err
		}
		x.SetKilled(w.ID(), w.journal.Span(), w.journal.Size())
		made.restoreEnd(x)
	} else if err != nil { // the output of ended work is lost, and its session is not
		w.outputLost(err)
	}
	ended = made.reviveEnded(a, x)
	close(w.done)
	return made, ended, nil
}

// make makes the work of x, which has neither output nor an end yet.
func (s *Session) make(x *entry.LoggedWork) (revivable, *work) {
	q, ring := x.Request(), s.pool.config.Load().RingBytes
	w := work{stream: q.Stream, session: s, text: q.Text, done: make(chan struct{})}
	if q.Key.Key != "" {
		w.key = s.loggedKeyRef(q.Key)
		copy(w.params[:], q.Key.Params)
	}
	started := func(c *entry.Child) { w.startedAt, w.beganAt = c.Started, c.Uptime.Time(c.Started) }
	switch {
	case x.Exec != nil:
		w.journal, w.recording = journal.New(ring), x.Exec.Recording
		if b := x.Begun; b != nil {
			w.startedAt, w.beganAt = b.At, b.Uptime.Time(b.At)
		}
		e := reviveExec(w, x)
		return e, &e.work
	case x.Process != nil:
		started(&x.Process.Child)
		w.journal = journal.New(ring)
		q := &x.Process.Process
		p := &Process{child: child{work: w, pid: q.Pid, lost: q.Lost, live: &s.liveProcesses}, name: x.Process.Name, timeout: time.Duration(x.Process.Timeout), timedOut: x.Expired}
		return p, &p.work
	}
	started(&x.Terminal.Child)
	w.journal, w.recording = journal.New(termRings*ring), x.Terminal.Recording
	t := newTerminal(w, x.Terminal.Nonce)
	t.pid, t.lost = x.Terminal.Terminal.Pid, x.Terminal.Terminal.Lost
	return t, &t.work
}

// reviveKey remembers the request_key: of a process or terminal from its start, of an exec from its end. A command that never ran may run again.
func (s *Session) reviveKey(x *entry.LoggedWork, made revivable, w *work) {
	completed := w.beganAt
	if x.Exec != nil {
		completed = w.endedAt
	}
	if w.key == (requestkey.Ref{}) || x.Done != nil && x.Done.Failure != nil {
		return
	}
	s.pool.requestKeys.Restore(s.owner, requestkey.New(w.key, w.params[:]), made, completed)
}

// outputLost closes a journal that could not be replayed.
func (w *work) outputLost(err error) {
	w.session.log.Error().Err(err).Str("of", w.ID()).Msg("output is lost")
	w.journal.Close()
}

// reviveRecording ends the recording of ended work, if the last gateway did not.
func (w *work) reviveRecording(source func() recording.Source, code *int) {
	if r := w.session.pool.recordings; r.Unfinished(w.recording) {
		r.Start(source()).Finish(w.endOffset, code)
	}
}

func reviveExec(w work, x *entry.LoggedWork) *Exec {
	q := x.Exec
	e := &Exec{
		work: w, clean: q.Clean, output: answer.New(q.Most), timeout: time.Duration(q.Timeout), grace: time.Duration(q.Grace),
		queuedAt: q.Queued, stdin: q.Stdin, accepted: true, guest: q.Guest,
	}
	c := shell.NewCommand(q.Text)
	c.Env, c.Dir, c.OpenStdin, c.Journal = q.Env, q.Dir, q.OpenStdin, e.journal
	c.Timeout, c.NoOutput, c.Grace = e.timeout, time.Duration(q.NoOutput), e.grace
	e.command = c
	if q.Keeps {
		e.keepText()
	}
	return e
}

func (e *Exec) restoreEnd(x *entry.LoggedWork) {
	d := x.Done
	if e.command, e.pipes = nil, d.Pipes; x.Forgotten {
		e.pipes = nil
	}
	e.exit, e.failure, e.endedAt, e.endOffset, e.shellDied = d.Exit, d.Failure, d.Uptime.Time(d.At), d.End, d.Died
	if e.pipes == nil {
		e.journal = journal.NewLengthOnly(d.Exit.StdoutBytes, d.Exit.StderrBytes) // without pipes it wrote nothing
	}
	if d.Exit.ExitCode != nil {
		e.code = *d.Exit.ExitCode
	}
	e.output.EndAt(d.Exit.StdoutBytes, d.Exit.StderrBytes)
}

func (e *Exec) reviveEnded(a *shell.Adoption, _ *entry.LoggedWork) retained.Work {
	e.readOn(a)
	e.output.Release()
	return e.session.keepEndedLocked(e)
}

// readOn continues what may follow a command's end: its recording, and the output of jobs.
func (e *Exec) readOn(a *shell.Adoption) {
	e.reviveRecording(e.recordingSource, e.exit.ExitCode)
	if !e.journal.Closed() {
		a.ReadOn(e.journal, e.pipes)
	}
}

func (e *Exec) reviveLive(a *shell.Adoption, x *entry.LoggedWork, _ *recovered) error {
	e.session.execs[e.ID()] = e
	if x.Begun == nil {
		if len(e.stdin) > 0 {
			a.RestoreStdin(e.command, e.stdin)
		}
		return nil
	}
	e.pipes, e.begun, e.cancel = &x.Begun.Command.Pipes, x.Begun, x.Cancel
	if err := a.Resume(e.command, x.Begun.Command, e.beganAt); err != nil {
		return err
	}
	e.record(e.recordingSource)
	if x.Cancel != nil {
		// The last gateway may not have sent TERM, so some of the grace is left however late it is.
		grace := time.Duration(x.Cancel.Grace)
		e.command.Cancel(syscall.SIGTERM, max(min(grace, minGraceOfNext), grace-clock.Elapsed(x.Cancel.Uptime.Time(x.Cancel.At), time.Now())))
	}
	return nil
}

// minGraceOfNext is the grace that a command which is being cancelled gets at least from a gateway that takes over.
const minGraceOfNext = time.Second

// reviveEndedExec restores a command that has one binary entry, with what is kept of its output.
func (s *Session) reviveEndedExec(a *shell.Adoption, logged *entry.LoggedEnd) {
	x := &endedExec{EndedExec: *logged.EndedExec, session: s}
	if x.Request != nil {
		s.pool.requestKeys.Restore(s.owner, x.Request, x, x.EndTime())
	}
	if logged.Forgotten {
		x.Discard()
		return
	}
	s.endedExecs[x.ID()] = x
	if logged.At == nil || logged.At.Pipes == nil {
		return
	}
	e := x.toExec()
	e.journal, e.pipes = journal.New(s.pool.config.Load().RingBytes), logged.At.Pipes
	if e.output.KeepsText {
		e.output.KeepText(e.journal)
	}
	e.output.EndAt(x.Stdout, x.Stderr)
	if err := a.Replay(e.journal, logged.At.Pipes.Log, logged.At.Span); err != nil {
		e.outputLost(err)
	}
	e.readOn(a)
	x.journal, x.pipes, x.output = e.journal, e.pipes, e.output
}

func (p *Process) restoreEnd(x *entry.LoggedWork) {
	d := x.Exited
	p.exit, p.timedOut, p.endedAt, p.endOffset = own.Status{Code: d.Code, Signal: d.Signal}, d.TimedOut, d.At, d.End
}

func (p *Process) reviveEnded(a *shell.Adoption, x *entry.LoggedWork) retained.Work {
	p.process = a.EndedProcess(x.Process.Process, p.exit)
	if !p.journal.Closed() {
		a.ReadOn(p.journal, &x.Process.Process.Pipes)
	}
	p.session.processes[p.ID()] = p
	return p
}

func (p *Process) reviveLive(a *shell.Adoption, x *entry.LoggedWork, m *recovered) (err error) {
	p.process, err = a.Process(x.Process.Process, p.journal)
	if err != nil || m.Over != nil {
		return err
	}
	p.session.processes[p.ID()] = p
	p.goOnWatching(m, p.watch)
	return nil
}

// goOnWatching counts a running process or terminal. It is watched once all of the session is restored.
func (c *child) goOnWatching(m *recovered, watch func()) {
	*c.live++
	c.session.processTasks.Add(1)
	m.watch = append(m.watch, watch)
}

func (t *Terminal) restoreEnd(x *entry.LoggedWork) {
	d := x.Closed
	t.exit, t.endedAt = own.Status{Code: d.Code, Signal: d.Signal}, d.At
	t.setSize(d.Cols, d.Rows)
}

func (t *Terminal) reviveEnded(a *shell.Adoption, x *entry.LoggedWork) retained.Work {
	t.marks.Live()
	t.terminal = a.EndedTerminal(x.Terminal.Terminal, t.exit)
	t.journal.Close()
	t.endOffset = t.journal.Size()
	code, _ := t.exitCode()
	t.reviveRecording(t.recordingSource, &code)
	t.session.terminals[t.ID()] = t
	return t
}

func (t *Terminal) reviveLive(a *shell.Adoption, x *entry.LoggedWork, m *recovered) (err error) {
	t.marks.Live()
	t.terminal, err = a.Terminal(x.Terminal.Terminal, t.journal)
	if err != nil || m.Over != nil {
		return err
	}
	t.setSize(t.terminal.Size())
	t.record(t.recordingSource)
	t.session.terminals[t.ID()] = t
	t.goOnWatching(m, t.watch)
	return nil
}
