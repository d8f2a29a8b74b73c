package entry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"trl/pool/clock"
	"trl/pool/ids"
	"trl/pool/requestkey"
	"trl/protocol"
	"trl/runtime/own"
)

// EndedExec is what is kept of a command that has ended, in as little memory as possible: a session retains up to a thousand commands, and a
// request_key keeps one for ten minutes. The session log has it in one binary entry, so that the next gateway reads a million of them in a
// second.
type EndedExec struct {
	Stream  string
	Text    string // "" if only its request_key is remembered
	Dir     string
	Request *requestkey.Request // nil: it had no request_key
	Rare    *RareExit           // nil: it has nothing of that

	execTimes
	execUsage
	Stdout, Stderr int64 // bytes
	Timeout        time.Duration
	MaxOutput      int32
	code           int16
	Flags          ExecFlags
}

// execTimes is when an ended command did what.
type execTimes struct {
	queuedAt, startedAt, endedAt int64 // nanoseconds of the wall clock; startedAt is 0 if it never had the turn
	endUptime                    int64 // the uptime at endedAt
	queued, duration, linger     int64 // milliseconds
}

// execUsage is a protocol.Usage.
type execUsage struct {
	cpu       float64 // milliseconds
	rss, peak int64
}

// ExecFlags are facts about an ended command. Session logs hold their values.
type ExecFlags uint16

const (
	hasCode ExecFlags = 1 << iota
	hasUsage
	Clean     // its request asked for output without escape sequences
	KeepsText // it is an exec.run
	timedOut
	noOutputTimedOut
	cancelled
	shellRestored
	outOfMemory
	killFailed
	ShellDied
	IsTombstone // its text and its output are no longer kept
)

// Has reports whether a flag is set.
func (f ExecFlags) Has(one ExecFlags) bool { return f&one != 0 }

// Set sets a flag if on.
func (f *ExecFlags) Set(one ExecFlags, on bool) {
	if on {
		*f |= one
	}
}

// ID returns the exec's id.
func (x *EndedExec) ID() string { return x.Stream[len(ids.StreamPrefix):] }

// SetTimes stores when the command was queued, got the turn (zero: never) and ended.
func (x *EndedExec) SetTimes(queued, started, ended time.Time) {
	x.queuedAt, x.startedAt, x.endedAt, x.endUptime = nanos(queued), nanos(started), nanos(ended), int64(clock.UptimeAt(ended))
}

// Times returns what SetTimes stored, by the wall clock.
func (x *EndedExec) Times() (queued, started, ended time.Time) {
	return fromNanos(x.queuedAt), fromNanos(x.startedAt), fromNanos(x.endedAt)
}

// Shift moves times to the clock of another machine, whose uptime is by that much greater.
func (x *EndedExec) Shift(by clock.Uptime) { x.endUptime += int64(by) }

// Shift is EndedExec.Shift.
func (x *ChildTombstone) Shift(by clock.Uptime) { x.startUptime += int64(by) }

// EndTime returns when the command ended, as this process counts.
func (x *EndedExec) EndTime() time.Time { return clock.Uptime(x.endUptime).Time(fromNanos(x.endedAt)) }

// SetExit stores how the command ended, why it never ran (nil: it ran), and the id of its recording.
func (x *EndedExec) SetExit(exit *protocol.ExecExit, failure *protocol.Error, recording string) {
	x.Stdout, x.Stderr, x.Dir = exit.StdoutBytes, exit.StderrBytes, exit.WorkingDir
	x.queued, x.duration, x.linger = exit.QueuedMS, exit.DurationMS, exit.LingerMS
	if exit.ExitCode != nil {
		x.code = int16(*exit.ExitCode) // #nosec G115 -- an exit code
		x.Flags.Set(hasCode, true)
	}
	if u := exit.Usage; u != nil {
		x.execUsage = execUsage{u.CPUMS, u.MaxRSSBytes, u.MemoryPeakBytes}
		x.Flags.Set(hasUsage, true)
	}
	x.Flags.Set(timedOut, exit.TimedOut)
	x.Flags.Set(noOutputTimedOut, exit.TimeoutKind == "no_output")
	x.Flags.Set(cancelled, exit.Cancelled)
	x.Flags.Set(shellRestored, exit.ShellRestored)
	x.Flags.Set(outOfMemory, exit.OOMKilled)
	x.Flags.Set(killFailed, exit.KillFailed)
	rare := RareExit{
		Signal: exit.Signal, Lost: exit.StateLost, Background: exit.Background, LimitHit: exit.LimitHit, Error: exit.Error, Failure: failure, Recording: recording,
	}
	if failure != nil {
		rare.Error = nil // the same
	}
	if !rare.IsEmpty() {
		x.Rare = &rare
	}
}

