package pool

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"trl/pool/command"
	"trl/pool/ends"
	"trl/pool/entry"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/screenstate"
	"trl/pool/shells"
	"trl/pool/timeouts"
	"trl/pool/token"
	"trl/pool/viewers"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/screen"
	"trl/runtime/shell"
)

// closeGrace is the time between HUP and KILL if term.close does not say.
const closeGrace = 2 * time.Second

// termRings is how many times larger a terminal's ring is than a command's. A person who reloads the page wants its content again, and nothing else
// keeps it. The memory is allocated as output comes.
const termRings = 4

// Terminal is one PTY and the processes in it: open or ended.
type Terminal struct {
	child             // its text is "" if the session's shell runs in it
	nonce      string // in the marks of its shell; set once
	marks      *screen.Marks
	marksReady chan struct{}   // one token: there are new marks, or the screen is behind
	terminal   *shell.Terminal // set once, when it starts

	screen  *screenstate.State // what it shows; set once
	viewers *viewers.Table     // its clients, and its size; set once
}

// The clients of terminals, as web knows them.
type (
	Viewer        = viewers.Viewer
	AttachRequest = viewers.Request
	Label         = viewers.Label
	DirectedEvent = viewers.DirectedEvent
)

// OpenTerminal opens a terminal in the session's current state.
func (s *Session) OpenTerminal(ctx context.Context, q *protocol.TermOpen) (*Terminal, error) {
	return s.openTerminal(ctx, q, nil)
}

// openTerminal is OpenTerminal. by is the guest's share link, nil for the owner.
func (s *Session) openTerminal(ctx context.Context, q *protocol.TermOpen, by *Share) (*Terminal, error) {
	same := *q
	same.SessionRef, same.OnSlow, same.WindowBytes = protocol.SessionRef{}, "", 0 // the session is known, and the others concern the connection
	return startOnce(ctx, s, "term.open", q.RequestKey, q.SessionRef, &same, by, func(ctx context.Context, r request) (*Terminal, error) {
		return s.beginTerminal(ctx, q, r)
	})
}

func (s *Session) beginTerminal(ctx context.Context, q *protocol.TermOpen, r request) (*Terminal, error) {
	if err := shells.CheckEnv(q.Env, s.pool.config.Load().AllowEnv); err != nil {
		return nil, err
	}
	if err := s.awaitShell(ctx); err != nil {
		return nil, err
	}
	s.resetGate.RLock() // during a reset the shell has no state to start from
	defer s.resetGate.RUnlock()
	if err := s.pool.recordings.CheckPossible(q.Record); err != nil {
		return nil, err
	}
	t := newTerminal(s.newWork('t', protocol.TruncateText(q.Command), termRings*s.pool.config.Load().RingBytes, r), strings.ToLower(rand.Text()))
	t.setSize(q.Cols, q.Rows)
	if q.Record || s.recordSet()&recording.Terminals != 0 {
		t.recording = s.newRecordingID()
	}
	t.marks.Live()
	if err := s.reserveSlot(&t.child, r.by); err != nil {
		return nil, err
	}
	terminal, err := s.shell.PrepareTerminal(shell.TerminalSpec{
		Text: q.Command, Dir: q.WorkingDir, Env: shells.WithoutID(q.Env), Cols: q.Cols, Rows: q.Rows, Nonce: t.nonce, Journal: t.journal,
	})
	if err != nil {
		return nil, s.releaseSlot(&t.child, err)
	}
	t.terminal, t.pid, t.lost = terminal, terminal.Pid(), terminal.Saved().Lost
	s.mu.Lock()
	s.touchLocked(time.Now())
	t.record(t.recordingSource)
	s.terminals[t.ID()] = t
	s.appendLog(entry.Entry{Terminal: t.entry()})
	s.watchers.Publish("term.opened", func() any { return t.Info() })
	s.mu.Unlock()
	terminal.Start() // only after it was written down
	go t.watch()     // tells what happens in it; ends with the terminal, which the session's end closes; finish waits for it
	s.pool.requestKeys.Complete(r.key, time.Now())
	return t, nil
}

