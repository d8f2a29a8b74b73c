// Package viewers has the clients of a terminal, and decides which of them has control.
package viewers

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"trl/protocol"
	"trl/runtime/journal"
)

// Terminal is what the viewers of a terminal do with it.
type Terminal interface {
	// Lock is held while viewers come and leave. It is taken before any lock of the Table.
	sync.Locker
	// Info returns the ids of the terminal for events.
	Info() (term, session, stream string)
	// HasEnded reports whether it has ended.
	HasEnded() bool
	// IsOver reports whether its end is being told: nothing may follow that. Lock is held.
	IsOver() bool
	// Resize gives it another size.
	Resize(cols, rows int) error
	// Note adds an event for viewers at the present place of the output.
	Note(event any)
	// Publish tells the session's watchers who is attached. Lock is held.
	Publish(data *protocol.TermViewers)
	// Left is called when a viewer has left.
	Left()
}

// Table has the viewers of one terminal.
type Table struct {
	terminal Terminal

	mu          sync.Mutex
	cols, rows  int       // guarded by mu; the terminal's
	viewers     []*Viewer // guarded by mu; in the order of their coming
	controller  *Viewer   // guarded by mu; the viewer that types; nil: none
	viewersEver int       // guarded by mu; how many viewers there ever were, for their ids
	lastClaim   int64     // guarded by mu; the latest claim
}

// New returns the Table of a terminal.
func New(t Terminal) *Table { return &Table{terminal: t} }

// Size returns the terminal's size.
func (t *Table) Size() (cols, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cols, t.rows
}

// SetSize notes the size that the terminal starts with.
func (t *Table) SetSize(cols, rows int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cols, t.rows = cols, rows
}

// All lists the viewers in the order of their coming.
func (t *Table) All() []protocol.TermViewer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.attachedLocked()
}

// Label says who a viewer is.
type Label struct {
	Subject string // the principal's
	Share   string // the share link by which it came; "": it is the owner
}

// Request says how a client attaches to a terminal.
type Request struct {
	Label      Label
	Control    bool            // it asks for control
	Claim      int64           // of an earlier attach, to return to the same place; 0: it takes over
	Cols, Rows int             // the size of its window; 0: not known
	Replaces   *Viewer         // the viewer of the same connection so far, which ends; nil: none
	Windowed   *journal.Reader // the reader of a client with a flow control window; nil: it has none
}

// Viewer is one client of a terminal. The latest one that asked for control has it: it alone types and sets the size. When it leaves, control goes
// back to the one before it. The others watch.
type Viewer struct {
	t          *Table
	id         string
	label      Label
	since      time.Time
	reader     *journal.Reader // of a client with a flow control window; nil of others
	claim      int64           // when it asked for control, in µs since 1970, kept over a restart; 0: it only watches
	cols, rows int             // guarded by t.mu; the size that it asked for; 0: none yet
	gone       bool            // guarded by t.mu
}

// DirectedEvent is a note in a terminal's journal for one of its viewers.
type DirectedEvent struct {
	To    *Viewer
	Event protocol.Event
}

// Add adds a client, until Leave.
func (t *Table) Add(a Request) *Viewer {
	t.terminal.Lock()
	defer t.terminal.Unlock()
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
func (t *Table) claimLocked(old int64) int64 {
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
		v.t.terminal.Left()
	}
}

func (v *Viewer) removeOnce() bool {
	t := v.t
	t.terminal.Lock()
	defer t.terminal.Unlock()
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
func (t *Table) electControllerLocked(came *Viewer) {
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

func (t *Table) sendControlLocked(to *Viewer, c protocol.TermControl) {
	c.TermID, _, c.StreamID = t.terminal.Info()
	t.terminal.Note(DirectedEvent{To: to, Event: protocol.Event{Name: "term.control", Data: &c}})
}

// publishViewersLocked tells the viewers and the session's watchers who is attached. The terminal's lock and t.mu are held.
func (t *Table) publishViewersLocked() {
	if t.terminal.IsOver() {
		return // term.exit is the last event of a terminal
	}
	data := &protocol.TermViewers{Viewers: len(t.viewers), Attached: t.attachedLocked()}
	data.TermID, data.SessionID, data.StreamID = t.terminal.Info()
	t.terminal.Note(protocol.Event{Name: "term.viewers", Data: data})
	t.terminal.Publish(data)
}

// attachedLocked lists the viewers in the order of their coming. t.mu is held.
func (t *Table) attachedLocked() []protocol.TermViewer {
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

// IsViewed reports whether there is a viewer.
func (t *Table) IsViewed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.viewers) > 0
}

// IsControlled reports whether a viewer has control.
func (t *Table) IsControlled() bool {
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

// CheckControl fails if the viewer does not have control. v is nil for a client that is not attached.
func (v *Viewer) CheckControl() error {
	if v == nil {
		return nil
	}
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	return v.checkControlLocked()
}

// Resize sets the size. v is nil for a client that is not attached. If the terminal has ended, it does nothing, because a client whose window is being
// dragged must not get many errors.
func (t *Table) Resize(v *Viewer, cols, rows int) error {
	if t.terminal.HasEnded() {
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
func (t *Table) resizeLocked(cols, rows int) {
	if cols == t.cols && rows == t.rows || t.terminal.HasEnded() || t.terminal.Resize(cols, rows) != nil { // it is ending
		return
	}
	t.cols, t.rows = cols, rows
	term, _, _ := t.terminal.Info()
	t.terminal.Note(protocol.Event{Name: "term.resized", Data: &protocol.TermResized{TermID: term, Cols: cols, Rows: rows}})
}
