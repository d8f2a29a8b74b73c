package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"trl/pool/answer"
	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/pool/requestkey"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/runtime/sessionlog"
)

// What has ended is kept as its answer, in as little memory as that needs: a session retains up to a thousand commands, and a
// request_key keeps one for ten minutes. The session log has the same in one binary entry, so that the next gateway reads a million of
// them in a second.

// endedExec is a command that has ended. exec makes the object that clients know.
type endedExec struct {
	stream  string
	session *Session
	text    string              // "" where only its request_key is remembered
	journal *journal.Journal    // nil: nothing of it is kept
	output  *answer.Output      // of an exec.run with output, or of one that was asked for meanwhile; else nil
	pipes   *runtime.SavedPipes // where its output comes from; nil without output
	request *requestkey.Request // nil: it had no request_key
	rare    *entry.RareExit     // nil: nothing of that
	logSpan sessionlog.Position // where the session log has it in one entry; zero: nowhere

	execTimes
	execUsage
	stdout, stderr int64 // bytes
	timeout        time.Duration
	dir            string
	maxOutput      int32
	code           int16
	flags          execFlags
}

// execTimes is when an ended command did what.
type execTimes struct {
	queuedAt, startedAt, endedAt int64 // nanoseconds of the wall clock; startedAt is 0 where it never had the turn
	endUptime                    int64 // the uptime at endedAt
	queued, duration, linger     int64 // milliseconds
}

// execUsage is a protocol.Usage.
type execUsage struct {
	cpu       float64 // milliseconds
	rss, peak int64
}

type execFlags uint16

const (
	hasCode execFlags = 1 << iota
	hasUsage
	isClean
	keepsText
	timedOut
	noOutputTimedOut
	wasCancelled
	shellRestored
	outOfMemory
	killFailed
	shellDied
	isTombstone // its text and its output are no longer kept
)

func (f execFlags) has(one execFlags) bool { return f&one != 0 }

func (f *execFlags) set(one execFlags, on bool) {
	if on {
		*f |= one
	}
}

// toEnded is e as it is kept. s.mu is held, or nobody else knows the session.
func (e *Exec) toEnded() *endedExec {
	x := &endedExec{
		stream: e.stream, session: e.session, text: e.text,
		execTimes: execTimes{
			queuedAt: nanos(e.queuedAt), startedAt: nanos(e.startedAt), endedAt: nanos(e.endedAt), endUptime: int64(clock.UptimeAt(e.endedAt)),
			queued: e.exit.QueuedMS, duration: e.exit.DurationMS, linger: e.exit.LingerMS,
		},
		stdout: e.exit.StdoutBytes, stderr: e.exit.StderrBytes,
		timeout: e.timeout, dir: e.exit.WorkingDir, maxOutput: int32(min(e.output.Max, math.MaxInt32)), // #nosec G115 -- bounded
	}
	if x.dir == e.session.dir {
		x.dir = e.session.dir // one text for all that ended there
	}
	if !e.journal.Closed() || e.journal.Size() > 0 {
		x.journal, x.pipes = e.journal, e.pipes
	} else {
		e.journal.Drop() // with its place in the log
	}
	if e.output.IsNeeded() {
		x.output = e.output
	}
	exit := &e.exit
	f := &x.flags
	if exit.ExitCode != nil {
		x.code = int16(*exit.ExitCode) // #nosec G115 -- an exit code
		f.set(hasCode, true)
	}
	if u := exit.Usage; u != nil {
		x.execUsage = execUsage{u.CPUMS, u.MaxRSSBytes, u.MemoryPeakBytes}
		f.set(hasUsage, true)
	}
	f.set(isClean, e.clean)
	f.set(keepsText, e.output.KeepsText)
	f.set(timedOut, exit.TimedOut)
	f.set(noOutputTimedOut, exit.TimeoutKind == "no_output")
	f.set(wasCancelled, exit.Cancelled)
	f.set(shellRestored, exit.ShellRestored)
	f.set(outOfMemory, exit.OOMKilled)
	f.set(killFailed, exit.KillFailed)
	f.set(shellDied, e.shellDied)
	f.set(isTombstone, e.isTombstone)
	more := entry.RareExit{
		Signal: exit.Signal, Lost: exit.StateLost, Background: exit.Background, LimitHit: exit.LimitHit, Error: exit.Error, Failure: e.failure, Recording: e.recording,
	}
	if e.failure != nil {
		more.Error = nil // the same
	}
	if !more.IsEmpty() {
		x.rare = &more
	}
	return x
}

