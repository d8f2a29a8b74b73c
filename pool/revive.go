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
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
)

// A revivable is an *Exec, a *Process or a *Terminal that recovery makes anew.
type revivable interface {
	// restoreEnd takes from the log how it ended. Its output has not been replayed.
	restoreEnd(*loggedWork)
	// reviveEnded goes on with what may follow the end, and gives what is retained. Its output has been replayed.
	reviveEnded(*runtime.Adoption, *loggedWork) endedWork
	// reviveLive goes on with what runs or waits. Its output has been replayed. Of a process or a terminal it fails with ErrShellGone
	// where that was killed with its session, and the last gateway did not come to write that down.
	reviveLive(*runtime.Adoption, *loggedWork, *loggedSession) error
}

// reviveWork makes anew all that the session did, and retains what has ended in the order of the ends. running is the command that its
// shell is at; nil: none.
func (s *Session) reviveWork(a *runtime.Adoption, m *loggedSession) (running *Exec, err error) {
	var ended []endedWork
	for _, x := range m.ended {
		s.reviveShort(a, x)
		if !x.forgotten {
			s.endedExecs[x.ID()] = x.endedExec
			ended = append(ended, x.endedExec)
		}
	}
	for _, x := range m.work {
		kept, err := s.revive(a, x, m)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", x.request().Stream, err)
		}
		e, _ := x.made.(*Exec)
		switch {
		case kept != nil && x.forgotten:
			s.removeLocked(kept.ID())
			kept.discard()
		case kept != nil:
			ended = append(ended, kept)
		case e != nil && x.begun != nil && running == nil:
			running = e
		case e != nil:
			s.waiting.push(e)
		}
	}
	for _, x := range m.tombstones {
		x.session = s
		if x.request != nil {
			s.pool.requestKeys.Restore(s.owner, x.request, x, clock.Uptime(x.startUptime).Time(fromNanos(x.startedAt)))
			s.tombstones = append(s.tombstones, x)
		}
	}
	slices.SortStableFunc(ended, func(a, b endedWork) int { return a.endTime().Compare(b.endTime()) })
	for _, r := range ended {
		s.retainLocked(r)
	}
	return running, nil
}

// revive makes one exec, process or terminal anew. ended is nil where it has not ended.
func (s *Session) revive(a *runtime.Adoption, x *loggedWork, m *loggedSession) (ended endedWork, err error) {
	w := s.make(x)
	if x.hasEnded() {
		x.made.restoreEnd(x)
	}
	s.reviveKey(x, w)
	if log, span, kept := x.output(); !kept && x.kind() != 'x' {
		w.journal.Close()
	} else if kept {
		err = a.ReplayLog(w.journal, log, span)
	}
	if !x.hasEnded() {
		if err == nil {
			err = x.made.reviveLive(a, x, m)
		}
		if x.kind() == 'x' || !errors.Is(err, runtime.ErrShellGone) {
			return nil, err
		}
		x.killed(w)
		x.made.restoreEnd(x)
	} else if err != nil { // it has ended; its session shall not
		w.outputLost(err)
	}
	ended = x.made.reviveEnded(a, x)
	close(w.done)
	return ended, nil
}

// make makes x.made, which has neither output nor an end yet.
func (s *Session) make(x *loggedWork) *work {
	q, ring := x.request(), s.pool.config.Load().RingBytes
	w := work{stream: q.Stream, session: s, text: q.Text, done: make(chan struct{})}
	if q.Key.Key != "" {
		w.key = s.loggedKeyRef(q.Key)
		copy(w.params[:], q.Key.Params)
	}
	started := func(c *entry.Child) { w.startedAt, w.beganAt = c.Started, c.Uptime.Time(c.Started) }
	switch {
	case x.exec != nil:
		w.journal, w.recording = journal.New(ring), x.exec.Recording
		if b := x.begun; b != nil {
			w.startedAt, w.beganAt = b.At, b.Uptime.Time(b.At)
		}
		e := reviveExec(w, x)
		x.made = e
		return &e.work
	case x.process != nil:
		started(&x.process.Child)
		w.journal = journal.New(ring)
		q := &x.process.Process
		p := &Process{child: child{work: w, pid: q.Pid, lost: q.Lost, live: &s.liveProcesses}, name: x.process.Name, timeout: time.Duration(x.process.Timeout), timedOut: x.expired}
		x.made = p
		return &p.work
	}
	started(&x.terminal.Child)
	w.journal, w.recording = journal.New(termRings*ring), x.terminal.Recording
	t := newTerminal(w, x.terminal.Nonce)
	t.pid, t.lost = x.terminal.Terminal.Pid, x.terminal.Terminal.Lost
	x.made = t
	return &t.work
}

