// Package journal keeps one stream's bytes with absolute offsets in a bounded ring.
//
// The owner, whoever drains the pipes, writes; any number of readers follow, each at its own pace, from any offset.
// Offsets count every byte ever written, stdout and stderr together in the order of the writes. The ring ends with the
// garbage collector: Close says that nothing more comes, and what is kept stays readable.
package journal

import (
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Stream tells which of a command's outputs a byte came from.
type Stream uint8

// The values are those of the binary frames on the wire.
const (
	Stdout Stream = 1
	Stderr Stream = 2
	TTY    Stream = 3
)

func (s Stream) String() string {
	switch s {
	case Stdout:
		return "stdout"
	case Stderr:
		return "stderr"
	case TTY:
		return "tty"
	}
	return "none"
}

const (
	// MaxWrite is what one true answer of Room allows to be written: a full pipe (64 KiB by default, pipe(7)).
	// The ring is that much larger than asked for, so that a reader may lag by the whole history before Room says no.
	MaxWrite = 64 << 10
	// page is what a ring is rounded up to; more than the 3 bytes that a text reader may hold back while Room must be true.
	page = 4 << 10
	// leastRing is the first allocation: most commands print a line.
	leastRing = 64
	// TextHold is how long the start of a character waits for its rest (PROTOCOL §7): long enough for a slow link or a
	// stalled program, short enough that a lone byte is seen.
	TextHold = 2 * time.Second
)

// ErrOffsetBeyondEnd refuses an Attach at an offset that has not been written yet.
var ErrOffsetBeyondEnd = errors.New("offset beyond the end of the stream")

// epoch turns the monotonic clock into a number: half the price of time.Now, and a third of its size.
var epoch = time.Now()

// Journal is one stream: a command's stdout and stderr, or a terminal's output. All methods are safe for concurrent use.
type Journal struct {
	onRoom func()               // set once before use
	tap    func(Stream, []byte) // set once before use
	onSkip func(Stream, int64)  // set once before use
	onDrop func(Span)           // set once before use
	span   *span                // our place in a log; set once in Through or Replay, before use; nil: none
	hold   time.Duration        // TextHold; tests shorten it
	bound  int                  // what buf may grow to: ring + MaxWrite, a multiple of page

	mu         sync.Mutex
	buf        []byte        // byte at offset o lies at o % len(buf); shorter than bound only while nothing has wrapped
	streamBits streamBits    // whose each byte is, once a second stream has written; nil before
	runStart   int64         // where the newest run of one stream begins
	names      [2]Stream     // the stream of a turns bit 0 and 1; 0: not seen yet
	totals     [2]int64      // bytes written per names
	size       int64         // bytes ever written
	from       int64         // what is before was never in buf: Replay knew only how much it was; 0 otherwise
	lastAt     time.Duration // of the last write, since epoch
	readers    []*Reader     // attached and not closed
	full       bool          // a blocking reader lags so that Room is false
	closed     bool
	unwanted   bool // Drop was called
}

// New returns an empty journal that keeps at least the last ring bytes. It holds no memory before the first write.
func New(ring int) *Journal {
	ring = max(ring, 1)
	return &Journal{hold: TextHold, bound: (ring+page-1)/page*page + MaxWrite}
}

// NewLengthOnly returns the journal of a stream that has ended and of which nothing but its length is kept: all of it is a gap.
func NewLengthOnly(stdout, stderr int64) *Journal {
	j := New(1)
	j.skipLocked(Stdout, stdout, nil)
	j.skipLocked(Stderr, stderr, nil)
	j.Close()
	return j
}

// Memory is what the journal takes, about.
func (j *Journal) Memory() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return journalSize + int64(cap(j.buf)) + 8*int64(cap(j.streamBits))
}

// journalSize is what one takes beside its output, with what its owner has for it.
const journalSize = 600

// OnRoom sets what is called each time Room turns true again, on the goroutine that made it so and without the lock.
// By then Room may be false once more: f makes the owner ask.
func (j *Journal) OnRoom(f func()) { j.onRoom = f }

// Tap sets what sees each write as it is made, in order and under the journal's lock: f must not call the journal.
func (j *Journal) Tap(f func(Stream, []byte)) { j.tap = f }

// OnSkip sets what learns, like the tap and in its place, of bytes that a Replay has the number of and nothing else.
func (j *Journal) OnSkip(f func(Stream, int64)) { j.onSkip = f }