// Exit returns what SetExit stored, but for the id of the session. ExitCode points to code.
func (x *EndedExec) Exit(code *int) (exit protocol.ExecExit, failure *protocol.Error, recording string) {
	exit = protocol.ExecExit{
		ExecID: x.ID(), StreamID: x.Stream, StdoutBytes: x.Stdout, StderrBytes: x.Stderr, DurationMS: x.duration, QueuedMS: x.queued,
		TimedOut: x.Flags.Has(timedOut), TimeoutS: protocol.Seconds(x.Timeout.Seconds()), Cancelled: x.Flags.Has(cancelled), LingerMS: x.linger,
		ShellRestored: x.Flags.Has(shellRestored), OOMKilled: x.Flags.Has(outOfMemory), KillFailed: x.Flags.Has(killFailed), WorkingDir: x.Dir,
	}
	*code = int(x.code)
	if x.Flags.Has(hasCode) {
		exit.ExitCode = code
	}
	switch {
	case x.Flags.Has(noOutputTimedOut):
		exit.TimeoutKind = "no_output"
	case exit.TimedOut:
		exit.TimeoutKind = "hard"
	}
	if x.Flags.Has(hasUsage) {
		exit.Usage = &protocol.Usage{CPUMS: x.cpu, MaxRSSBytes: x.rss, MemoryPeakBytes: x.peak}
	}
	if r := x.Rare; r != nil {
		exit.Signal, exit.StateLost, exit.Background, exit.LimitHit, exit.Error = r.Signal, r.Lost, r.Background, r.LimitHit, r.Error
		if failure, recording = r.Failure, r.Recording; failure != nil {
			exit.Error = failure
		}
	}
	return exit, failure, recording
}

// ChildTombstone is what is kept of a process or a terminal for its request_key when it is no longer retained.
type ChildTombstone struct {
	Kind    byte // 'p' or 't'
	Stream  string
	Name    string // of a process
	Request *requestkey.Request

	startedAt, endedAt int64 // nanoseconds of the wall clock
	startUptime        int64 // the uptime at startedAt
	pid, code          int64
	signal             int64
	timedOut           int64 // 1: yes
	EndOffset          int64 // bytes of output
	cols, rows         int64
}

// SetTimes stores when the process or terminal started and ended. began is the start as this process counts.
func (x *ChildTombstone) SetTimes(started, began, ended time.Time) {
	x.startedAt, x.endedAt, x.startUptime = nanos(started), nanos(ended), int64(clock.UptimeAt(began))
}

// Times returns what SetTimes stored, by the wall clock.
func (x *ChildTombstone) Times() (started, ended time.Time) {
	return fromNanos(x.startedAt), fromNanos(x.endedAt)
}

// StartTime returns the start as this process counts.
func (x *ChildTombstone) StartTime() time.Time {
	return clock.Uptime(x.startUptime).Time(fromNanos(x.startedAt))
}

// SetStatus stores the pid, and how the process ended.
func (x *ChildTombstone) SetStatus(pid int, s own.Status) {
	x.pid, x.code, x.signal = int64(pid), int64(s.Code), int64(s.Signal)
}

// Status returns what SetStatus stored.
func (x *ChildTombstone) Status() (pid int, s own.Status) {
	return int(x.pid), own.Status{Code: int(x.code), Signal: syscall.Signal(x.signal)}
}