// reviveKey remembers the request_key: of a process or a terminal from its start, of an exec from its end. A command that never ran may run.
func (s *Session) reviveKey(x *loggedWork, w *work) {
	completed := w.beganAt
	if x.exec != nil {
		completed = w.endedAt
	}
	if w.key == (requestkey.Ref{}) || x.done != nil && x.done.Failure != nil {
		return
	}
	s.pool.requestKeys.Restore(s.owner, requestkey.New(w.key, w.params[:]), x.made, completed)
}

// killed gives x the end that the last gateway did not write down.
func (x *loggedWork) killed(w *work) {
	end := entry.ChildEnd{ID: w.ID(), Code: protocol.SignalExitCode(syscall.SIGKILL), Signal: syscall.SIGKILL, At: time.Now(), Span: w.journal.Span()}
	if x.process != nil {
		x.exited = &entry.Exited{ChildEnd: end, TimedOut: x.expired, End: w.journal.Size()}
	} else {
		x.closed = &entry.Closed{ChildEnd: end}
	}
}

// outputLost closes a journal that could not be replayed.
func (w *work) outputLost(err error) {
	w.session.log.Error().Err(err).Str("of", w.ID()).Msg("output is lost")
	w.journal.Close()
}

// reviveRecording ends the recording of what has ended, where the last gateway did not come to that.
func (w *work) reviveRecording(source func() recording.Source, code *int) {
	if r := w.session.pool.recordings; r.Unfinished(w.recording) {
		r.Start(source()).Finish(w.endOffset, code)
	}
}

func reviveExec(w work, x *loggedWork) *Exec {
	q := x.exec
	e := &Exec{
		work: w, clean: q.Clean, output: answer.New(q.Most), timeout: time.Duration(q.Timeout), grace: time.Duration(q.Grace),
		queuedAt: q.Queued, stdin: q.Stdin, accepted: true, guest: q.Guest,
	}
	c := runtime.NewCommand(q.Text)
	c.Env, c.Dir, c.OpenStdin, c.Journal = q.Env, q.Dir, q.OpenStdin, e.journal
	c.Timeout, c.NoOutput, c.Grace = e.timeout, time.Duration(q.NoOutput), e.grace
	e.command = c
	if q.Keeps {
		e.keepText()
	}
	return e
}

func (e *Exec) restoreEnd(x *loggedWork) {
	d := x.done
	if e.command, e.pipes = nil, d.Pipes; x.forgotten {
		e.pipes = nil
	}
	e.exit, e.failure, e.endedAt, e.endOffset, e.shellDied = d.Exit, d.Failure, d.Uptime.Time(d.At), d.End, d.Died
	if e.pipes == nil {
		e.journal = journal.NewLengthOnly(d.Exit.StdoutBytes, d.Exit.StderrBytes) // what never had one wrote nothing
	}
	if d.Exit.ExitCode != nil {
		e.code = *d.Exit.ExitCode
	}
	e.output.EndAt(d.Exit.StdoutBytes, d.Exit.StderrBytes)
}

func (e *Exec) reviveEnded(a *runtime.Adoption, _ *loggedWork) endedWork {
	e.readOn(a)
	e.output.Release()
	return e.session.keepEndedLocked(e)
}

// readOn goes on with what may follow a command's end: its recording, and what jobs write.
func (e *Exec) readOn(a *runtime.Adoption) {
	e.reviveRecording(e.recordingSource, e.exit.ExitCode)
	if !e.journal.Closed() {
		a.ReadOn(e.journal, e.pipes)
	}
}

