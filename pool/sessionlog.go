package pool

import (
	"bytes"
	"cmp"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
	"trl/runtime/sessionlog"
)

// What a session writes into its session log: everything that the next gateway needs to go on as if nothing had happened, each
// thing before anybody depends on it. An exec has three entries: accepted, begun, done; the first two are
// one where it begins at once and nobody is told before. remembered.go reads them.

// entry is one line of a session log: one of its fields is set, or Exec and Begun.
type entry struct {
	Session  *sessionEntry       `json:"session,omitzero"`
	Name     *string             `json:"name,omitzero"`
	Shell    *runtime.SavedShell `json:"shell,omitzero"`
	Exec     *execEntry          `json:"exec,omitzero"`
	Begun    *begunEntry         `json:"begun,omitzero"`
	Cancel   *cancelEntry        `json:"cancel,omitzero"`
	Done     *doneEntry          `json:"done,omitzero"`
	Process  *processEntry       `json:"process,omitzero"`
	Expired  string              `json:"expired,omitzero"` // the id of a process that is being ended for its time
	Exited   *exitedEntry        `json:"exited,omitzero"`
	Terminal *termEntry          `json:"terminal,omitzero"`
	Closed   *closedEntry        `json:"closed,omitzero"`
	Forgot   string              `json:"forgot,omitzero"` // the id of an exec, a process or a terminal that is no longer kept
	Share    *shareEntry         `json:"share,omitzero"`
	Unshared string              `json:"unshared,omitzero"` // the id of a share that has ended
	Unwanted string              `json:"unwanted,omitzero"` // the id of a recording that was deleted while it was being made
	Revived  *revivedEntry       `json:"revived,omitzero"`  // until a command is done or a reset begins
	Reset    bool                `json:"reset,omitzero"`    // begins; the next shell ends it
	Ending   *endingEntry        `json:"ending,omitzero"`
	Over     *overEntry          `json:"over,omitzero"`
}

// durationNS is a time.Duration that is written as its nanoseconds.
type durationNS time.Duration

type sessionEntry struct {
	Tag          string            `json:"tag"`
	Owner        string            `json:"owner"`
	Name         string            `json:"name,omitzero"`
	Created      time.Time         `json:"created"`
	Uptime       uptime            `json:"uptime,omitzero"` // at Created
	Shell        string            `json:"shell"`
	Dir          string            `json:"dir"`
	Env          protocol.Env      `json:"env,omitzero"`
	Labels       map[string]string `json:"labels,omitzero"`
	Timeout      durationNS        `json:"timeout"`
	Idle         durationNS        `json:"idle"`
	Restore      bool              `json:"restore"`
	Limits       protocol.Limits   `json:"limits,omitzero"`
	EndsWithConn bool              `json:"tethered"`
	Record       string            `json:"record,omitzero"`
	Commands     int64             `json:"commands"` // begun before this was written
	Key          keyEntry          `json:"key,omitzero"`

	Last *protocol.LastExec `json:"last,omitzero"` // these two before this was written
	Cwd  string             `json:"cwd,omitzero"`
}

// keyEntry is a request_key and what the request was.
type keyEntry struct {
	Key     string `json:"key"`
	Params  []byte `json:"params"`
	Default bool   `json:"default,omitzero"` // it named no session
	Guest   string `json:"guest,omitzero"`   // the share that it came by
}

// workEntry is what execEntry, processEntry and termEntry have in common.
type workEntry struct {
	Stream string   `json:"stream"`
	Text   string   `json:"text"`
	Key    keyEntry `json:"key,omitzero"`
}

// childEntry is what processEntry and termEntry have in common.
type childEntry struct {
	workEntry
	Started time.Time `json:"started"`
	Uptime  uptime    `json:"uptime,omitzero"` // at Started
}

