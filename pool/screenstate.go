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
	// screenWindow is how much output is read for the screen of a program that does not use the alternate one. What is in view
	// was printed last: a screen of 200 by 50 is 10 KiB, and escape sequences.
	screenWindow = 256 << 10
	// maxScreenLag is how much a program in the alternate screen may print before its screen is brought up to date unasked. It
	// changes what changes, and what stays may be older than the ring, of which this is an eighth.
	maxScreenLag = 512 << 10
	// screenPiece is how much an emulator reads at a time. Between two pieces it is looked whether to go on.
	screenPiece = 64 << 10
)

// screenState is what a terminal shows. An emulator works it out when somebody asks, from what the journal has. Nobody who only
// types and reads waits for it, and neither does what ends a terminal.
type screenState struct {
	printed   atomic.Int64 // bytes, as far as wants has counted
	read      atomic.Int64 // of them, up to where an emulator has read
	following atomic.Bool  // a follower runs

	sizesMu sync.Mutex
	sizes   []sizeAt // guarded by sizing; in order; never empty once the terminal is there

	mu           sync.Mutex     // held while the emulator reads, which may take a while: nobody takes it with another lock held
	screen       *screen.Screen // guarded by mu; nil before the first, and where it can be made anew: see release
	fedTo        int64          // guarded by mu; up to where
	startMissing bool           // guarded by mu; the emulator has not read what comes before fed
	skipped      int64          // guarded by mu; bytes that the emulator has not read since the alternate screen was shown
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
func (s *screenState) resized(at int64, cols, rows int) {
	s.sizesMu.Lock()
	defer s.sizesMu.Unlock()
	if n := len(s.sizes); n > 0 && s.sizes[n-1].at == at {
		s.sizes = s.sizes[:n-1]
	}
	if s.sizes = append(s.sizes, sizeAt{at, cols, rows}); len(s.sizes) > maxSizes {
		s.sizes = s.sizes[1:]
	}
}

// sizeAfter is the size in force at an offset, and where the next one begins, -1 if there is none.
func (s *screenState) sizeAfter(at int64) (size sizeAt, next int64) {
	s.sizesMu.Lock()
	defer s.sizesMu.Unlock()
	next = -1
	for i := len(s.sizes) - 1; i > 0; i-- {
		if s.sizes[i].at <= at {
			return s.sizes[i], next
		}
		next = s.sizes[i].at
	}
	return s.sizes[0], next
}

// needsFollow counts n bytes and tells whether the screen has to be followed. Under the journal's lock.
func (s *screenState) needsFollow(n int, m *screen.Marks) bool {
	s.printed.Add(int64(n))
	return s.isBehind() && !s.following.Load() && m.Alternate()
}

func (s *screenState) isBehind() bool { return s.printed.Load()-s.read.Load() >= maxScreenLag }

// followScreen begins to bring the screen of a full-screen program up to date, if it has printed enough and that is not
// under way. It does not wait.
func (t *Terminal) followScreen() {
	s := &t.screenState
	due := func() bool { return s.isBehind() && t.marks.Alternate() && s.following.CompareAndSwap(false, true) }
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
			pause := time.NewTimer(p.emulators.pauseFactor * took)
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
	s, e := &t.screenState, t.session.pool.emulators
	select {
	case e.followSlot <- struct{}{}:
	case <-ended:
		return 0, false
	}
	defer func() { <-e.followSlot }()
	began := time.Now()
	for end := t.journal.Size(); ; {
		select {
		case <-ended:
			return 0, false
		default:
		}
		s.mu.Lock()
		more := s.fedTo < end && t.marks.Alternate()
		if more {
			s.readLocked(t, func() bool { return true })
		}
		t.releaseScreen()
		if !more {
			return time.Since(began), true
		}
	}
}

// refreshLocked brings the screen up to date for somebody who asks. What would take longer than the emulators' patience is
// skipped, but for the last of it. s.mu is held.
func (s *screenState) refreshLocked(ctx context.Context, t *Terminal) error {
	end, deadline := t.journal.Size(), time.Now().Add(t.session.pool.emulators.renderTimeout)
	s.readLocked(t, func() bool {
		if s.fedTo < end-screenWindow && time.Now().After(deadline) {
			s.skipLocked(t, end-screenWindow)
		}
		return s.fedTo >= end || ctx.Err() != nil
	})
	s.fitLocked(t.journal.Size())
	return context.Cause(ctx)
}

// skipLocked goes on at an offset. s.mu is held.
func (s *screenState) skipLocked(t *Terminal, to int64) {
	if since, on := t.marks.AlternateSince(); on {
		s.skipped += max(0, to-max(s.fedTo, since))
	}
	s.fedTo, s.startMissing = to, true
}

// readLocked feeds the emulator from where it stopped, in pieces, until there is nothing more or done says so. s.mu is held.
func (s *screenState) readLocked(t *Terminal, done func() bool) {
	defer func() { s.read.Store(s.fedTo) }()
	since, alternate := t.marks.AlternateSince()
	if !alternate {
		since = t.journal.Size() // what is in view was printed last
	}
	if s.fedTo < since-screenWindow {
		s.fedTo, s.startMissing = since-screenWindow, true
	}
	if s.fedTo <= since {
		s.skipped = 0
	}
	r, err := t.journal.Attach(s.fedTo, journal.Options{Max: screenPiece})
	if err != nil {
		return // nobody writes less than was written
	}
	defer r.Close()
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			s.fitLocked(s.fedTo) // there is a screen, also of no output
			return
		}
		if c.Note != nil {
			continue
		}
		if c.Gap > 0 {
			s.skipLocked(t, c.Offset)
		}
		off, p := c.Offset, c.Data
		if s.startMissing { // from the next line on: what is cut may be a sequence
			if i := bytes.IndexByte(p, '\n'); i >= 0 && i < 4<<10 {
				off, p = off+int64(i)+1, p[i+1:]
			}
			s.startMissing = false
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
		s.fedTo = off
		at := s.fedTo
		if done() {
			return
		}
		if s.fedTo > at { // done has skipped
			r.Skip(s.fedTo)
		}
	}
}