// toExec is the ended command as clients know it. s.mu is held, or nobody else knows the session.
func (x *endedExec) toExec() *Exec {
	e := &Exec{
		work: work{
			stream: x.stream, session: x.session, text: x.text, journal: x.journal, startedAt: fromNanos(x.startedAt), endedAt: fromNanos(x.endedAt), endOffset: x.stdout + x.stderr, done: closedChan,
		},
		clean: x.flags.has(isClean), timeout: x.timeout, queuedAt: fromNanos(x.queuedAt),
		accepted: true, pipes: x.pipes, shellDied: x.flags.has(shellDied), isTombstone: x.flags.has(isTombstone), output: x.output, code: int(x.code),
	}
	if e.journal == nil {
		e.journal = journal.NewLengthOnly(x.stdout, x.stderr)
	}
	if e.output == nil {
		e.output = answer.New(int(x.maxOutput))
		e.output.KeepsText = x.flags.has(keepsText)
	}
	e.exit = protocol.ExecExit{
		ExecID: e.ID(), SessionID: x.session.id, StreamID: x.stream, StdoutBytes: x.stdout, StderrBytes: x.stderr, DurationMS: x.duration, QueuedMS: x.queued,
		TimedOut: x.flags.has(timedOut), TimeoutS: protocol.Seconds(x.timeout.Seconds()), Cancelled: x.flags.has(wasCancelled), LingerMS: x.linger,
		ShellRestored: x.flags.has(shellRestored), OOMKilled: x.flags.has(outOfMemory), KillFailed: x.flags.has(killFailed), WorkingDir: x.dir,
	}
	exit := &e.exit
	if x.flags.has(hasCode) {
		exit.ExitCode = &e.code
	}
	switch {
	case x.flags.has(noOutputTimedOut):
		exit.TimeoutKind = "no_output"
	case exit.TimedOut:
		exit.TimeoutKind = "hard"
	}
	if x.flags.has(hasUsage) {
		exit.Usage = &protocol.Usage{CPUMS: x.cpu, MaxRSSBytes: x.rss, MemoryPeakBytes: x.peak}
	}
	if m := x.rare; m != nil {
		exit.Signal, exit.StateLost, exit.Background, exit.LimitHit, exit.Error = m.Signal, m.Lost, m.Background, m.LimitHit, m.Error
		if e.failure, e.recording = m.Failure, m.Recording; e.failure != nil {
			exit.Error = e.failure
		}
	}
	return e
}

// answer answers a retry.
func (x *endedExec) Answer() any {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.toExec()
}

// ID is the exec's.
func (x *endedExec) ID() string { return x.stream[len(ids.StreamPrefix):] }

func (x *endedExec) endTime() time.Time { return clock.Uptime(x.endUptime).Time(fromNanos(x.endedAt)) }

func (x *endedExec) mayGrow() bool { return x.journal != nil && !x.journal.Closed() }

// execWeight is what an ended command takes beside its text and its output.
const execWeight = 400

func (x *endedExec) weight() int64 {
	n := execWeight + int64(len(x.text))
	if x.journal != nil {
		n += x.journal.Memory()
	}
	if x.output != nil {
		n += x.output.Memory()
	}
	return n
}

// discard keeps what a retry is answered with, where there may be one: the command must not run twice. s.mu is held. Who waits for the
// result holds the exec itself.
func (x *endedExec) discard() {
	if x.journal != nil {
		x.journal.Drop()
	}
	if x.request == nil {
		return
	}
	x.text, x.journal, x.output, x.pipes, x.logSpan = "", nil, nil, nil, sessionlog.Position{}
	x.flags.set(isTombstone, true)
	x.flags.set(keepsText, true)
	x.session.keepTombstoneLocked(x)
}

func (x *endedExec) key() *requestkey.Request { return x.request }

func (x *endedExec) loggedAt() *sessionlog.Position { return &x.logSpan }

// workTombstone is a process or a terminal that is no longer retained: what answers a retry of its start.
type workTombstone struct {
	kind    byte // 'p' or 't'
	session *Session
	stream  string
	name    string // of a process
	request *requestkey.Request
	logSpan sessionlog.Position

	startedAt, endedAt int64
	startUptime        int64 // the uptime at startedAt
	pid, code          int64
	signal             int64
	timedOut           int64 // 1: yes
	endOffset          int64 // bytes of output
	cols, rows         int64
}

func (x *workTombstone) Answer() any {
	c := child{
		work: work{
			stream: x.stream, session: x.session, journal: journal.NewLengthOnly(0, 0), startedAt: fromNanos(x.startedAt), endedAt: fromNanos(x.endedAt), endOffset: x.endOffset, done: closedChan,
		},
		pid: int(x.pid), exit: runtime.Status{Code: int(x.code), Signal: syscall.Signal(x.signal)},
	}
	if x.kind == 'p' {
		return &Process{child: c, name: x.name, timedOut: x.timedOut == 1}
	}
	t := newTerminal(c.work, "")
	t.pid, t.exit = c.pid, c.exit
	t.setSize(int(x.cols), int(x.rows))
	return t
}

func (x *workTombstone) key() *requestkey.Request { return x.request }

