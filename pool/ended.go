package pool

import (
	"math"

	"trl/pool/answer"
	"trl/pool/entry"
	"trl/pool/requestkey"
	"trl/runtime/journal"
	"trl/runtime/sessionlog"
	"trl/runtime/stream"
)

// endedExec is a command that has ended, while it or its request_key is remembered. toExec makes the object that clients know.
type endedExec struct {
	entry.EndedExec
	session *Session
	journal *journal.Journal    // nil: nothing of its output is kept
	output  *answer.Output      // of an exec.run with output, or of a command that was answered while it ran; else nil
	pipes   *stream.SavedPipes  // where its output comes from; nil without output
	logSpan sessionlog.Position // where the session log has its binary entry; zero: nowhere
}

// toEnded returns the ended form of e. s.mu is held, or nobody else knows the session.
func (e *Exec) toEnded() *endedExec {
	x := &endedExec{session: e.session, EndedExec: entry.EndedExec{
		Stream: e.stream, Text: e.text, Timeout: e.timeout, MaxOutput: int32(min(e.output.Max, math.MaxInt32)), // #nosec G115 -- bounded
	}}
	x.SetTimes(e.queuedAt, e.startedAt, e.endedAt)
	x.SetExit(&e.exit, e.failure, e.recording)
	if x.Dir == e.session.dir {
		x.Dir = e.session.dir // one string for all commands that ended there
	}
	x.Flags.Set(entry.Clean, e.clean)
	x.Flags.Set(entry.KeepsText, e.output.KeepsText)
	x.Flags.Set(entry.ShellDied, e.shellDied)
	x.Flags.Set(entry.IsTombstone, e.isTombstone)
	if !e.journal.Closed() || e.journal.Size() > 0 {
		x.journal, x.pipes = e.journal, e.pipes
	} else {
		e.journal.Drop() // and its place in the stream log
	}
	if e.output.IsNeeded() {
		x.output = e.output
	}
	return x
}

// toExec returns the ended command as clients know it. s.mu is held, or nobody else knows the session.
func (x *endedExec) toExec() *Exec {
	queued, started, ended := x.Times()
	e := &Exec{
		work: work{
			stream: x.Stream, session: x.session, text: x.Text, journal: x.journal, startedAt: started, endedAt: ended, endOffset: x.Stdout + x.Stderr, done: closedChan,
		},
		clean: x.Flags.Has(entry.Clean), timeout: x.Timeout, queuedAt: queued,
		accepted: true, pipes: x.pipes, shellDied: x.Flags.Has(entry.ShellDied), isTombstone: x.Flags.Has(entry.IsTombstone), output: x.output,
	}
	if e.journal == nil {
		e.journal = journal.NewLengthOnly(x.Stdout, x.Stderr)
	}
	if e.output == nil {
		e.output = answer.New(int(x.MaxOutput))
		e.output.KeepsText = x.Flags.Has(entry.KeepsText)
	}
	e.exit, e.failure, e.recording = x.Exit(&e.code)
	e.exit.SessionID = x.session.id
	return e
}

// Answer answers a retry.
func (x *endedExec) Answer() any {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.toExec()
}

func (x *endedExec) MayGrow() bool { return x.journal != nil && !x.journal.Closed() }

// execWeight is how many bytes an ended command takes in addition to its text and its output.
const execWeight = 400

func (x *endedExec) Weight() int64 {
	n := execWeight + int64(len(x.Text))
	if x.journal != nil {
		n += x.journal.Memory()
	}
	if x.output != nil {
		n += x.output.Memory()
	}
	return n
}

// discard keeps what answers a retry, if there may be one, because the command must not run twice. A request that waits for the result holds
// the exec itself. s.mu is held.
func (x *endedExec) Discard() {
	if x.journal != nil {
		x.journal.Drop()
	}
	if x.Request == nil {
		return
	}
	x.Text, x.journal, x.output, x.pipes, x.logSpan = "", nil, nil, nil, sessionlog.Position{}
	x.Flags.Set(entry.IsTombstone, true)
	x.Flags.Set(entry.KeepsText, true)
	x.session.keepTombstoneLocked(x)
}

func (x *endedExec) key() *requestkey.Request { return x.Request }

func (x *endedExec) loggedAt() *sessionlog.Position { return &x.logSpan }

// encode makes the binary entry. s.mu is held.
func (x *endedExec) encode() []byte {
	if x.journal == nil {
		return x.Encode(nil)
	}
	return x.Encode(&entry.Output{Span: x.journal.Span(), Pipes: x.pipes})
}

// childTombstone is a process or a terminal that is no longer retained. It answers a retry of its start.
type childTombstone struct {
	entry.ChildTombstone
	session *Session
	logSpan sessionlog.Position
}

// tombstone makes the tombstone of a process or a terminal, which is not retained any more.
func (c *child) tombstone(kind byte) *childTombstone {
	x := &childTombstone{session: c.session, ChildTombstone: entry.ChildTombstone{
		Kind: kind, Stream: c.stream, Request: c.session.pool.requestKeys.Find(c.key), EndOffset: c.endOffset,
	}}
	x.SetTimes(c.startedAt, c.beganAt, c.endedAt)
	x.SetStatus(c.pid, c.exit)
	return x
}

// Answer answers a retry.
func (x *childTombstone) Answer() any {
	c := child{work: work{stream: x.Stream, session: x.session, journal: journal.NewLengthOnly(0, 0), endOffset: x.EndOffset, done: closedChan}}
	c.startedAt, c.endedAt = x.Times()
	c.pid, c.exit = x.Status()
	if x.Kind == 'p' {
		return &Process{child: c, name: x.Name, timedOut: x.TimedOut()}
	}
	t := newTerminal(c.work, "")
	t.pid, t.exit = c.pid, c.exit
	t.setSize(x.Size())
	return t
}

func (x *childTombstone) key() *requestkey.Request { return x.Request }

func (x *childTombstone) loggedAt() *sessionlog.Position { return &x.logSpan }

func (x *childTombstone) encode() []byte { return x.Encode() }

// closedChan is the done channel of all work that is made anew from its ended form.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()
