package pool

import (
	"bytes"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"trl/pool/clock"
	"trl/protocol"
	"trl/runtime/journal"
)

const (
	maxResumePoints = 64       // of one exec: its client goes on from the last answer, or from one that was lost
	escapeLookBack  = 64 << 10 // before an answer's text, an escape sequence's beginning is looked for: images may be longer, all else is shorter
)

// resultOutput is what exec.run keeps of a command's output, and what is known of answers that were given.
type resultOutput struct {
	mu           sync.Mutex // taken under the journal's
	sides        [2]*journal.HeadTail
	totals       [2]int64      // bytes of each
	lastSide     int           // whose the newest bytes are
	lastRun      int64         // how many, since the other's
	limit        *[2]int64     // what comes behind is a background job's: it belongs to the stream, not to the result; nil: the command has not ended
	resumePoints []resumePoint // oldest first

	session *Session // whose owner it counts on; nil: nothing is counted
	charged int64    // bytes that it has taken of the pool's budget for output
	holders int      // who needs them: the command until its end, and each request that answers with it
}

// HoldOutput keeps the output counted on its principal's budget until Release, also when the command has ended.
func (e *Exec) HoldOutput() {
	e.resultOutput.mu.Lock()
	defer e.resultOutput.mu.Unlock()
	e.resultOutput.holders++
}

// ReleaseOutput ends what Hold began; the last one gives the bytes back. What has ended is counted by what its session retains.
func (e *Exec) ReleaseOutput() {
	e.resultOutput.mu.Lock()
	var n int64
	if e.resultOutput.holders--; e.resultOutput.holders == 0 {
		n, e.resultOutput.charged = e.resultOutput.charged, 0
	}
	e.resultOutput.mu.Unlock()
	if n > 0 {
		e.session.pool.output.release(e.session.owner, n)
	}
}

// Grow is asked before a side's text takes n more bytes of memory. Called with mu held.
func (x *resultOutput) Grow(n int) bool {
	if x.session == nil || x.holders <= 0 {
		return true
	}
	if s := x.session; !s.pool.output.reserve(s.owner, int64(n)) {
		return false
	}
	x.charged += int64(n)
	return true
}

// CopiedBytes is how many bytes the answer from offset on copies: nothing where it is written from where the output is kept.
func (e *Exec) CopiedBytes(offset int64, clean bool) int64 {
	select {
	case <-e.done:
		if offset == 0 && !clean {
			return 0
		}
	default:
	}
	stdout, stderr := e.journal.Totals()
	return min(stdout, int64(e.maxOutput)) + min(stderr, int64(e.maxOutput))
}

// Clean is what its request said.
func (e *Exec) Clean() bool { return e.clean }

// resumePoint is an offset that an answer gave to go on from, and how much before it is stdout: the ring forgets that.
type resumePoint struct{ offset, stdout int64 }

// isNeeded: there is something that an answer after the end needs.
func (x *resultOutput) isNeeded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.sides[0] != nil || x.sides[1] != nil || len(x.resumePoints) > 0
}

func (x *resultOutput) memory() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := int64(resultOutputSize + 16*cap(x.resumePoints))
	for _, side := range x.sides {
		if side != nil {
			n += resultOutputSize + side.Memory()
		}
	}
	return n
}

// resultOutputSize is what one takes beside its texts, about.
const resultOutputSize = 150

func sideOf(s journal.Stream) int {
	if s == journal.Stderr {
		return 1
	}
	return 0
}

// add counts those of n bytes that are the result's, and says where their text goes.
func (x *resultOutput) add(s journal.Stream, n int64, most int) (*journal.HeadTail, int64) {
	side := sideOf(s)
	if x.limit != nil {
		n = min(n, x.limit[side]-x.totals[side])
	}
	if x.totals[side] += n; side != x.lastSide {
		x.lastSide, x.lastRun = side, 0
	}
	x.lastRun += n
	if x.sides[side] == nil {
		x.sides[side] = journal.NewHeadTail(most)
		x.sides[side].OnGrow(x)
	}
	return x.sides[side], n
}