func (e *Exec) reviveLive(a *runtime.Adoption, x *loggedWork, _ *loggedSession) error {
	e.session.execs[e.ID()] = e
	if x.begun == nil {
		if len(e.stdin) > 0 {
			a.RestoreStdin(e.command, e.stdin)
		}
		return nil
	}
	e.pipes, e.begun, e.cancel = &x.begun.Command.Pipes, x.begun, x.cancel
	if err := a.Resume(e.command, x.begun.Command, e.beganAt); err != nil {
		return err
	}
	e.record(e.recordingSource)
	if x.cancel != nil {
		// The last gateway may not have come to send TERM, so some of the grace is left however late this one comes.
		grace := time.Duration(x.cancel.Grace)
		e.command.Cancel(syscall.SIGTERM, max(min(grace, minGraceOfNext), grace-clock.Elapsed(x.cancel.Uptime.Time(x.cancel.At), time.Now())))
	}
	return nil
}

// minGraceOfNext is what a command that is being cancelled gets of its grace from a gateway that takes over.
const minGraceOfNext = time.Second

// reviveShort makes a command that has ended, with what is kept of its output, of the one entry that the log has.
func (s *Session) reviveShort(a *runtime.Adoption, x *loggedEnded) {
	x.session = s
	if x.request != nil {
		s.pool.requestKeys.Restore(s.owner, x.request, x.endedExec, x.endTime())
	}
	if x.forgotten {
		x.discard()
		return
	}
	if x.at == nil || x.at.Pipes == nil {
		return
	}
	e := x.toExec()
	e.journal, e.pipes = journal.New(s.pool.config.Load().RingBytes), x.at.Pipes
	if e.output.KeepsText {
		e.output.KeepText(e.journal)
	}
	e.output.EndAt(x.stdout, x.stderr)
	if err := a.ReplayLog(e.journal, x.at.Pipes.Log, x.at.Span); err != nil {
		e.outputLost(err)
	}
	e.readOn(a)
	x.journal, x.pipes, x.output = e.journal, e.pipes, e.output
}

func (p *Process) restoreEnd(x *loggedWork) {
	d := x.exited
	p.exit, p.timedOut, p.endedAt, p.endOffset = runtime.Status{Code: d.Code, Signal: d.Signal}, d.TimedOut, d.At, d.End
}

func (p *Process) reviveEnded(a *runtime.Adoption, x *loggedWork) endedWork {
	p.process = a.EndedProcess(x.process.Process, p.exit)
	if !p.journal.Closed() {
		a.ReadOn(p.journal, &x.process.Process.Pipes)
	}
	p.session.processes[p.ID()] = p
	return p
}

func (p *Process) reviveLive(a *runtime.Adoption, x *loggedWork, m *loggedSession) (err error) {
	p.process, err = a.Process(x.process.Process, p.journal)
	if err != nil || m.over != nil {
		return err
	}
	p.session.processes[p.ID()] = p
	p.goOnWatching(m, p.watch)
	return nil
}

// goOnWatching counts a process or a terminal that runs, and has it watched once all is made.
func (c *child) goOnWatching(m *loggedSession, watch func()) {
	*c.live++
	c.session.processTasks.Add(1)
	m.afterRecovery = append(m.afterRecovery, watch)
}

func (t *Terminal) restoreEnd(x *loggedWork) {
	d := x.closed
	t.exit, t.endedAt = runtime.Status{Code: d.Code, Signal: d.Signal}, d.At
	t.setSize(d.Cols, d.Rows)
}

func (t *Terminal) reviveEnded(a *runtime.Adoption, x *loggedWork) endedWork {
	t.marks.Live()
	t.terminal = a.EndedTerminal(x.terminal.Terminal, t.exit)
	t.journal.Close()
	t.endOffset = t.journal.Size()
	code, _ := t.exitCode()
	t.reviveRecording(t.recordingSource, &code)
	t.session.terminals[t.ID()] = t
	return t
}

func (t *Terminal) reviveLive(a *runtime.Adoption, x *loggedWork, m *loggedSession) (err error) {
	t.marks.Live()
	t.terminal, err = a.Terminal(x.terminal.Terminal, t.journal)
	if err != nil || m.over != nil {
		return err
	}
	t.setSize(t.terminal.Size())
	t.record(t.recordingSource)
	t.session.terminals[t.ID()] = t
	t.goOnWatching(m, t.watch)
	return nil
}
