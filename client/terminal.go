package client

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"strings"
	"sync"

	"trl/protocol"
)

// Terminal is one client of a terminal. One goroutine reads it, by Next or Events; other goroutines may use the other methods. After a lost connection it
// comes back with the terminal's screen, an EventData with Snapshot, and so does one that starts with AttachTerminal. A terminal emulator therefore never
// gets replayed output that it could answer. It comes back in the same mode: in control, unless another client took over meanwhile.
type Terminal struct {
	s       *stream
	control bool // set once; it asks to type
	in      input

	mu         sync.Mutex
	cols, rows int               // guarded by mu; our window; 0: unknown
	claim      int64             // guarded by mu; see protocol.TermAttach
	mode       string            // guarded by mu; the mode in the last answer
	recording  string            // guarded by mu; id of the recording in progress at the last attach
	info       protocol.TermInfo // guarded by mu; how it ended
}

// TerminalOptions changes what OpenTerminal opens. Cols and Rows are required.
type TerminalOptions struct {
	Cols, Rows int
	Command    string // "" means the session's shell, interactive
	Cwd        string
	Env        map[string]string
	UnsetEnv   []string
	Record     bool
}

// OpenTerminal opens a terminal with the session's present state. If the answer is lost it asks again, and only one terminal is opened. ctx bounds the
// start and does not end the terminal.
func (s *Session) OpenTerminal(ctx context.Context, o TerminalOptions) (*Terminal, error) {
	if name := s.Name(); s.own && s.ID() == "" && !strings.HasPrefix(name, "s-") { // one request makes or finds the session, too
		in, t, err := s.c.CreateSessionWithTerminal(ctx, &SessionOptions{Name: name, IfExists: "return"}, o)
		if err == nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.id = in.id
			return t, nil
		}
		if !IsForbidden(err) { // a guest may open a terminal in the session that exists
			return nil, err
		}
	}
	key := rand.Text()
	var in protocol.SessionRef
	t := s.c.newTerminal(o, func(ctx context.Context, l *link, to *feed) (opened *protocol.TermOpened, err error) {
		err = l.call(ctx, "term.open", o.first().Open(in.SessionID, key), &opened, to)
		return opened, err
	})
	err := s.use(ctx, func(ref protocol.SessionRef) error {
		in = ref
		return t.s.open(ctx)
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// CreateSessionWithTerminal makes a session, or finds it if so says IfExists, and opens a terminal in it, in one request. If the answer is lost it asks
// again. If the terminal cannot be opened, no session is made. ctx bounds the start and does not end the terminal.
func (c *Client) CreateSessionWithTerminal(ctx context.Context, o *SessionOptions, terminal TerminalOptions) (*Session, *Terminal, error) {
	q := o.request()
	q.Terminal = terminal.first()
	var made protocol.SessionCreated
	t := c.newTerminal(terminal, func(ctx context.Context, l *link, to *feed) (*protocol.TermOpened, error) {
		err := l.call(ctx, "session.create", q, &made, to)
		return made.Terminal, err
	})
	err := t.s.open(ctx)
	if e, ok := errors.AsType[*Error](err); ok && e.Code == protocol.InvalidParams && e.Details["field"] == "terminal" { // an older server
		s, err := c.CreateSession(ctx, o)
		if err != nil {
			return nil, nil, err
		}
		t, err := s.OpenTerminal(ctx, terminal)
		return s, t, err
	}
	if err != nil {
		return nil, nil, err
	}
	return c.session(&made.Session), t, nil
}

// first returns the terminal as session.create opens it.
func (o *TerminalOptions) first() *protocol.FirstTerminal {
	return &protocol.FirstTerminal{
		Cols: o.Cols, Rows: o.Rows, Command: o.Command, WorkingDir: o.Cwd, Env: environment(o.Env, o.UnsetEnv), Record: o.Record, WindowBytes: windowBytes,
	}
}

// newTerminal makes a Terminal that open opens.
func (c *Client) newTerminal(o TerminalOptions, open func(ctx context.Context, l *link, to *feed) (*protocol.TermOpened, error)) *Terminal {
	t := &Terminal{control: true, cols: o.Cols, rows: o.Rows, mode: "control"}
	t.s = &stream{c: c, kind: "term"}
	t.s.reopen = func(ctx context.Context, l *link, s *stream, to *feed) error {
		if s.id != "" {
			return t.attach(ctx, l, to)
		}
		opened, err := open(ctx, l, to)
		if err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		s.id, t.claim, t.recording = opened.TermID, opened.Claim, opened.RecordingID
		t.in.begin(0)
		return nil
	}
	return t
}

// AttachOptions changes AttachTerminal. All fields are optional.
type AttachOptions struct {
	Mode       string // "control" (the default): to type, and to set the size; "view": to watch
	Cols, Rows int    // of this client's window, in control
}

// AttachTerminal joins a terminal, whatever its session. ctx bounds the attach.
func (s *Session) AttachTerminal(ctx context.Context, termID string, o *AttachOptions) (*Terminal, error) {
	if o == nil {
		o = &AttachOptions{}
	}
	t := &Terminal{control: o.Mode != "view", cols: o.Cols, rows: o.Rows, mode: "view"}
	if t.control {
		t.mode = "control"
	}
	t.s = &stream{c: s.c, kind: "term", id: termID}
	t.s.reopen = func(ctx context.Context, l *link, _ *stream, to *feed) error { return t.attach(ctx, l, to) }
	if err := t.s.open(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

// request returns the term.attach that restores our mode.
func (t *Terminal) request() protocol.TermAttach {
	q := protocol.TermAttach{TermID: t.s.id, Snapshot: true, Mode: "view", WindowBytes: windowBytes}
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
		t.s.pending = append(t.s.pending, Event{Type: EventControl, Control: &protocol.TermControl{TermID: a.TermID, StreamID: a.StreamID, Mode: a.Mode}})
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

// Mode is "control" if this client may type now, otherwise "view".
func (t *Terminal) Mode() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mode
}

// Next returns the next event: output and changes, then EventExit; and io.EOF after it. ctx bounds the wait.
func (t *Terminal) Next(ctx context.Context) (Event, error) {
	e, err := t.s.next(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Type {
	case EventControl:
		t.mode = e.Control.Mode
	case EventExit:
		t.info = *e.Terminal
	}
	return e, err
}

// Events is Next as a sequence, up to the last event or an error. To break out of it is to Detach.
func (t *Terminal) Events(ctx context.Context) iter.Seq2[Event, error] {
	return iterate(ctx, t.Next, t.Detach)
}

// Exit returns how the terminal ended; it is valid after EventExit.
func (t *Terminal) Exit() protocol.TermInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.info
}

// Write types into the terminal. While the terminal does not read and its buffer is full, the server refuses more; Write then waits. The server refuses a
// line that is longer than a terminal in line mode can hold. Two large inputs at the same time may mix.
func (t *Terminal) Write(ctx context.Context, p []byte) error {
	return t.in.write(ctx, t.s.c, "term.input", p, false, func(text, encoding string, _ bool, offset *int64) any {
		return protocol.TermInput{TermID: t.s.id, Data: text, Encoding: encoding, Offset: offset}
	})
}

// Resize reports the size of our window.
func (t *Terminal) Resize(ctx context.Context, cols, rows int) error {
	t.mu.Lock()
	t.cols, t.rows = cols, rows
	t.mu.Unlock()
	return t.s.c.Call(ctx, "term.resize", protocol.TermResize{TermID: t.s.id, Cols: cols, Rows: rows}, nil)
}

// Snapshot returns the screen as lines of text, with the cursor.
func (t *Terminal) Snapshot(ctx context.Context) (*protocol.TermSnapshot, error) {
	var shown protocol.TermSnapshot
	err := t.s.c.Call(ctx, "term.snapshot", protocol.TermRef{TermID: t.s.id}, &shown)
	return &shown, err
}

// Close ends the terminal and everything that was started in it.
func (t *Terminal) Close(ctx context.Context) error {
	return t.s.c.Call(ctx, "term.close", protocol.TermRef{TermID: t.s.id}, nil)
}

// Detach leaves the terminal, which goes on. It is idempotent and does not wait.
func (t *Terminal) Detach() { t.s.leave(ErrClosed) }