// newTerminal makes a terminal of w, which has no process yet.
func newTerminal(w work, nonce string) *Terminal {
	t := &Terminal{child: child{work: w, live: &w.session.openTerminals}, nonce: nonce, marks: screen.NewMarks(nonce), marksReady: make(chan struct{}, 1)}
	t.viewers = viewers.New(viewed{&w.session.mu, t})
	t.screen = screenstate.New(w.session.pool.emulators, w.session.owner, t.journal, t.marks, t.done)
	t.journal.Tap(func(_ journal.Stream, p []byte) {
		news, behind := t.marks.Write(p), t.screen.Printed(int64(len(p)))
		if news || behind {
			token.Put(t.marksReady)
		}
	})
	t.journal.OnSkip(func(_ journal.Stream, n int64) {
		t.marks.Skip(n)
		t.screen.Printed(n)
	})
	return t
}

// setSize sets the size at the start, before other code knows the terminal.
func (t *Terminal) setSize(cols, rows int) {
	t.viewers.SetSize(cols, rows)
	t.screen.Resized(0, max(1, cols), max(1, rows))
}

// watch tells of commands that end in the terminal, and of its end. It also lets the screen follow a full-screen program.
func (t *Terminal) watch() {
	s := t.session
	defer s.processTasks.Done()
	for open := true; open; {
		select {
		case <-t.marksReady:
		case <-t.terminal.Exited():
			open = false
		}
		t.publishCommands()
		t.screen.Follow(t.terminal.Exited())
	}
	s.finishChild(t, t.terminal, ends.Terminal)
	t.screen.Drop()
}

func (t *Terminal) exitEvent() (string, func() any) {
	return "term.exit", func() any { return t.exitInfo() }
}

// publishCommands tells the viewers of ended commands, after the output.
func (t *Terminal) publishCommands() {
	for _, c := range t.marks.Take() {
		e := protocol.TermCommand{TermID: t.ID(), StreamID: t.stream, Command: c.Text, ExitCode: c.Code, Offset: c.Offset, EndOffset: c.End}
		if c.Duration >= 0 {
			ms := c.Duration.Milliseconds()
			e.DurationMS = &ms
		}
		t.journal.Note(protocol.Event{Name: "term.command", Data: &e})
	}
}

// Terminals returns the terminals that are open or retained, oldest first.
func (s *Session) Terminals() []*Terminal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return byStart(s.terminals)
}

// inTerminalsLocked lists the commands that run in the open terminals, oldest first. s.mu is held.
func (s *Session) inTerminalsLocked() []protocol.TermRunning {
	var all []protocol.TermRunning
	for _, t := range byStart(s.terminals) {
		if !t.endedAt.IsZero() {
			continue
		}
		text, since, marked := t.marks.Running()
		if !marked && t.text != "" { // the program is no shell with our marks
			text, since = &t.text, t.startedAt
		}
		if text == nil {
			continue
		}
		r := protocol.TermRunning{TermID: t.ID(), Command: protocol.TruncateText(*text)}
		if !since.IsZero() {
			r.StartedAt = &since
		}
		all = append(all, r)
	}
	return all
}

// Info is what term.list lists.
func (t *Terminal) Info() protocol.TermInfo {
	if t.hasEnded() {
		return t.exitInfo()
	}
	return t.info("running")
}

func (t *Terminal) info(state string) protocol.TermInfo {
	cols, rows := t.viewers.Size()
	attached := t.viewers.All()
	i := protocol.TermInfo{
		TermID: t.ID(), SessionID: t.session.id, StreamID: t.stream, Pid: t.pid, State: state, Cols: cols, Rows: rows, Command: protocol.TruncateText(t.text),
		Viewers: len(attached), Attached: attached, StartedAt: t.startedAt, OutputBytes: t.journal.Size(),
		RecordingID: t.recorder.ID(), StateLost: t.lost,
	}
	if i.Command == "" {
		i.Command = t.session.spec.Shell
	}
	return i
}