type execEntry struct {
	workEntry
	Clean     bool               `json:"clean,omitzero"`
	Keeps     bool               `json:"keeps,omitzero"`
	Most      int                `json:"most"`
	Timeout   durationNS         `json:"timeout"`
	NoOutput  durationNS         `json:"no_output"`
	Grace     durationNS         `json:"grace"`
	Env       protocol.Env       `json:"env,omitzero"`
	Dir       string             `json:"dir,omitzero"`
	OpenStdin bool               `json:"open_stdin,omitzero"`
	Stdin     []runtime.HeldFile `json:"stdin,omitzero"`
	Queued    time.Time          `json:"queued"`
	Recording string             `json:"recording,omitzero"`
	Guest     string             `json:"guest,omitzero"` // the share that it came by
}

type begunEntry struct {
	ID      string               `json:"id"`
	At      time.Time            `json:"at"`
	Uptime  uptime               `json:"uptime,omitzero"`
	Command runtime.SavedCommand `json:"command"`
}

type cancelEntry struct {
	ID     string     `json:"id"`
	Grace  durationNS `json:"grace"`
	At     time.Time  `json:"at"`
	Uptime uptime     `json:"uptime,omitzero"`
}

type doneEntry struct {
	ID      string              `json:"id"`
	Exit    protocol.ExecExit   `json:"exit"`
	Failure *protocol.Error     `json:"failure,omitzero"`
	At      time.Time           `json:"at"`
	Uptime  uptime              `json:"uptime,omitzero"`
	End     int64               `json:"end"`
	Died    bool                `json:"died,omitzero"`
	Span    journal.Span        `json:"span"`
	Pipes   *runtime.SavedPipes `json:"lane,omitzero"` // nil: it never had one
}

type processEntry struct {
	childEntry
	Name    string               `json:"name,omitzero"`
	Timeout durationNS           `json:"timeout"`
	Process runtime.SavedProcess `json:"process"`
}

// endEntry is what exitedEntry and closedEntry have in common.
type endEntry struct {
	ID     string         `json:"id"`
	Code   int            `json:"code"`
	Signal syscall.Signal `json:"signal,omitzero"`
	At     time.Time      `json:"at"`
	Span   journal.Span   `json:"span"`
}

type exitedEntry struct {
	endEntry
	TimedOut bool  `json:"timed_out,omitzero"`
	End      int64 `json:"end"`
}

type termEntry struct {
	childEntry
	Nonce     string                `json:"nonce"`
	Terminal  runtime.SavedTerminal `json:"terminal"`
	Recording string                `json:"recording,omitzero"`
}

