package pool

import (
	"context"
	"errors"
	"syscall"
	"time"

	"trl/metrics"
	"trl/pool/answer"
	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/queue"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/shells"
	"trl/protocol"
	"trl/runtime/shell"
)

// defaultOutput is max_output_bytes of a request that names none (PROTOCOL.md §4).
const defaultOutput = 1 << 20

// Exec is one foreground command: waiting, running or ended.
//
// Its life: newExec makes it, enqueue has its stdin made at the keeper, has it written down as accepted where somebody is told of it before
// it begins, and gives it the turn or a place in the queue. The runner runs it (Session.runExec): Shell.Run has it written down as begun,
// before the shell is told of it, and returns when it has ended. The end is written down, retained and told. One that is taken out of
// the queue ends by endQueued.
type Exec struct {
	work

	// set once in newExec
	clean    bool
	timeout  time.Duration
	grace    time.Duration
	guest    string // id of the share that it came by; "": the owner's
	queuedAt time.Time

	// what the session log has
	accepted bool              // it has the request; written by the runner, or under session.mu
	stdin    []shell.HeldFile  // what the keeper calls its stdin; set once before it is accepted
	pipes    *shell.SavedPipes // where its output flows; owned by the runner, set once when it begins
	begun    *entry.Begun      // as written last; owned by the runner, nil when it does not run
	cancel   *entry.Cancel     // guarded by session.mu; as written last; nil: none

	command *shell.Command // guarded by session.mu; nil once ended

	// set before done is closed, read after
	exit        protocol.ExecExit
	code        int             // what exit.ExitCode points to
	failure     *protocol.Error // why it never ran
	shellDied   bool            // it took the shell with it
	isTombstone bool            // only its request_key is remembered, and its text and output are not kept

	output *answer.Output // set once
}

// Exec queues a command for exec.run, or gives it the turn at once.
func (s *Session) Exec(q *protocol.Exec) (*Exec, error) { return s.submit("exec.run", q, nil) }

// Stream is Exec for exec.stream: no text is kept for Result, which then has what the journal still holds.
func (s *Session) Stream(q *protocol.Exec) (*Exec, error) { return s.submit("exec.stream", q, nil) }

// submit: by is the guest's share, nil for the owner.
func (s *Session) submit(method string, q *protocol.Exec, by *Share) (*Exec, error) {
	if err := shells.CheckEnv(q.Env, s.pool.config.Load().AllowEnv); err != nil {
		return nil, err
	}
	if q.RequestKey == "" { // the path of most commands: nothing is copied for it
		return s.enqueue(method, q, request{by: by})
	}
	same := *q
	same.SessionRef, same.WindowBytes = protocol.SessionRef{}, 0 // id or name, it is this session; the window is the connection's
	return startOnce(context.Background(), s, method, q.RequestKey, q.SessionRef, &same, by, func(_ context.Context, r request) (*Exec, error) {
		return s.enqueue(method, q, r)
	})
}