func (x *workTombstone) loggedAt() *sessionlog.Position { return &x.logSpan }

// closedChan is the done channel of all work that a tombstone has made anew.
var closedChan = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// The first byte of a binary entry; one of JSON begins with a brace.
const (
	execEntryKind = 1
	workEntryKind = 2
)

// A codec writes the fields of an entry, or reads them, in the order in which it is shown them.
type codec struct {
	b       []byte
	reading bool
	bad     bool
}

func (c *codec) nextBytes(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, n = true, 0
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *codec) numbers(all ...*int64) {
	for _, v := range all {
		if !c.reading {
			c.b = binary.AppendVarint(c.b, *v)
			continue
		}
		n, size := binary.Varint(c.b)
		c.nextBytes(max(size, 1))
		*v = n
	}
}

func (c *codec) strings(all ...*string) {
	for _, v := range all {
		n := int64(len(*v))
		c.numbers(&n)
		if !c.reading {
			c.b = append(c.b, *v...)
		} else if n >= 0 && n <= int64(len(c.b)) {
			*v = string(c.nextBytes(int(n)))
		} else {
			c.bad = true
		}
	}
}

func (c *codec) raw(p []byte) {
	if !c.reading {
		c.b = append(c.b, p...)
	} else if got := c.nextBytes(len(p)); len(got) == len(p) {
		copy(p, got)
	}
}

// jsonValue is anything, as JSON; *v may be nil.
func jsonValue[T any](c *codec, v **T) {
	var text string
	if !c.reading && *v != nil {
		p, err := json.Marshal(*v, allowInvalidUTF8)
		c.bad = c.bad || err != nil
		text = string(p)
	}
	c.strings(&text)
	if c.reading && text != "" {
		*v = new(T)
		c.bad = json.Unmarshal([]byte(text), *v, allowInvalidUTF8) != nil || c.bad
	}
}

func (c *codec) key(k **requestkey.Request) {
	has := int64(0)
	if *k != nil {
		has = 1
	}
	if c.numbers(&has); has == 0 {
		return
	}
	if c.reading {
		*k = &requestkey.Request{}
	}
	c.raw((*k).Own[:])
	c.raw((*k).Alias[:])
	c.raw((*k).Params[:])
}

func (x *endedExec) fields(c *codec, at **entry.Output) {
	flags, most, code, timeout := int64(x.flags), int64(x.maxOutput), int64(x.code), int64(x.timeout)
	c.strings(&x.stream, &x.text, &x.dir)
	c.numbers(&flags, &x.queuedAt, &x.startedAt, &x.endedAt, &x.endUptime, &x.queued, &x.duration, &x.linger, &x.stdout, &x.stderr, &timeout, &most, &code, &x.rss, &x.peak)
	x.flags, x.maxOutput, x.code, x.timeout = execFlags(flags), int32(most), int16(code), time.Duration(timeout) // #nosec G115 -- as written
	if x.flags.has(hasUsage) {
		var bits [8]byte
		binary.LittleEndian.PutUint64(bits[:], math.Float64bits(x.cpu))
		c.raw(bits[:])
		x.cpu = math.Float64frombits(binary.LittleEndian.Uint64(bits[:]))
	}
	jsonValue(c, &x.rare)
	c.key(&x.request)
	jsonValue(c, at)
}

func (x *workTombstone) fields(c *codec) {
	kind := int64(x.kind)
	c.numbers(&kind)
	x.kind = byte(kind)
	c.strings(&x.stream, &x.name)
	c.numbers(&x.startedAt, &x.endedAt, &x.startUptime, &x.pid, &x.code, &x.signal, &x.timedOut, &x.endOffset, &x.cols, &x.rows)
	c.key(&x.request)
}

// encode is the entry. s.mu is held.
func (x *endedExec) encode() []byte {
	c := codec{b: append(make([]byte, 0, 256), execEntryKind)}
	var at *entry.Output
	if x.journal != nil {
		at = &entry.Output{Span: x.journal.Span(), Pipes: x.pipes}
	}
	x.fields(&c, &at)
	return c.b
}

func (x *workTombstone) encode() []byte {
	c := codec{b: append(make([]byte, 0, 128), workEntryKind)}
	x.fields(&c)
	return c.b
}

var errBadEntry = errors.New("session log: entry of something that has ended makes no sense")

func readEndedExec(text []byte) (x *endedExec, at *entry.Output, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{execEntryKind}), reading: true}
	x = &endedExec{}
	if x.fields(&c, &at); c.bad || len(c.b) > 0 {
		return nil, nil, errBadEntry
	}
	return x, at, nil
}

func readEndedWork(text []byte) (x *workTombstone, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{workEntryKind}), reading: true}
	x = &workTombstone{}
	if x.fields(&c); c.bad || len(c.b) > 0 || x.kind != 'p' && x.kind != 't' {
		return nil, errBadEntry
	}
	return x, nil
}
