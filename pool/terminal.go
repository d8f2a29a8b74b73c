package pool

import (
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"sync"
	"time"

	"trl/pool/ids"
	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/runtime/screen"
)

// closeGrace is between HUP and KILL where term.close does not say (PROTOCOL.md §6).
const closeGrace = 2 * time.Second

// termRings is how many times a command's ring a terminal's is: a person who loads the page anew wants what was on it, and has
// nothing else that keeps it. The memory is used as output comes.
const termRings = 4

// Terminal is one PTY and what runs in it: open or ended. Ended, it stays readable while it is retained.
type Terminal struct {
	// set once in openTerminal
	stream     string // "st-" and the terminal's id
	session    *Session
	text       string // "": the session's shell
	nonce      string // of its shell's marks
	journal    *journal.Journal
	marks      *screen.Marks
	marksReady chan struct{} // one token: marks has news
	startedAt  time.Time
	terminal   *runtime.Terminal
	pid        int
	key        keyRef // zero when the request had none
	params     fingerprint
	done       chan struct{} // closed when it has ended and that has been told

	recording        string              // the id of its recording; "": none is wanted
	recorder         *recording.Recorder // set once, before anybody can find it; nil: nobody records
	recordingDeleted bool                // guarded by session.mu; somebody deleted the recording

	screenState screenState // the screen, for who asks

	mu          sync.Mutex
	cols, rows  int       // guarded by mu
	viewers     []*Viewer // guarded by mu; in the order in which they came
	controller  *Viewer   // guarded by mu; who types; nil: nobody that is attached
	viewersEver int       // guarded by mu; who has ever come, for their ids
	lastClaim   int64     // guarded by mu; the latest claim

	// set by watch, with session.mu held, before done is closed; read with it held, or after
	status  runtime.Status
	endedAt time.Time
}

func errNoTerminal() error { return protocol.Errorf(protocol.TermNotFound, "no such terminal") }

// OpenTerminal opens a terminal in the session's present state.
func (s *Session) OpenTerminal(ctx context.Context, q *protocol.TermOpen) (*Terminal, error) {
	return s.openOnce(ctx, q, nil)
}

// openOnce: by is the guest's share, nil for the owner.
func (s *Session) openOnce(ctx context.Context, q *protocol.TermOpen, by *Share) (*Terminal, error) {
	if q.RequestKey == "" {
		return s.openTerminal(ctx, q, keyRef{}, fingerprint{}, by)
	}
	ref := s.newKeyRef(q.RequestKey, q.SessionRef, by)
	asked := *q
	asked.SessionRef, asked.OnSlow, asked.WindowBytes = protocol.SessionRef{}, "", 0 // id or name, it is this session; the others are of the connection
	params := fingerprintOf("term.open", &asked)
	t, err := once(ctx, s.pool, ref, params, func() (*Terminal, error) {
		return s.openTerminal(context.WithoutCancel(ctx), q, ref, params, by) // who joined must not fail because the first one left
	})
	if err == nil {
		s.pool.requestKeys.complete(ref, time.Now())
	}
	return t, err
}