// enqueue gives a command the turn, or a place in the queue. An idle session is handed the command by one send, which cannot block, under
// one lock.
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
	if err := e.makeStdin(s.shell); err != nil { // unless the shell came meanwhile, that was done
		return nil, err
	}
	switch {
	case s.ending != nil:
		return nil, s.errEndedLocked()
	case r.by != nil && r.by.IsOver():
		return nil, errShareOver()
	case s.isIdleLocked():
		if method != "exec.run" || r.key != (requestkey.Ref{}) || e.stdin != nil { // else nobody is told of it before it begins, and begins writes both
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

// makeStdin makes the stdin of a command that is to have one, before anybody is told that it was accepted. While the session
// is being made there is nobody to make it with: open does so then.
func (s *Session) makeStdin(e *Exec) error {
	s.mu.Lock()
	shell := s.shell
	s.mu.Unlock()
	return e.makeStdin(shell)
}

// makeStdin is called with s.mu held where the shell came after e: nobody may have it accepted meanwhile.
func (e *Exec) makeStdin(shell *shell.Shell) (err error) {
	if shell == nil || e.stdin != nil {
		return nil
	}
	if e.stdin, err = shell.MakeStdin(e.command); err != nil {
		return shells.Fault(err, "")
	}
	return nil
}

// isIdleLocked: the next command gets the turn at once. Nobody waits then, as who waits is given it first. s.mu is held.
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
		timeout: s.settings.Load().timeout, grace: graceInForce(q.KillGrace),
		command:  shell.NewCommand(q.Command),
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
	e.timeout = r.timeout(e.timeout)
	c := e.command
	c.Env, c.Dir, c.OpenStdin, c.Journal = q.Env, q.WorkingDir, q.InteractiveStdin, e.journal
	c.Timeout, c.Grace = e.timeout, e.grace
	if q.NoOutputTimeout != nil {
		c.NoOutput = q.NoOutputTimeout.Duration()
	}
	if q.Stdin != nil {
		stdin, fault := protocol.DecodeBytes(*q.Stdin, q.StdinEncoding)
		if fault != nil {
			return nil, fault
		}
		if c.Stdin = stdin; c.OpenStdin {
			c.Stdin = nil
			if err := c.Input(stdin, false); err != nil { // what is given first, before what exec.input brings
				return nil, inputFault(err)
			}
		}
	}
	return e, nil
}

// graceInForce is kill_grace_s in force.
func graceInForce(asked *protocol.Seconds) time.Duration {
	if asked == nil {
		return defaultGrace
	}
	return min(asked.Duration(), maxGrace)
}

// keepText makes Result have text.
func (e *Exec) keepText() {
	e.output.KeepText(e.journal)
	e.output.CountOn(&e.session.pool.outputBudget, e.session.owner)
	e.command.Head, e.command.Tail = int64(e.output.Max/2), int64(e.output.Max-e.output.Max/2) // as journal.HeadTail does
}

// setOutcome turns the outcome of a run into what a client gets. s.mu is held.
func (e *Exec) setOutcome(out shell.Outcome, now time.Time, ending bool) {
	unrun := out.Err != nil && out.Code < 0
	if unrun {
		e.journal.Close()
	}
	e.setEndLocked(now)
	x := &e.exit
	x.DurationMS, x.LingerMS = out.Duration.Milliseconds(), out.Linger.Milliseconds()
	x.TimedOut, x.TimeoutKind, x.Cancelled = out.Timeout != "", out.Timeout, out.Cancelled
	x.ShellRestored, x.StateLost = out.Restored, out.Lost
	if r := e.session.revived; r != nil && !unrun { // the first one to have a result since
		e.session.revived = nil
		x.ShellRestored, x.StateLost = true, shell.Union(r.Lost, out.Lost)
	}
	e.shellDied = out.Died
	x.KillFailed, x.Background = out.KillFailed, out.Background
	if out.Dir != "" {
		x.WorkingDir = out.Dir
	}
	x.OOMKilled, x.LimitHit = out.OOMKilled, out.LimitHit
	if out.HasUsage {
		x.Usage = &protocol.Usage{CPUMS: float64(out.CPU) / float64(time.Millisecond), MaxRSSBytes: out.MaxRSS, MemoryPeakBytes: out.MemoryPeak}
	}
	switch {
	case unrun && (ending || out.Cancelled):
		e.cancelledLocked(syscall.SIGTERM)
	case unrun:
		e.failLocked(shells.CommandFault(out.Err))
	case errors.Is(out.Err, shell.ErrUnknownEnd) || out.Err != nil && !errors.Is(out.Err, shell.ErrShellGone): // that one is about what follows the command
		if s := e.session; s.pool.base.Keeper.Gone() {
			x.Error = shells.KeeperGone(out.Err)
			break
		}
		x.Error = protocol.Errorf(protocol.InternalError, "end of the command is unknown").WithCause(out.Err)
	default:
		e.code = out.Code
		x.ExitCode, x.Signal = &e.code, out.Signal
	}
}

// setEndLocked fixes what every end has. s.mu is held.
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

// cancelQueued ends a command that waits as cancelled: nothing of it has run. The caller has taken it out of the queue.
func (e *Exec) cancelQueued(sig syscall.Signal) { e.endQueued(func() { e.cancelledLocked(sig) }) }

// failQueued ends a command that waits with an error. The caller has taken it out of the queue.
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

// wakeWaiters lets those go on who wait for the end. The key first: who retries after a refusal must not meet it again.
func (e *Exec) wakeWaiters() {
	if e.key != (requestkey.Ref{}) {
		if e.failure != nil { // it has not run: a retry may
			e.session.pool.requestKeys.Drop(e.key)
		} else {
			e.session.pool.requestKeys.Complete(e.key, e.endedAt)
		}
	}
	e.output.Release()
	close(e.done)
}

// countEnd counts the end.
func (e *Exec) countEnd() {
	p := e.session.pool
	outcome := e.outcome()
	series := p.execSeries[outcome]
	series.total.Inc()
	p.reportEnd(End{
		Owner: e.session.owner, Session: e.session.id, Kind: ExecEnd, ID: e.ID(), Outcome: outcome,
		Code: e.exit.ExitCode, Signal: e.exit.Signal, RequestedAt: e.queuedAt, StartedAt: e.beganAt, EndedAt: e.endedAt,
	})
	if !e.startedAt.IsZero() {
		series.seconds.Observe(clock.Elapsed(e.beganAt, e.endedAt).Seconds())
		p.metrics.QueueSeconds.Observe(clock.Elapsed(e.queuedAt, e.startedAt).Seconds())
	}
	switch outcome { // one line for each way to hang or break; what commands usually do is theirs
	case metrics.OutcomeTimeout, metrics.OutcomeNoOutput, metrics.OutcomeCancelled, metrics.OutcomeShellDied, metrics.OutcomeError:
		e.session.log.Info().Str("exec", e.ID()).Str("outcome", outcome).Int64("duration_ms", e.exit.DurationMS).
			Int64("bytes", e.endOffset).Bool("kill_failed", e.exit.KillFailed).Err(e.cause()).Msg("exec ended")
	}
}

func (e *Exec) cause() error {
	if e.exit.Error == nil {
		return nil
	}
	return e.exit.Error.Unwrap()
}

func (e *Exec) outcome() string {
	x := &e.exit
	switch {
	case x.Error != nil:
		return metrics.OutcomeError
	case x.Cancelled:
		return metrics.OutcomeCancelled
	case x.TimeoutKind == "no_output":
		return metrics.OutcomeNoOutput
	case x.TimedOut:
		return metrics.OutcomeTimeout
	case e.shellDied:
		return metrics.OutcomeShellDied
	case x.Signal != "":
		return metrics.OutcomeSignaled
	case e.code != 0:
		return metrics.OutcomeFailed
	}
	return metrics.OutcomeOK
}

// Command is its text.
func (e *Exec) Command() string { return e.text }

// Err is, after Done, why the command never ran: exec.run answers ok:false with it. Nil when there is a result.
func (e *Exec) Err() *protocol.Error { return e.failure }

// Times are when it was asked for, had its turn (zero if it never had) and ended. After Done.
func (e *Exec) Times() (asked, began, ended time.Time) { return e.queuedAt, e.startedAt, e.endedAt }

// Exit is how it ended. After Done.
func (e *Exec) Exit() protocol.ExecExit { return e.exit }

// Current is the command that runs, or nil.
func (s *Session) Current() *Exec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running
}

// Input writes to the stdin of a command that was started with interactive_stdin. It never waits.
func (e *Exec) Input(p []byte, eof bool) error {
	s := e.session
	s.mu.Lock()
	c := e.command
	s.touchLocked(time.Now())
	s.mu.Unlock()
	if c == nil {
		return inputFault(shell.ErrStdinClosed)
	}
	return inputFault(c.Input(p, eof))
}

func inputFault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, shell.ErrStdinClosed):
		return protocol.Errorf(protocol.StdinClosed, "stdin is closed")
	case errors.Is(err, shell.ErrStdinFull):
		return protocol.Errorf(protocol.LimitExceeded, "stdin is not being read").With("limit", "stdin")
	}
	return err
}

// Cancel ends the command: TERM, grace, KILL; done is closed when the session is past it. One that waits is withdrawn. was: there
// was something to cancel.
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
		most := min(*grace, maxGrace)
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

// Signal sends one signal. What came of it can be read from told, which is nil where there is nothing to wait for: the command has
// ended, or waited, and is withdrawn.
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

// takeFromQueue takes the command out of the queue, or returns it if it runs; nil if it does neither.
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
