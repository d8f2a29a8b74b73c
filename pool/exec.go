package pool

import (
	"context"
	"syscall"
	"time"

	"trl/metrics"
	"trl/pool/answer"
	"trl/pool/clock"
	"trl/pool/command"
	"trl/pool/ends"
	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/outcome"
	"trl/pool/queue"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/pool/timeouts"
	"trl/protocol"
	"trl/runtime/shell"
	"trl/runtime/stream"
)

// defaultOutput is max_output_bytes of a request without it.
const defaultOutput = 1 << 20

// Exec is one foreground command: waiting, running or ended.
//
// Its life: newExec makes it. enqueue makes its stdin at the keeper, writes it down as accepted if a client is told of it before it begins, and
// gives it the turn or a place in the queue. The runner runs it (Session.runExecs): Shell.Run writes it down as begun before it sends the command
// to the shell, and returns when the command has ended. finishExec writes down the end, retains the command and tells its clients. A command
// that is taken out of the queue ends in endQueued.
type Exec struct {
	work

	// set once in newExec
	clean    bool
	timeout  time.Duration
	grace    time.Duration
	guest    string // id of the share link by which it came; "": the owner sent it
	queuedAt time.Time

	// in the session log
	accepted bool               // the request is written; set by the runner, or under session.mu
	stdin    []stream.HeldFile  // its stdin at the keeper; set once before it is accepted
	pipes    *stream.SavedPipes // its output pipes; owned by the runner, set once when it begins
	begun    *entry.Begun       // as last written; owned by the runner; nil: it does not run
	cancel   *entry.Cancel      // guarded by session.mu; as last written; nil: it is not being cancelled

	command *shell.Command // guarded by session.mu; nil after the end

	// set before done is closed, read after
	exit        protocol.ExecExit
	code        int             // what exit.ExitCode points to
	failure     *protocol.Error // why it never ran
	shellDied   bool            // the shell died with it
	isTombstone bool            // only its request_key is remembered; its text and output are not kept

	output *answer.Output // set once
}

// Exec queues a command for exec.run, or gives it the turn at once.
func (s *Session) Exec(q *protocol.Exec) (*Exec, error) { return s.submit("exec.run", q, nil) }

// Stream is Exec for exec.stream: its answers have only what the journal still holds.
func (s *Session) Stream(q *protocol.Exec) (*Exec, error) { return s.submit("exec.stream", q, nil) }

// submit accepts a command. by is the guest's share link, nil for the owner.
func (s *Session) submit(method string, q *protocol.Exec, by *Share) (*Exec, error) {
	if err := shells.CheckEnv(q.Env, s.pool.config.Load().AllowEnv); err != nil {
		return nil, err
	}
	if q.RequestKey == "" { // most commands: nothing is copied
		return s.enqueue(method, q, request{by: by})
	}
	same := *q
	same.SessionRef, same.WindowBytes = protocol.SessionRef{}, 0 // the session is known, whether it was given by id or by name; the window is the connection's
	return startOnce(context.Background(), s, method, q.RequestKey, q.SessionRef, &same, by, func(_ context.Context, r request) (*Exec, error) {
		return s.enqueue(method, q, r)
	})
}

// enqueue gives a command the turn, or a place in the queue. An idle session gets the command by one send, which cannot block, under one lock.
func (s *Session) enqueue(method string, q *protocol.Exec, r request) (e *Exec, err error) {
	e, err = s.newExec(q, r)
	if err != nil {
		return nil, err
	}
	made := e
	defer func() {
		if err != nil {
			made.command.Discard()
		}
	}()
	if method == "exec.run" {
		e.keepText()
	}
	if err := s.makeStdin(e); err != nil {
		return nil, err
	}
	size := queue.SizeOf(q)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := e.makeStdin(s.shell); err != nil { // does nothing unless the shell came meanwhile
		return nil, err
	}
	switch {
	case s.ending != nil:
		return nil, s.errEndedLocked()
	case r.by != nil && r.by.IsOver():
		return nil, faults.ShareOver()
	case s.isIdleLocked():
		if method != "exec.run" || r.key != (requestkey.Ref{}) || e.stdin != nil { // else no client is told of it before it begins, and Begun writes both entries
			s.logAccepted(e, nil)
		}
		s.beginLocked(e, e.queuedAt)
		s.turn <- e
	case q.WhenBusy == "reject":
		return nil, s.errBusyLocked("session is busy")
	case !s.waiting.HasRoom(size):
		return nil, s.errBusyLocked("session's queue is full")
	default:
		s.logAccepted(e, nil)
		s.waiting.Push(e, size)
	}
	s.execs[e.ID()] = e
	s.touchLocked(e.queuedAt)
	return e, nil
}

// makeStdin makes the stdin of a command that has one, before its client is told that it was accepted. If the session has no shell yet, openShell
// makes it.
func (s *Session) makeStdin(e *Exec) error {
	s.mu.Lock()
	shell := s.shell
	s.mu.Unlock()
	return e.makeStdin(shell)
}

