// Package answer makes the answers of exec.run and exec.wait from a command's output.
package answer

import (
	"bytes"
	"slices"
	"sync"
	"time"
	"unicode/utf8"

	"trl/pool/budget"
	"trl/protocol"
	"trl/runtime/journal"
)

const (
	maxResumePoints = 64       // of one exec: a client continues from its last answer, or from an earlier one if that was lost
	escapeLookBack  = 64 << 10 // bytes before an answer's text in which an escape sequence may begin: images may be longer, all others are shorter
)

// Output is a command's output, as its answers contain it. An exec.run keeps the beginning and the end of each stream. An exec.stream keeps
// nothing; its answers have what is in the journal's ring.
type Output struct {
	Max       int  // bytes of one stream in an answer; set once
	KeepsText bool // the output of an exec.run; set once

	mu           sync.Mutex // taken under the journal's lock
	streams      [2]*journal.HeadTail
	totals       [2]int64      // bytes of each stream
	lastStream   int           // the stream of the newest bytes
	lastRun      int64         // how many bytes that stream got since the other one's
	end          *[2]int64     // bytes of each stream when the command ended: later bytes are a background job's; nil: it has not ended
	resumePoints []resumePoint // oldest first

	budget  *budget.Budget // nil: the text is not counted
	owner   string         // the principal on whose budget it is counted
	charged int64          // bytes that are counted
	holders int            // what needs the text: the command until its end, and each request that answers with it
}

// size is about how many bytes an Output takes in addition to its texts.
const size = 150

// resumePoint is an offset that an answer gave to continue from. stdout is how many bytes before it are stdout, which the ring forgets.
type resumePoint struct{ offset, stdout int64 }

// New makes the output of a command whose answers have at most max bytes of each stream.
func New(max int) *Output { return &Output{Max: max} }

// KeepText keeps the text of what is written to j from now on.
func (x *Output) KeepText(j *journal.Journal) {
	x.KeepsText = true
	j.Tap(x.write)
	j.OnSkip(x.skip)
}

// CountOn counts the text on the owner's budget until the last Release. It is called before anything is written, and holds the output for the
// command.
func (x *Output) CountOn(b *budget.Budget, owner string) { x.budget, x.owner, x.holders = b, owner, 1 }

// Hold keeps the text on the budget until Release, also after the command has ended.
func (x *Output) Hold() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.holders++
}

// Release ends what Hold began. The last call gives the bytes back to the budget. From then on, what the session retains counts them.
func (x *Output) Release() {
	x.mu.Lock()
	var n int64
	if x.holders--; x.holders == 0 {
		n, x.charged = x.charged, 0
	}
	x.mu.Unlock()
	if n > 0 {
		x.budget.Add(x.owner, -n)
	}
}

// Grow is called before a text takes n more bytes of memory, with mu held.
func (x *Output) Grow(n int) bool {
	if x.budget == nil || x.holders <= 0 {
		return true
	}
	if !x.budget.Reserve(x.owner, int64(n)) {
		return false
	}
	x.charged += int64(n)
	return true
}

// IsNeeded reports whether an answer after the command's end needs x.
func (x *Output) IsNeeded() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.streams[0] != nil || x.streams[1] != nil || len(x.resumePoints) > 0
}

// Memory returns about how many bytes x takes.
func (x *Output) Memory() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := int64(size + 16*cap(x.resumePoints))
	for _, text := range x.streams {
		if text != nil {
			n += size + text.Memory()
		}
	}
	return n
}

func indexOf(s journal.Stream) int {
	if s == journal.Stderr {
		return 1
	}
	return 0
}

// write is the journal's tap.
func (x *Output) write(s journal.Stream, p []byte) {
	x.mu.Lock()
	defer x.mu.Unlock()
	text, n := x.count(s, int64(len(p)))
	text.Write(p[:n])
}

// skip counts bytes that are lost.
func (x *Output) skip(s journal.Stream, n int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if text, n := x.count(s, n); n > 0 {
		text.Skip(n)
	}
}

// count counts n new bytes. It returns the text that they belong to, and how many of them were written before the command's end.
func (x *Output) count(s journal.Stream, n int64) (*journal.HeadTail, int64) {
	i := indexOf(s)
	if x.end != nil {
		n = min(n, x.end[i]-x.totals[i])
	}
	if x.totals[i] += n; i != x.lastStream {
		x.lastStream, x.lastRun = i, 0
	}
	x.lastRun += n
	if x.streams[i] == nil {
		x.streams[i] = journal.NewHeadTail(x.Max)
		x.streams[i].OnGrow(x)
	}
	return x.streams[i], n
}

// snapshot returns both texts at one moment, and which stream has the last run bytes.
func (x *Output) snapshot() (both [2]text, last int, run int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return [2]text{newText(x.streams[0]), newText(x.streams[1])}, x.lastStream, x.lastRun
}

