package pool

import (
	"bytes"
	"sync"
	"sync/atomic"

	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/screen"
)

const (
	// window is how much output is read for the screen of a program that does not use the alternate one. What is in view
	// was printed last: a screen of 200 by 50 is 10 KiB, and escape sequences.
	window = 256 << 10
	// lag is how much a program in the alternate screen may print before its screen is brought up to date unasked. It
	// changes what changes, and what stays may be older than the ring, of which this is a half.
	lag = 512 << 10
)

// shown is what a terminal shows. It is worked out when somebody asks, from what the journal has: an emulator is slow
// (3 to 14 MB/s), and nobody who only types and reads shall wait for it.
type shown struct {
	behind atomic.Int64 // bytes since the screen was last brought up to date, as far as wants has counted

	sizing sync.Mutex
	sizes  []sizeAt // guarded by sizing; in order; never empty once the terminal is there

	mu     sync.Mutex     // held while the emulator reads, which may take a while: nobody takes it with another lock held
	screen *screen.Screen // guarded by mu; nil before the first
	fed    int64          // guarded by mu; up to where
	still  *still         // guarded by mu; once the terminal has ended: in the place of the emulator, which has 4 MiB
}

// still is what an ended terminal shows for good.
type still struct {
	text []byte
	shot protocol.TermSnapshot
}

// sizeAt is a size that the terminal has had from an offset on.
type sizeAt struct {
	at         int64
	cols, rows int
}

// maxSizes bounds the sizes that are remembered for output that the screen has not read. A window that is dragged makes
// many in no output at all.
const maxSizes = 64

// resized notes a size.
func (s *shown) resized(at int64, cols, rows int) {
	s.sizing.Lock()
	defer s.sizing.Unlock()
	if n := len(s.sizes); n > 0 && s.sizes[n-1].at == at {
		s.sizes = s.sizes[:n-1]
	}
	if s.sizes = append(s.sizes, sizeAt{at, cols, rows}); len(s.sizes) > maxSizes {
		s.sizes = s.sizes[1:]
	}
}

// sizeAfter is the size in force at an offset, and where the next one begins, -1 if there is none.
func (s *shown) sizeAfter(at int64) (size sizeAt, next int64) {
	s.sizing.Lock()
	defer s.sizing.Unlock()
	next = -1
	for i := len(s.sizes) - 1; i > 0; i-- {
		if s.sizes[i].at <= at {
			return s.sizes[i], next
		}
		next = s.sizes[i].at
	}
	return s.sizes[0], next
}

// wants counts n bytes and tells whether follow has to do something. Under the journal's lock.
func (s *shown) wants(n int, m *screen.Marks) bool {
	was := s.behind.Add(int64(n)) - int64(n)
	return was < lag && was+int64(n) >= lag && m.Alternate()
}

// follow brings the screen of a full-screen program up to date, when it has printed enough. For watch.
func (s *shown) follow(t *Terminal) {
	if s.behind.Load() >= lag && t.marks.Alternate() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.readLocked(t)
	}
	if s.behind.Load() >= lag { // wants shall ask again
		s.behind.Store(0)
	}
}

// readLocked brings the screen up to date. s.mu is held.
func (s *shown) readLocked(t *Terminal) {
	s.behind.Store(0)
	from := s.fed
	if !t.marks.Alternate() {
		from = max(from, t.journal.Size()-window)
	}
	r, err := t.journal.Attach(from, journal.Options{Max: 64 << 10})
	if err != nil {
		return // nobody writes less than was written
	}
	defer r.Close()
	whole := from == 0 || from == s.fed
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			break
		}
		if c.Note != nil {
			continue
		}
		if c.Gap > 0 {
			whole = false
		}
		off, p := c.Offset, c.Data
		if !whole { // from the next line on: what is cut may be a sequence
			whole = true
			if i := bytes.IndexByte(p, '\n'); i >= 0 && i < 4<<10 {
				off, p = off+int64(i)+1, p[i+1:]
			}
			if s.screen == nil && startsAlternate(p, t.marks.Alternate()) {
				s.fitLocked(off)
				_, _ = s.screen.Write([]byte("\x1b[?1049h\x1b[H"))
			}
		}
		for len(p) > 0 {
			n := len(p)
			if next := s.fitLocked(off); next > off {
				n = int(min(int64(n), next-off))
			}
			_, _ = s.screen.Write(p[:n])
			off, p = off+int64(n), p[n:]
		}
		s.fed = off
	}
	s.fitLocked(t.journal.Size())
}

// fitLocked gives the emulator, which is made if there is none, the size that the terminal had at an offset, and returns
// where that ends, -1 if it does not.
func (s *shown) fitLocked(at int64) (next int64) {
	size, next := s.sizeAfter(at)
	if s.screen == nil {
		s.screen = screen.New(size.cols, size.rows)
	} else if cols, rows := s.screen.Size(); cols != size.cols || rows != size.rows {
		s.screen.Resize(size.cols, size.rows)
	}
	return next
}

// startsAlternate guesses whether the alternate screen was shown before p, of which what was before is gone: the first
// switch in p tells, and where there is none it is what is shown now.
func startsAlternate(p []byte, now bool) bool {
	on, off := bytes.Index(p, []byte("\x1b[?1049h")), bytes.Index(p, []byte("\x1b[?1049l"))
	switch {
	case on < 0 && off < 0:
		return now
	case on < 0 || off >= 0 && off < on:
		return true
	}
	return false
}

// Screen returns what makes another terminal look like this one, and the offset that it is the result of.
func (t *Terminal) Screen() ([]byte, int64) {
	t.shown.mu.Lock()
	defer t.shown.mu.Unlock()
	if last := t.stillLocked(); last != nil {
		return last.text, last.shot.Offset
	}
	t.shown.readLocked(t)
	return t.shown.screen.Bytes(), t.shown.fed
}

// Snapshot is what term.snapshot answers.
func (t *Terminal) Snapshot() protocol.TermSnapshot {
	t.shown.mu.Lock()
	defer t.shown.mu.Unlock()
	if last := t.stillLocked(); last != nil {
		return last.shot
	}
	t.shown.readLocked(t)
	return t.shotLocked("running")
}

// shotLocked: shown.mu is held.
func (t *Terminal) shotLocked(state string) protocol.TermSnapshot {
	s := t.shown.screen
	shot := protocol.TermSnapshot{TermID: t.ID(), Lines: s.Lines(), Alternate: s.Alternate(), Title: s.Title(), Offset: t.shown.fed, State: state}
	shot.Cols, shot.Rows = s.Size()
	shot.Cursor.Col, shot.Cursor.Row, shot.Cursor.Visible = s.Cursor()
	return shot
}

// stillLocked is what there is of an ended terminal, nil while it runs. shown.mu is held.
func (t *Terminal) stillLocked() *still {
	s := &t.shown
	if s.still == nil && t.hasEnded() {
		s.readLocked(t)
		s.still = &still{s.screen.Bytes(), t.shotLocked("exited")}
		s.screen = nil
	}
	return s.still
}

// settle lets go of the emulator, if there was need of one. After the end.
func (s *shown) settle(t *Terminal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.screen != nil {
		t.stillLocked()
	}
}