func (s *Session) openTerminal(ctx context.Context, q *protocol.TermOpen, ref keyRef, params fingerprint, by *Share) (*Terminal, error) {
	if err := s.pool.checkEnv(q.Env); err != nil {
		return nil, err
	}
	if err := s.awaitShell(ctx); err != nil {
		return nil, err
	}
	s.resetGate.RLock() // a shell that is being replaced on request has no state to start from
	defer s.resetGate.RUnlock()
	t := newTerminal(s, ids.New(ids.StreamPrefix, 't', s.pool.epoch, s.tag, ids.MemberLen), truncateText(q.Command), strings.ToLower(rand.Text()))
	t.cols, t.rows, t.key, t.params = q.Cols, q.Rows, ref, params
	t.screenState.resized(0, q.Cols, q.Rows)
	if err := s.pool.recordings.CheckPossible(q.Record); err != nil {
		return nil, err
	}
	if q.Record || s.recordSet()&recording.Terminals != 0 {
		t.recording = s.newRecordingID()
	}
	t.marks.Live()
	if err := s.reserveSlot(&s.openTerminals, by); err != nil {
		return nil, err
	}
	t.startedAt = time.Now()
	terminal, err := s.shell.PrepareTerminal(runtime.TerminalSpec{
		Text: q.Command, Dir: q.WorkingDir, Env: withoutID(q.Env), Cols: q.Cols, Rows: q.Rows, Nonce: t.nonce, Journal: t.journal,
	})
	if err != nil {
		return nil, s.releaseSlot(&s.openTerminals, err)
	}
	t.terminal, t.pid = terminal, terminal.Pid()
	s.mu.Lock()
	s.touchLocked(time.Now())
	if t.recording != "" {
		t.recorder = s.pool.recordings.Start(t.recordingSource())
	}
	s.terminals[t.ID()] = t
	s.appendLog(entry{Terminal: t.entry()})
	s.publishLocked("term.opened", func() any { return t.Info() })
	s.mu.Unlock()
	terminal.Start() // not before it was written down
	go t.watch()     // tells what happens in it; ended by its end, which the session's end brings about; finish waits for it
	return t, nil
}

func newTerminal(s *Session, stream, text, nonce string) *Terminal {
	t := &Terminal{
		stream: stream, session: s, text: text, nonce: nonce, journal: journal.New(termRings * s.pool.config.Load().RingBytes), marks: screen.NewMarks(nonce),
		marksReady: make(chan struct{}, 1), done: make(chan struct{}),
	}
	t.journal.Tap(func(_ journal.Stream, p []byte) {
		if t.marks.Write(p) || t.screenState.needsFollow(len(p), t.marks) {
			select {
			case t.marksReady <- struct{}{}:
			default:
			}
		}
	})
	t.journal.OnSkip(func(_ journal.Stream, n int64) {
		t.marks.Skip(n)
		t.screenState.printed.Add(n)
	})
	return t
}

// watch tells of the commands that end in it, and of its end; and keeps the screen of a full-screen program.
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
		t.followScreen()
	}
	s.mu.Lock()
	t.status, t.endedAt = t.terminal.Status(), time.Now()
	s.openTerminals--
	s.touchLocked(t.endedAt)
	s.publishLocked("term.exit", func() any { return t.exitInfo() })
	s.retainLocked(t)
	s.appendLog(entry{Closed: t.closedEntry()})
	s.mu.Unlock()
	t.recorder.Finish(t.journal.Size(), t.exitInfo().ExitCode)
	t.terminal.Release() // not before it was written down
	x := t.exitInfo()
	s.pool.reportEnd(End{Owner: s.owner, Session: s.id, Kind: TerminalEnd, ID: t.ID(), Code: x.ExitCode, Signal: x.Signal, RequestedAt: t.startedAt, StartedAt: t.startedAt, EndedAt: t.endedAt})
	close(t.done)
	t.dropEmulator()
}

// publishCommands tells those who are attached, after the output.
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

// Terminals is all that are known, oldest first.
func (s *Session) Terminals() []*Terminal {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Terminal, 0, len(s.terminals))
	for _, t := range s.terminals {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *Terminal) int { return a.startedAt.Compare(b.startedAt) })
	return all
}

// inTerminalsLocked is what runs in the open terminals, oldest first. s.mu is held.
func (s *Session) inTerminalsLocked() []protocol.TermRunning {
	var open []*Terminal
	for _, t := range s.terminals {
		if t.endedAt.IsZero() {
			open = append(open, t)
		}
	}
	slices.SortFunc(open, func(a, b *Terminal) int { return a.startedAt.Compare(b.startedAt) })
	var all []protocol.TermRunning
	for _, t := range open {
		text, since, marked := t.marks.Running()
		if !marked && t.text != "" { // a program that is no shell with our marks
			text, since = &t.text, t.startedAt
		}
		if text == nil {
			continue
		}
		r := protocol.TermRunning{TermID: t.ID(), Command: truncateText(*text)}
		if !since.IsZero() {
			r.StartedAt = &since
		}
		all = append(all, r)
	}
	return all
}

