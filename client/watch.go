package client

import (
	"context"
	"errors"
	"io"
	"iter"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// SessionEvent is something that happened in a session. Data is a pointer to the type for it in package protocol: SessionState, SessionExpiring,
// ExecStarted, ExecExit, ProcessInfo (process.started, process.exit), TermInfo (term.opened, term.exit) or TermViewers.
type SessionEvent struct {
	Type string // the event's name on the wire
	Data any
}

// watched makes the data of the events that a Watcher returns.
var watched = map[string]func() any{
	"session.state":    func() any { return new(protocol.SessionState) },
	"session.expiring": func() any { return new(protocol.SessionExpiring) },
	"exec.started":     func() any { return new(protocol.ExecStarted) },
	"exec.exit":        func() any { return new(protocol.ExecExit) },
	"process.started":  func() any { return new(protocol.ProcessInfo) },
	"process.exit":     func() any { return new(protocol.ProcessInfo) },
	"term.opened":      func() any { return new(protocol.TermInfo) },
	"term.viewers":     func() any { return new(protocol.TermViewers) },
	"term.exit":        func() any { return new(protocol.TermInfo) },
}

// Watcher returns what happens in a session. One goroutine reads it.
type Watcher struct {
	parent *Client            // set once
	c      *Client            // set once; a connection of its own: on a shared one, exec.exit follows output that may wait for its reader
	id     string             // set once
	link   *link              // owned by the reader; that is subscribed
	events chan SessionEvent  // filled by the link's reader
	behind chan struct{}      // one token: an event found no room
	ended  bool               // owned by the reader
	done   context.Context    // ends with Close
	close  context.CancelFunc // of done
}

// watchedAhead is how many events may wait for a Watcher's reader.
const watchedAhead = 1024

// ErrWatchBehind ends a Watcher that was not read in time.
var ErrWatchBehind = errors.New("the events were not read in time")

// Watch subscribes to everything that happens in the session, over a connection of its own. After a lost connection it goes on; what happened meanwhile is
// missing. The Watcher must be closed.
func (s *Session) Watch(ctx context.Context) (*Watcher, error) {
	id, err := s.resolve(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.c.sibling(ctx)
	if err != nil {
		return nil, err
	}
	w := &Watcher{parent: s.c, c: c, id: id, events: make(chan SessionEvent, watchedAhead), behind: make(chan struct{}, 1)}
	w.done, w.close = context.WithCancel(context.Background())
	c.mu.Lock()
	c.watcher = w
	c.mu.Unlock()
	if err := w.subscribe(ctx); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// subscribe asks for the events on a live connection.
func (w *Watcher) subscribe(ctx context.Context) error {
	var node nodeWait
	for {
		l, err := w.c.connected(ctx)
		if err != nil {
			return err
		}
		err = l.call(ctx, "session.watch", protocol.SessionRef{SessionID: w.id}, nil, nil)
		if node.passes(ctx, w.c, &err) {
			continue
		}
		if _, lost := err.(*ConnectionLostError); !lost {
			w.link = l
			return err
		}
	}
}

// offer passes an event on if it belongs to the session. The link's reader calls it.
func (w *Watcher) offer(e protocol.Event) {
	make := watched[e.Name]
	raw, ok := e.Data.(jsontext.Value)
	if make == nil || !ok {
		return
	}
	var of struct {
		SessionID string `json:"session_id"`
	}
	if json.Unmarshal(raw, &of) != nil || of.SessionID != w.id {
		return
	}
	data := make()
	if json.Unmarshal(raw, data) != nil {
		return
	}
	select {
	case w.events <- SessionEvent{e.Name, data}:
	default:
		signal(w.behind)
	}
}

// Next returns the next event, and io.EOF after the one that says that the session has ended.
func (w *Watcher) Next(ctx context.Context) (SessionEvent, error) {
	for {
		if w.ended {
			return SessionEvent{}, io.EOF
		}
		select {
		case e := <-w.events:
			return w.returned(e), nil
		default:
		}
		select {
		case e := <-w.events:
			return w.returned(e), nil
		case <-w.behind:
			return SessionEvent{}, ErrWatchBehind
		case <-ctx.Done():
			return SessionEvent{}, notTheEnd(ctx, context.Cause(ctx))
		case <-w.done.Done():
			return SessionEvent{}, ErrClosed
		case <-w.link.closing:
			<-w.link.read
		}
		if len(w.events) > 0 {
			continue
		}
		if err := w.subscribe(ctx); err != nil {
			return SessionEvent{}, notTheEnd(ctx, err)
		}
	}
}

func (w *Watcher) returned(e SessionEvent) SessionEvent {
	state, ok := e.Data.(*protocol.SessionState)
	w.ended = ok && state.To == "TERMINATED"
	return e
}

// Events is Next as a sequence, up to the session's end or an error. To break out of it is to Close.
func (w *Watcher) Events(ctx context.Context) iter.Seq2[SessionEvent, error] {
	return func(yield func(SessionEvent, error) bool) {
		defer w.Close()
		for {
			e, err := w.Next(ctx)
			if errors.Is(err, io.EOF) || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Close ends the subscription. It is idempotent.
func (w *Watcher) Close() {
	w.close()
	w.parent.drop(w.c)
}
