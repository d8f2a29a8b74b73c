package pool

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"trl/protocol"
	"trl/runtime/stream"
)

// Label says who a viewer is.
type Label struct {
	Subject string // the principal's
	Share   string // the share link by which it came; "": it is the owner
}

// AttachRequest says how a client attaches to a terminal.
type AttachRequest struct {
	Label      Label
	Control    bool    // it asks for control
	Claim      int64   // of an earlier attach, to return to the same place; 0: it takes over
	Cols, Rows int     // the size of its window; 0: not known
	Replaces   *Viewer // the viewer of the same connection so far, which ends; nil: none
	Windowed   *Reader // the reader of a client with a flow control window; nil: it has none
}

// Viewer is one client of a terminal. The latest one that asked for control has it: it alone types and sets the size. When it leaves, control goes
// back to the one before it. The others watch.
type Viewer struct {
	t          *Terminal
	id         string
	label      Label
	since      time.Time
	reader     *Reader // of a client with a flow control window; nil of others
	claim      int64   // when it asked for control, in µs since 1970, kept over a restart; 0: it only watches
	cols, rows int     // guarded by t.mu; the size that it asked for; 0: none yet
	gone       bool    // guarded by t.mu
}

// DirectedEvent is a note in a terminal's journal for one of its viewers.
type DirectedEvent struct {
	To    *Viewer
	Event protocol.Event
}

// AddViewer adds a client, until Leave.
func (t *Terminal) AddViewer(a AttachRequest) *Viewer {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	v := &Viewer{t: t, label: a.Label, since: time.Now(), reader: a.Windowed}
	if i := slices.Index(t.viewers, a.Replaces); i >= 0 { // else it has left, or is a viewer of another terminal
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

// claimLocked returns old if it is a claim that was given before, and else a claim later than all. t.mu is held.
func (t *Terminal) claimLocked(old int64) int64 {
	now := max(t.lastClaim, time.Now().UnixMicro())
	if old <= 0 || old > now {
		old = now + 1
	}
	t.lastClaim = max(t.lastClaim, old)
	return old
}

// Leave removes the viewer. Idempotent.
func (v *Viewer) Leave() {
	if v.removeOnce() {
		_ = v.t.session.Touch() // from now on the session may be idle
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

// electControllerLocked finds the viewer that has control now, tells it and the one that lost control, and applies its size. came has just been
// added and learns it from its answer. t.mu is held.
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

// maxReadAhead is how much of a terminal's output is read ahead of what was sent to the client in control, if that client has a flow control window.
// It is little, because it delays the echo of the next key, and enough that the client does not wait for the program.
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

// publishViewersLocked tells the viewers and the session's watchers who is attached. The session's mu and t.mu are held.
func (t *Terminal) publishViewersLocked() {
	if !t.endedAt.IsZero() {
		return // term.exit is the last event of a terminal
	}
	data := &protocol.TermViewers{TermID: t.ID(), SessionID: t.session.id, StreamID: t.stream, Viewers: len(t.viewers), Attached: t.attachedLocked()}
	t.journal.Note(protocol.Event{Name: "term.viewers", Data: data})
	t.session.watchers.Publish("term.viewers", func() any { return data })
}

// attachedLocked lists the viewers in the order of their coming. t.mu is held.
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

// isViewed reports whether there is a viewer.
func (t *Terminal) isViewed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.viewers) > 0
}

// IsControlled reports whether a viewer has control.
func (t *Terminal) IsControlled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.controller != nil
}

// Attached returns what the client's answer tells of the viewer.
func (v *Viewer) Attached() (id, mode string, claim int64) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.id, v.infoLocked().Mode, v.claim
}

// checkControlLocked fails if the viewer does not have control. t.mu is held.
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

// Input types. v is nil for a client that is not attached; it may type because it owns the terminal.
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
	if errors.Is(err, stream.ErrLongLine) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is in line mode, which holds 4095 bytes of a line").With("limit", "line")
	}
	if errors.Is(err, stream.ErrStdinFull) {
		return protocol.Errorf(protocol.LimitExceeded, "terminal is not being read").With("limit", "stdin")
	}
	return inputFault(err)
}

// Resize sets the size. v is nil for a client that is not attached. If the terminal has ended, it does nothing, because a client whose window is being
// dragged must not get many errors.
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

// resizeLocked sets the size if it changes, because programs are told of each call. The kernel does not wait. t.mu is held.
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
