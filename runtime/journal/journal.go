// Package journal keeps the bytes of one stream, with absolute offsets, in a bounded ring.
//
// The owner, which reads the pipes, writes. Any number of readers follow, each at its own pace, from any offset. Offsets count every byte
// ever written, stdout and stderr together in the order of the writes. The garbage collector frees the ring: Close only says that nothing
// more comes, and the kept bytes stay readable.
package journal

import (
	"errors"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Stream says from which of a command's outputs a byte came.
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
	// MaxWrite is how much may be written after Room has returned true: a full pipe (64 KiB by default, pipe(7)). The ring is larger than requested by
	// this amount, so that a reader may lag by the whole history before Room returns false.
	MaxWrite = 64 << 10
	// page is the unit to which a ring is rounded up. It is larger than the 3 bytes that a text reader may hold back while Room must be true.
	page = 4 << 10
	// leastRing is the size of the first allocation: most commands print one line.
	leastRing = 64
	// TextHold is how long the start of a character waits for its rest: long enough for a slow link or a stalled program, short enough that a single
	// byte becomes visible.
	TextHold = 2 * time.Second
)

// ErrOffsetBeyondEnd refuses an Attach at an offset that is not written yet.
var ErrOffsetBeyondEnd = errors.New("offset beyond the end of the stream")

// epoch turns the monotonic clock into a number, which costs half the time and a third of the space of a time.Time.
var epoch = time.Now()

// Journal is one stream: a command's stdout and stderr, or a terminal's output. All its methods are safe for concurrent use.
type Journal struct {
	onRoom func()               // set once before use
	tap    func(Stream, []byte) // set once before use
	onSkip func(Stream, int64)  // set once before use
	onDrop func(Span)           // set once before use
	span   *span                // our place in a log; set once in Through or Replay, before use; nil: none
	hold   time.Duration        // TextHold; tests shorten it
	bound  int                  // the most that buf may grow to: ring + MaxWrite, a multiple of page

	mu         sync.Mutex
	buf        []byte        // byte at offset o lies at o % len(buf); shorter than bound only while nothing has wrapped
	streamBits streamBits    // the stream of each byte, once a second stream has written; nil before
	runStart   int64         // where the newest run of one stream begins
	names      [2]Stream     // the streams of bits 0 and 1; 0: not seen yet
	totals     [2]int64      // bytes written per names
	size       int64         // bytes ever written
	from       int64         // earlier bytes were never in buf, because Replay knew only their number; 0 otherwise
	lastAt     time.Duration // of the last write, since epoch
	readers    []*Reader     // attached and not closed
	full       bool          // a blocking reader lags so far that Room is false
	closed     bool
	unwanted   bool // Drop was called
}

// New returns an empty journal that keeps at least the last ring bytes. It holds no memory before the first write.
func New(ring int) *Journal {
	ring = max(ring, 1)
	return &Journal{hold: TextHold, bound: (ring+page-1)/page*page + MaxWrite}
}

// NewLengthOnly returns the journal of an ended stream of which only the length is kept: all of it is a gap.
func NewLengthOnly(stdout, stderr int64) *Journal {
	j := New(1)
	j.skipLocked(Stdout, stdout, nil)
	j.skipLocked(Stderr, stderr, nil)
	j.Close()
	return j
}

// Memory returns the approximate memory of the journal.
func (j *Journal) Memory() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return journalSize + int64(cap(j.buf)) + 8*int64(cap(j.streamBits))
}

// journalSize is the memory of a journal without its output, including its owner's data for it.
const journalSize = 600

// OnRoom sets the function that is called each time Room becomes true again, without the lock, on the goroutine that caused it. Room may be false
// again by then: f makes the owner ask.
func (j *Journal) OnRoom(f func()) { j.onRoom = f }

// Tap sets the function that sees each write, in order and under the journal's lock. f must not call the journal.
func (j *Journal) Tap(f func(Stream, []byte)) { j.tap = f }

