package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// link is one connection: its requests in flight and its streams. It starts connected and dies once; the Client makes the next one. It has two
// goroutines, readLoop and writeLoop; close ends both and waits for them.
type link struct {
	t         transport
	createdAt time.Time
	onEvent   func(e protocol.Event, own bool) // set once; gets every event but output; own: it belongs to one of our streams
	epoch     string                           // set before the link is used; see protocol.Pong
	frames    chan []byte                      // to writeLoop; unbuffered: a frame handed over is being written
	closing   chan struct{}                    // closed by close, and by the loop that fails first
	read      chan struct{}                    // closed when readLoop is done: nothing will be delivered any more
	wrote     chan struct{}                    // closed when writeLoop is done
	lossNoted bool                             // guarded by Client.mu; a caller has noticed the loss

	mu          sync.Mutex
	err         error            // guarded by mu; why the link died
	diedAt      time.Time        // guarded by mu; set with err
	hasAnswered bool             // guarded by mu; the server has answered a request
	wasUseful   bool             // guarded by mu; output has come, or the answer to a request that opens no stream
	nextID      uint64           // guarded by mu
	calls       map[uint64]*call // guarded by mu; waiting for their answer
	streams     map[string]*feed // guarded by mu; by stream_id
	abandoned   map[string]*feed // guarded by mu; by stream_id; feeds that nobody reads any more: later output is dropped
	opening     int              // guarded by mu; how many calls have a feed
	posted      [][]byte         // guarded by mu; requests to send before any later one
	waiting     chan struct{}    // one token: posted is not empty
}

// call is one request that waits for its answer.
type call struct {
	answer   chan frame // buffered: the reader never waits for a caller that has given up
	feed     *feed      // not nil: attach it to the stream that the answer names
	detaches *feed      // not nil: nothing comes on its stream after the answer
}

// feed holds the events of one stream until its reader takes them. The server sends at most windowBytes of output beyond those that the reader has
// acknowledged, so a feed that nobody reads stays small and holds nobody up. The link's reader waits only for a feed that exceeds twice that, which a
// server does that knows no window.
type feed struct {
	once sync.Once
	done chan struct{} // closed by end: drop later events
	why  error         // set before done is closed

	kind   string // set once; exec, process or term
	id     string // guarded by link.mu; which one; empty until the answer says it
	stream string // guarded by link.mu; empty until the answer says it
	detach bool   // guarded by link.mu; the server was asked to send no more

	mu      sync.Mutex
	events  []Event       // guarded by mu
	held    int           // guarded by mu; bytes in events
	arrived chan struct{} // one token: events is not empty
	taken   chan struct{} // one token: events has shrunk
}

func newFeed(kind, id string) *feed {
	return &feed{kind: kind, id: id, done: make(chan struct{}), arrived: make(chan struct{}, 1), taken: make(chan struct{}, 1)}
}

// end ends the feed. It is idempotent; the first reason counts.
func (f *feed) end(why error) {
	f.once.Do(func() {
		f.why = why
		close(f.done)
	})
}

// put adds an event. It waits while the feed is full, until the feed or the link ends.
func (f *feed) put(e Event, closing <-chan struct{}) {
	for {
		f.mu.Lock()
		if f.held <= 2*windowBytes {
			if !f.joinLocked(e) {
				f.events = append(f.events, e)
			}
			f.held += len(e.Data)
			f.mu.Unlock()
			signal(f.arrived)
			return
		}
		f.mu.Unlock()
		select {
		case <-f.taken:
		case <-f.done:
			return
		case <-closing:
			return
		}
	}
}

const (
	// fewEvents is how many events wait for a reader before small pieces of output are put together. An event for each byte would take far more memory
	// than a window.
	fewEvents  = 64
	smallPiece = 4096
)

// joinLocked adds a small piece of output to the last event, if it follows that one. mu is held.
func (f *feed) joinLocked(e Event) bool {
	if len(f.events) < fewEvents || !e.isOutput() || e.Type == EventGap {
		return false
	}
	last := &f.events[len(f.events)-1]
	if last.Type != e.Type || last.Replay != e.Replay || last.Snapshot || e.Snapshot || last.Offset+int64(len(last.Data)) != e.Offset ||
		len(last.Data)+len(e.Data) > smallPiece {
		return false
	}
	last.Data = append(last.Data, e.Data...)
	return true
}