// exitInfo is the info after the end.
func (t *Terminal) exitInfo() protocol.TermInfo {
	i := t.info("exited")
	code, signal := t.exitCode()
	ended := t.endedAt
	i.ExitCode, i.Signal, i.EndedAt = &code, signal, &ended
	return i
}

// Screen returns text that makes another terminal look like this one, and the offset of the output that it is the result of.
func (t *Terminal) Screen(ctx context.Context) (text []byte, at int64, err error) {
	return t.screen.Text(ctx)
}

// Snapshot is what term.snapshot answers.
func (t *Terminal) Snapshot(ctx context.Context) (shot protocol.TermSnapshot, err error) {
	if shot, err = t.screen.Snapshot(ctx); err == nil {
		shot.TermID, shot.State = t.ID(), "running"
		if t.hasEnded() {
			shot.State = "exited"
		}
	}
	return shot, err
}

// Close ends the terminal and all processes in it: HUP, TERM, KILL. It returns when the end was told.
func (t *Terminal) Close(ctx context.Context, grace *protocol.Seconds) error {
	d := closeGrace
	if grace != nil {
		d = min(grace.Duration(), timeouts.MaxGrace)
	}
	_ = t.session.Touch()
	if t.hasEnded() {
		return nil
	}
	if err := t.terminal.Close(ctx, d); err != nil {
		return err
	}
	return t.awaitEnd(ctx)
}

// Discard implements retained.Work. s.mu is held.
func (t *Terminal) Discard() {
	t.journal.Drop()
	if t.key == (requestkey.Ref{}) {
		return
	}
	x := t.tombstone('t')
	x.SetSize(t.viewers.Size())
	t.session.keepTombstoneLocked(x)
}

// viewed is the terminal as its viewers know it.
type viewed struct {
	sync.Locker
	t *Terminal
}

func (v viewed) Info() (term, session, stream string) {
	return v.t.ID(), v.t.session.id, v.t.stream
}

func (v viewed) HasEnded() bool { return v.t.hasEnded() }

func (v viewed) IsOver() bool { return !v.t.endedAt.IsZero() }

func (v viewed) Resize(cols, rows int) error {
	err := v.t.terminal.Resize(cols, rows)
	if err == nil {
		v.t.screen.Resized(v.t.journal.Size(), cols, rows)
	}
	return err
}

func (v viewed) Note(event any) { v.t.journal.Note(event) }

func (v viewed) Publish(data *protocol.TermViewers) {
	v.t.session.watchers.Publish("term.viewers", func() any { return data })
}

func (v viewed) Left() { _ = v.t.session.Touch() } // from now on the session may be idle

// AddViewer adds a client, until Leave.
func (t *Terminal) AddViewer(a AttachRequest) *Viewer { return t.viewers.Add(a) }

// IsControlled reports whether a viewer has control.
func (t *Terminal) IsControlled() bool { return t.viewers.IsControlled() }

// Resize sets the size. v is nil for a client that is not attached.
func (t *Terminal) Resize(v *Viewer, cols, rows int) error { return t.viewers.Resize(v, cols, rows) }

// Input types a piece at offset at, and returns where the input ends then. v is nil for a client that is not attached; it may type as the owner.
func (t *Terminal) Input(v *Viewer, at int64, p []byte) (end int64, err error) {
	if err := v.CheckControl(); err != nil {
		return 0, err
	}
	if t.hasEnded() {
		return 0, protocol.Errorf(protocol.StdinClosed, "terminal has ended")
	}
	if len(p) > 0 { // else somebody asks where the input ends
		t.session.lastActive.Store(int64(time.Since(idleBase)))
	}
	return command.Typed(t.terminal.Input(at, p))
}
