package pool

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"trl/protocol"
)

// How far a watcher may lag: minutes of a busy session, whose events have some hundred bytes each; and how many watchers a session has, since each
// event is written for each of them.
const (
	maxWatch      = 1024    // events
	maxWatchBytes = 1 << 20 // of them together
	maxWatchers   = 128
)

// ErrOverflow ends a watcher that did not take its events: it has missed some, so it must not go on as if it had not.
var ErrOverflow = errors.New("watcher fell behind")

// queuedEvent is an event that waits for a watcher to take it.
type queuedEvent struct {
	protocol.Event
	weight int
}

// Watcher is one subscription to what happens in a session, in order. After session.state TERMINATED comes io.EOF.
type Watcher struct {
	session *Session
	refused error         // set once in Watch; the session had maxWatchers
	wake    chan struct{} // one token: look again

	mu     sync.Mutex
	events []queuedEvent // not taken yet
	weight int           // sum of their weights
	end    error         // why no more events come; what is queued is still delivered, unless it is ErrOverflow
}

// Watch subscribes. The caller closes the watcher.
func (s *Session) Watch() *Watcher {
	w := &Watcher{session: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		w.end = io.EOF
	case len(s.watchers) >= maxWatchers:
		w.refused = protocol.Errorf(protocol.LimitExceeded, "session has %d watchers", maxWatchers).With("limit", maxWatchers)
		w.end = w.refused
	default:
		s.watchers = append(s.watchers, w)
	}
	return w
}

// Refused says why the watcher gets nothing; nil: it is subscribed, or the session has ended.
func (w *Watcher) Refused() error { return w.refused }

// Next waits for the next event. It belongs to one goroutine at a time.
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

// Close unsubscribes; Next answers io.EOF then. Idempotent.
func (w *Watcher) Close() {
	w.session.mu.Lock()
	if i := slices.Index(w.session.watchers, w); i >= 0 {
		w.session.watchers = slices.Delete(w.session.watchers, i, i+1)
	}
	w.session.mu.Unlock()
	w.stop(io.EOF, true)
}

// stop lets Next answer err, after what is queued unless that is dropped.
func (w *Watcher) stop(err error, drop bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		w.end = err
	}
	if drop {
		w.events, w.weight = nil, 0
	}
	w.wakeReader()
}

// enqueue reports whether there was room.
func (w *Watcher) enqueue(ev queuedEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) >= maxWatch || w.weight+ev.weight > maxWatchBytes && w.weight > 0 {
		w.end, w.events, w.weight = ErrOverflow, nil, 0
		w.wakeReader()
		return false
	}
	w.events = append(w.events, ev)
	w.weight += ev.weight
	w.wakeReader()
	return true
}

func (w *Watcher) wakeReader() {
	select {
	case w.wake <- struct{}{}:
	default: // a token is there; who takes it sees everything
	}
}

// publishLocked tells every watcher. s.mu is held, which is what orders the events; data is made only if somebody watches.
func (s *Session) publishLocked(name string, data func() any) {
	if len(s.watchers) == 0 {
		return
	}
	ev := queuedEvent{Event: protocol.Event{Name: name, Data: data()}}
	ev.weight = weightOf(ev.Data)
	s.watchers = slices.DeleteFunc(s.watchers, func(w *Watcher) bool { return !w.enqueue(ev) })
}

// endWatchersLocked lets them read what is queued, then io.EOF. s.mu is held.
func (s *Session) endWatchersLocked() {
	for _, w := range s.watchers {
		w.stop(io.EOF, false)
	}
	s.watchers = nil
}

// weightOf is about how many bytes an event's data holds.
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
