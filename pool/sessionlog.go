package pool

import (
	"trl/pool/clock"
	"trl/pool/entry"
	"trl/pool/requestkey"
	"trl/pool/token"
	"trl/runtime/saved"
	"trl/runtime/shell"
)

// A session writes into its session log everything that the next gateway needs to continue as if nothing had happened, each thing before
// anybody depends on it. An exec has three entries: accepted, begun, done. The first two are one entry if the exec begins at once and its
// client is not told earlier. entry.Log reads them.

// appendLog adds an entry to the session log. The caller holds s.mu, or is the runner. A session whose session log fails goes on, but will not
// survive this gateway.
func (s *Session) appendLog(e entry.Entry) {
	if s.sessionLog == nil {
		return
	}
	err := e.Append(s.sessionLog)
	if err != nil { // without this entry, later ones could make a command run again
		s.sessionLog.Invalidate()
		s.logFailure.Do(func() { s.log.Error().Err(err).Msg("session is no longer written down") })
	}
}

// entryWriter is the shell.EntryWriter of a session's shell.
type entryWriter struct{ s *Session }

// Shell writes the current state of the shell.
func (w entryWriter) Shell(r saved.Shell) { w.s.savedShell.Append(r, w.s.appendLog) }

// Begun writes that the command that has the turn begins. The runner calls it before it sends the command to the shell.
func (w entryWriter) Begun(_ *shell.Command, c saved.Command) {
	w.s.mu.Lock()
	e := w.s.running
	w.s.mu.Unlock()
	e.pipes = &c.Pipes
	e.begun = &entry.Begun{ID: e.ID(), At: e.startedAt, Uptime: clock.UptimeAt(e.beganAt), Command: c}
	if !e.accepted {
		w.s.logAccepted(e, e.begun)
		return
	}
	w.s.appendLog(entry.Entry{Begun: e.begun})
}

// Compact compacts the session log if requestCompactLocked has asked for it. Only the runner calls it.
func (w entryWriter) Compact() {
	select {
	case <-w.s.compactRequests:
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		w.s.compactLocked()
	default: // it was done already
	}
}

func (s *Session) entry() *entry.Session {
	q := &entry.Session{
		Tag: s.tag, Owner: s.owner, Name: s.name, Created: s.created, Uptime: clock.UptimeAt(s.created), Commands: s.commands, Key: s.key,
		Earlier: s.earlier, Last: s.last, Cwd: s.dir,
	}
	s.spec.Put(q, s.settings.Load())
	return q
}

func (e *Exec) entry() *entry.Exec {
	x := &entry.Exec{
		Work: e.workEntry(), Clean: e.clean, Keeps: e.output.KeepsText, Most: e.output.Max, Timeout: entry.Duration(e.timeout), Grace: entry.Duration(e.grace),
		Queued: e.queuedAt, Stdin: e.stdin, Recording: e.wantedRecording(), Guest: e.guest,
	}
	if c := e.command; c != nil {
		x.NoOutput, x.Env, x.Dir, x.OpenStdin = entry.Duration(c.NoOutput), c.Env, c.Dir, c.OpenStdin
	}
	return x
}

func (w *work) workEntry() entry.Work {
	return entry.Work{Stream: w.stream, Text: w.text, Key: entry.KeyOf(w.key, &w.params)}
}

func (c *child) childEntry() entry.Child {
	return entry.Child{Work: c.workEntry(), Started: c.startedAt, Uptime: clock.UptimeAt(c.beganAt)}
}

// wantedRecording returns the id of the recording that the next gateway shall continue, or "".
func (w *work) wantedRecording() string {
	if w.recordingDeleted {
		return ""
	}
	return w.recording
}

func (s *Session) loggedKeyRef(k entry.Key) requestkey.Ref {
	return requestkey.Ref{Owner: s.owner, Guest: k.Guest, Scope: s.id, Key: k.Key, NamesNoSession: k.Default}
}

// logAccepted writes down that e was accepted, and with b also that it begins.
func (s *Session) logAccepted(e *Exec, b *entry.Begun) {
	e.accepted = true
	s.appendLog(entry.Entry{Exec: e.entry(), Begun: b})
}