// OnSkip sets the function that is called, in order with the tap, for bytes of which a Replay knows only the number.
func (j *Journal) OnSkip(f func(Stream, int64)) { j.onSkip = f }

// Write appends p and overwrites the oldest bytes. It never waits for a reader; an owner that must not overwrite asks Room first and writes at most
// MaxWrite. A write after Close, or of a third stream, is a bug of the owner and panics.
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
	p = p[max(0, len(p)-len(j.buf)):] // p's own end would overwrite the rest
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

// sideLocked returns the index of s in names, and records a change of streams.
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
		j.streamBits = newStreamBits(len(j.buf)) // all zero: until now every byte was the other stream's
	default:
		panic("journal: write of a third stream")
	}
	if j.streamBits != nil && (j.size == j.from || j.streamBits.side(j.at(j.size-1)) != side) {
		j.runStart = j.size
	}
	return side
}

// skipLocked counts n bytes that were overwritten before this journal was made. p contains them, or is nil if nobody has them any more.
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

// growLocked makes buf hold size bytes, or bound, and keeps the first kept bytes. Nothing has wrapped yet.
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

// at is the index in buf of the byte at off.
func (j *Journal) at(off int64) int { return int(off % int64(len(j.buf))) }

// copyOutLocked copies from the ring, starting at off, into p. The ring has all of it.
func (j *Journal) copyOutLocked(p []byte, off int64) {
	n := copy(p, j.buf[j.at(off):])
	copy(p[n:], j.buf)
}

// runLocked returns how many bytes from off on, at most n, belong to one stream, and to which.
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

// Room is false while the owner must wait for a blocking reader: MaxWrite more bytes do not fit, or the reader lags by more than SetAhead allows.
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

// Fits is false while MaxWrite more bytes would overwrite bytes that a blocking reader has not read. An owner calls it instead of Room when only
// little is left to write.
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

// unlock releases mu after a reader moved, left or stopped blocking. If that made room, it tells the owner.
func (j *Journal) unlock() {
	was := j.full
	j.full = was && !j.roomLocked()
	made := was && !j.full
	j.mu.Unlock()
	if made && j.onRoom != nil {
		j.onRoom()
	}
}

// Close says that nothing more will come, and frees memory that was never used. Readers read the kept bytes.
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

// Drop frees the memory of the journal and its part of the log, now or when the journal is closed. The journal cannot be restored afterwards. Attached
// readers read on; the ring is freed with the last of them. Drop is idempotent.
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

// emptyLocked frees the ring when nobody needs it any more. mu is held.
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

// OnDrop sets the function that is called after Drop, with the journal's Span. Call it before use.
func (j *Journal) OnDrop(f func(Span)) { j.onDrop = f }

// Start returns the offset of the oldest byte that is kept.
func (j *Journal) Start() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.startLocked()
}

func (j *Journal) startLocked() int64 { return max(j.from, j.size-int64(len(j.buf))) }

// Size returns how many bytes were ever written: the offset of the next one.
func (j *Journal) Size() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.size
}

// Closed reports whether nothing more will come.
func (j *Journal) Closed() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.closed
}

// LastWrite returns the time of the last write, zero before the first.
func (j *Journal) LastWrite() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.size == 0 {
		return time.Time{}
	}
	return epoch.Add(j.lastAt)
}

// Totals returns how many bytes were ever written; a terminal's count as stdout.
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

// maxNotes bounds the notes that wait for one reader. A reader that lags further misses the oldest.
const maxNotes = 256

// Note tells every attached reader something besides the bytes, after all bytes that were written before it. It is kept for nobody else.
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

// Attach returns a reader that begins at offset. If offset is below Start, the reader first gets the gap. An offset below 0 means the oldest byte that
// is kept, without a gap. The caller closes the reader.
func (j *Journal) Attach(offset int64, o Options) (*Reader, error) {
	if o.Max <= 0 {
		o.Max = defaultMax
	}
	if o.Text {
		o.Max = max(o.Max, utf8.UTFMax) // else a character might never fit
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