// snapshot is both texts at one moment, and whose the last run bytes are.
func (x *resultOutput) snapshot() (both [2]outputText, last int, run int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return [2]outputText{newOutputText(x.sides[0]), newOutputText(x.sides[1])}, x.lastSide, x.lastRun
}

// finish says that the command has ended, and how much it wrote.
func (x *resultOutput) finish() (totals [2]int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	totals = x.totals
	x.limit = &totals
	return totals
}

func (x *resultOutput) addResumePoint(m resumePoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(x.resumePoints, m) {
		return
	}
	if len(x.resumePoints) == maxResumePoints {
		x.resumePoints = slices.Delete(x.resumePoints, 0, 1)
	}
	x.resumePoints = append(x.resumePoints, m)
}

// stdoutBefore is how much before offset is stdout, if that is known.
func (x *resultOutput) stdoutBefore(offset int64) (n int64, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.resumePoints, func(m resumePoint) bool { return m.offset == offset })
	if i < 0 {
		return 0, offset == 0
	}
	return x.resumePoints[i].stdout, true
}

// outputText is what an answer holds of one stream.
type outputText struct {
	bytes       []byte
	at, omitted int64
	head, tail  []byte // the escape sequence that the text begins inside of, and that what follows the omission does
}

func newOutputText(e *journal.HeadTail) outputText {
	if e == nil {
		return outputText{}
	}
	kept, _, at, omitted := e.Bytes()
	return outputText{bytes: kept, at: at, omitted: omitted}
}

func (t outputText) total() int64 { return int64(len(t.bytes)) + t.omitted }

// from is what follows the first n bytes, as far as nothing is missing.
func (t outputText) from(n int64) []byte {
	if t.omitted == 0 {
		t.at = int64(len(t.bytes))
	}
	return t.bytes[min(n, t.at):t.at]
}

// clean: what is on either side of an omission is a text of its own.
func (t outputText) clean() string {
	if t.omitted == 0 {
		t.at = int64(len(t.bytes))
	}
	return protocol.Clean(string(t.head)+string(t.bytes[:t.at])) + protocol.Clean(string(t.tail)+string(t.bytes[t.at:]))
}

// unfinished is the escape sequence that b ends inside of.
func unfinished(b []byte) []byte {
	b = b[max(0, len(b)-escapeLookBack):]
	for _, at := range []int{bytes.LastIndexByte(b, '\x1b'), bytes.LastIndexAny(b, "\u0090\u0098\u009b\u009d\u009e\u009f")} {
		if at >= 0 && protocol.Clean(string(b[at:])+"m") == "" { // it takes whatever letter comes
			return b[at:]
		}
	}
	return nil
}

// putTexts writes the texts into an answer.
func putTexts(r *protocol.ExecAnswer, both [2]outputText, clean bool) {
	var texts [2]protocol.Text
	for i, t := range both {
		texts[i] = protocol.TextOf(t.bytes)
		if clean && utf8.Valid(t.bytes) {
			texts[i] = protocol.TextOf([]byte(t.clean()))
		}
		putOmission(r, i, t.at, t.omitted)
	}
	r.SetTexts(texts[0], texts[1])
}

// putOmission says what was left out of a stream's text.
func putOmission(r *protocol.ExecAnswer, side int, at, n int64) {
	if n == 0 {
		return
	}
	r.Truncated = true
	into := &r.Omitted.Stdout
	if side == 1 {
		into = &r.Omitted.Stderr
	}
	*into = &protocol.Omitted{At: at, Bytes: n}
}

// whole puts the texts of a command that has ended into its answer as they are kept, without a copy; false: not all that is to be told is there.
func (e *Exec) whole(r *protocol.ExecAnswer) bool {
	e.resultOutput.mu.Lock()
	defer e.resultOutput.mu.Unlock()
	var texts [2]protocol.Text
	for i, all := range [2]int64{r.StdoutBytes, r.StderrBytes} {
		side := e.resultOutput.sides[i]
		if side == nil {
			if all > 0 {
				return false
			}
			continue
		}
		before, after, total, at, omitted := side.Parts()
		if total < all {
			return false
		}
		texts[i] = append(before, after...)
		putOmission(r, i, at, omitted)
	}
	r.SetTexts(texts[0], texts[1])
	return true
}

