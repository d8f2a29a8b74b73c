package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/runtime/ledger"
)

// What has ended is kept as its answer, in as little memory as that needs: a session retains up to a thousand commands, and a
// request_key keeps one for ten minutes. The ledger has the same in one binary entry, so that the next gateway reads a million of
// them in a second.

// endedExec is a command that has ended. exec makes the object that clients know.
type endedExec struct {
	stream  string
	session *Session
	text    string              // "" where only its request_key is remembered
	output  *journal.Journal    // nil: nothing of it is kept
	ends    *ends               // of an exec.run with output, or of one that was asked for meanwhile; else nil
	lane    *runtime.LaneRecord // where its output comes from; nil without output
	keyed   *keyed              // nil: it had no request_key
	more    *rareExit           // nil: nothing of that
	stands  ledger.Span         // where the ledger has it in one entry; zero: nowhere

	queuedAt, startedAt, endedAt int64 // nanoseconds of the wall clock; startedAt is 0 where it never had the turn
	up                           int64 // the uptime at endedAt
	queued, duration, linger     int64 // milliseconds
	stdout, stderr               int64 // bytes
	timeout                      time.Duration
	dir                          string
	cpu                          float64 // milliseconds; usage as in protocol.Usage
	rss, peak                    int64
	most                         int32
	code                         int16
	flags                        execFlags
}

type execFlags uint16

const (
	hasCode execFlags = 1 << iota
	hasUsage
	isClean
	keepsText
	timedOut
	forNoOutput
	wasCancelled
	shellRestored
	outOfMemory
	killFailed
	tookShell
	onlyKey // its text and its output are no longer kept
)

// rareExit is what few commands have.
type rareExit struct {
	Signal     string          `json:"signal,omitzero"`
	Lost       []string        `json:"lost,omitzero"`
	Background []int           `json:"background,omitzero"`
	LimitHit   string          `json:"limit_hit,omitzero"`
	Error      *protocol.Error `json:"error,omitzero"`
	Failure    *protocol.Error `json:"failure,omitzero"`
	Recording  string          `json:"recording,omitzero"`
}

func (r *rareExit) none() bool {
	return r.Signal == "" && r.Lost == nil && r.Background == nil && r.LimitHit == "" && r.Error == nil && r.Failure == nil && r.Recording == ""
}

func (f execFlags) has(one execFlags) bool { return f&one != 0 }

func (f *execFlags) set(one execFlags, on bool) {
	if on {
		*f |= one
	}
}

// asEnded is e as it is kept. s.mu is held, or nobody else knows the session.
func (e *Exec) asEnded() *endedExec {
	x := &endedExec{
		stream: e.stream, session: e.session, text: e.text,
		queuedAt: nanos(e.queuedAt), startedAt: nanos(e.startedAt), endedAt: nanos(e.endedAt), up: int64(uptimeAt(e.endedAt)),
		queued: e.exit.QueuedMS, duration: e.exit.DurationMS, linger: e.exit.LingerMS, stdout: e.exit.StdoutBytes, stderr: e.exit.StderrBytes,
		timeout: e.timeout, dir: e.exit.WorkingDir, most: int32(min(e.most, math.MaxInt32)), // #nosec G115 -- bounded
	}
	if x.dir == e.session.dir {
		x.dir = e.session.dir // one text for all that ended there
	}
	if !e.journal.Closed() || e.journal.Size() > 0 {
		x.output, x.lane = e.journal, e.lane
	} else {
		e.journal.Drop() // with its place in the log
	}
	if e.ends.matter() {
		x.ends = e.ends
	}
	exit := &e.exit
	f := &x.flags
	if exit.ExitCode != nil {
		x.code = int16(*exit.ExitCode) // #nosec G115 -- an exit code
		f.set(hasCode, true)
	}
	if u := exit.Usage; u != nil {
		x.cpu, x.rss, x.peak = u.CPUMS, u.MaxRSSBytes, u.MemoryPeakBytes
		f.set(hasUsage, true)
	}
	f.set(isClean, e.clean)
	f.set(keepsText, e.keeps)
	f.set(timedOut, exit.TimedOut)
	f.set(forNoOutput, exit.TimeoutKind == "no_output")
	f.set(wasCancelled, exit.Cancelled)
	f.set(shellRestored, exit.ShellRestored)
	f.set(outOfMemory, exit.OOMKilled)
	f.set(killFailed, exit.KillFailed)
	f.set(tookShell, e.died)
	f.set(onlyKey, e.husk)
	more := rareExit{exit.Signal, exit.StateLost, exit.Background, exit.LimitHit, exit.Error, e.failure, e.recording}
	if e.failure != nil {
		more.Error = nil // the same
	}
	if !more.none() {
		x.more = &more
	}
	return x
}

