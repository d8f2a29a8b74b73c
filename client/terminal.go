package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"trl/protocol"
)

// Terminal is one client at a terminal. One goroutine reads it by Next; Input and Resize may be used by others. Close
// leaves; the terminal goes on. When the connection is lost it comes back with the terminal's screen, a chunk with
// Snapshot, and so does one that begins with Attach: nothing is ever replayed that a terminal emulator could answer.
type Terminal struct {
	s         *Stream
	control   bool
	recording string // id of the recording that was being made when we came last; owned by who reads

	mu         sync.Mutex
	cols, rows int // guarded by mu; our window; 0: never said
}

// errMaybeOpen: to ask again might open a second terminal.
var errMaybeOpen = errors.New("connection lost before the terminal was known to be open")

// OpenTerminal opens a terminal.
func (c *Client) OpenTerminal(ctx context.Context, q protocol.TermOpen) (*Terminal, error) {
	t := &Terminal{control: true, cols: q.Cols, rows: q.Rows}
	asked := false
	t.s = &Stream{c: c}
	t.s.reopen = func(ctx context.Context, l *link, s *Stream, to *feed) error {
		if s.id != "" {
			return t.attach(ctx, l, to)
		}
		if asked {
			return errMaybeOpen
		}
		asked = true
		var o protocol.TermOpened
		if err := l.call(ctx, "term.open", q, &o, to); err != nil {
			return err
		}
		s.id, t.recording = o.TermID, o.RecordingID
		return nil
	}
	_, err := t.s.open(ctx)
	return t, err
}

// AttachTerminal joins a terminal, with a window of that size, or just to look.
func (c *Client) AttachTerminal(ctx context.Context, termID string, control bool, cols, rows int) (*Terminal, error) {
	t := &Terminal{control: control, cols: cols, rows: rows}
	t.s = &Stream{c: c, id: termID}
	t.s.reopen = func(ctx context.Context, l *link, _ *Stream, to *feed) error { return t.attach(ctx, l, to) }
	_, err := t.s.open(ctx)
	return t, err
}

func (t *Terminal) attach(ctx context.Context, l *link, to *feed) error {
	q := protocol.TermAttach{TermID: t.s.id, Snapshot: true, Mode: "view"}
	if t.control {
		q.Mode = "control"
	}
	t.mu.Lock()
	size := protocol.TermResize{TermID: t.s.id, Cols: t.cols, Rows: t.rows}
	t.mu.Unlock()
	if t.control && size.Cols > 0 {
		// Before the attach, so that the screen comes in the right size; and after it, as ours.
		if err := l.call(ctx, "term.resize", size, nil, nil); err != nil {
			return err
		}
	}
	var a protocol.TermAttached
	if err := l.call(ctx, "term.attach", q, &a, to); err != nil {
		return err
	}
	t.recording = a.RecordingID
	if t.control && size.Cols > 0 {
		return l.call(ctx, "term.resize", size, nil, nil)
	}
	return nil
}

// RecordingID is that of the recording that was being made of it when we came, "" where nobody records.
func (t *Terminal) RecordingID() string { return t.recording }

// ID is the terminal's.
func (t *Terminal) ID() string { return t.s.id }

// Next returns the next piece of output, and io.EOF after the last: then Exit knows how it ended.
func (t *Terminal) Next(ctx context.Context) (Chunk, error) { return t.s.Next(ctx) }

// Exit is how the terminal ended; valid after io.EOF.
func (t *Terminal) Exit() protocol.TermInfo {
	if t.s.term == nil {
		return protocol.TermInfo{}
	}
	return *t.s.term
}

// Input types. While the terminal does not read and its buffer is full the server refuses more; Input waits then.
func (t *Terminal) Input(ctx context.Context, p []byte) error {
	text, encoding := protocol.EncodeBytes(p)
	q := protocol.TermInput{TermID: t.s.id, Data: text, Encoding: encoding}
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		err := t.s.c.Call(ctx, "term.input", q, nil)
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.RateLimited && (e.Code != protocol.LimitExceeded || e.Details["limit"] == "line") {
			return err
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
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