type closedEntry struct {
	endEntry
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// revivedEntry says that the shell was put back while no command ran, and what that lost.
type revivedEntry struct {
	Lost []string `json:"lost,omitzero"`
}

type endingEntry struct {
	Reason protocol.Reason `json:"reason"`
	Grace  durationNS      `json:"grace"`
}

type overEntry struct {
	At   time.Time `json:"at"`
	Dir  string    `json:"dir"`
	Envs int       `json:"envs"`
}

// appendLog adds to the session log. Whoever calls it has s.mu, or is the runner. A session whose session log fails lives on; it will not outlive this gateway.
func (s *Session) appendLog(e entry) {
	if s.sessionLog == nil {
		return
	}
	text := entryBuffers.Get().(*bytes.Buffer)
	defer entryBuffers.Put(text)
	text.Reset()
	err := json.MarshalWrite(text, &e, allowInvalidUTF8)
	if err == nil {
		_, err = s.sessionLog.Append(text.Bytes())
	}
	if err != nil { // without this entry, those to come might have a command run again
		s.sessionLog.Invalidate()
		s.logFailure.Do(func() { s.log.Error().Err(err).Msg("session is no longer written down") })
	}
}

// allowInvalidUTF8: a directory may be called anything.
var allowInvalidUTF8 = jsontext.AllowInvalidUTF8(true)

var entryBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// entryWriter writes down what a session's shell tells: its runtime.EntryWriter.
type entryWriter struct{ s *Session }

// Shell writes the shell as it is now.
func (w entryWriter) Shell(r runtime.SavedShell) {
	w.s.appendLog(entry{Shell: &r})
	r.After = nil // an event, which is not told twice
	w.s.savedShell.Store(&r)
}

// Begun writes that the command that has the turn begins, on the runner, before the shell is told.
func (w entryWriter) Begun(_ *runtime.Command, c runtime.SavedCommand) {
	w.s.mu.Lock()
	e := w.s.running
	w.s.mu.Unlock()
	e.pipes = &c.Pipes
	e.begun = &begunEntry{ID: e.ID(), At: e.startedAt, Uptime: uptimeAt(e.beganAt), Command: c}
	if !e.accepted {
		w.s.logAccepted(e, e.begun)
		return
	}
	w.s.appendLog(entry{Begun: e.begun})
}

// Compact does what requestCompactLocked asked for. Only the runner calls it.
func (w entryWriter) Compact() {
	select {
	case <-w.s.compactRequests:
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.compactLocked()
	default: // it has been done
	}
}

func (s *Session) entry() *sessionEntry {
	t := &s.spec
	return &sessionEntry{
		Tag: s.tag, Owner: s.owner, Name: s.name, Created: s.created, Uptime: uptimeAt(s.created), Shell: t.shell, Dir: t.dir, Env: t.env, Labels: t.labels,
		Timeout: durationNS(t.timeout), Idle: durationNS(t.idle), Restore: t.restore, Limits: t.limits, EndsWithConn: t.endsWithConn, Record: t.record.String(), Commands: s.commands, Key: s.key,
		Last: s.last, Cwd: s.dir,
	}
}

func (e *Exec) entry() *execEntry {
	x := &execEntry{
		workEntry: e.workEntry(), Clean: e.clean, Keeps: e.keepsText, Most: e.maxOutput, Timeout: durationNS(e.timeout), Grace: durationNS(e.grace),
		Queued: e.queuedAt, Stdin: e.stdin, Recording: e.wantedRecording(), Guest: e.guest,
	}
	if c := e.command; c != nil {
		x.NoOutput, x.Env, x.Dir, x.OpenStdin = durationNS(c.NoOutput), c.Env, c.Dir, c.OpenStdin
	}
	return x
}

func (w *work) workEntry() workEntry {
	return workEntry{Stream: w.stream, Text: w.text, Key: w.key.entry(&w.params)}
}

func (c *child) childEntry() childEntry {
	return childEntry{workEntry: c.workEntry(), Started: c.startedAt, Uptime: uptimeAt(c.beganAt)}
}

// wantedRecording is the id of the recording that the next gateway shall go on with; "": none.
func (w *work) wantedRecording() string {
	if w.recordingDeleted {
		return ""
	}
	return w.recording
}

func (r keyRef) entry(params *fingerprint) keyEntry {
	if r == (keyRef{}) {
		return keyEntry{}
	}
	return keyEntry{r.key, params[:], r.namesNoSession, r.guest}
}

func (k keyEntry) ref(s *Session) keyRef {
	return keyRef{owner: s.owner, guest: k.Guest, scope: s.id, key: k.Key, namesNoSession: k.Default}
}

// newRequest is the request in the table of keys.
func (k keyEntry) newRequest(ref keyRef) *keyedRequest {
	e := &keyedRequest{}
	e.own, e.alias = ref.ids()
	copy(e.params[:], k.Params)
	return e
}

// logAccepted writes down that e is to run, or with b that it begins, too.
func (s *Session) logAccepted(e *Exec, b *begunEntry) {
	e.accepted = true
	s.appendLog(entry{Exec: e.entry(), Begun: b})
}

func (e *Exec) doneEntry() *doneEntry {
	return &doneEntry{
		ID: e.ID(), Exit: e.exit, Failure: e.failure, At: e.endedAt, Uptime: uptimeAt(e.endedAt), End: e.endOffset, Died: e.shellDied, Span: e.journal.Span(), Pipes: e.pipes,
	}
}

func (p *Process) entry() *processEntry {
	return &processEntry{
		childEntry: p.childEntry(), Name: p.name, Timeout: durationNS(p.timeout), Process: p.process.Saved(),
	}
}

func (p *Process) exitEntry() entry {
	return entry{Exited: &exitedEntry{endEntry: p.endEntry(), TimedOut: p.timedOut, End: p.endOffset}}
}

// endEntry is what both exitEntries have.
func (c *child) endEntry() endEntry {
	return endEntry{ID: c.ID(), Code: c.exit.Code, Signal: c.exit.Signal, At: c.endedAt, Span: c.journal.Span()}
}

func (t *Terminal) entry() *termEntry {
	return &termEntry{childEntry: t.childEntry(), Nonce: t.nonce, Terminal: t.terminal.Saved(), Recording: t.wantedRecording()}
}

func (t *Terminal) exitEntry() entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return entry{Closed: &closedEntry{endEntry: t.endEntry(), Cols: t.cols, Rows: t.rows}}
}

