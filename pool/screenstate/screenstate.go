// Package screenstate decides when the emulator of package screen reads a terminal's output, and keeps the emulators within bounds.
package screenstate

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
	// window is how much output is read for the screen of a program that does not use the alternate screen. What is in view was printed
	// last: a screen of 200 by 50 is 10 KiB, and escape sequences.
	window = 256 << 10
	// maxLag is how much a program in the alternate screen may print before its screen is brought up to date unasked. Such a program
	// changes parts of the screen, and the rest may be older than the journal's ring. maxLag is an eighth of that ring.
	maxLag = 512 << 10
	// pieceSize is how much an emulator reads at a time. After each piece it checks whether it shall read on.
	pieceSize = 64 << 10
	// maxIdleEmulator is how much memory a kept emulator may take if it shows the main screen, and so can be made anew.
	maxIdleEmulator = 512 << 10
	// maxSizes bounds the remembered sizes of output that no emulator has read. Dragging a window makes many sizes without any output.
	maxSizes = 64
)

// State is what a terminal shows. An emulator works it out from the journal when somebody asks. Code that types, reads output or ends a
// terminal never waits for the emulator.
type State struct {
	// set once in New
	journal   *journal.Journal
	marks     *screen.Marks
	owner     string // the principal on whose budget the emulator is counted
	emulators *Emulators
	ended     <-chan struct{} // closed when the terminal has ended

	printed   atomic.Int64 // bytes of output
	read      atomic.Int64 // bytes of output that an emulator has read
	following atomic.Bool  // a goroutine of Follow runs

	sizesMu sync.Mutex
	sizes   []sizeAt // guarded by sizesMu; in order; never empty after the first Resized

	mu           sync.Mutex     // held while the emulator reads, which may take a while; never taken with another lock held
	screen       *screen.Screen // guarded by mu; nil before the first use, and when it can be made anew, see release
	fedTo        int64          // guarded by mu; the offset up to which the emulator has read
	startMissing bool           // guarded by mu; the emulator has not read the output just before fedTo
	skipped      int64          // guarded by mu; bytes that the emulator has left out since the alternate screen was shown
}

// New makes the state of a terminal with this output.
func New(e *Emulators, owner string, j *journal.Journal, m *screen.Marks, ended <-chan struct{}) *State {
	return &State{emulators: e, owner: owner, journal: j, marks: m, ended: ended}
}

// sizeAt is a size that the terminal has from an offset on.
type sizeAt struct {
	at         int64
	cols, rows int
}

// Resized notes the terminal's size from an offset on.
func (s *State) Resized(at int64, cols, rows int) {
	s.sizesMu.Lock()
	defer s.sizesMu.Unlock()
	if n := len(s.sizes); n > 0 && s.sizes[n-1].at == at {
		s.sizes = s.sizes[:n-1]
	}
	if s.sizes = append(s.sizes, sizeAt{at, cols, rows}); len(s.sizes) > maxSizes {
		s.sizes = s.sizes[1:]
	}
}