// take returns the next event, if there is one.
func (f *feed) take() (e Event, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) == 0 {
		return e, false
	}
	e = f.events[0]
	f.events[0] = Event{}
	f.events = f.events[1:]
	f.held -= len(e.Data)
	signal(f.taken)
	return e, true
}

// signal puts a token into a channel that holds one.
func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// frame is any message from the server.
type frame struct {
	ID    jsontext.Value  `json:"id"`
	OK    bool            `json:"ok"`
	Data  jsontext.Value  `json:"data"`
	Error *protocol.Error `json:"error"`
	Event string          `json:"event"`
}

var errBadFrame = errors.New("unintelligible frame from the server") // the same frame would come again, so the Client does not connect again

func newLink(t transport, onEvent func(protocol.Event, bool)) *link {
	l := &link{
		t: t, onEvent: onEvent, createdAt: time.Now(),
		frames: make(chan []byte), closing: make(chan struct{}), read: make(chan struct{}), wrote: make(chan struct{}),
		calls: map[uint64]*call{}, streams: map[string]*feed{}, abandoned: map[string]*feed{}, waiting: make(chan struct{}, 1),
	}
	go l.readLoop()  // delivers frames; ends when the transport does; close waits for it
	go l.writeLoop() // writes frames; ends with closing; close waits for it
	return l
}

// close ends the link and returns when both loops have ended. It is idempotent.
func (l *link) close() {
	l.fail(ErrClosed)
	select {
	case <-l.wrote: // the frame being written goes out whole,
	case <-time.After(time.Second): // unless the peer has stopped reading
	}
	l.t.close()
	<-l.read
	<-l.wrote
}

// fail records why the link has died; the first reason counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err, l.diedAt = err, time.Now()
		close(l.closing)
	}
}

// lifetime says how long a dead link lived and whether it was useful. A server that accepts a stream and drops it at once each time is not useful; a
// server whose command is silent for a while is.
func (l *link) lifetime() (lived time.Duration, useful bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lived = l.diedAt.Sub(l.createdAt)
	return lived, l.wasUseful || l.hasAnswered && lived > time.Second
}

// refusalTimeout bounds the wait for the reason of a server that no longer reads from us.
const refusalTimeout = 100 * time.Millisecond

// lost says why the link died; nil while it lives.
func (l *link) lost() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// lostError is lost in the form for callers.
func (l *link) lostError() error {
	if why := l.lost(); why != ErrClosed {
		return &ConnectionLostError{OutcomeUnknown, why}
	}
	return ErrClosed
}

func (l *link) writeLoop() {
	defer close(l.wrote)
	for {
		var next []byte
		select {
		case next = <-l.frames:
		case <-l.waiting:
		case <-l.closing:
			return
		}
		l.mu.Lock()
		frames := l.posted
		l.posted = nil
		l.mu.Unlock()
		if next != nil {
			frames = append(frames, next)
		}
		for _, f := range frames {
			if err := l.t.write(f); err != nil {
				select {
				case <-l.closing:
				case <-time.After(refusalTimeout):
				}
				l.fail(err)
				return
			}
		}
	}
}

func (l *link) readLoop() {
	defer close(l.read)
	for {
		b, err := l.t.read()
		if err != nil {
			l.fail(err)
			return
		}
		if err := l.deliver(b); err != nil {
			l.fail(err)
			return
		}
	}
}

