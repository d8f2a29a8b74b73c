package pool

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"trl/pool/entry"
	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
)

// A loggedSession is what a session log says of one session.
type loggedSession struct {
	id            string
	session       *entry.Session
	shell         *runtime.SavedShell
	ended         []*loggedEnded   // execs that have ended, of which the session log had one entry
	work          []*loggedWork    // the others, as they came
	tombstones    []*workTombstone // processes and terminals of which only the request_key is remembered
	compactBytes  int64            // bytes of ended and tombstones in the session log
	index         map[string]any   // what is in ended and work, by id
	shares        []*entry.Share
	ending        *entry.Ending
	over          *entry.Over
	revived       *entry.Revived
	commandsBegun int64 // after session was written
	reset         bool  // was going on
	last          *protocol.LastExec
	dir           string   // the shell's after the last command
	afterRecovery []func() // for goroutines of their own, once all is made
}

// loggedEnded is an exec that has ended. What is forgotten is not retained any more; its request_key is remembered, if it had one.
type loggedEnded struct {
	*endedExec
	at        *entry.Output // nil: nothing of its output is kept
	forgotten bool
}

// loggedWork is an exec, a process or a terminal, in the entries that were written as it went on.
type loggedWork struct {
	exec     *entry.Exec // one of these three is set
	process  *entry.Process
	terminal *entry.Terminal

	begun     *entry.Begun  // of an exec
	cancel    *entry.Cancel // of an exec
	expired   bool          // of a process
	done      *entry.Done   // how it ended: one of these three; nil: it has not
	exited    *entry.Exited
	closed    *entry.Closed
	forgotten bool // as in loggedEnded

	made revivable // what recovery made of it
}

// kind is its id's.
func (x *loggedWork) kind() byte {
	switch {
	case x.exec != nil:
		return 'x'
	case x.process != nil:
		return 'p'
	}
	return 't'
}

// request is what all kinds were asked for.
func (x *loggedWork) request() *entry.Work {
	switch {
	case x.exec != nil:
		return &x.exec.Work
	case x.process != nil:
		return &x.process.Work
	}
	return &x.terminal.Work
}

func (x *loggedWork) hasEnded() bool { return x.done != nil || x.exited != nil || x.closed != nil }

// output is where its output is; false: there is none, or it is not kept.
func (x *loggedWork) output() (log []runtime.HeldFile, span journal.Span, kept bool) {
	switch {
	case x.forgotten:
		return nil, span, false
	case x.done != nil && x.done.Pipes != nil:
		return x.done.Pipes.Log, x.done.Span, true
	case x.done == nil && x.begun != nil:
		return x.begun.Command.Pipes.Log, x.begun.Command.Span, true
	case x.exited != nil:
		return x.process.Process.Pipes.Log, x.exited.Span, true
	case x.process != nil:
		return x.process.Process.Pipes.Log, x.process.Process.Span, true
	case x.closed != nil:
		return x.terminal.Terminal.PTY.Log, x.closed.Span, true
	case x.terminal != nil:
		return x.terminal.Terminal.PTY.Log, x.terminal.Terminal.Span, true
	}
	return nil, span, false
}

// check says whether what is remembered is the session's own.
func (m *loggedSession) check() error {
	if len(m.session.Tag) != ids.TagLen {
		return fmt.Errorf("session log: tag %q", m.session.Tag)
	}
	var err error
	check := func(kind byte, stream string) {
		id, prefixed := strings.CutPrefix(stream, ids.StreamPrefix)
		if _, is := ids.EpochOf(kind, id); !prefixed || !is || ids.TagOf(id) != m.session.Tag {
			err = fmt.Errorf("session log: %q", stream)
		}
	}
	for _, x := range m.ended {
		check('x', x.stream)
	}
	for _, x := range m.work {
		check(x.kind(), x.request().Stream)
	}
	for _, x := range m.tombstones {
		check(x.kind, x.stream)
	}
	return err
}

// readLine adds what an entry says.
func (m *loggedSession) readLine(text []byte) error {
	if text[0] < ' ' {
		m.compactBytes += int64(len(text))
	}
	switch text[0] {
	case execEntryKind:
		x, at, err := readEndedExec(text)
		if err != nil {
			return err
		}
		if m.session != nil && x.dir == m.session.Cwd {
			x.dir = m.session.Cwd // one text for all that ended there
		} else if n := len(m.ended); n > 0 && m.ended[n-1].dir == x.dir {
			x.dir = m.ended[n-1].dir
		}
		r := &loggedEnded{x, at, x.flags.has(isTombstone)}
		m.ended = append(m.ended, r)
		m.addToIndex(x.stream, r)
		return nil
	case workEntryKind:
		x, err := readEndedWork(text)
		if err == nil {
			m.tombstones = append(m.tombstones, x)
		}
		return err
	}
	var e entry.Entry
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("session log: %w", err)
	}
	m.readEntry(&e)
	return nil
}

func (m *loggedSession) addWork(x *loggedWork) {
	m.work = append(m.work, x)
	m.addToIndex(x.request().Stream, x)
}

func (m *loggedSession) addToIndex(stream string, x any) {
	if m.index == nil {
		m.index = map[string]any{}
	}
	m.index[strings.TrimPrefix(stream, ids.StreamPrefix)] = x
}