// sizeAfter returns the size at an offset, and the offset of the next size, or -1.
func (s *State) sizeAfter(at int64) (size sizeAt, next int64) {
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

// Printed counts n bytes of output, and reports whether Follow shall be called. The journal's lock is held.
func (s *State) Printed(n int64) bool {
	s.printed.Add(n)
	return s.IsBehind() && !s.following.Load() && s.marks.Alternate()
}

// IsBehind reports whether the program has printed more than maxLag that no emulator has read.
func (s *State) IsBehind() bool { return s.printed.Load()-s.read.Load() >= maxLag }

// Follow brings the screen of a full-screen program up to date, in a goroutine of its own, if the program has printed enough and no such
// goroutine runs. exited is closed when the terminal's program exits.
func (s *State) Follow(exited <-chan struct{}) {
	due := func() bool { return s.IsBehind() && s.marks.Alternate() && s.following.CompareAndSwap(false, true) }
	if !due() {
		return
	}
	s.emulators.tasks.Add(1) // the caller is waited for by one of the tasks, so the count is not 0
	go func() {              // reads what was printed; ends with exited at the latest; tasks waits for it
		defer s.emulators.tasks.Done()
		for again := true; again; again = due() {
			took, ok := s.catchUp(exited)
			if !ok {
				return // following stays set: nothing follows a terminal whose program has exited
			}
			pause := time.NewTimer(s.emulators.PauseFactor * took)
			select {
			case <-pause.C:
			case <-exited:
				pause.Stop()
				return
			}
			s.following.Store(false)
		}
	}()
}

// catchUp reads, piece by piece, all output that was there when it began, and returns how long that took. It does so for one terminal at a
// time.
func (s *State) catchUp(exited <-chan struct{}) (took time.Duration, ok bool) {
	select {
	case s.emulators.followSlot <- struct{}{}:
	case <-exited:
		return 0, false
	}
	defer func() { <-s.emulators.followSlot }()
	began := time.Now()
	for end := s.journal.Size(); ; {
		select {
		case <-exited:
			return 0, false
		default:
		}
		s.mu.Lock()
		more := s.fedTo < end && s.marks.Alternate()
		if more {
			s.readLocked(func() bool { return true })
		}
		s.release()
		if !more {
			return time.Since(began), true
		}
	}
}

// Text returns text that makes another terminal look like this one, and the offset of the output that it is the result of.
func (s *State) Text(ctx context.Context) (text []byte, at int64, err error) {
	err = s.With(ctx, func(sc *screen.Screen, upTo, _ int64) { text, at = sc.Bytes(), upTo })
	return text, at, err
}

// Snapshot returns what the terminal shows.
func (s *State) Snapshot(ctx context.Context) (shot protocol.TermSnapshot, err error) {
	err = s.With(ctx, func(sc *screen.Screen, at, skipped int64) {
		shot = protocol.TermSnapshot{Lines: sc.Lines(), Alternate: sc.Alternate(), Title: sc.Title(), Offset: at, SkippedBytes: skipped}
		shot.Cols, shot.Rows = sc.Size()
		shot.Cursor.Col, shot.Cursor.Row, shot.Cursor.Visible = sc.Cursor()
	})
	return shot, err
}

// With calls f with an emulator that is up to date, the offset up to which it has read, and how many bytes it has left out.
func (s *State) With(ctx context.Context, f func(sc *screen.Screen, at, skipped int64)) error {
	leave, err := s.emulators.acquireSlot(ctx, s.owner)
	if err != nil {
		return err
	}
	defer leave()
	s.mu.Lock()
	defer s.release()
	if err := s.refreshLocked(ctx); err != nil {
		return err
	}
	f(s.screen, s.fedTo, s.skipped)
	return nil
}

// refreshLocked brings the screen up to date. When RenderTimeout is over, it leaves out all output but the last of it. s.mu is held.
func (s *State) refreshLocked(ctx context.Context) error {
	end, deadline := s.journal.Size(), time.Now().Add(s.emulators.RenderTimeout)
	s.readLocked(func() bool {
		if s.fedTo < end-window && time.Now().After(deadline) {
			s.skipLocked(end - window)
		}
		return s.fedTo >= end || ctx.Err() != nil
	})
	s.fitLocked(s.journal.Size())
	return context.Cause(ctx)
}

// skipLocked leaves out the output up to an offset. s.mu is held.
func (s *State) skipLocked(to int64) {
	if since, on := s.marks.AlternateSince(); on {
		s.skipped += max(0, to-max(s.fedTo, since))
	}
	s.fedTo, s.startMissing = to, true
}

// readLocked feeds the emulator in pieces, from where it stopped, until there is no more output or done returns true. s.mu is held.
func (s *State) readLocked(done func() bool) {
	defer func() { s.read.Store(s.fedTo) }()
	since, alternate := s.marks.AlternateSince()
	if !alternate {
		since = s.journal.Size() // what is in view was printed last
	}
	if s.fedTo < since-window {
		s.fedTo, s.startMissing = since-window, true
	}
	if s.fedTo <= since {
		s.skipped = 0
	}
	r, err := s.journal.Attach(s.fedTo, journal.Options{Max: pieceSize})
	if err != nil {
		return // cannot happen: a journal does not get shorter
	}
	defer r.Close()
	for {
		c, ok, err := r.TryNext()
		if !ok || err != nil {
			s.fitLocked(s.fedTo) // a terminal without output has a screen, too
			return
		}
		if c.Note != nil {
			continue
		}
		if c.Gap > 0 {
			s.skipLocked(c.Offset)
		}
		off, p := c.Offset, c.Data
		if s.startMissing { // begin with the next line, because p may begin within an escape sequence
			if i := bytes.IndexByte(p, '\n'); i >= 0 && i < 4<<10 {
				off, p = off+int64(i)+1, p[i+1:]
			}
			s.startMissing = false
			s.fitLocked(off)
			_, _ = s.screen.Write([]byte("\x18")) // ends the sequence in which the emulator stopped
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
		if done() {
			return
		}
		if s.fedTo > off { // done has called skipLocked
			r.Skip(s.fedTo)
		}
	}
}

// fitLocked gives the emulator the size that the terminal had at an offset, and returns the offset of the next size, or -1. It makes the
// emulator if there is none. s.mu is held.
func (s *State) fitLocked(at int64) (next int64) {
	size, next := s.sizeAfter(at)
	if s.screen == nil {
		s.screen = screen.New(size.cols, size.rows)
	} else if cols, rows := s.screen.Size(); cols != size.cols || rows != size.rows {
		s.screen.Resize(size.cols, size.rows)
	}
	return next
}

// startsAlternate guesses whether the alternate screen was shown before p. The first switch in p tells. Without one it is what is shown now.
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

// release unlocks s.mu. It drops an emulator that is not needed: the terminal has ended, or the emulator is large and shows the main screen,
// which can be made anew from the last of the output.
func (s *State) release() {
	if s.screen != nil {
		if n := s.screen.Memory(); n > maxIdleEmulator && !s.screen.Alternate() {
			s.dropLocked()
			s.emulators.forget(s)
		} else {
			s.emulators.setSize(s, n)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.ended: // perhaps meanwhile
		s.Drop()
	default:
	}
}

// Drop drops the emulator of a terminal that has ended. It does not wait: code that uses the emulator now drops it afterwards.
func (s *State) Drop() {
	if s.mu.TryLock() {
		s.dropLocked()
		s.emulators.forget(s)
		s.mu.Unlock()
	}
}

// dropLocked drops the emulator. The next one begins with what the journal has. s.mu is held.
func (s *State) dropLocked() { s.screen, s.fedTo, s.skipped, s.startMissing = nil, 0, 0, false }