// deliver passes one frame to its receiver. b is reused afterwards (a jsontext.Value is a copy). An error ends the link.
func (l *link) deliver(b []byte) error {
	var f frame
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("%w: %w", errBadFrame, err)
	}
	if f.Event != "" {
		if err := l.deliverEvent(f.Event, f.Data); err != nil {
			return fmt.Errorf("%w: %w", errBadFrame, err)
		}
		return nil
	}
	id, err := strconv.ParseUint(string(f.ID), 10, 64)
	if err != nil {
		if f.Error != nil {
			return f.Error // an error of the connection, or of a request that could not be read and gets no other answer
		}
		return nil
	}
	l.mu.Lock()
	c := l.calls[id]
	delete(l.calls, id)
	l.hasAnswered = true
	l.wasUseful = l.wasUseful || c != nil && c.feed == nil
	switch {
	case c == nil:
	case c.feed != nil: // here and not in the caller, because the next frame may be the stream's first chunk
		l.opening--
		if f.OK {
			l.openLocked(c.feed, f.Data)
		}
		l.detachAbandonedLocked()
	case c.detaches != nil:
		if l.abandoned[c.detaches.stream] == c.detaches {
			delete(l.abandoned, c.detaches.stream)
		}
	}
	l.mu.Unlock()
	if c != nil {
		c.answer <- f
	}
	return nil
}

// openLocked connects a feed to the stream that an answer names. mu is held.
func (l *link) openLocked(to *feed, answer jsontext.Value) {
	var opened struct {
		StreamID string               `json:"stream_id"`
		ExecID   string               `json:"exec_id"`
		TermID   string               `json:"term_id"`
		Terminal *protocol.TermOpened `json:"terminal"` // of session.create
	}
	if json.Unmarshal(answer, &opened) != nil {
		return
	}
	if t := opened.Terminal; t != nil {
		opened.StreamID, opened.TermID = t.StreamID, t.TermID
	}
	if opened.StreamID == "" {
		return
	}
	to.stream, to.id = opened.StreamID, cmp.Or(to.id, opened.ExecID, opened.TermID)
	if before := l.streams[to.stream]; before != nil {
		before.end(ErrDisplaced) // the server sends each stream once per connection, from the offset of the latest request
	}
	delete(l.abandoned, to.stream)
	l.streams[to.stream] = to
	select {
	case <-to.done: // the caller has not waited for the answer
		l.abandonLocked(to)
	default:
	}
}

// abandon drops later events of a feed and asks the server to send no more. It does not wait.
func (l *link) abandon(f *feed, why error) {
	f.end(why)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abandonLocked(f)
	l.detachAbandonedLocked()
}

func (l *link) abandonLocked(f *feed) {
	if l.streams[f.stream] == f {
		delete(l.streams, f.stream)
		l.abandoned[f.stream] = f
	}
}

// detachAbandonedLocked detaches from abandoned streams. It does nothing while a request for a stream is in flight, because that request may be for
// one of them and the server must get it last. mu is held.
func (l *link) detachAbandonedLocked() {
	if l.opening > 0 {
		return
	}
	for _, f := range l.abandoned {
		if f.detach {
			continue
		}
		f.detach = true
		l.postLocked(f.kind+".detach", map[string]string{f.kind + "_id": f.id}, f)
	}
}

// post sends a request whose answer does not matter. It does not wait.
func (l *link) post(method string, params any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.postLocked(method, params, nil)
}

// ack tells the server that the events of a feed were read up to an offset. It does not wait.
func (l *link) ack(f *feed, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.postLocked("stream.ack", protocol.StreamAck{StreamID: f.stream, Offset: offset}, nil)
}

// postLocked is post. If it detaches from a feed, nothing comes for the feed after the answer. mu is held.
func (l *link) postLocked(method string, params any, detaches *feed) {
	raw, err := json.Marshal(params)
	if err != nil {
		return
	}
	b, err := encode(l.registerLocked(&call{answer: make(chan frame, 1), detaches: detaches}), method, raw)
	if err != nil {
		return
	}
	l.posted = append(l.posted, b)
	signal(l.waiting)
}

// deliverEvent passes on one event. Only output, gaps and what belongs to a terminal's picture are for the stream alone; all others are told to the
// Client as well.
func (l *link) deliverEvent(name string, data jsontext.Value) error {
	e, id, err := readEvent(name, data)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	l.mu.Lock()
	if e.Type == EventResized {
		id = l.streamOfLocked("term", e.Resized.TermID)
	}
	to, left := l.streams[id], l.abandoned[id] != nil
	l.wasUseful = l.wasUseful || to != nil
	if e.ends() {
		delete(l.streams, id)
		delete(l.abandoned, id)
	}
	l.mu.Unlock()
	if to != nil {
		to.put(e, l.closing)
	}
	if !e.isOutput() && l.onEvent != nil {
		l.onEvent(protocol.Event{Name: name, Data: data}, to != nil || left)
	}
	return nil
}