// exec is the ended command as clients know it. s.mu is held, or nobody else knows the session.
func (x *endedExec) exec() *Exec {
	e := &Exec{
		stream: x.stream, session: x.session, text: x.text, clean: x.flags.has(isClean), keeps: x.flags.has(keepsText), most: int(x.most), timeout: x.timeout,
		journal: x.output, queuedAt: timeOf(x.queuedAt), startedAt: timeOf(x.startedAt), endedAt: timeOf(x.endedAt),
		done: closed, accepted: true, lane: x.lane, end: x.stdout + x.stderr, died: x.flags.has(tookShell), husk: x.flags.has(onlyKey), ends: x.ends, code: int(x.code),
	}
	if e.journal == nil {
		e.journal = journal.Gone(x.stdout, x.stderr)
	}
	if e.ends == nil {
		e.ends = &ends{}
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
	case x.flags.has(forNoOutput):
		exit.TimeoutKind = "no_output"
	case exit.TimedOut:
		exit.TimeoutKind = "hard"
	}
	if x.flags.has(hasUsage) {
		exit.Usage = &protocol.Usage{CPUMS: x.cpu, MaxRSSBytes: x.rss, MemoryPeakBytes: x.peak}
	}
	if m := x.more; m != nil {
		exit.Signal, exit.StateLost, exit.Background, exit.LimitHit, exit.Error = m.Signal, m.Lost, m.Background, m.LimitHit, m.Error
		if e.failure, e.recording = m.Failure, m.Recording; e.failure != nil {
			exit.Error = e.failure
		}
	}
	return e
}

// again answers a retry.
func (x *endedExec) again() any {
	x.session.mu.Lock()
	defer x.session.mu.Unlock()
	return x.exec()
}

// ID is the exec's.
func (x *endedExec) ID() string { return x.stream[len(streamPrefix):] }

func (x *endedExec) ended() time.Time { return uptime(x.up).time(timeOf(x.endedAt)) }

func (x *endedExec) grows() bool { return x.output != nil && !x.output.Closed() }

// execWeight is what an ended command takes beside its text and its output.
const execWeight = 400

func (x *endedExec) weight() int64 {
	n := execWeight + int64(len(x.text))
	if x.output != nil {
		n += x.output.Memory()
	}
	if x.ends != nil {
		n += x.ends.memory()
	}
	return n
}

// letGo keeps what a retry is answered with, where there may be one: the command must not run twice. s.mu is held. Who waits for the
// result holds the exec itself.
func (x *endedExec) letGo() {
	if x.output != nil {
		x.output.Drop()
	}
	if x.keyed == nil {
		return
	}
	x.text, x.output, x.ends, x.lane, x.stands = "", nil, nil, nil, ledger.Span{}
	x.flags.set(onlyKey, true)
	x.flags.set(keepsText, true)
	x.session.buryLocked(x)
}

func (x *endedExec) key() *keyed { return x.keyed }

func (x *endedExec) where() *ledger.Span { return &x.stands }

// endedWork is a process or a terminal that is no longer retained: what answers a retry of its start.
type endedWork struct {
	kind    byte // 'p' or 't'
	session *Session
	stream  string
	name    string // of a process
	keyed   *keyed
	stands  ledger.Span

	startedAt, endedAt int64
	up                 int64 // the uptime at startedAt
	pid, code          int64
	signal             int64
	timedOut           int64 // 1: yes
	end                int64 // bytes of output
	cols, rows         int64
}

func (x *endedWork) again() any {
	status := runtime.Status{Code: int(x.code), Signal: syscall.Signal(x.signal)}
	if x.kind == 'p' {
		return &Process{
			stream: x.stream, session: x.session, name: x.name, journal: journal.Gone(0, 0), startedAt: timeOf(x.startedAt), pid: int(x.pid), done: closed,
			status: status, timedOut: x.timedOut == 1, endedAt: timeOf(x.endedAt), end: x.end,
		}
	}
	t := newTerminal(x.session, x.stream, "", "")
	t.journal.Close()
	t.startedAt, t.pid, t.done, t.status, t.endedAt = timeOf(x.startedAt), int(x.pid), closed, status, timeOf(x.endedAt)
	t.cols, t.rows = int(x.cols), int(x.rows)
	t.shown.resized(0, t.cols, t.rows)
	return t
}

func (x *endedWork) key() *keyed { return x.keyed }

