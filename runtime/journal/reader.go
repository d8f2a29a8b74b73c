package journal

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"time"
	"unicode/utf8"
)

// defaultMax is the size of a chunk if Options has none. Above 32 KiB a copy gains nothing, and 32 KiB is one WebSocket message.
const defaultMax = 32 << 10

// ErrReaderClosed is the error of Next after the reader's Close.
var ErrReaderClosed = errors.New("reader closed")

// Options are a reader's wishes for its chunks.
type Options struct {
	Block bool // the writer waits (Room) and does not overwrite bytes that this reader has not read
	Text  bool // if possible, no chunk ends inside a UTF-8 character
	Max   int  // bytes in a chunk, 32 KiB when 0
}

// Chunk is a piece of one stream. With Gap > 0 the bytes [Offset-Gap, Offset) were overwritten before they were read. Data follows in the same chunk,
// so that a reader that is always too late still makes progress.
type Chunk struct {
	Offset int64
	Stream Stream
	Data   []byte // valid until the next Next or TryNext
	Gap    int64
	Replay bool // was written before Attach
	Note   any  // not nil: a note of Journal.Note, without bytes
}

type note struct {
	at int64
	v  any
}

// Reader follows a journal. Next and TryNext belong to one goroutine at a time; any goroutine may call the other methods. Close ends it; until then it
// stays in the journal's list.
type Reader struct {
	j      *Journal
	text   bool
	max    int
	replay int64         // the journal's size at Attach
	ready  chan struct{} // one token: there may be something new

	buf   []byte      // owned by Next
	timer *time.Timer // owned by Next; made when text first waits

	// guarded by j.mu
	pos     int64 // next offset to deliver
	notes   []note
	block   bool
	ahead   int64 // set by SetAhead; 0: the whole ring
	waiting bool  // Next sleeps, or has slept since it last looked: a token is due
	closed  bool
}

// Next waits for the next chunk. It returns io.EOF after the journal's Close and its last byte, ErrReaderClosed after the reader's own Close, and the
// context's error once the context has ended.
func (r *Reader) Next(ctx context.Context) (Chunk, error) {
	for {
		if err := ctx.Err(); err != nil {
			return Chunk{}, err
		}
		c, ok, wait, err := r.nextChunk(true)
		if ok || err != nil {
			return c, err
		}
		var late <-chan time.Time
		if wait > 0 {
			if r.timer == nil {
				r.timer = time.NewTimer(wait)
			} else {
				r.timer.Reset(wait)
			}
			late = r.timer.C
		}
		select {
		case <-r.ready:
		case <-late:
		case <-ctx.Done():
		}
		if wait > 0 {
			r.timer.Stop()
		}
	}
}

// TryNext is Next without waiting. It returns false if there is nothing to deliver now.
func (r *Reader) TryNext() (Chunk, bool, error) {
	c, ok, _, err := r.nextChunk(false)
	return c, ok, err
}

// nextChunk delivers what is available. Otherwise wait > 0 says after how long an incomplete character is due anyway, and willWait requests a token
// when something changes.
func (r *Reader) nextChunk(willWait bool) (c Chunk, ok bool, wait time.Duration, err error) {
	j := r.j
	j.mu.Lock()
	defer j.unlock()
	switch {
	case r.closed:
		return c, false, 0, ErrReaderClosed
	case len(r.notes) > 0 && r.notes[0].at <= r.pos:
		c = Chunk{Offset: r.pos, Note: r.notes[0].v}
		r.notes = slices.Delete(r.notes, 0, 1)
		return c, true, 0, nil
	case r.pos < j.size:
		c.Offset = max(r.pos, j.startLocked())
		c.Gap = c.Offset - r.pos
		c.Replay = c.Offset < r.replay
		if c.Offset == j.size { // none of it is kept: see Drop
			c.Stream, r.pos = cmp.Or(j.names[0], Stdout), j.size
			return c, true, 0, nil
		}
		var n int
		n, c.Stream, wait = r.fillLocked(c.Offset)
		if n > 0 {
			c.Data = r.buf[:n]
			r.pos = c.Offset + int64(n)
			return c, true, 0, nil
		}
	case j.closed:
		return c, false, 0, io.EOF
	}
	r.waiting = willWait
	return Chunk{}, false, wait, nil
}