func (l *link) streamOfLocked(kind, id string) string {
	for stream, f := range l.streams {
		if f.kind == kind && f.id == id {
			return stream
		}
	}
	return ""
}

// send writes one request and returns its call. params is encoded JSON or nil.
func (l *link) send(ctx context.Context, method string, params jsontext.Value, to *feed) (uint64, *call, error) {
	c := &call{answer: make(chan frame, 1), feed: to}
	l.mu.Lock()
	id := l.registerLocked(c)
	l.mu.Unlock()
	b, err := encode(id, method, params)
	if err != nil {
		l.forget(id)
		return 0, nil, fmt.Errorf("%s: %w", method, err)
	}
	select {
	case l.frames <- b:
		return id, c, nil
	case <-l.closing:
		err := l.lostError()
		if lost, ok := err.(*ConnectionLostError); ok {
			lost.Outcome = OutcomeUnsent
		}
		return 0, nil, err
	case <-ctx.Done():
		l.forget(id)
		return 0, nil, context.Cause(ctx)
	}
}

func (l *link) registerLocked(c *call) uint64 {
	l.nextID++
	l.calls[l.nextID] = c
	if c.feed != nil {
		l.opening++
	}
	return l.nextID
}

func encode(id uint64, method string, params jsontext.Value) ([]byte, error) {
	return json.Marshal(struct {
		ID     uint64         `json:"id"`
		Method string         `json:"method"`
		Params jsontext.Value `json:"params,omitzero"`
	}{id, method, params})
}

// wait returns the answer of a call, or why there will be none. A call with a feed stays when its caller gives up, because the stream that its answer
// opens must be left again.
func (l *link) wait(ctx context.Context, id uint64, c *call) (frame, error) {
	select {
	case f := <-c.answer:
		return f, nil
	default:
	}
	select {
	case f := <-c.answer:
		return f, nil
	case <-l.closing:
		<-l.read // events that the reader still delivers count
		select {
		case f := <-c.answer:
			return f, nil
		default:
			return frame{}, l.lostError()
		}
	case <-ctx.Done():
		if c.feed == nil {
			l.forget(id)
		}
		return frame{}, context.Cause(ctx)
	}
}

// forget drops a call for which nobody waits any more; its answer will be ignored.
func (l *link) forget(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.calls[id]; c != nil && c.feed != nil {
		l.opening--
		l.detachAbandonedLocked()
	}
	delete(l.calls, id)
}

// isShuttingDown reports whether the server refused the connection because it is ending.
func isShuttingDown(err error) bool {
	refused := (*protocol.Error)(nil)
	return errors.As(err, &refused) && refused.Code == protocol.ShuttingDown
}

// wasCut reports whether the server accepted the connection and closed it before it answered.
func wasCut(err error) bool { return errors.Is(err, errCutOff) || errors.Is(err, syscall.ECONNRESET) }

// temporary reports whether connecting again makes sense after this end of a link, as PROTOCOL.md says under Closing. It does not after a normal
// close, after codes that say what is wrong with the client, or after one of the server's own 4xxx codes. Of the server's refusals, a full server and an
// ending one are temporary.
func temporary(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, errBadFrame) {
		return false
	}
	if refused := (*protocol.Error)(nil); errors.As(err, &refused) {
		return refused.Code == protocol.LimitExceeded || refused.Code == protocol.RateLimited || refused.Code == protocol.ShuttingDown
	}
	switch code := websocket.CloseStatus(err); code { // -1 means that no close frame came
	case websocket.StatusNormalClosure, websocket.StatusProtocolError, websocket.StatusUnsupportedData, websocket.StatusInvalidFramePayloadData,
		websocket.StatusPolicyViolation, websocket.StatusMessageTooBig, websocket.StatusMandatoryExtension:
		return false
	default:
		return code < 4000 || code >= 5000
	}
}

// isAbsent reports whether something else than a gateway answered. A proxy does so for a gateway that is away.
func isAbsent(err error) bool {
	refused := (*protocol.Error)(nil)
	return errors.As(err, &refused) && refused.Code == protocol.NotSupported
}