// End says that the command has ended, and returns how much of each stream KeepText has seen.
func (x *Output) End() (stdout, stderr int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end = &[2]int64{x.totals[0], x.totals[1]}
	return x.totals[0], x.totals[1]
}

// EndAt says that the command ended under an earlier gateway, and how much of each stream it had written.
func (x *Output) EndAt(stdout, stderr int64) { x.end = &[2]int64{stdout, stderr} }

func (x *Output) addResumePoint(p resumePoint) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(x.resumePoints, p) {
		return
	}
	if len(x.resumePoints) == maxResumePoints {
		x.resumePoints = slices.Delete(x.resumePoints, 0, 1)
	}
	x.resumePoints = append(x.resumePoints, p)
}

// stdoutBefore returns how many bytes before offset are stdout, if that is known.
func (x *Output) stdoutBefore(offset int64) (n int64, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.resumePoints, func(p resumePoint) bool { return p.offset == offset })
	if i < 0 {
		return 0, offset == 0
	}
	return x.resumePoints[i].stdout, true
}

// Fill puts the output in j from offset on into an answer, whose exit and Running are set.
func (x *Output) Fill(r *protocol.ExecAnswer, j *journal.Journal, offset int64, clean bool) {
	upTo := [2]int64{r.StdoutBytes, r.StderrBytes} // later output is left out: a command that floods must not keep us here
	if !r.Running && !clean && offset == 0 && x.KeepsText && x.putWhole(r) {
		next := upTo[0] + upTo[1]
		r.NextOffset = &next
		return
	}
	r.Truncated, r.Omitted = false, protocol.OmittedStreams{} // putWhole may have set them before it found that something is missing
	var both [2]text
	var ring ringText
	if x.KeepsText && offset == 0 {
		var last int
		var run int64
		if both, last, run = x.snapshot(); r.Running {
			upTo = [2]int64{both[0].total(), both[1].total()}
		}
		for i := range both { // the text of a tombstone is missing, and so is output that did not outlive its gateway
			if t := &both[i]; t.total() < upTo[i] {
				t.at = int64(len(t.from(0)))
				t.omitted = upTo[i] - int64(len(t.bytes))
			}
		}
		if clean && both[0].omitted+both[1].omitted > 0 {
			ring = readRing(j, 0, upTo, false)
		}
		ring.last, ring.run = last, run
	} else {
		ring = readRing(j, offset, upTo, clean)
		both = x.join(&ring, offset, upTo)
	}
	for i := range both {
		if t := &both[i]; clean {
			t.head, t.tail = unfinished(ring.prior[i]), ring.before(i, int64(len(t.bytes))-t.at)
		}
	}
	if r.Running { // else there is nothing to continue from
		upTo[ring.last] -= both[ring.last].trimPartialCharacter(j, ring.run)
		x.addResumePoint(resumePoint{upTo[0] + upTo[1], upTo[0]})
	}
	next := max(upTo[0]+upTo[1], offset)
	r.NextOffset = &next
	putTexts(r, both, clean)
}

// putWhole puts the texts of a command that has ended into its answer without a copy. It returns false if a part of them is missing.
func (x *Output) putWhole(r *protocol.ExecAnswer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	var texts [2]protocol.Text
	for i, all := range [2]int64{r.StdoutBytes, r.StderrBytes} {
		text := x.streams[i]
		if text == nil {
			if all > 0 {
				return false
			}
			continue
		}
		before, after, total, at, omitted := text.Parts()
		if total < all {
			return false
		}
		texts[i] = append(before, after...)
		putOmission(r, i, at, omitted)
	}
	r.SetTexts(texts[0], texts[1])
	return true
}

