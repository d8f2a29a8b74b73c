package pool

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
)

// A loggedSession is what a session log says of one session.
type loggedSession struct {
	id            string
	session       *sessionEntry
	shell         *runtime.SavedShell
	ended         []*loggedEnded // what has ended, of which the session log had one entry
	execs         []*loggedExec  // as accepted; what of them has ended is not in past
	procs         []*loggedProcess
	terms         []*loggedTerminal
	tombstones    []*workTombstone // processes and terminals of which only the request_key is remembered
	compactBytes  int64            // bytes of past and works in the session log
	index         map[string]any   // what is in past, execs, procs and terms, by id
	shares        []*shareEntry
	ending        *endingEntry
	over          *overEntry
	revived       *revivedEntry
	commandsBegun int64 // after session was written
	reset         bool  // was going on
	last          *protocol.LastExec
	dir           string   // the shell's after the last command
	afterRecovery []func() // for goroutines of their own, once all is made
}

// What is forgotten is not retained any more; its request_key is remembered, if it had one.

type loggedEnded struct {
	*endedExec
	at        *outputPlace // nil: nothing of its output is kept
	forgotten bool
}

type loggedExec struct {
	*execEntry
	begun     *begunEntry
	cancel    *cancelEntry
	done      *doneEntry
	exec      *Exec
	forgotten bool
}

type loggedProcess struct {
	*processEntry
	expired   bool
	exited    *exitedEntry
	process   *Process
	forgotten bool
}

type loggedTerminal struct {
	*termEntry
	closed    *closedEntry
	terminal  *Terminal
	forgotten bool
}

// check says whether what is remembered is the session's own.
func (m *loggedSession) check() error {
	if len(m.session.Tag) != ids.TagLen {
		return fmt.Errorf("session log: tag %q", m.session.Tag)
	}
	for _, x := range m.ended {
		if !m.owns('x', x.stream) {
			return fmt.Errorf("session log: exec %q", x.stream)
		}
	}
	for _, x := range m.execs {
		if !m.owns('x', x.Stream) {
			return fmt.Errorf("session log: exec %q", x.Stream)
		}
	}
	for _, x := range m.tombstones {
		if !m.owns(x.kind, x.stream) {
			return fmt.Errorf("session log: %q", x.stream)
		}
	}
	for _, x := range m.procs {
		if !m.owns('p', x.Stream) {
			return fmt.Errorf("session log: process %q", x.Stream)
		}
	}
	for _, x := range m.terms {
		if !m.owns('t', x.Stream) {
			return fmt.Errorf("session log: terminal %q", x.Stream)
		}
	}
	return nil
}

func (m *loggedSession) owns(kind byte, stream string) bool {
	id, prefixed := strings.CutPrefix(stream, ids.StreamPrefix)
	_, is := ids.EpochOf(kind, id)
	return prefixed && is && ids.TagOf(id) == m.session.Tag
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
	var e entry
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("session log: %w", err)
	}
	m.readEntry(&e)
	return nil
}

func (m *loggedSession) addToIndex(stream string, x any) {
	if m.index == nil {
		m.index = map[string]any{}
	}
	m.index[strings.TrimPrefix(stream, ids.StreamPrefix)] = x
}