// fitLocked gives the emulator, which is made if there is none, the size that the terminal had at an offset, and returns
// where that ends, -1 if it does not.
func (s *screenState) fitLocked(at int64) (next int64) {
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
	err = t.withScreen(ctx, func(s *screenState) { text, at = s.screen.Bytes(), s.fedTo })
	return text, at, err
}

// Snapshot is what term.snapshot answers.
func (t *Terminal) Snapshot(ctx context.Context) (shot protocol.TermSnapshot, err error) {
	state := "running"
	if t.hasEnded() {
		state = "exited"
	}
	err = t.withScreen(ctx, func(s *screenState) {
		shot = protocol.TermSnapshot{
			TermID: t.ID(), Lines: s.screen.Lines(), Alternate: s.screen.Alternate(), Title: s.screen.Title(), Offset: s.fedTo, SkippedBytes: s.skipped, State: state,
		}
		shot.Cols, shot.Rows = s.screen.Size()
		shot.Cursor.Col, shot.Cursor.Row, shot.Cursor.Visible = s.screen.Cursor()
	})
	return shot, err
}

// withScreen calls f with a screen that is up to date.
func (t *Terminal) withScreen(ctx context.Context, f func(*screenState)) error {
	leave, err := t.session.pool.emulators.acquireSlot(ctx, t.session.owner)
	if err != nil {
		return err
	}
	defer leave()
	s := &t.screenState
	s.mu.Lock()
	defer t.releaseScreen()
	if err := s.refreshLocked(ctx, t); err != nil {
		return err
	}
	f(s)
	return nil
}

// maxIdleEmulator is the most that the emulator of a terminal may take that is kept though it could be made anew.
const maxIdleEmulator = 512 << 10

// releaseScreen lets go of shown.mu, and of the emulator where it is not needed: the terminal has ended, or it is large and shows
// the main screen, which the last of the output tells.
func (t *Terminal) releaseScreen() {
	s, e := &t.screenState, t.session.pool.emulators
	if s.screen != nil {
		if n := s.screen.Memory(); n > maxIdleEmulator && !s.screen.Alternate() {
			s.dropLocked(e)
		} else {
			e.setSize(s, t.session.owner, n)
		}
	}
	s.mu.Unlock()
	if t.hasEnded() { // also if it did so meanwhile
		t.dropEmulator()
	}
}

// dropEmulator lets go of the emulator. It does not wait: who uses it lets go of it then, as done is closed before this is called.
func (t *Terminal) dropEmulator() {
	if s := &t.screenState; s.mu.TryLock() {
		s.dropLocked(t.session.pool.emulators)
		s.mu.Unlock()
	}
}

// dropLocked lets go of the emulator: the next one begins with what the journal has. s.mu is held.
func (s *screenState) dropLocked(e *emulators) {
	s.screen, s.fedTo, s.skipped, s.startMissing = nil, 0, 0, false
	e.forget(s)
}