func (x *endedWork) where() *ledger.Span { return &x.stands }

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// The first byte of a binary entry; one of JSON begins with a brace.
const (
	execMark = 1
	workMark = 2
)

// A codec writes the fields of an entry, or reads them, in the order in which it is shown them.
type codec struct {
	b       []byte
	reading bool
	bad     bool
}

func (c *codec) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.bad, n = true, 0
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *codec) num(all ...*int64) {
	for _, v := range all {
		if !c.reading {
			c.b = binary.AppendVarint(c.b, *v)
			continue
		}
		n, size := binary.Varint(c.b)
		c.take(max(size, 1))
		*v = n
	}
}

func (c *codec) text(all ...*string) {
	for _, v := range all {
		n := int64(len(*v))
		c.num(&n)
		if !c.reading {
			c.b = append(c.b, *v...)
		} else if n >= 0 && n <= int64(len(c.b)) {
			*v = string(c.take(int(n)))
		} else {
			c.bad = true
		}
	}
}

func (c *codec) fixed(p []byte) {
	if !c.reading {
		c.b = append(c.b, p...)
	} else if got := c.take(len(p)); len(got) == len(p) {
		copy(p, got)
	}
}

// value is anything, as JSON; *v may be nil.
func value[T any](c *codec, v **T) {
	var text string
	if !c.reading && *v != nil {
		p, err := json.Marshal(*v, lenient)
		c.bad = c.bad || err != nil
		text = string(p)
	}
	c.text(&text)
	if c.reading && text != "" {
		*v = new(T)
		c.bad = json.Unmarshal([]byte(text), *v, lenient) != nil || c.bad
	}
}

func (c *codec) key(k **keyed) {
	has := int64(0)
	if *k != nil {
		has = 1
	}
	if c.num(&has); has == 0 {
		return
	}
	if c.reading {
		*k = &keyed{}
	}
	c.fixed((*k).own[:])
	c.fixed((*k).alias[:])
	c.fixed((*k).params[:])
}

// place is where the output of an ended command is.
type place struct {
	Span journal.Span        `json:"span"`
	Lane *runtime.LaneRecord `json:"lane,omitzero"`
}

func (x *endedExec) fields(c *codec, at **place) {
	flags, most, code, timeout := int64(x.flags), int64(x.most), int64(x.code), int64(x.timeout)
	c.text(&x.stream, &x.text, &x.dir)
	c.num(&flags, &x.queuedAt, &x.startedAt, &x.endedAt, &x.up, &x.queued, &x.duration, &x.linger, &x.stdout, &x.stderr, &timeout, &most, &code, &x.rss, &x.peak)
	x.flags, x.most, x.code, x.timeout = execFlags(flags), int32(most), int16(code), time.Duration(timeout) // #nosec G115 -- as written
	if x.flags.has(hasUsage) {
		var bits [8]byte
		binary.LittleEndian.PutUint64(bits[:], math.Float64bits(x.cpu))
		c.fixed(bits[:])
		x.cpu = math.Float64frombits(binary.LittleEndian.Uint64(bits[:]))
	}
	value(c, &x.more)
	c.key(&x.keyed)
	value(c, at)
}

func (x *endedWork) fields(c *codec) {
	kind := int64(x.kind)
	c.num(&kind)
	x.kind = byte(kind)
	c.text(&x.stream, &x.name)
	c.num(&x.startedAt, &x.endedAt, &x.up, &x.pid, &x.code, &x.signal, &x.timedOut, &x.end, &x.cols, &x.rows)
	c.key(&x.keyed)
}

// line is the entry. s.mu is held.
func (x *endedExec) line() []byte {
	c := codec{b: append(make([]byte, 0, 256), execMark)}
	var at *place
	if x.output != nil {
		at = &place{x.output.Span(), x.lane}
	}
	x.fields(&c, &at)
	return c.b
}

func (x *endedWork) line() []byte {
	c := codec{b: append(make([]byte, 0, 128), workMark)}
	x.fields(&c)
	return c.b
}

var errEntry = errors.New("ledger: entry of something that has ended makes no sense")

func readEndedExec(text []byte) (x *endedExec, at *place, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{execMark}), reading: true}
	x = &endedExec{}
	if x.fields(&c, &at); c.bad || len(c.b) > 0 {
		return nil, nil, errEntry
	}
	return x, at, nil
}

func readEndedWork(text []byte) (x *endedWork, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{workMark}), reading: true}
	x = &endedWork{}
	if x.fields(&c); c.bad || len(c.b) > 0 || x.kind != 'p' && x.kind != 't' {
		return nil, errEntry
	}
	return x, nil
}