func (e *Exec) doneEntry() *entry.Done {
	return &entry.Done{
		ID: e.ID(), Exit: e.exit, Failure: e.failure, At: e.endedAt, Uptime: clock.UptimeAt(e.endedAt), End: e.endOffset, Died: e.shellDied, Span: e.journal.Span(), Pipes: e.pipes,
	}
}

func (p *Process) entry() *entry.Process {
	return &entry.Process{
		Child: p.childEntry(), Name: p.name, Timeout: entry.Duration(p.timeout), Process: p.process.Saved(),
	}
}

func (p *Process) exitEntry() entry.Entry {
	return entry.Entry{Exited: &entry.Exited{ChildEnd: p.endEntry(), TimedOut: p.timedOut, End: p.endOffset}}
}

// endEntry is what the entries of both ends have in common.
func (c *child) endEntry() entry.ChildEnd {
	return entry.ChildEnd{ID: c.ID(), Code: c.exit.Code, Signal: c.exit.Signal, At: c.endedAt, Span: c.journal.Span()}
}

func (t *Terminal) entry() *entry.Terminal {
	return &entry.Terminal{Child: t.childEntry(), Nonce: t.nonce, Terminal: t.terminal.Saved(), Recording: t.wantedRecording()}
}

func (t *Terminal) exitEntry() entry.Entry {
	cols, rows := t.viewers.Size()
	return entry.Entry{Closed: &entry.Closed{ChildEnd: t.endEntry(), Cols: cols, Rows: rows}}
}

// requestCompactLocked asks the runner to compact the session log if it has grown, also while a command runs. Only the runner may do that, because it
// also appends without a lock. s.mu is held.
func (s *Session) requestCompactLocked() {
	if s.sessionLog == nil || !s.sessionLog.ShouldCompact() {
		return
	}
	token.Put(s.compactRequests)
	if s.running != nil {
		s.running.command.WakeRun()
	}
}

// compactLocked writes the session log from the start if it has grown. The runner calls it, with s.mu held.
func (s *Session) compactLocked() {
	if s.sessionLog == nil || s.ending != nil || s.resetting > 0 || s.running != nil && s.running.begun == nil || !s.sessionLog.ShouldCompact() {
		return
	}
	var items entry.Items
	add := items.Add
	short := func(x loggedTombstone) { items.AddLogged(x.loggedAt(), x.encode) }
	for _, x := range s.tombstones {
		short(x)
	}
	for i := range s.retained.Len() {
		switch r := s.retained.At(i).(type) {
		case *endedExec:
			if r.MayGrow() { // the end of its output is not known yet
				items.AddText(r.encode())
				continue
			}
			short(r)
		case *Process:
			add(entry.Entry{Process: r.entry()})
			add(r.exitEntry())
		case *Terminal:
			add(entry.Entry{Terminal: r.entry()})
			add(r.exitEntry())
		}
	}
	for _, e := range s.waiting.All() {
		add(entry.Entry{Exec: e.entry()})
	}
	if e := s.running; e != nil {
		add(entry.Entry{Exec: e.entry(), Begun: e.begun})
		if e.cancel != nil {
			add(entry.Entry{Cancel: e.cancel})
		}
	}
	add(entry.Entry{Session: s.entry()}) // after the entries that it counts
	last, release := s.savedShell.Hold()
	defer release()
	add(entry.Entry{Shell: last})
	if s.revived != nil {
		add(entry.Entry{Revived: s.revived})
	}
	if m := s.arrived; m != nil {
		add(m.Arrived(true))
	}
	for _, t := range s.terminals {
		if t.endedAt.IsZero() {
			add(entry.Entry{Terminal: t.entry()})
		}
	}
	for _, p := range s.processes {
		if p.endedAt.IsZero() {
			add(entry.Entry{Process: p.entry()})
			if p.timedOut {
				add(entry.Entry{Expired: p.ID()})
			}
		}
	}
	for _, sh := range s.shares {
		add(entry.Entry{Share: sh.Entry()})
	}
	if err := items.Compact(s.sessionLog); err != nil {
		s.log.Error().Err(err).Msg("ledger")
	}
}
