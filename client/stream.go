package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"

	"trl/protocol"
)

const (
	// windowBytes is how much of a stream may wait in this client for its reader.
	windowBytes = 1 << 20
	ackEvery    = windowBytes / 4
)

// errPaused ends a feed whose stream is to be attached again when it is read next.
var errPaused = errors.New("paused")

// stream is the events of one command, process or terminal, over as many connections as necessary: every byte once and in order, or a gap. One goroutine
// reads it by next; others may pause it.
type stream struct {
	c      *Client
	kind   string                                                        // set once; exec, process or term
	reopen func(ctx context.Context, l *link, s *stream, to *feed) error // opens it, or attaches at s.offset if it has an id
	id     string                                                        // set once, by the first reopen

	released bool // guarded by c.mu of the reader's Client; see logsDone

	// owned by the reader
	pending []Event // events in the answer itself (process.logs), before those of the feed
	offset  int64   // next has returned everything before it
	acked   int64
	ended   bool  // the last event was returned
	asked   *link // carried the request that makes what the stream is of; its answer was lost

	mu   sync.Mutex
	link *link // guarded by mu; nil: attach first
	feed *feed // guarded by mu; of link
	left error // guarded by mu; the stream was left for this reason
}

// open attaches on a live connection, and again if that connection is lost meanwhile.
func (s *stream) open(ctx context.Context) error {
	var node nodeWait
	for {
		l, err := s.c.connected(ctx)
		if err != nil {
			return s.c.outcome(err, s.id == "" && s.asked != nil)
		}
		if s.id == "" && s.asked != nil && s.asked.epoch != l.epoch {
			return &ConnectionLostError{OutcomeUnknown, errNewEpoch}
		}
		to := newFeed(s.kind, s.id)
		s.pending = nil
		err = s.reopen(ctx, l, s, to)
		if err == nil {
			s.acked = s.offset
			return s.install(l, to)
		}
		l.abandon(to, ErrClosed)
		if node.passes(ctx, s.c, &err) {
			continue
		}
		if l.lost() == nil || ctx.Err() != nil {
			return err // the server's answer, or the caller's context has ended
		}
		if s.id == "" {
			s.asked = l
		}
	}
}

// install makes a feed the one that is read, unless the stream was left meanwhile.
func (s *stream) install(l *link, to *feed) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left != nil {
		l.abandon(to, s.left)
		return s.left
	}
	s.link, s.feed = l, to
	return nil
}

// pause lets go of the output until next is called. A command ends only when its last output has found room, so output that nobody reads must not be in
// its way.
func (s *stream) pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.feed != nil {
		s.link.abandon(s.feed, errPaused)
	}
}

// leave drops later output and asks the server to send no more. It is idempotent and does not wait.
func (s *stream) leave(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = why
	}
	if s.feed != nil {
		s.link.abandon(s.feed, why)
	}
}

// next returns the next event, and io.EOF after the last one. Bytes that came before the connection was lost are cut off.
func (s *stream) next(ctx context.Context) (Event, error) {
	for {
		if s.ended {
			return Event{}, io.EOF
		}
		s.acknowledge()
		e, err := s.arrive(ctx)
		if err != nil {
			return Event{}, notTheEnd(ctx, err)
		}
		switch {
		case e.ends():
			s.ended = true
		case !e.isOutput():
		case e.Snapshot:
			s.offset = e.Offset
		case e.Type == EventGap:
			if e.Offset <= s.offset {
				continue
			}
			e.From, s.offset = s.offset, e.Offset
		default:
			end := e.Offset + int64(len(e.Data))
			if end <= s.offset {
				continue
			}
			if e.Offset < s.offset {
				e.Data = e.Data[s.offset-e.Offset:]
				e.Offset = s.offset
			}
			s.offset = end
		}
		return e, nil
	}
}

// notTheEnd reserves io.EOF for the end of a stream. The cause of a context may be an io.EOF, too.
func notTheEnd(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil && errors.Is(err, io.EOF) {
		return ended
	}
	return err
}

// acknowledge tells the server what was read, so that it sends more.
func (s *stream) acknowledge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.feed == nil || s.offset-s.acked < ackEvery {
		return
	}
	s.acked = s.offset
	s.link.ack(s.feed, s.offset)
}

// arrive returns the next event as it came.
func (s *stream) arrive(ctx context.Context) (Event, error) {
	for {
		if len(s.pending) > 0 {
			e := s.pending[0]
			s.pending = s.pending[1:]
			return e, nil
		}
		s.mu.Lock()
		l, f, left := s.link, s.feed, s.left
		s.mu.Unlock()
		if left != nil {
			return Event{}, left
		}
		if e, ok := f.take(); ok {
			return e, nil
		}
		select {
		case <-f.arrived:
			continue
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		case <-f.done:
		case <-l.closing:
			<-l.read // events that the reader still delivers count
		}
		if e, ok := f.take(); ok {
			return e, nil
		}
		select {
		case <-f.done:
			if f.why != errPaused {
				return Event{}, f.why
			}
		default:
		}
		if err := s.open(ctx); err != nil {
			return Event{}, err
		}
	}
}

// replay turns the chunks of an answer into events; later output and the exit come through the feed.
func (s *stream) replay(logs *protocol.Logs) error {
	if g := logs.Gap; g != nil {
		s.pending = append(s.pending, Event{Type: EventGap, From: g.From, Offset: g.To})
	}
	for _, k := range logs.Chunks {
		p, err := protocol.DecodeBytes(k.Data, k.Encoding)
		if err != nil {
			return err
		}
		s.pending = append(s.pending, Event{Type: typeOfOutput(k.Stream), Offset: k.Offset, Data: p, Replay: true})
	}
	return nil
}

// iterate makes a sequence of next. It ends with the last event, or with an error. leave is called when it ends.
func iterate(ctx context.Context, next func(context.Context) (Event, error), leave func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		defer leave()
		for {
			e, err := next(ctx)
			if errors.Is(err, io.EOF) || !yield(e, err) || err != nil {
				return
			}
		}
	}
}