// putTexts puts the texts into an answer.
func putTexts(r *protocol.ExecAnswer, both [2]text, clean bool) {
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

// putOmission says in an answer that n bytes of a stream are left out, at this place of its text.
func putOmission(r *protocol.ExecAnswer, stream int, at, n int64) {
	if n == 0 {
		return
	}
	r.Truncated = true
	into := &r.Omitted.Stdout
	if stream == 1 {
		into = &r.Omitted.Stderr
	}
	*into = &protocol.Omitted{At: at, Bytes: n}
}

// join makes the texts of what the ring has from offset on. Of lost bytes the ring knows only how many there were of both streams. The
// resume point of offset tells how many of them were stdout. If no answer gave this offset, all bytes before it count as stdout, as far as
// that is possible.
func (x *Output) join(ring *ringText, offset int64, upTo [2]int64) (both [2]text) {
	var begin [2]int64 // bytes of each stream before offset, or before ring.rest
	for i := range upTo {
		begin[i] = upTo[i] - int64(len(ring.first[i])) - int64(len(ring.rest[i]))
	}
	skipped := begin
	if ring.hole {
		n, known := x.stdoutBefore(offset)
		if !known {
			n = min(offset, begin[0])
		}
		begin = [2]int64{n, offset - n}
		if kept, _, _ := x.snapshot(); known && x.KeepsText {
			for i := range kept { // the beginning of the kept text may be longer than what the ring has
				first := kept[i].from(begin[i])
				first = first[:min(int64(len(first)), upTo[i]-begin[i]-int64(len(ring.rest[i])))]
				if more := len(first) - len(ring.first[i]); more > 0 {
					ring.first[i] = first
					skipped[i] -= int64(more)
				}
			}
		}
	}
	for i := range both {
		t := journal.NewHeadTail(x.Max)
		t.Write(ring.first[i])
		if lost := skipped[i] - begin[i]; lost > 0 {
			t.Skip(lost)
		}
		t.Write(ring.rest[i])
		both[i] = newText(t)
	}
	return both
}

// text is what an answer has of one stream.
type text struct {
	bytes       []byte
	at, omitted int64  // how many bytes are left out, and where
	head, tail  []byte // the escape sequences in which the text begins, and in which it continues after the omission
}

func newText(e *journal.HeadTail) text {
	if e == nil {
		return text{}
	}
	kept, _, at, omitted := e.Bytes()
	return text{bytes: kept, at: at, omitted: omitted}
}

func (t text) total() int64 { return int64(len(t.bytes)) + t.omitted }

// from returns what follows the first n bytes, up to the omission.
func (t text) from(n int64) []byte {
	if t.omitted == 0 {
		t.at = int64(len(t.bytes))
	}
	return t.bytes[min(n, t.at):t.at]
}

// clean removes the escape sequences from the texts before and after the omission, each by itself.
func (t text) clean() string {
	if t.omitted == 0 {
		t.at = int64(len(t.bytes))
	}
	return protocol.Clean(string(t.head)+string(t.bytes[:t.at])) + protocol.Clean(string(t.tail)+string(t.bytes[t.at:]))
}

// trimPartialCharacter leaves an incomplete character at the end for the next answer, unless its rest will not come. run is how many bytes at
// the end were written in a row.
func (t *text) trimPartialCharacter(j *journal.Journal, run int64) (n int64) {
	whole := int64(len(t.bytes))
	n = int64(journal.TornTail(t.bytes))
	if n > min(run, whole-t.at) || j.Closed() || time.Since(j.LastWrite()) > journal.TextHold {
		return 0
	}
	t.bytes = t.bytes[:whole-n]
	return n
}

// unfinished returns the escape sequence in which b ends, or nil.
func unfinished(b []byte) []byte {
	b = b[max(0, len(b)-escapeLookBack):]
	for _, at := range []int{bytes.LastIndexByte(b, '\x1b'), bytes.LastIndexAny(b, "\u0090\u0098\u009b\u009d\u009e\u009f")} {
		if at >= 0 && protocol.Clean(string(b[at:])+"m") == "" { // the sequence takes the next letter, whatever it is
			return b[at:]
		}
	}
	return nil
}

// ringText is what the journal's ring has of each stream.
type ringText struct {
	prior       [2][]byte // before the offset
	first, rest [2][]byte // from the offset to the last hole, and after it
	hole        bool
	last        int   // the stream that has the last bytes
	run         int64 // how many bytes that stream got in a row
}

// readRing reads the ring from offset on. With lookBack it also reads some output before that.
func readRing(j *journal.Journal, offset int64, upTo [2]int64, lookBack bool) (ring ringText) {
	from, end := offset, upTo[0]+upTo[1]
	if start := j.Start(); lookBack && start < offset {
		from = max(start, offset-escapeLookBack)
	}
	r, err := j.Attach(from, journal.Options{})
	if err != nil {
		return ring
	}
	defer r.Close()
	for r.Offset() < end {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		if c.Gap > 0 && c.Offset > offset {
			ring.hole, ring.rest = true, [2][]byte{}
		}
		if c.Gap > 0 && c.Offset-c.Gap < offset {
			ring.prior = [2][]byte{}
		}
		i := indexOf(c.Stream)
		data := c.Data[:max(0, min(int64(len(c.Data)), end-c.Offset))]
		cut := max(0, min(int64(len(data)), offset-c.Offset))
		ring.prior[i] = append(ring.prior[i], data[:cut]...)
		if data = data[cut:]; len(data) == 0 {
			continue
		}
		if i != ring.last {
			ring.last, ring.run = i, 0
		}
		ring.run += int64(len(data))
		into := &ring.first[i]
		if ring.hole {
			into = &ring.rest[i]
		}
		*into = append(*into, data...)
	}
	return ring
}

// before returns the escape sequence in which the last n bytes of a stream begin, or nil.
func (ring *ringText) before(i int, n int64) []byte {
	b := ring.rest[i]
	if !ring.hole {
		b = ring.first[i]
	}
	return unfinished(b[:max(0, int64(len(b))-n)])
}
