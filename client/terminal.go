package client

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"

	"trl/protocol"
)

// Terminal is one client at a terminal. One goroutine reads it by Next; Input, Resize and TakeOver may be used by others.
// Close leaves; the terminal goes on. When the connection is lost it comes back with the terminal's screen, a chunk with
// Snapshot, and so does one that begins with Attach: nothing is ever replayed that a terminal emulator could answer. It
// comes back as it was: in control, unless somebody took over meanwhile.
type Terminal struct {
	s       *Stream
	control bool // set once; it asks to type

	mu         sync.Mutex
	cols, rows int    // guarded by mu; our window; 0: never said
	claim      int64  // guarded by mu; see protocol.TermAttach
	mode       string // guarded by mu; what the last answer said
	recording  string // guarded by mu; id of the recording that was being made when we came last
}

// OpenTerminal opens a terminal. A lost answer is asked for again under the same request_key, so one is opened.
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
		var o protocol.TermOpened
		if err := l.call(ctx, "term.open", q, &o, to); err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		s.id, t.claim, t.recording = o.TermID, o.Claim, o.RecordingID
		return nil
	}
	_, err := t.s.open(ctx)
	return t, err
}

// AttachTerminal joins a terminal: takes it over, with a window of that size, or just looks.
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

// request is the term.attach that makes us what we were.
func (t *Terminal) request() protocol.TermAttach {
	q := protocol.TermAttach{TermID: t.s.id, Snapshot: true, Mode: "view"}
	if t.control {
		t.mu.Lock()
		defer t.mu.Unlock()
		q.Mode, q.Claim, q.Cols, q.Rows = "control", t.claim, t.cols, t.rows
	}
	return q
}

// attach is the reader's.
func (t *Terminal) attach(ctx context.Context, l *link, to *feed) error {
	var a protocol.TermAttached
	if err := l.call(ctx, "term.attach", t.request(), &a, to); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recording = a.RecordingID
	if t.claim = a.Claim; t.mode != a.Mode { // it passed on while we were away
		t.mode = a.Mode
		t.s.pending = append(t.s.pending, event{chunk: &Chunk{Control: &protocol.TermControl{TermID: a.TermID, StreamID: a.StreamID, Mode: a.Mode}}})
	}
	return nil
}

// RecordingID is that of the recording that was being made of it when we came, "" where nobody records.
func (t *Terminal) RecordingID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.recording
}

// TakeOver asks for control, which whoever has it loses. The screen comes anew.
func (t *Terminal) TakeOver(ctx context.Context) error {
	if !t.control {
		return errViewer
	}
	q := t.request()
	q.Claim = 0
	return t.reattach(ctx, q)
}

// Redraw asks for the screen anew.
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

var errViewer = errors.New("this client only looks")

// ID is the terminal's.
func (t *Terminal) ID() string { return t.s.id }

// Next returns the next piece of output, and io.EOF after the last: then Exit knows how it ended. A Chunk with Control
// says that control has passed to another client, or back to us.
func (t *Terminal) Next(ctx context.Context) (Chunk, error) {
	k, err := t.s.Next(ctx)
	if k.Control != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.mode = k.Control.Mode
	}
	return k, err
}

// Exit is how the terminal ended; valid after io.EOF.
func (t *Terminal) Exit() protocol.TermInfo {
	if t.s.term == nil {
		return protocol.TermInfo{}
	}
	return *t.s.term
}

// Input types. While the terminal does not read and its buffer is full the server refuses more; Input waits then. A line
// longer than a terminal in line mode holds is refused. Two large inputs at once may mix.
func (t *Terminal) Input(ctx context.Context, p []byte) error {
	return t.s.c.input(ctx, "term.input", p, func(text, encoding string, _ bool) any {
		return protocol.TermInput{TermID: t.s.id, Data: text, Encoding: encoding}
	})
}

// Resize says how large our window is.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	t.mu.Lock()
	t.cols, t.rows = cols, rows
	t.mu.Unlock()
	return t.s.c.Call(ctx, "term.resize", protocol.TermResize{TermID: t.s.id, Cols: cols, Rows: rows}, nil)
}

// Close leaves. It is idempotent and for the goroutine that reads.
func (t *Terminal) Close() { t.s.Close() }