// Write appends p, overwriting the oldest bytes. It never waits for a reader; an owner that minds asks Room first and
// writes at most MaxWrite. A write after Close, or of a third stream, is the owner's bug and panics.
func (j *Journal) Write(s Stream, p []byte) {
	if j.span == nil {
		j.write(s, p)
		return
	}
	_, _ = j.span.log.transfer(j, s, noPipe, p) // only a pipe can fail
}

// write is Write without the log.
func (j *Journal) write(s Stream, p []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		panic("journal: write after close")
	}
	if len(p) == 0 {
		return
	}
	side := j.sideLocked(s)
	j.totals[side] += int64(len(p))
	if j.tap != nil {
		j.tap(s, p)
	}
	j.size += int64(len(p))
	if len(j.buf) < j.bound && j.size > int64(len(j.buf)) {
		j.growLocked(j.size - int64(len(p)))
	}
	p = p[max(0, len(p)-len(j.buf)):] // the rest would be overwritten by its own end
	for off := j.size - int64(len(p)); len(p) > 0; {
		i := j.at(off)
		n := copy(j.buf[i:], p)
		if j.streamBits != nil {
			j.streamBits.mark(i, n, side)
		}
		off, p = off+int64(n), p[n:]
	}
	j.lastAt = time.Since(epoch)
	for _, r := range j.readers {
		r.wakeLocked()
	}
	j.full = !j.roomLocked()
}

// sideLocked returns s's place in names and notes the turn when another stream wrote last.
func (j *Journal) sideLocked(s Stream) int {
	side := 0
	switch {
	case s == j.names[0]:
	case s == j.names[1]:
		side = 1
	case j.names[0] == 0:
		j.names[0] = s
	case j.names[1] == 0:
		j.names[1], side = s, 1
		j.streamBits = newStreamBits(len(j.buf)) // all zero: until now it was the other's
	default:
		panic("journal: write of a third stream")
	}
	if j.streamBits != nil && (j.size == j.from || j.streamBits.side(j.at(j.size-1)) != side) {
		j.runStart = j.size
	}
	return side
}

// skipLocked counts n bytes that were overwritten before this journal was made: p is them, nil when nobody has them any more.
func (j *Journal) skipLocked(s Stream, n int64, p []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.totals[j.sideLocked(s)] += n
	if p != nil && j.tap != nil {
		j.tap(s, p)
	}
	if p == nil && j.onSkip != nil {
		j.onSkip(s, n)
	}
	j.size += n
	j.from = j.size
	j.lastAt = time.Since(epoch)
}

// growLocked makes buf hold size bytes, or bound, and keeps the first kept ones. Nothing has wrapped yet.
func (j *Journal) growLocked(kept int64) {
	n := int(min(max(j.size, 2*int64(len(j.buf)), leastRing), int64(j.bound)))
	j.resizeLocked(n, kept)
}

func (j *Journal) resizeLocked(n int, kept int64) {
	buf := make([]byte, n)
	copy(buf, j.buf[:min(kept, int64(len(j.buf)))]) // less when it is the first after past
	j.buf = buf
	if j.streamBits != nil {
		old := j.streamBits
		j.streamBits = newStreamBits(n)
		copy(j.streamBits, old)
	}
}

// at is where in buf the byte at off lies.
func (j *Journal) at(off int64) int { return int(off % int64(len(j.buf))) }

// copyOut copies from the ring, starting at off, into p. All of it is kept.
func (j *Journal) copyOutLocked(p []byte, off int64) {
	n := copy(p, j.buf[j.at(off):])
	copy(p[n:], j.buf)
}

// runLocked returns how many bytes from off on, at most n, are of one stream, and which.
func (j *Journal) runLocked(off int64, n int) (int, Stream) {
	if j.streamBits == nil {
		return n, j.names[0]
	}
	i := j.at(off)
	side := j.streamBits.side(i)
	if off >= j.runStart {
		return n, j.names[side]
	}
	first := min(n, len(j.buf)-i)
	k := j.streamBits.run(i, first, side)
	if k == first && k < n {
		k += j.streamBits.run(0, n-k, side)
	}
	return k, j.names[side]
}

// Room is false while the owner shall wait for a blocking reader: MaxWrite more bytes do not fit, or the reader lags by more
// than SetAhead allows.
func (j *Journal) Room() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.roomLocked()
}

func (j *Journal) roomLocked() bool {
	for _, r := range j.readers {
		if r.block && r.ahead > 0 && j.size-max(r.pos, r.replay) > r.ahead {
			return false
		}
	}
	return j.fitsLocked()
}

// Fits is false while MaxWrite more bytes would overwrite what a blocking reader has not read. An owner asks it instead of Room
// when little is left to write.
func (j *Journal) Fits() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fitsLocked()
}