// readEntry adds what an entry of JSON says.
func (m *loggedSession) readEntry(e *entry) {
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
		x := &loggedExec{execEntry: e.Exec}
		m.execs = append(m.execs, x)
		m.addToIndex(e.Exec.Stream, x)
		if e.Begun != nil {
			m.readEntry(&entry{Begun: e.Begun})
		}
	case e.Begun != nil:
		if x := m.exec(e.Begun.ID); x != nil {
			if x.begun == nil { // else it has ended, and is not done
				m.commandsBegun++
			}
			x.begun = e.Begun
		}
	case e.Cancel != nil:
		if x := m.exec(e.Cancel.ID); x != nil {
			x.cancel = e.Cancel
		}
	case e.Done != nil:
		if x := m.exec(e.Done.ID); x != nil {
			x.done, m.dir = e.Done, e.Done.Exit.WorkingDir
			if x.begun != nil || x.done.Failure != nil { // else it was taken out of the queue
				m.last = newLastExec(e.Done.ID, x.Text, &e.Done.Exit, e.Done.At)
			}
		}
		if e.Done.Exit.ShellRestored { // it told of that
			m.revived = nil
		}
	case e.Process != nil:
		x := &loggedProcess{processEntry: e.Process}
		m.procs = append(m.procs, x)
		m.addToIndex(e.Process.Stream, x)
	case e.Expired != "":
		if x, ok := m.index[e.Expired].(*loggedProcess); ok {
			x.expired = true
		}
	case e.Exited != nil:
		if x, ok := m.index[e.Exited.ID].(*loggedProcess); ok {
			x.exited = e.Exited
		}
	case e.Terminal != nil:
		x := &loggedTerminal{termEntry: e.Terminal}
		m.terms = append(m.terms, x)
		m.addToIndex(e.Terminal.Stream, x)
	case e.Closed != nil:
		if x, ok := m.index[e.Closed.ID].(*loggedTerminal); ok {
			x.closed = e.Closed
		}
	case e.Forgot != "":
		m.discard(e.Forgot)
	case e.Share != nil:
		m.shares = append(m.shares, e.Share)
	case e.Unshared != "":
		m.shares = slices.DeleteFunc(m.shares, func(x *shareEntry) bool { return x.ID == e.Unshared })
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
		m.revived = &revivedEntry{lost}
	default:
		for _, x := range slices.Backward(m.execs) {
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
	case *loggedExec:
		x.forgotten = x.done != nil
	case *loggedProcess:
		x.forgotten = x.exited != nil
	case *loggedTerminal:
		if x.closed != nil {
			x.forgotten, x.Recording = true, ""
		}
	}
}

// dropRecording forgets that something was to be recorded.
func (m *loggedSession) dropRecording(recording string) {
	for _, x := range m.execs {
		if x.Recording == recording {
			x.Recording = ""
		}
	}
	for _, x := range m.terms {
		if x.Recording == recording {
			x.Recording = ""
		}
	}
}

// exec finds one that was written down as it came.
func (m *loggedSession) exec(id string) *loggedExec {
	x, _ := m.index[id].(*loggedExec)
	return x
}

// lastBegun is the last command that has begun, nil when that is not known.
func (m *loggedSession) lastBegun() (last *begunEntry) {
	for _, x := range m.execs {
		if x.begun != nil && (last == nil || x.begun.Command.Seq > last.Command.Seq) {
			last = x.begun
		}
	}
	return last
}

func (x *loggedTerminal) span() journal.Span {
	if x.closed != nil {
		return x.closed.Span
	}
	return x.Terminal.Span
}

// reserveLogs says whose output is to be read again.
func (m *loggedSession) reserveLogs(a *runtime.Adoption) {
	for _, x := range m.ended {
		if x.at != nil && x.at.Pipes != nil && !x.forgotten {
			a.ReserveLog(x.at.Pipes.Log, x.at.Span)
		}
	}
	for _, x := range m.execs {
		switch {
		case x.forgotten:
		case x.done != nil && x.done.Pipes != nil:
			a.ReserveLog(x.done.Pipes.Log, x.done.Span)
		case x.done == nil && x.begun != nil:
			a.ReserveLog(x.begun.Command.Pipes.Log, x.begun.Command.Span)
		}
	}
	for _, x := range m.procs {
		span := x.Process.Span
		if x.exited != nil {
			span = x.exited.Span
		}
		if !x.forgotten {
			a.ReserveLog(x.Process.Pipes.Log, span)
		}
	}
	for _, x := range m.terms {
		if !x.forgotten {
			a.ReserveLog(x.Terminal.PTY.Log, x.span())
		}
	}
}
