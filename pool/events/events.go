// Package events delivers the events of a session to its watchers, in order and within bounds.
package events

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"trl/pool/token"
	"trl/protocol"
)

// Bounds of a watcher and of a session. A busy session makes 1024 events, of some hundred bytes each, in minutes. A session has few
// watchers, because each event is written for each of them.
const (
	maxEvents   = 1024    // events that wait for one watcher
	maxBytes    = 1 << 20 // of all these events
	maxWatchers = 128     // of a session
)

// ErrOverflow ends a watcher that did not take its events in time. It has missed some and must not go on as if it had not.
var ErrOverflow = errors.New("watcher fell behind")

// queuedEvent is an event that a watcher has not taken yet.
type queuedEvent struct {
	protocol.Event
	weight int
}

// Watcher is one subscription to the events of a session, in order. After session.state TERMINATED comes io.EOF.
type Watcher struct {
	all     *Watchers
	refused error         // set once in Subscribe; the session had maxWatchers
	wake    chan struct{} // one token: there is something new

	mu     sync.Mutex
	events []queuedEvent // not taken yet
	weight int           // sum of their weights
	end    error         // why no more events come; queued events are still delivered, unless end is ErrOverflow
}

// Watchers is the watchers of a session. Its methods are called with the session's lock held, which orders the events.
type Watchers struct {
	lock   sync.Locker // the session's lock
	list   []*Watcher  // guarded by lock
	closed bool        // guarded by lock; the session has ended
}

// New makes the list of a session that has this lock.
func New(lock sync.Locker) *Watchers { return &Watchers{lock: lock} }

// Subscribe adds a watcher. The caller closes it.
func (a *Watchers) Subscribe() *Watcher {
	w := &Watcher{all: a, wake: make(chan struct{}, 1)}
	switch {
	case a.closed:
		w.end = io.EOF
	case len(a.list) >= maxWatchers:
		w.refused = protocol.Errorf(protocol.LimitExceeded, "session has %d watchers", maxWatchers).With("limit", maxWatchers)
		w.end = w.refused
	default:
		a.list = append(a.list, w)
	}
	return w
}

// Publish gives an event to every watcher. It calls data only if there is a watcher.
func (a *Watchers) Publish(name string, data func() any) {
	if len(a.list) == 0 {
		return
	}
	ev := queuedEvent{Event: protocol.Event{Name: name, Data: data()}}
	ev.weight = weightOf(ev.Data)
	a.list = slices.DeleteFunc(a.list, func(w *Watcher) bool { return !w.enqueue(ev) })
}

// Close ends the watchers, and those to come: each reads what is queued for it, then io.EOF.
func (a *Watchers) Close() {
	a.closed = true
	for _, w := range a.list {
		w.stop(io.EOF, false)
	}
	a.list = nil
}

// Refused returns why the watcher gets no events. It is nil if the watcher is subscribed, or the session has ended.
func (w *Watcher) Refused() error { return w.refused }

// Next waits for the next event. Only one goroutine at a time may call it.
func (w *Watcher) Next(ctx context.Context) (protocol.Event, error) {
	for {
		if ev, ok, err := w.take(); ok || err != nil {
			return ev, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return protocol.Event{}, ctx.Err()
		}
	}
}

func (w *Watcher) take() (ev protocol.Event, ok bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return ev, false, w.end
	}
	ev = w.events[0].Event
	w.weight -= w.events[0].weight
	w.events = slices.Delete(w.events, 0, 1)
	return ev, true, nil
}

// Close unsubscribes. Next then returns io.EOF. Idempotent.
func (w *Watcher) Close() {
	w.all.lock.Lock()
	w.all.list = slices.DeleteFunc(w.all.list, func(o *Watcher) bool { return o == w })
	w.all.lock.Unlock()
	w.stop(io.EOF, true)
}

// stop makes Next return err, after the queued events unless drop is set.
func (w *Watcher) stop(err error, drop bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		w.end = err
	}
	if drop {
		w.events, w.weight = nil, 0
	}
	token.Put(w.wake)
}

// enqueue reports whether there was room for the event.
func (w *Watcher) enqueue(ev queuedEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) >= maxEvents || w.weight+ev.weight > maxBytes && w.weight > 0 {
		w.end, w.events, w.weight = ErrOverflow, nil, 0
		token.Put(w.wake)
		return false
	}
	w.events = append(w.events, ev)
	w.weight += ev.weight
	token.Put(w.wake)
	return true
}

// weightOf returns about how many bytes an event's data holds.
func weightOf(data any) int {
	const fixed = 512 // ids, numbers and times
	switch d := data.(type) {
	case protocol.ExecStarted:
		return fixed + len(d.Command)
	case protocol.ExecExit:
		return fixed + len(d.WorkingDir) + 8*len(d.Background) + textsWeight(d.StateLost)
	case protocol.ProcessInfo:
		return fixed + len(d.Command) + 8*len(d.Ports)
	case protocol.TermInfo:
		return fixed + len(d.Command) + viewersWeight(d.Attached)
	case *protocol.TermViewers:
		return fixed + viewersWeight(d.Attached)
	}
	return fixed
}

func textsWeight(all []string) (n int) {
	for _, s := range all {
		n += 16 + len(s)
	}
	return n
}

func viewersWeight(all []protocol.TermViewer) (n int) {
	for _, v := range all {
		n += 128 + len(v.Subject) + len(v.Via)
	}
	return n
}