// Result is Answer as clients read it.
func (e *Exec) Result(clean bool) protocol.ExecResult {
	a := e.Answer(clean)
	return a.Result()
}

// Answer is exec.run's answer. After Done.
func (e *Exec) Answer(clean bool) *protocol.ExecAnswer {
	r, _ := e.since(0, clean)
	r.NextOffset = nil
	return r
}

// Partial is exec.run's answer when yield_ms is over first: what there is so far.
func (e *Exec) Partial() protocol.ExecResult { a := e.PartialAnswer(); return a.Result() }

// PartialAnswer is Partial on its way out.
func (e *Exec) PartialAnswer() *protocol.ExecAnswer {
	r, _ := e.since(0, e.clean)
	return r
}

// Since is exec.wait's answer: the output from offset to now, or to the end when it has ended.
func (e *Exec) Since(offset int64) (protocol.ExecResult, error) {
	a, err := e.AnswerSince(offset)
	if err != nil {
		return protocol.ExecResult{}, err
	}
	return a.Result(), nil
}

// AnswerSince is Since on its way out.
func (e *Exec) AnswerSince(offset int64) (*protocol.ExecAnswer, error) {
	return e.since(offset, e.clean)
}

func (e *Exec) since(offset int64, clean bool) (*protocol.ExecAnswer, error) {
	r := new(protocol.ExecAnswer)
	if size := e.journal.Size(); offset > size {
		return r, protocol.Errorf(protocol.StreamNotFound, "offset lies beyond the end of the stream").With("size", size)
	}
	var upTo [2]int64 // of each stream: a command that floods must not keep us here
	select {
	case <-e.done:
		r.ExecExit, upTo = e.exit, [2]int64{e.exit.StdoutBytes, e.exit.StderrBytes}
	default:
		r.ExecExit, r.Running = e.soFar(), true
		upTo[0], upTo[1] = e.journal.Totals()
	}
	if !r.Running && !clean && offset == 0 && e.keepsText && e.whole(r) {
		next := r.StdoutBytes + r.StderrBytes
		r.NextOffset = &next
		return r, nil
	}
	r.Truncated, r.Omitted = false, protocol.OmittedStreams{} // what whole said before it found that something is missing
	var both [2]outputText
	var h ringText
	switch {
	case e.keepsText && offset == 0:
		var last int
		var run int64
		if both, last, run = e.resultOutput.snapshot(); r.Running {
			upTo = [2]int64{both[0].total(), both[1].total()}
		}
		for i := range both { // of a tombstone, or of one whose output did not outlive its gateway
			if t := &both[i]; t.total() < upTo[i] {
				t.at = int64(len(t.from(0)))
				t.omitted = upTo[i] - int64(len(t.bytes))
			}
		}
		if clean && both[0].omitted+both[1].omitted > 0 {
			h = e.read(0, upTo, false)
		}
		h.last, h.run = last, run
	default:
		h = e.read(offset, upTo, clean)
		both = e.join(&h, offset, upTo)
	}
	for i := range both {
		if t := &both[i]; clean {
			t.head, t.tail = unfinished(h.prior[i]), h.before(i, int64(len(t.bytes))-t.at)
		}
	}
	if r.Running { // else there is nothing to go on from
		upTo[h.last] -= e.trimPartialCharacter(&both[h.last], h.run)
		e.resultOutput.addResumePoint(resumePoint{upTo[0] + upTo[1], upTo[0]})
	}
	next := max(upTo[0]+upTo[1], offset)
	r.NextOffset = &next
	putTexts(r, both, clean)
	return r, nil
}

// trimPartialCharacter leaves a character whose rest has not come yet for the next answer, unless there is none.
func (e *Exec) trimPartialCharacter(t *outputText, run int64) (n int64) {
	whole := int64(len(t.bytes))
	n = int64(journal.TornTail(t.bytes))
	if n > min(run, whole-t.at) || e.journal.Closed() || time.Since(e.journal.LastWrite()) > journal.TextHold {
		return 0
	}
	t.bytes = t.bytes[:whole-n]
	return n
}

