package pool

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"trl/protocol"
	"trl/runtime/shell"
)

// Label says who a viewer is, to those who ask who is there.
type Label struct {
	Subject string // the principal's
	Share   string // the share link by which it came; "": none, it is the owner
}

// AttachRequest says how a client comes to a terminal.
type AttachRequest struct {
	Label      Label
	Control    bool    // it wants to type
	Claim      int64   // of an earlier attach, to come back as it was; 0: it takes over
	Cols, Rows int     // its window; 0: it has not said
	Replaces   *Viewer // what the same connection is so far, and is no more then; nil: nothing
	Windowed   *Reader // what a client with a window reads with; nil: it has no window
}

// Viewer is one client at a terminal. Of those that asked for control the latest has it: it alone types and sets the size,
// until it leaves; then the one before it does again. The others look.
type Viewer struct {
	t          *Terminal
	id         string
	label      Label
	since      time.Time
	reader     *Reader // of a client with a window; nil of others
	claim      int64   // when it asked for control, µs since 1970, also over a restart; 0: it only looks
	cols, rows int     // guarded by t.mu; what it asked for; 0: nothing yet
	gone       bool    // guarded by t.mu
}

// DirectedEvent is a note in a terminal's journal that is for one of its clients.
type DirectedEvent struct {
	To    *Viewer
	Event protocol.Event
}

// AddViewer adds a client. It leaves with Leave.
func (t *Terminal) AddViewer(a AttachRequest) *Viewer {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &Viewer{t: t, label: a.Label, since: time.Now(), reader: a.Windowed}
	if i := slices.Index(t.viewers, a.Replaces); i >= 0 { // else it has left, or is at another terminal
		b := a.Replaces
		v.id, v.since, v.cols, v.rows, b.gone = b.id, b.since, b.cols, b.rows, true
		t.viewers[i] = v
	} else {
		t.viewersEver++
		v.id = strconv.Itoa(t.viewersEver)
		t.viewers = append(t.viewers, v)
	}
	if a.Cols > 0 {
		v.cols, v.rows = a.Cols, a.Rows
	}
	if a.Control {
		v.claim = t.claimLocked(a.Claim)
	}
	t.electControllerLocked(v)
	t.publishViewersLocked()
	return v
}

// claimLocked is old, if that is one that was given, else one later than all. t.mu is held.
func (t *Terminal) claimLocked(old int64) int64 {
	now := max(t.lastClaim, time.Now().UnixMicro())
	if old <= 0 || old > now {
		old = now + 1
	}
	t.lastClaim = max(t.lastClaim, old)
	return old
}

// Leave takes the client away. Idempotent.
func (v *Viewer) Leave() {
	if v.removeOnce() {
		_ = v.t.session.Touch() // the clock of a terminal that nobody looks at starts now
	}
}

func (v *Viewer) removeOnce() bool {
	t, s := v.t, v.t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if v.gone {
		return false
	}
	v.gone = true
	t.viewers = slices.DeleteFunc(t.viewers, func(o *Viewer) bool { return o == v })
	t.electControllerLocked(nil)
	t.publishViewersLocked()
	return true
}

// electControllerLocked finds who has control now, tells it and who has lost it, and applies its size. came, who has just come,
// learns it by its answer. t.mu is held.
func (t *Terminal) electControllerLocked(came *Viewer) {
	had, has := t.controller, (*Viewer)(nil)
	for _, v := range t.viewers {
		if v.claim > 0 && (has == nil || v.claim > has.claim) {
			has = v
		}
	}
	if t.controller = has; has != had {
		had.setReadAhead(0)
		has.setReadAhead(maxReadAhead)
		if had != nil && !had.gone {
			by := has.infoLocked()
			t.sendControlLocked(had, protocol.TermControl{Mode: "view", By: &by})
		}
		if has != nil && has != came {
			t.sendControlLocked(has, protocol.TermControl{Mode: "control"})
		}
	}
	if has != nil && has.cols > 0 {
		t.resizeLocked(has.cols, has.rows)
	}
}