// fillLocked copies the bytes of the chunk at off into buf: of one stream, at most max, all replayed or none, and in text mode only whole characters.
// n is 0 if the only available bytes are the start of a character that may wait for its rest.
func (r *Reader) fillLocked(off int64) (n int, s Stream, wait time.Duration) {
	end := r.j.size
	if off < r.replay {
		end = min(end, r.replay)
	}
	n, s = r.copyLocked(off, end, r.max)
	if !r.text {
		return n, s, 0
	}
	torn := TornTail(r.buf[:n])
	if torn == n && end < r.j.size { // Attach came in the middle of a character, which counts as replayed
		n, s = r.copyLocked(off, r.j.size, utf8.UTFMax)
		if torn = n; utf8.FullRune(r.buf[:n]) {
			_, n = utf8.DecodeRune(r.buf[:n])
			torn = 0
		}
	}
	switch {
	case torn < n:
		return n - torn, s, 0
	case r.j.closed, off+int64(n) < r.j.size: // the rest will not come, or not here, because the other stream follows
		return n, s, 0
	}
	if wait = r.j.lastAt + r.j.hold - time.Since(epoch); wait > 0 {
		return 0, s, wait
	}
	return n, s, 0
}

// copyLocked copies the run of one stream at off, up to end and limit, into buf. buf grows as needed.
func (r *Reader) copyLocked(off, end int64, limit int) (int, Stream) {
	n, s := r.j.runLocked(off, int(min(end-off, int64(limit))))
	if n > len(r.buf) {
		r.buf = make([]byte, min(max(n, 2*len(r.buf)), r.max))
	}
	r.j.copyOutLocked(r.buf[:n], off)
	return n, s
}

// TornTail returns how many bytes at the end of p begin a UTF-8 character whose rest is missing; 0 if they cannot begin one.
func TornTail(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if tail := p[len(p)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

// wakeLocked wakes a sleeping Next. The send cannot block: if there is a token already, no second one is needed.
func (r *Reader) wakeLocked() {
	if !r.waiting {
		return
	}
	r.waiting = false
	select {
	case r.ready <- struct{}{}:
	default:
	}
}

// SetBlock sets whether the writer waits for this reader.
func (r *Reader) SetBlock(block bool) {
	r.j.mu.Lock()
	r.block = block && !r.closed
	r.changedLocked()
	r.j.unlock()
}

// SetAhead bounds how far the writer may get ahead of this reader while the reader blocks: n bytes, at least one character; 0 means the whole ring.
// Bytes from before Attach do not count.
func (r *Reader) SetAhead(n int64) {
	r.j.mu.Lock()
	r.ahead = n
	r.changedLocked()
	r.j.unlock()
}

// changedLocked records it if there is no room any more. unlock records the opposite.
func (r *Reader) changedLocked() {
	if !r.j.full {
		r.j.full = !r.j.roomLocked()
	}
}

// Offset is the start of the next chunk, or of the gap before it.
func (r *Reader) Offset() int64 {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	return r.pos
}

// Skip makes to the next offset to deliver, and drops undelivered bytes before it. It is for a reader that shows the result of those bytes instead.
func (r *Reader) Skip(to int64) {
	r.j.mu.Lock()
	r.pos = max(r.pos, min(to, r.j.size))
	r.j.unlock()
}

// Behind reports whether bytes or notes before end are still to be delivered.
func (r *Reader) Behind(end int64) bool {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	return r.pos < end || len(r.notes) > 0 && r.notes[0].at <= end
}

// Close detaches the reader and wakes its Next. It is idempotent.
func (r *Reader) Close() {
	r.j.mu.Lock()
	if !r.closed {
		r.closed = true
		r.block = false
		if i := slices.Index(r.j.readers, r); i >= 0 {
			r.j.readers = slices.Delete(r.j.readers, i, i+1)
		}
		r.j.emptyLocked()
		r.wakeLocked()
	}
	r.j.unlock()
}
