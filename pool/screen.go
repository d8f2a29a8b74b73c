package pool

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/screen"
)

const (
	// window is how much output is read for the screen of a program that does not use the alternate one. What is in view
	// was printed last: a screen of 200 by 50 is 10 KiB, and escape sequences.
	window = 256 << 10
	// lag is how much a program in the alternate screen may print before its screen is brought up to date unasked. It
	// changes what changes, and what stays may be older than the ring, of which this is an eighth.
	lag = 512 << 10
	// piece is how much an emulator reads at a time. Between two pieces it is looked whether to go on.
	piece = 64 << 10
)

// shown is what a terminal shows. An emulator works it out when somebody asks, from what the journal has. Nobody who only
// types and reads waits for it, and neither does what ends a terminal.
type shown struct {
	printed   atomic.Int64 // bytes, as far as wants has counted
	read      atomic.Int64 // of them, up to where an emulator has read
	following atomic.Bool  // a follower runs

	sizing sync.Mutex
	sizes  []sizeAt // guarded by sizing; in order; never empty once the terminal is there

	mu      sync.Mutex     // held while the emulator reads, which may take a while: nobody takes it with another lock held
	screen  *screen.Screen // guarded by mu; nil before the first, and where it can be made anew: see release
	fed     int64          // guarded by mu; up to where
	cut     bool           // guarded by mu; the emulator has not read what comes before fed
	skipped int64          // guarded by mu; bytes that the emulator has not read since the alternate screen was shown
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

// wants counts n bytes and tells whether the screen has to be followed. Under the journal's lock.
func (s *shown) wants(n int, m *screen.Marks) bool {
	s.printed.Add(int64(n))
	return s.lags() && !s.following.Load() && m.Alternate()
}

func (s *shown) lags() bool { return s.printed.Load()-s.read.Load() >= lag }

// follow begins to bring the screen of a full-screen program up to date, if it has printed enough and that is not
// under way. It does not wait.
func (t *Terminal) follow() {
	s := &t.shown
	due := func() bool { return s.lags() && t.marks.Alternate() && s.following.CompareAndSwap(false, true) }
	if !due() {
		return
	}
	p := t.session.pool
	p.tasks.Add(1) // the session's runner, which waits for watch, is one of the tasks; Close waits for them
	go func() {    // reads what was printed; ended by the terminal's end at the latest
		defer p.tasks.Done()
		ended := t.terminal.Exited()
		for again := true; again; again = due() {
			took, ok := t.catchUp(ended)
			if !ok {
				return // for good
			}
			pause := time.NewTimer(p.emulators.rest * took)
			select {
			case <-pause.C:
			case <-ended:
				pause.Stop()
				return
			}
			s.following.Store(false)
		}
	}()
}

// catchUp reads, piece by piece, what had been printed when it began, and returns how long that took. Of all terminals one
// at a time does so.
func (t *Terminal) catchUp(ended <-chan struct{}) (took time.Duration, ok bool) {
	s, e := &t.shown, t.session.pool.emulators
	select {
	case e.turn <- struct{}{}:
	case <-ended:
		return 0, false
	}
	defer func() { <-e.turn }()
	began := time.Now()
	for end := t.journal.Size(); ; {
		select {
		case <-ended:
			return 0, false
		default:
		}
		s.mu.Lock()
		more := s.fed < end && t.marks.Alternate()
		if more {
			s.readLocked(t, func() bool { return true })
		}
		t.release()
		if !more {
			return time.Since(began), true
		}
	}
}

// refreshLocked brings the screen up to date for somebody who asks. What would take longer than the emulators' patience is
// skipped, but for the last of it. s.mu is held.
func (s *shown) refreshLocked(ctx context.Context, t *Terminal) error {
	end, deadline := t.journal.Size(), time.Now().Add(t.session.pool.emulators.patience)
	s.readLocked(t, func() bool {
		if s.fed < end-window && time.Now().After(deadline) {
			s.skipLocked(t, end-window)
		}
		return s.fed >= end || ctx.Err() != nil
	})
	s.fitLocked(t.journal.Size())
	return context.Cause(ctx)
}

// skipLocked goes on at an offset. s.mu is held.
func (s *shown) skipLocked(t *Terminal, to int64) {
	if since, on := t.marks.AlternateSince(); on {
		s.skipped += max(0, to-max(s.fed, since))
	}
	s.fed, s.cut = to, true
}

// readLocked feeds the emulator from where it stopped, in pieces, until there is nothing more or done says so. s.mu is held.
func (s *shown) readLocked(t *Terminal, done func() bool) {
	defer func() { s.read.Store(s.fed) }()
	since, alternate := t.marks.AlternateSince()
	if !alternate {
		since = t.journal.Size() // what is in view was printed last
	}
	if s.fed < since-window {
		s.fed, s.cut = since-window, true
	}
	if s.fed <= since {
		s.skipped = 0
	}
	r, err := t.journal.Attach(s.fed, journal.Options{Max: piece})
	if err != nil {
		return // nobody writes less than was written
	}
	defer r.Close()
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			s.fitLocked(s.fed) // there is a screen, also of no output
			return
		}
		if c.Note != nil {
			continue
		}
		if c.Gap > 0 {
			s.skipLocked(t, c.Offset)
		}
		off, p := c.Offset, c.Data
		if s.cut { // from the next line on: what is cut may be a sequence
			if i := bytes.IndexByte(p, '\n'); i >= 0 && i < 4<<10 {
				off, p = off+int64(i)+1, p[i+1:]
			}
			s.cut = false
			s.fitLocked(off)
			_, _ = s.screen.Write([]byte("\x18")) // ends the sequence in which it stopped
			if on := startsAlternate(p, alternate && off > since); on != s.screen.Alternate() {
				_, _ = s.screen.Write([]byte(map[bool]string{true: "\x1b[?1049h\x1b[H", false: "\x1b[?1049l"}[on]))
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
		at := s.fed
		if done() {
			return
		}
		if s.fed > at { // done has skipped
			r.Skip(s.fed)
		}
	}
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
func (t *Terminal) Screen(ctx context.Context) (text []byte, at int64, err error) {
	err = t.look(ctx, func(s *shown) { text, at = s.screen.Bytes(), s.fed })
	return text, at, err
}

// Snapshot is what term.snapshot answers.
func (t *Terminal) Snapshot(ctx context.Context) (shot protocol.TermSnapshot, err error) {
	state := "running"
	if t.hasEnded() {
		state = "exited"
	}
	err = t.look(ctx, func(s *shown) {
		shot = protocol.TermSnapshot{
			TermID: t.ID(), Lines: s.screen.Lines(), Alternate: s.screen.Alternate(), Title: s.screen.Title(), Offset: s.fed, SkippedBytes: s.skipped, State: state,
		}
		shot.Cols, shot.Rows = s.screen.Size()
		shot.Cursor.Col, shot.Cursor.Row, shot.Cursor.Visible = s.screen.Cursor()
	})
	return shot, err
}

// look calls f with a screen that is up to date.
func (t *Terminal) look(ctx context.Context, f func(*shown)) error {
	leave, err := t.session.pool.emulators.enter(ctx, t.session.owner)
	if err != nil {
		return err
	}
	defer leave()
	s := &t.shown
	s.mu.Lock()
	defer t.release()
	if err := s.refreshLocked(ctx, t); err != nil {
		return err
	}
	f(s)
	return nil
}

// small is the most that the emulator of a terminal may take that is kept though it could be made anew.
const small = 512 << 10

// release lets go of shown.mu, and of the emulator where it is not needed: the terminal has ended, or it is large and shows
// the main screen, which the last of the output tells.
func (t *Terminal) release() {
	s, e := &t.shown, t.session.pool.emulators
	if s.screen != nil {
		if n := s.screen.Memory(); n > small && !s.screen.Alternate() {
			s.dropLocked(e)
		} else {
			e.keep(s, t.session.owner, n)
		}
	}
	s.mu.Unlock()
	if t.hasEnded() { // also if it did so meanwhile
		t.drop()
	}
}

// drop lets go of the emulator. It does not wait: who uses it lets go of it then, as done is closed before this is called.
func (t *Terminal) drop() {
	if s := &t.shown; s.mu.TryLock() {
		s.dropLocked(t.session.pool.emulators)
		s.mu.Unlock()
	}
}

// dropLocked lets go of the emulator: the next one begins with what the journal has. s.mu is held.
func (s *shown) dropLocked(e *emulators) {
	s.screen, s.fed, s.skipped, s.cut = nil, 0, 0, false
	e.forget(s)
}