// FindTerminal gives who's terminal, open or ended and retained.
func (p *Pool) FindTerminal(who, id string) (*Terminal, error) {
	if s := p.sessionOfID(who, 't', id); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t := s.terminals[id]; t != nil {
			return t, nil
		}
	}
	return nil, p.notFoundError('t', id, errNoTerminal())
}

// ID is the terminal's.
func (t *Terminal) ID() string { return t.stream[len(ids.StreamPrefix):] }

// StreamID is that of its output.
func (t *Terminal) StreamID() string { return t.stream }

// Session is the one it belongs to.
func (t *Terminal) Session() *Session { return t.session }

// Done is closed when the terminal has ended, what was printed is in the journal, and that is closed.
func (t *Terminal) Done() <-chan struct{} { return t.done }

// Journal is its output.
func (t *Terminal) Journal() *journal.Journal { return t.journal }

func (t *Terminal) hasEnded() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// Info is what term.list lists.
func (t *Terminal) Info() protocol.TermInfo {
	if t.hasEnded() {
		return t.exitInfo()
	}
	return t.info("running")
}

func (t *Terminal) info(state string) protocol.TermInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := protocol.TermInfo{
		TermID: t.ID(), SessionID: t.session.id, StreamID: t.stream, Pid: t.pid, State: state, Cols: t.cols, Rows: t.rows, Command: truncateText(t.text),
		Viewers: len(t.viewers), Attached: t.attachedLocked(), StartedAt: t.startedAt, OutputBytes: t.journal.Size(),
		RecordingID: t.recorder.ID(), StateLost: t.stateLost(),
	}
	if i.Command == "" {
		i.Command = t.session.spec.shell
	}
	return i
}

// stateLost is nil of a terminal that is no longer retained.
func (t *Terminal) stateLost() []string {
	if t.terminal == nil {
		return nil
	}
	return t.terminal.Saved().Lost
}

// exitInfo is the info once watch has seen the end.
func (t *Terminal) exitInfo() protocol.TermInfo {
	i := t.info("exited")
	code, ended := t.status.Code, t.endedAt
	if t.status.Signal != 0 {
		code, i.Signal = protocol.SignalExitCode(t.status.Signal), protocol.SignalName(t.status.Signal)
	}
	i.ExitCode, i.EndedAt = &code, &ended
	return i
}

// Close ends the terminal and all that was started in it: HUP, TERM, KILL. It returns when that is done and told.
func (t *Terminal) Close(ctx context.Context, grace *protocol.Seconds) error {
	d := closeGrace
	if grace != nil {
		d = min(grace.Duration(), maxGrace)
	}
	_ = t.session.Touch()
	if t.hasEnded() {
		return nil
	}
	if err := t.terminal.Close(ctx, d); err != nil {
		return err
	}
	select {
	case <-t.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// endTerminals closes all, at the same time.
func (s *Session) endTerminals(ctx context.Context, grace time.Duration) {
	var all sync.WaitGroup
	for _, t := range s.Terminals() {
		all.Go(func() { // ends with the terminal; waited for here
			seconds := protocol.Seconds(grace.Seconds())
			if err := t.Close(ctx, &seconds); err != nil {
				s.log.Warn().Err(err).Msg("terminal not ended")
			}
		})
	}
	all.Wait()
}

func (t *Terminal) endTime() time.Time { return t.endedAt }

func (t *Terminal) mayGrow() bool { return !t.journal.Closed() }

func (t *Terminal) weight() int64 { return workWeight + int64(len(t.text)) + t.journal.Memory() }

// discard is endedExec's. s.mu is held.
func (t *Terminal) discard() {
	t.journal.Drop()
	if t.key == (keyRef{}) {
		return
	}
	t.session.keepTombstoneLocked(&workTombstone{
		kind: 't', session: t.session, stream: t.stream, request: t.session.pool.requestKeys.find(t.key), startedAt: nanos(t.startedAt), endedAt: nanos(t.endedAt), startUptime: int64(uptimeAt(t.startedAt)),
		pid: int64(t.pid), code: int64(t.status.Code), signal: int64(t.status.Signal), endOffset: t.journal.Size(), cols: int64(t.cols), rows: int64(t.rows),
	})
}
