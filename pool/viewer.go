package pool

import (
	"errors"
	"slices"
	"time"

	"trl/protocol"
	"trl/runtime"
)

// Viewer is one client at a terminal. In control it may type and has a say in the size; else it only looks. Any number of
// clients may be in control: who was active last (who came, typed or resized) has the size that counts, until it leaves.
type Viewer struct {
	t          *Terminal
	control    bool
	cols, rows int  // guarded by t.mu; what it asked for; 0: nothing yet
	gone       bool // guarded by t.mu
}

// errView refuses what is for those in control.
func errView() error {
	return protocol.Errorf(protocol.Forbidden, "this connection is attached to view")
}

// View adds a client. It leaves with Leave.
func (t *Terminal) View(control bool, cols, rows int) *Viewer {
	v := &Viewer{t: t, control: control, cols: cols, rows: rows}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.viewers = append(t.viewers, v)
	return v
}

// Leave takes the client away; the size goes back to that of whoever was active before. Idempotent.
func (v *Viewer) Leave() {
	t := v.t
	t.mu.Lock()
	if v.gone {
		t.mu.Unlock()
		return
	}
	v.gone = true
	t.viewers = slices.DeleteFunc(t.viewers, func(o *Viewer) bool { return o == v })
	t.settleLocked()
	t.mu.Unlock()
	_ = t.session.Touch() // the clock of a terminal that nobody looks at starts now
}

// isViewed reports whether a client is attached.
func (t *Terminal) isViewed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.viewers) > 0
}

// Control reports whether the client may type.
func (v *Viewer) Control() bool { return v.control }

// Input types. v is nil for a client that is not attached, which may: it owns the terminal.
func (t *Terminal) Input(v *Viewer, p []byte) error {
	if v != nil && !v.control {
		return errView()
	}
	if t.hasEnded() {
		return protocol.Errorf(protocol.StdinClosed, "terminal has ended")
	}
	t.session.active.Store(time.Now().UnixNano())
	if v != nil {
		t.mu.Lock()
		t.activeLocked(v)
		t.mu.Unlock()
	}
	err := t.terminal.Input(p)
	if errors.Is(err, runtime.ErrLongLine) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is in line mode, which holds 4095 bytes of a line").With("limit", "line")
	}
	if errors.Is(err, runtime.ErrStdinFull) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is not being read").With("limit", "stdin")
	}
	return inputFault(err)
}

// Resize is what v wants to be the size from now on. To a terminal that has ended it is nothing: a window that is being
// dragged must not be answered with a storm of errors.
func (t *Terminal) Resize(v *Viewer, cols, rows int) error {
	if v != nil && !v.control {
		return errView()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v == nil {
		t.resizeLocked(cols, rows)
		return nil
	}
	v.cols, v.rows = cols, rows
	t.activeLocked(v)
	return nil
}

// activeLocked makes v the one who was active last. t.mu is held.
func (t *Terminal) activeLocked(v *Viewer) {
	if last := len(t.viewers) - 1; !v.gone && t.viewers[last] != v {
		i := slices.Index(t.viewers, v)
		copy(t.viewers[i:], t.viewers[i+1:])
		t.viewers[last] = v
	}
	t.settleLocked()
}

// settleLocked applies the size of the client in control that was active last, of those that have said one. t.mu is held.
func (t *Terminal) settleLocked() {
	for _, v := range slices.Backward(t.viewers) {
		if v.control && v.cols > 0 {
			t.resizeLocked(v.cols, v.rows)
			return
		}
	}
}

// resizeLocked is nothing if that is the size: programs are told of changes only. t.mu is held; the kernel does not wait.
func (t *Terminal) resizeLocked(cols, rows int) {
	if cols == t.cols && rows == t.rows || t.hasEnded() {
		return
	}
	if err := t.terminal.Resize(cols, rows); err != nil {
		return // it is ending
	}
	t.cols, t.rows = cols, rows
	t.shown.resized(t.journal.Size(), cols, rows)
	t.journal.Note(protocol.Event{Name: "term.resized", Data: &protocol.TermResized{TermID: t.ID(), Cols: cols, Rows: rows}})
}

// ViewAfter is View for a client that attaches again: what it said of its size before counts on.
func (t *Terminal) ViewAfter(before *Viewer, control bool) *Viewer {
	cols, rows := 0, 0
	if before != nil {
		t.mu.Lock()
		cols, rows = before.cols, before.rows
		t.mu.Unlock()
	}
	return t.View(control, cols, rows)
}