func (j *Journal) fitsLocked() bool {
	for _, r := range j.readers {
		if r.block && j.size-r.pos > int64(j.bound-MaxWrite) {
			return false
		}
	}
	return true
}

// unlock releases mu after a reader moved, left or stopped blocking, and tells the owner when that made room.
func (j *Journal) unlock() {
	was := j.full
	j.full = was && !j.roomLocked()
	made := was && !j.full
	j.mu.Unlock()
	if made && j.onRoom != nil {
		j.onRoom()
	}
}

// Close says that nothing more will come and gives back memory that was never filled. Readers drain what is kept.
func (j *Journal) Close() {
	if j.span == nil {
		j.close()
		return
	}
	l := j.span.log
	l.fillMu.Lock()
	l.mu.Lock()
	l.endLocked(j.span)
	unwanted := j.close()
	l.mu.Unlock()
	l.fillMu.Unlock()
	if unwanted {
		j.drop()
	}
}

// close reports whether Drop was waiting for it.
func (j *Journal) close() (unwanted bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return false
	}
	j.closed = true
	if spare := int64(len(j.buf)) - j.size; spare > leastRing {
		j.resizeLocked(int(j.size), j.size)
	}
	for _, r := range j.readers {
		r.wakeLocked()
	}
	j.emptyLocked()
	return j.unwanted
}

// Drop gives back what a journal holds, and what its log keeps of it, now or when it is closed: it cannot be brought back
// any more. Readers that are attached read on; the ring goes with the last of them. Idempotent.
func (j *Journal) Drop() {
	j.mu.Lock()
	j.unwanted = true
	j.emptyLocked()
	closed := j.closed
	j.mu.Unlock()
	if closed {
		j.drop()
	}
}

// emptyLocked lets go of the ring when nobody wants it any more. mu is held.
func (j *Journal) emptyLocked() {
	if j.unwanted && j.closed && len(j.readers) == 0 {
		j.buf, j.streamBits, j.from = nil, nil, j.size
	}
}

func (j *Journal) drop() {
	if j.span == nil {
		return
	}
	s := j.Span()
	j.span.log.Drop(s)
	if j.onDrop != nil {
		j.onDrop(s)
	}
}

// OnDrop sets what is called after Drop, with what Span was. Before use.
func (j *Journal) OnDrop(f func(Span)) { j.onDrop = f }

// Start is the offset of the oldest byte that is kept.
func (j *Journal) Start() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.startLocked()
}

func (j *Journal) startLocked() int64 { return max(j.from, j.size-int64(len(j.buf))) }

// Size is how many bytes were ever written: the offset of the next one.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Closed tells whether nothing more will come.
func (j *Journal) Closed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// LastWrite is the time of the last write, zero before the first.
func (j *Journal) LastWrite() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size == 0 {
		return time.Time{}
	}
	return epoch.Add(j.lastAt)
}

// Totals counts the bytes ever written; a terminal's count as stdout.
func (j *Journal) Totals() (stdout, stderr int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, s := range j.names {
		if s == Stderr {
			stderr += j.totals[i]
		} else {
			stdout += j.totals[i]
		}
	}
	return stdout, stderr
}

// maxNotes bounds what waits for one reader: who is that far behind misses the oldest.
const maxNotes = 256

// Note tells every reader that is attached now something that happened beside the bytes: after all that was written
// before it. It is not kept for anybody else.
func (j *Journal) Note(v any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.readers {
		if len(r.notes) >= maxNotes {
			r.notes = slices.Delete(r.notes, 0, 1)
		}
		r.notes = append(r.notes, note{j.size, v})
		r.wakeLocked()
	}
}

// Attach returns a reader that begins at offset. Below Start it first learns of the gap; below 0 means "from the oldest
// byte kept", without one. The caller closes it.
func (j *Journal) Attach(offset int64, o Options) (*Reader, error) {
	if o.Max <= 0 {
		o.Max = defaultMax
	}
	if o.Text {
		o.Max = max(o.Max, utf8.UTFMax) // or a character might never fit
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if offset > j.size {
		return nil, ErrOffsetBeyondEnd
	}
	if offset < 0 {
		offset = j.startLocked()
	}
	r := &Reader{
		j: j, text: o.Text, max: o.Max, replay: j.size, ready: make(chan struct{}, 1),
		pos: offset, block: o.Block,
	}
	j.readers = append(j.readers, r)
	j.full = !j.roomLocked()
	return r, nil
}