// readEntry adds what an entry of JSON says.
func (m *loggedSession) readEntry(e *entry.Entry) {
	switch {
	case e.Session != nil:
		m.session, m.commandsBegun, m.last, m.dir = e.Session, 0, e.Session.Last, e.Session.Cwd
	case e.Name != nil && m.session != nil:
		m.session.Name = *e.Name
	case e.Shell != nil:
		m.shell, m.reset = e.Shell, m.reset && e.Shell.Pid == 0
		m.shellReplaced(e.Shell.After)
		e.Shell.After = nil // an event, which is not told twice
	case e.Revived != nil:
		m.revived = e.Revived
	case e.Reset:
		m.reset, m.revived = true, nil
	case e.Exec != nil:
		m.addWork(&loggedWork{exec: e.Exec})
		if e.Begun != nil {
			m.readEntry(&entry.Entry{Begun: e.Begun})
		}
	case e.Begun != nil:
		if x := m.find('x', e.Begun.ID); x != nil {
			if x.begun == nil { // else it has ended, and is not done
				m.commandsBegun++
			}
			x.begun = e.Begun
		}
	case e.Cancel != nil:
		if x := m.find('x', e.Cancel.ID); x != nil {
			x.cancel = e.Cancel
		}
	case e.Done != nil:
		if x := m.find('x', e.Done.ID); x != nil {
			x.done, m.dir = e.Done, e.Done.Exit.WorkingDir
			if x.begun != nil || x.done.Failure != nil { // else it was taken out of the queue
				m.last = newLastExec(e.Done.ID, x.exec.Text, &e.Done.Exit, e.Done.At)
			}
		}
		if e.Done.Exit.ShellRestored { // it told of that
			m.revived = nil
		}
	case e.Process != nil:
		m.addWork(&loggedWork{process: e.Process})
	case e.Expired != "":
		if x := m.find('p', e.Expired); x != nil {
			x.expired = true
		}
	case e.Exited != nil:
		if x := m.find('p', e.Exited.ID); x != nil {
			x.exited = e.Exited
		}
	case e.Terminal != nil:
		m.addWork(&loggedWork{terminal: e.Terminal})
	case e.Closed != nil:
		if x := m.find('t', e.Closed.ID); x != nil {
			x.closed = e.Closed
		}
	case e.Forgot != "":
		m.discard(e.Forgot)
	case e.Share != nil:
		m.shares = append(m.shares, e.Share)
	case e.Unshared != "":
		m.shares = slices.DeleteFunc(m.shares, func(x *entry.Share) bool { return x.ID == e.Unshared })
	case e.Unwanted != "":
		m.dropRecording(e.Unwanted)
	case e.Ending != nil:
		m.ending = e.Ending
	case e.Over != nil:
		m.over = e.Over
	}
}

// shellReplaced notes what ended with the shell before.
func (m *loggedSession) shellReplaced(r *runtime.Replaced) {
	switch {
	case r == nil:
	case r.Seq == 0: // the next command's client is told
		lost := r.Lost
		if m.revived != nil {
			lost = runtime.Union(m.revived.Lost, lost)
		}
		m.revived = &entry.Revived{Lost: lost}
	default:
		for _, x := range slices.Backward(m.work) {
			if x.done == nil && x.begun != nil && x.begun.Command.Seq == r.Seq {
				x.begun.Command.Replaced = r
				return
			}
		}
	}
}

// discard leaves of an exec, a process or a terminal its request_key, if it had one.
func (m *loggedSession) discard(id string) {
	switch x := m.index[id].(type) {
	case *loggedEnded:
		x.forgotten = true
	case *loggedWork:
		if x.forgotten = x.hasEnded(); x.forgotten && x.terminal != nil {
			x.terminal.Recording = ""
		}
	}
}

// dropRecording forgets that something was to be recorded.
func (m *loggedSession) dropRecording(recording string) {
	for _, x := range m.work {
		if x.exec != nil && x.exec.Recording == recording {
			x.exec.Recording = ""
		}
		if x.terminal != nil && x.terminal.Recording == recording {
			x.terminal.Recording = ""
		}
	}
}

// find finds what was written down as it came.
func (m *loggedSession) find(kind byte, id string) *loggedWork {
	if x, _ := m.index[id].(*loggedWork); x != nil && x.kind() == kind {
		return x
	}
	return nil
}

// lastBegun is the last command that has begun, nil when that is not known.
func (m *loggedSession) lastBegun() (last *entry.Begun) {
	for _, x := range m.work {
		if x.begun != nil && (last == nil || x.begun.Command.Seq > last.Command.Seq) {
			last = x.begun
		}
	}
	return last
}

// reserveLogs says whose output is to be read again.
func (m *loggedSession) reserveLogs(a *runtime.Adoption) {
	for _, x := range m.ended {
		if x.at != nil && x.at.Pipes != nil && !x.forgotten {
			a.ReserveLog(x.at.Pipes.Log, x.at.Span)
		}
	}
	for _, x := range m.work {
		if log, span, kept := x.output(); kept {
			a.ReserveLog(log, span)
		}
	}
}