// ringText is what the ring has of each stream.
type ringText struct {
	prior       [2][]byte // of what is before the offset
	first, rest [2][]byte // from there on, and after the last hole if there is one
	hole        bool
	last        int // as in ends
	run         int64
}

// read reads the ring from offset on, and what is before it when that is to be looked back at.
func (e *Exec) read(offset int64, upTo [2]int64, back bool) (h ringText) {
	from, end := offset, upTo[0]+upTo[1]
	if start := e.journal.Start(); back && start < offset {
		from = max(start, offset-escapeLookBack)
	}
	r, err := e.journal.Attach(from, journal.Options{})
	if err != nil {
		return h
	}
	defer r.Close()
	for r.Offset() < end {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		if c.Gap > 0 && c.Offset > offset {
			h.hole, h.rest = true, [2][]byte{}
		}
		if c.Gap > 0 && c.Offset-c.Gap < offset {
			h.prior = [2][]byte{}
		}
		side := sideOf(c.Stream)
		data := c.Data[:max(0, min(int64(len(c.Data)), end-c.Offset))]
		cut := max(0, min(int64(len(data)), offset-c.Offset))
		h.prior[side] = append(h.prior[side], data[:cut]...)
		if data = data[cut:]; len(data) == 0 {
			continue
		}
		if side != h.last {
			h.last, h.run = side, 0
		}
		h.run += int64(len(data))
		into := &h.first[side]
		if h.hole {
			into = &h.rest[side]
		}
		*into = append(*into, data...)
	}
	return h
}

// before is the escape sequence that the last n bytes of a stream begin inside of.
func (h *ringText) before(side int, n int64) []byte {
	b := h.rest[side]
	if !h.hole {
		b = h.first[side]
	}
	return unfinished(b[:max(0, int64(len(b))-n)])
}

// join makes texts of what the ring holds from offset on. Of what it lost it knows only how much that was of both; how much was stdout's
// tells what an answer said of offset. Of an offset that none gave, all before it counts as stdout as far as that can be.
func (e *Exec) join(h *ringText, offset int64, upTo [2]int64) (both [2]outputText) {
	var begin [2]int64 // of each stream, before offset and before what is in h.rest
	for i := range upTo {
		begin[i] = upTo[i] - int64(len(h.first[i])) - int64(len(h.rest[i]))
	}
	skipped := begin
	if h.hole {
		n, known := e.resultOutput.stdoutBefore(offset)
		if !known {
			n = min(offset, begin[0])
		}
		begin = [2]int64{n, offset - n}
		if kept, _, _ := e.resultOutput.snapshot(); known && e.keepsText {
			for i := range kept { // its head may be more than the ring has
				first := kept[i].from(begin[i])
				first = first[:min(int64(len(first)), upTo[i]-begin[i]-int64(len(h.rest[i])))]
				if more := len(first) - len(h.first[i]); more > 0 {
					h.first[i] = first
					skipped[i] -= int64(more)
				}
			}
		}
	}
	for i := range both {
		side := journal.NewHeadTail(e.maxOutput)
		side.Write(h.first[i])
		if lost := skipped[i] - begin[i]; lost > 0 {
			side.Skip(lost)
		}
		side.Write(h.rest[i])
		both[i] = newOutputText(side)
	}
	return both
}

// soFar is what is known of a command that waits or runs.
func (e *Exec) soFar() protocol.ExecExit {
	s := e.session
	s.mu.Lock()
	began, dir := e.beganAt, s.dir
	s.mu.Unlock()
	now := time.Now()
	x := protocol.ExecExit{ExecID: e.ID(), SessionID: s.id, StreamID: e.stream, TimeoutS: protocol.Seconds(e.timeout.Seconds()), WorkingDir: dir}
	if began.IsZero() {
		began = now
	}
	x.QueuedMS, x.DurationMS = clock.Elapsed(e.queuedAt, began).Milliseconds(), clock.Elapsed(began, now).Milliseconds()
	x.StdoutBytes, x.StderrBytes = e.journal.Totals()
	return x
}