// maxReadAhead is how much more of a terminal's output is read than the client in control has been sent, where that client has a window.
// What was read comes before the answer to the next key, so it is little; it is enough that the client need not wait for the program.
const maxReadAhead = 64 << 10

func (v *Viewer) setReadAhead(n int64) {
	if v != nil && v.reader != nil {
		v.reader.SetAhead(n)
	}
}

func (t *Terminal) sendControlLocked(to *Viewer, c protocol.TermControl) {
	c.TermID, c.StreamID = t.ID(), t.stream
	t.journal.Note(DirectedEvent{To: to, Event: protocol.Event{Name: "term.control", Data: &c}})
}

// publishViewersLocked tells who is there, to those who are and those who watch. The session's mu and t.mu are held.
func (t *Terminal) publishViewersLocked() {
	if !t.endedAt.IsZero() {
		return // term.exit is the last that is told of it
	}
	data := &protocol.TermViewers{TermID: t.ID(), SessionID: t.session.id, StreamID: t.stream, Viewers: len(t.viewers), Attached: t.attachedLocked()}
	t.journal.Note(protocol.Event{Name: "term.viewers", Data: data})
	t.session.watchers.Publish("term.viewers", func() any { return data })
}

// attachedLocked is who is there, in the order in which they came. t.mu is held.
func (t *Terminal) attachedLocked() []protocol.TermViewer {
	all := make([]protocol.TermViewer, 0, len(t.viewers))
	for _, v := range t.viewers {
		all = append(all, v.infoLocked())
	}
	return all
}

func (v *Viewer) infoLocked() protocol.TermViewer {
	w := protocol.TermViewer{ViewerID: v.id, Subject: v.label.Subject, Via: v.label.Share, Mode: "view", Since: v.since, Cols: v.cols, Rows: v.rows}
	if v.t.controller == v {
		w.Mode = "control"
	}
	return w
}

// isViewed reports whether a client is attached.
func (t *Terminal) isViewed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.viewers) > 0
}

// IsControlled reports whether a client that is attached has control.
func (t *Terminal) IsControlled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.controller != nil
}

// Attached is what the client's answer tells of it.
func (v *Viewer) Attached() (id, mode string, claim int64) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.id, v.infoLocked().Mode, v.claim
}

// checkControlLocked refuses what is for the client in control. t.mu is held.
func (v *Viewer) checkControlLocked() error {
	switch {
	case v.t.controller == v:
		return nil
	case v.claim == 0:
		return protocol.Errorf(protocol.Forbidden, "this connection is attached to view")
	}
	return protocol.Errorf(protocol.Forbidden, "another client has taken over; attach in control to type again")
}

func (v *Viewer) checkControl() error {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.checkControlLocked()
}

// Input types. v is nil for a client that is not attached, which may: it owns the terminal.
func (t *Terminal) Input(v *Viewer, p []byte) error {
	if v != nil {
		if err := v.checkControl(); err != nil {
			return err
		}
	}
	if t.hasEnded() {
		return protocol.Errorf(protocol.StdinClosed, "terminal has ended")
	}
	t.session.lastActive.Store(int64(time.Since(idleBase)))
	err := t.terminal.Input(p)
	if errors.Is(err, shell.ErrLongLine) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is in line mode, which holds 4095 bytes of a line").With("limit", "line")
	}
	if errors.Is(err, shell.ErrStdinFull) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is not being read").With("limit", "stdin")
	}
	return inputFault(err)
}

// Resize is what v wants to be the size from now on; nil: a client that is not attached. To a terminal that has ended it
// is nothing: a window that is being dragged must not be answered with a storm of errors.
func (t *Terminal) Resize(v *Viewer, cols, rows int) error {
	if t.hasEnded() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v != nil {
		if err := v.checkControlLocked(); err != nil {
			return err
		}
		v.cols, v.rows = cols, rows
	}
	t.resizeLocked(cols, rows)
	return nil
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
	t.screen.Resized(t.journal.Size(), cols, rows)
	t.journal.Note(protocol.Event{Name: "term.resized", Data: &protocol.TermResized{TermID: t.ID(), Cols: cols, Rows: rows}})
}
