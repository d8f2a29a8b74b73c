package pool

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"trl/protocol"
)

// maxWatch is how many events a watcher may lag: minutes of a busy session, 48 KiB.
const maxWatch = 1024

// ErrOverflow ends a watcher that did not take its events: it has missed some, so it must not go on as if it had not.
var ErrOverflow = errors.New("watcher fell behind")

// Watcher is one subscription to what happens in a session, in order. After session.state TERMINATED comes io.EOF.
type Watcher struct {
	session *Session
	wake    chan struct{} // one token: look again

	mu     sync.Mutex
	events []protocol.Event // not taken yet
	end    error            // why no more events come; what is queued is still delivered, unless it is ErrOverflow
}

// Watch subscribes. The caller closes the watcher.
func (s *Session) Watch() *Watcher {
	w := &Watcher{session: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		w.end = io.EOF
	} else {
		s.watchers = append(s.watchers, w)
	}
	return w
}

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
	ev = w.events[0]
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
		w.events = nil
	}
	w.nudge()
}

// put reports whether there was room.
func (w *Watcher) put(ev protocol.Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) >= maxWatch {
		w.end, w.events = ErrOverflow, nil
		w.nudge()
		return false
	}
	w.events = append(w.events, ev)
	w.nudge()
	return true
}

func (w *Watcher) nudge() {
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
	ev := protocol.Event{Name: name, Data: data()}
	s.watchers = slices.DeleteFunc(s.watchers, func(w *Watcher) bool { return !w.put(ev) })
}

// endWatchersLocked lets them read what is queued, then io.EOF. s.mu is held.
func (s *Session) endWatchersLocked() {
	for _, w := range s.watchers {
		w.stop(io.EOF, false)
	}
	s.watchers = nil
}