// makeStdin is called with s.mu held if the shell came after e, which must not be accepted meanwhile.
func (e *Exec) makeStdin(shell *shell.Shell) (err error) {
	if shell == nil || e.stdin != nil {
		return nil
	}
	if e.stdin, err = shell.MakeStdin(e.command); err != nil {
		return shells.Fault(err, "")
	}
	return nil
}

// isIdleLocked reports whether the next command gets the turn at once. No command waits then, because waiting ones get it first. s.mu is held.
func (s *Session) isIdleLocked() bool {
	return s.shell != nil && s.running == nil && s.resetting == 0 && s.ending == nil
}

func (s *Session) errBusyLocked(why string) error {
	e := protocol.Errorf(protocol.SessionBusy, "%s", why).With("queue_length", s.waiting.Len())
	if s.running != nil {
		e = e.With("exec_id", s.running.ID())
	}
	return e
}

func (s *Session) newExec(q *protocol.Exec, asks request) (*Exec, error) {
	p, r := s.pool, s.pool.config.Load()
	if err := p.recordings.CheckPossible(q.Record); err != nil {
		return nil, err
	}
	e := &Exec{
		work: s.newWork('x', q.Command, r.RingBytes, asks), clean: q.Clean,
		output:  answer.New(defaultOutput),
		timeout: s.settings.Load().Timeout, grace: timeouts.Grace(q.KillGrace),
		queuedAt: time.Now(),
	}
	if asks.by != nil {
		e.guest = asks.by.ID()
	}
	if q.Record || s.recordSet()&recording.Execs != 0 {
		e.recording = s.newRecordingID()
	}
	if q.MaxOutputBytes != nil {
		e.output.Max = int(min(*q.MaxOutputBytes, int64(r.MaxOutput)))
	}
	if q.Timeout != nil {
		e.timeout = q.Timeout.Duration()
	}
	e.timeout = timeouts.Command(e.timeout, r.MaxTimeout)
	var err error
	e.command, err = command.New(q, e.journal, e.timeout, e.grace)
	return e, err
}

// keepText keeps the output for the answers of exec.run.
func (e *Exec) keepText() {
	e.output.KeepText(e.journal)
	e.output.CountOn(&e.session.pool.outputBudget, e.session.owner)
	e.command.Head, e.command.Tail = int64(e.output.Max/2), int64(e.output.Max-e.output.Max/2) // as journal.HeadTail does
}

// setOutcome stores the outcome of a run in the form that clients get. s.mu is held.
func (e *Exec) setOutcome(out shell.Outcome, now time.Time, ending bool) {
	unrun := outcome.IsUnrun(&out)
	if unrun {
		e.journal.Close()
	}
	e.setEndLocked(now)
	if r := e.session.revived; r != nil && !unrun { // e is the first command with a result since the shell was replaced
		e.session.revived = nil
		out.Restored, out.Lost = true, shell.Union(r.Lost, out.Lost)
	}
	e.shellDied = out.Died
	outcome.Put(&e.exit, &out, &e.code, e.session.pool.base.Keeper.Gone)
	switch {
	case unrun && (ending || out.Cancelled):
		e.cancelledLocked(syscall.SIGTERM)
	case unrun:
		e.failLocked(shells.CommandFault(out.Err))
	}
}

// setEndLocked stores what all ends have in common. s.mu is held.
func (e *Exec) setEndLocked(now time.Time) {
	e.endedAt = now
	stdout, stderr := e.output.End()
	if !e.output.KeepsText {
		stdout, stderr = e.journal.Totals()
	}
	e.endOffset = stdout + stderr
	e.recorder.SetEnd(e.endOffset)
	began := e.startedAt
	if began.IsZero() {
		began = now
	}
	e.exit = protocol.ExecExit{
		ExecID: e.ID(), SessionID: e.session.id, StreamID: e.stream, StdoutBytes: stdout, StderrBytes: stderr,
		QueuedMS: clock.Elapsed(e.queuedAt, began).Milliseconds(), TimeoutS: protocol.Seconds(e.timeout.Seconds()), WorkingDir: e.session.dir,
	}
}

func (e *Exec) cancelledLocked(sig syscall.Signal) {
	e.code = protocol.SignalExitCode(sig)
	e.exit.Cancelled, e.exit.ExitCode, e.exit.Signal = true, &e.code, protocol.SignalName(sig)
}

func (e *Exec) failLocked(fault *protocol.Error) { e.failure, e.exit.Error = fault, fault }

// cancelQueued ends a waiting command as cancelled. The caller has taken it out of the queue.
func (e *Exec) cancelQueued(sig syscall.Signal) { e.endQueued(func() { e.cancelledLocked(sig) }) }

// failQueued ends a waiting command with an error. The caller has taken it out of the queue.
func (e *Exec) failQueued(fault *protocol.Error) { e.endQueued(func() { e.failLocked(fault) }) }