// SetTimedOut says that a process was ended for its timeout.
func (x *ChildTombstone) SetTimedOut() { x.timedOut = 1 }

// TimedOut reports whether SetTimedOut was called.
func (x *ChildTombstone) TimedOut() bool { return x.timedOut == 1 }

// SetSize stores the size of a terminal.
func (x *ChildTombstone) SetSize(cols, rows int) { x.cols, x.rows = int64(cols), int64(rows) }

// Size returns what SetSize stored.
func (x *ChildTombstone) Size() (cols, rows int) { return int(x.cols), int(x.rows) }

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

// The first byte of a binary entry. An entry in JSON begins with a brace.
const (
	endedExecKind      = 1
	childTombstoneKind = 2
)

// A codec writes or reads the fields of a binary entry, in the order in which they are given to it.
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

// jsonValue codes a value as JSON; *v may be nil.
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

func (c *codec) request(q **requestkey.Request) {
	has := int64(0)
	if *q != nil {
		has = 1
	}
	if c.numbers(&has); has == 0 {
		return
	}
	if c.reading {
		*q = &requestkey.Request{}
	}
	c.raw((*q).Own[:])
	c.raw((*q).Alias[:])
	c.raw((*q).Params[:])
}

func (x *EndedExec) fields(c *codec, at **Output) {
	flags, most, code, timeout := int64(x.Flags), int64(x.MaxOutput), int64(x.code), int64(x.Timeout)
	c.strings(&x.Stream, &x.Text, &x.Dir)
	c.numbers(&flags, &x.queuedAt, &x.startedAt, &x.endedAt, &x.endUptime, &x.queued, &x.duration, &x.linger, &x.Stdout, &x.Stderr, &timeout, &most, &code, &x.rss, &x.peak)
	x.Flags, x.MaxOutput, x.code, x.Timeout = ExecFlags(flags), int32(most), int16(code), time.Duration(timeout) // #nosec G115 -- as written
	if x.Flags.Has(hasUsage) {
		var bits [8]byte
		binary.LittleEndian.PutUint64(bits[:], math.Float64bits(x.cpu))
		c.raw(bits[:])
		x.cpu = math.Float64frombits(binary.LittleEndian.Uint64(bits[:]))
	}
	jsonValue(c, &x.Rare)
	c.request(&x.Request)
	jsonValue(c, at)
}

func (x *ChildTombstone) fields(c *codec) {
	kind := int64(x.Kind)
	c.numbers(&kind)
	x.Kind = byte(kind)
	c.strings(&x.Stream, &x.Name)
	c.numbers(&x.startedAt, &x.endedAt, &x.startUptime, &x.pid, &x.code, &x.signal, &x.timedOut, &x.EndOffset, &x.cols, &x.rows)
	c.request(&x.Request)
}

// Encode makes the binary entry. at says where the command's output is; nil: nothing of it is kept.
func (x *EndedExec) Encode(at *Output) []byte {
	c := codec{b: append(make([]byte, 0, 256), endedExecKind)}
	x.fields(&c, &at)
	return c.b
}

// Encode makes the binary entry.
func (x *ChildTombstone) Encode() []byte {
	c := codec{b: append(make([]byte, 0, 128), childTombstoneKind)}
	x.fields(&c)
	return c.b
}

var errBadEntry = errors.New("session log: entry of something that has ended makes no sense")

func readEndedExec(text []byte) (x *EndedExec, at *Output, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{endedExecKind}), reading: true}
	x = &EndedExec{}
	if x.fields(&c, &at); c.bad || len(c.b) > 0 {
		return nil, nil, errBadEntry
	}
	return x, at, nil
}

func readChildTombstone(text []byte) (x *ChildTombstone, err error) {
	c := codec{b: bytes.TrimPrefix(text, []byte{childTombstoneKind}), reading: true}
	x = &ChildTombstone{}
	if x.fields(&c); c.bad || len(c.b) > 0 || x.Kind != 'p' && x.Kind != 't' {
		return nil, errBadEntry
	}
	return x, nil
}
