package client

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"trl/protocol"
)

// Terminal is one client of a terminal. One goroutine reads it by Next; other goroutines may use Input, Resize and TakeOver. Close leaves the
// terminal, which goes on. After a lost connection it comes back with the terminal's screen, a chunk with Snapshot, and so does one that starts with
// AttachTerminal. A terminal emulator therefore never gets replayed output that it could answer. It comes back in the same mode: in control, unless
// another client took over meanwhile.
type Terminal struct {
	s       *Stream
	control bool // set once; it asks to type

	mu         sync.Mutex
	cols, rows int    // guarded by mu; our window; 0: unknown
	claim      int64  // guarded by mu; see protocol.TermAttach
	mode       string // guarded by mu; the mode in the last answer
	recording  string // guarded by mu; id of the recording in progress at the last attach
}

// OpenTerminal opens a terminal. If the answer is lost, it asks again with the same request_key, so only one terminal is opened.
func (c *Client) OpenTerminal(ctx context.Context, q protocol.TermOpen) (*Terminal, error) {
	if q.RequestKey == "" {
		q.RequestKey = rand.Text()
	}
	t := &Terminal{control: true, cols: q.Cols, rows: q.Rows, mode: "control"}
	t.s = &Stream{c: c, kind: "term"}
	t.s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error {
		if s.id != "" {
			return t.attach(ctx, l, to)
		}
		return c.inSession(ctx, l, q.SessionRef, func(ref protocol.SessionRef) error {
			q.SessionRef = ref // also of a repeated request
			var o protocol.TermOpened
			if err := l.call(ctx, "term.open", q, &o, to); err != nil {
				return err
			}
			t.mu.Lock()
			defer t.mu.Unlock()
			s.id, t.claim, t.recording = o.TermID, o.Claim, o.RecordingID
			return nil
		})
	}
	_, err := t.s.open(ctx)
	return t, err
}

// AttachTerminal joins a terminal. It takes control, with a window of the given size, or only watches.
func (c *Client) AttachTerminal(ctx context.Context, termID string, control bool, cols, rows int) (*Terminal, error) {
	t := &Terminal{control: control, cols: cols, rows: rows, mode: "view"}
	if control {
		t.mode = "control"
	}
	t.s = &Stream{c: c, kind: "term", id: termID}
	t.s.reopen = func(ctx context.Context, l *link, _ *Stream, to *feed) error { return t.attach(ctx, l, to) }
	_, err := t.s.open(ctx)
	return t, err
}

// request returns the term.attach that restores our mode.
func (t *Terminal) request() protocol.TermAttach {
	q := protocol.TermAttach{TermID: t.s.id, Snapshot: true, Mode: "view"}
	if t.control {
		t.mu.Lock()
		defer t.mu.Unlock()
		q.Mode, q.Claim, q.Cols, q.Rows = "control", t.claim, t.cols, t.rows
	}
	return q
}

// attach is for the reader.
func (t *Terminal) attach(ctx context.Context, l *link, to *feed) error {
	var a protocol.TermAttached
	if err := l.call(ctx, "term.attach", t.request(), &a, to); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recording = a.RecordingID
	if t.claim = a.Claim; t.mode != a.Mode { // control changed while we were away
		t.mode = a.Mode
		t.s.pending = append(t.s.pending, event{chunk: &Chunk{Control: &protocol.TermControl{TermID: a.TermID, StreamID: a.StreamID, Mode: a.Mode}}})
	}
	return nil
}

// RecordingID is the id of the recording in progress at the last attach, "" if there was none.
func (t *Terminal) RecordingID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recording
}

// TakeOver asks for control, which the current holder loses. The screen comes again.
func (t *Terminal) TakeOver(ctx context.Context) error {
	if !t.control {
		return errViewer
	}
	q := t.request()
	q.Claim = 0
	return t.reattach(ctx, q)
}

// Redraw asks for the screen again.
func (t *Terminal) Redraw(ctx context.Context) error { return t.reattach(ctx, t.request()) }

func (t *Terminal) reattach(ctx context.Context, q protocol.TermAttach) error {
	var a protocol.TermAttached
	if err := t.s.c.Call(ctx, "term.attach", q, &a); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.claim, t.mode = a.Claim, a.Mode
	return nil
}

var errViewer = errors.New("this client only watches")

// ID is the terminal's id.
func (t *Terminal) ID() string { return t.s.id }

// Next returns the next piece of output, and io.EOF after the last one; then Exit has the result. A Chunk with Control says that control has passed to
// another client, or back to us.
func (t *Terminal) Next(ctx context.Context) (Chunk, error) {
	k, err := t.s.Next(ctx)
	if k.Control != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.mode = k.Control.Mode
	}
	return k, err
}

// Exit returns how the terminal ended; it is valid after io.EOF.
func (t *Terminal) Exit() protocol.TermInfo {
	if t.s.term == nil {
		return protocol.TermInfo{}
	}
	return *t.s.term
}

// Input types into the terminal. While the terminal does not read and its buffer is full, the server refuses more; Input then waits. The server
// refuses a line that is longer than a terminal in line mode can hold. Two large inputs at the same time may mix.
func (t *Terminal) Input(ctx context.Context, p []byte) error {
	return t.s.c.input(ctx, "term.input", p, func(text, encoding string, _ bool) any {
		return protocol.TermInput{TermID: t.s.id, Data: text, Encoding: encoding}
	})
}

// Resize reports the size of our window.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	t.mu.Lock()
	t.cols, t.rows = cols, rows
	t.mu.Unlock()
	return t.s.c.Call(ctx, "term.resize", protocol.TermResize{TermID: t.s.id, Cols: cols, Rows: rows}, nil)
}

// Close leaves the terminal. It is idempotent, and only the reading goroutine may call it.
func (t *Terminal) Close() { t.s.Close() }