func (e *Exec) endQueued(how func()) {
	s := e.session
	e.journal.Close()
	now := time.Now()
	s.mu.Lock()
	e.setEndLocked(now)
	how()
	e.command.Discard()
	e.command = nil
	s.appendLog(entry.Entry{Done: e.doneEntry()})
	s.retainExecLocked(e)
	s.mu.Unlock()
	e.countEnd()
	e.wakeWaiters()
}

// wakeWaiters wakes all that wait for the end. The key comes first, because a retry after a refusal must not get the same refusal.
func (e *Exec) wakeWaiters() {
	if e.failure != nil { // it never ran, so a retry may run
		e.session.pool.requestKeys.Drop(e.key)
	} else {
		e.session.pool.requestKeys.Complete(e.key, e.endedAt)
	}
	e.output.Release()
	close(e.done)
}

// countEnd counts, reports and logs the end.
func (e *Exec) countEnd() {
	p := e.session.pool
	how := outcome.Of(&e.exit, e.shellDied)
	series := p.execSeries[how]
	series.Total.Inc()
	p.config.Load().OnEnd(ends.End{
		Owner: e.session.owner, Session: e.session.id, Kind: ends.Exec, ID: e.ID(), Outcome: how,
		Code: e.exit.ExitCode, Signal: e.exit.Signal, RequestedAt: e.queuedAt, StartedAt: e.beganAt, EndedAt: e.endedAt,
	})
	if !e.startedAt.IsZero() {
		series.Seconds.Observe(clock.Elapsed(e.beganAt, e.endedAt).Seconds())
		p.metrics.QueueSeconds.Observe(clock.Elapsed(e.queuedAt, e.startedAt).Seconds())
	}
	switch how { // one log line for each command that hangs or breaks
	case metrics.OutcomeTimeout, metrics.OutcomeNoOutput, metrics.OutcomeCancelled, metrics.OutcomeShellDied, metrics.OutcomeError:
		e.session.log.Info().Str("exec", e.ID()).Str("outcome", how).Int64("duration_ms", e.exit.DurationMS).
			Int64("bytes", e.endOffset).Bool("kill_failed", e.exit.KillFailed).Err(outcome.Cause(&e.exit)).Msg("exec ended")
	}
}

// Command returns its text.
func (e *Exec) Command() string { return e.text }

// Err returns, after Done, why the command never ran; exec.run answers ok:false with it. It is nil if there is a result.
func (e *Exec) Err() *protocol.Error { return e.failure }

// Times returns when it was requested, got the turn (zero: never) and ended. After Done.
func (e *Exec) Times() (asked, began, ended time.Time) { return e.queuedAt, e.startedAt, e.endedAt }

// Exit returns how it ended. After Done.
func (e *Exec) Exit() protocol.ExecExit { return e.exit }

// Current returns the running command, or nil.
func (s *Session) Current() *Exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Input adds a piece at offset at to the stdin of a command with interactive_stdin, and returns where the input ends then. It never waits.
func (e *Exec) Input(at int64, p []byte, eof bool) (end int64, err error) {
	s := e.session
	s.mu.Lock()
	c := e.command
	if len(p) > 0 || eof { // else somebody asks where the input ends
		s.touchLocked(time.Now())
	}
	s.mu.Unlock()
	return command.Taken(c.Input(at, p, eof))
}

// Cancel ends the command: TERM, grace, KILL. A waiting command is taken out of the queue. done is closed when the command has ended; was is false
// if it had ended before.
func (e *Exec) Cancel(grace *time.Duration) (done <-chan struct{}, was bool) {
	waited, c := e.takeFromQueue()
	switch {
	case waited:
		e.cancelQueued(syscall.SIGTERM)
	case c == nil:
		return e.done, false
	default:
		if grace == nil {
			grace = &e.grace
		}
		most := min(*grace, timeouts.MaxGrace)
		s := e.session
		s.mu.Lock()
		now := time.Now()
		e.cancel = &entry.Cancel{ID: e.ID(), Grace: entry.Duration(most), At: now, Uptime: clock.UptimeAt(now)}
		s.appendLog(entry.Entry{Cancel: e.cancel})
		s.mu.Unlock()
		c.Cancel(syscall.SIGTERM, most)
	}
	return e.done, true
}

// Signal sends one signal. The result comes on told. told is nil if the command has ended, or waited and is taken out of the queue (withdrawn).
func (e *Exec) Signal(sig syscall.Signal) (told <-chan shell.SignalResult, withdrawn bool) {
	waited, c := e.takeFromQueue()
	switch {
	case waited:
		e.cancelQueued(sig)
		return nil, true
	case c == nil:
		return nil, false
	}
	return c.Signal(sig), false
}

// takeFromQueue takes the command out of the queue, or returns the running command. It returns nil if the command has ended.
func (e *Exec) takeFromQueue() (waited bool, running *shell.Command) {
	s := e.session
	s.mu.Lock()
	defer s.mu.Unlock()
	s.touchLocked(time.Now())
	if s.waiting.Remove(e) {
		return true, nil
	}
	if s.running == e {
		running = e.command
	}
	return false, running
}