// requestCompactLocked has the runner write the session log anew when it has grown though no command ended, also while one runs. Only the
// runner may: it adds to it without a lock. s.mu is held.
func (s *Session) requestCompactLocked() {
	if s.sessionLog == nil || !s.sessionLog.ShouldCompact() {
		return
	}
	select {
	case s.compactRequests <- struct{}{}:
	default:
	}
	if s.running != nil {
		s.running.command.WakeRun()
	}
}

// compactLocked writes the session log from the start when it has grown; the end of a command does it, too. s.mu is held, by the
// runner.
func (s *Session) compactLocked() {
	if s.sessionLog == nil || s.ending != nil || s.resetting > 0 || s.running != nil && s.running.begun == nil || !s.sessionLog.ShouldCompact() {
		return
	}
	items := make([]sessionlog.Item, 0, len(s.tombstones)+len(s.retained.all)+16)
	var err error
	add := func(e entry) {
		text, fault := json.Marshal(&e, allowInvalidUTF8)
		err = cmp.Or(err, fault)
		items = append(items, sessionlog.Item{Text: text})
	}
	short := func(x loggedTombstone) { // of which there may be thousands: as it stands
		i := sessionlog.Item{Existing: x.loggedAt()}
		if *i.Existing == (sessionlog.Position{}) {
			i.Text = x.encode()
		}
		items = append(items, i)
	}
	for _, x := range s.tombstones {
		short(x)
	}
	for _, k := range s.retained.all {
		switch r := k.endedWork.(type) {
		case *endedExec:
			if r.mayGrow() { // where its output ends is not known yet
				items = append(items, sessionlog.Item{Text: r.encode()})
				continue
			}
			short(r)
		case *Process:
			add(entry{Process: r.entry()})
			add(r.exitEntry())
		case *Terminal:
			add(entry{Terminal: r.entry()})
			add(r.exitEntry())
		}
	}
	for _, e := range s.waiting {
		add(entry{Exec: e.entry()})
	}
	if e := s.running; e != nil {
		add(entry{Exec: e.entry(), Begun: e.begun})
		if e.cancel != nil {
			add(entry{Cancel: e.cancel})
		}
	}
	add(entry{Session: s.entry()}) // behind what it counts
	add(entry{Shell: s.savedShell.Load()})
	if s.revived != nil {
		add(entry{Revived: s.revived})
	}
	for _, t := range s.terminals {
		if t.endedAt.IsZero() {
			add(entry{Terminal: t.entry()})
		}
	}
	for _, p := range s.processes {
		if p.endedAt.IsZero() {
			add(entry{Process: p.entry()})
			if p.timedOut {
				add(entry{Expired: p.ID()})
			}
		}
	}
	for _, sh := range s.shares {
		add(entry{Share: sh.entry()})
	}
	if err == nil {
		err = s.sessionLog.Compact(items...)
	}
	if err != nil {
		s.log.Error().Err(err).Msg("ledger")
	}
}
