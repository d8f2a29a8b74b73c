package entry

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"trl/pool/ids"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/saved"
	"trl/runtime/shell"
	"trl/runtime/stream"
)

// Log is what a session log says of one session. The zero Log has read nothing.
type Log struct {
	Session       *Session
	Shell         *saved.Shell
	Ended         []*LoggedEnd      // commands that have ended and have one binary entry
	Work          []*LoggedWork     // the other commands, the processes and the terminals, in the order of their entries
	Tombstones    []*ChildTombstone // processes and terminals of which only the request_key is remembered
	CompactBytes  int64             // bytes of the entries of Ended and Tombstones
	Shares        []*Share
	Ending        *Ending
	Over          *Over
	Revived       *Revived
	CommandsBegun int64 // after Session was written
	Reset         bool  // a reset was under way
	Last          *protocol.LastExec
	Dir           string // the shell's directory after the last command
	Moved         *Moved
	Arrived       *Arrived

	index map[string]any // what is in Ended and Work, by id
}

// LoggedEnd is a command that has ended. If it is forgotten, it is not retained any more, and only its request_key is remembered.
type LoggedEnd struct {
	*EndedExec
	At        *Output // nil: nothing of its output is kept
	Forgotten bool
}

// LoggedWork is an exec, a process or a terminal, in the entries that were written while it went on.
type LoggedWork struct {
	Exec     *Exec // one of these three is set
	Process  *Process
	Terminal *Terminal

	Begun     *Begun  // of an exec
	Cancel    *Cancel // of an exec
	Expired   bool    // of a process
	Done      *Done   // the end of an exec; one of these three is set if the work has ended
	Exited    *Exited // the end of a process
	Closed    *Closed // the end of a terminal
	Forgotten bool    // as in LoggedEnd
}

// Kind returns the kind of its id.
func (x *LoggedWork) Kind() byte {
	switch {
	case x.Exec != nil:
		return 'x'
	case x.Process != nil:
		return 'p'
	}
	return 't'
}

// Request returns what all kinds have in common.
func (x *LoggedWork) Request() *Work {
	switch {
	case x.Exec != nil:
		return &x.Exec.Work
	case x.Process != nil:
		return &x.Process.Work
	}
	return &x.Terminal.Work
}

// HasEnded reports whether the end was written down.
func (x *LoggedWork) HasEnded() bool { return x.Done != nil || x.Exited != nil || x.Closed != nil }

// SetKilled gives a process or a terminal the end that the last gateway did not write down: its session was killed.
func (x *LoggedWork) SetKilled(id string, span journal.Span, size int64) {
	end := ChildEnd{ID: id, Code: protocol.SignalExitCode(syscall.SIGKILL), Signal: syscall.SIGKILL, At: time.Now(), Span: span}
	if x.Process != nil {
		x.Exited = &Exited{ChildEnd: end, TimedOut: x.Expired, End: size}
	} else {
		x.Closed = &Closed{ChildEnd: end}
	}
}

// Output returns where its output is. kept is false if there is no output, or it is not kept.
func (x *LoggedWork) Output() (log []stream.HeldFile, span journal.Span, kept bool) {
	switch {
	case x.Forgotten:
		return nil, span, false
	case x.Done != nil && x.Done.Pipes != nil:
		return x.Done.Pipes.Log, x.Done.Span, true
	case x.Done == nil && x.Begun != nil:
		return x.Begun.Command.Pipes.Log, x.Begun.Command.Span, true
	case x.Exited != nil:
		return x.Process.Process.Pipes.Log, x.Exited.Span, true
	case x.Process != nil:
		return x.Process.Process.Pipes.Log, x.Process.Process.Span, true
	case x.Closed != nil:
		return x.Terminal.Terminal.PTY.Log, x.Closed.Span, true
	case x.Terminal != nil:
		return x.Terminal.Terminal.PTY.Log, x.Terminal.Terminal.Span, true
	}
	return nil, span, false
}

// Check fails if the log says something of another session.
func (m *Log) Check() error {
	if len(m.Session.Tag) != ids.TagLen {
		return fmt.Errorf("session log: tag %q", m.Session.Tag)
	}
	var err error
	check := func(kind byte, stream string) {
		id, prefixed := strings.CutPrefix(stream, ids.StreamPrefix)
		mark, is := ids.MarkOf(id)
		if !prefixed || !is || id[0] != kind || ids.TagOf(id) != m.Session.Tag && !slices.Contains(m.Session.Earlier, mark) {
			err = fmt.Errorf("session log: %q", stream)
		}
	}
	for _, x := range m.Ended {
		check('x', x.Stream)
	}
	for _, x := range m.Work {
		check(x.Kind(), x.Request().Stream)
	}
	for _, x := range m.Tombstones {
		check(x.Kind, x.Stream)
	}
	return err
}

// ReadLine adds what one entry says.
func (m *Log) ReadLine(text []byte) error {
	if text[0] < ' ' {
		m.CompactBytes += int64(len(text))
	}
	switch text[0] {
	case endedExecKind:
		x, at, err := readEndedExec(text)
		if err != nil {
			return err
		}
		if m.Session != nil && x.Dir == m.Session.Cwd {
			x.Dir = m.Session.Cwd // one string for all commands that ended there
		} else if n := len(m.Ended); n > 0 && m.Ended[n-1].Dir == x.Dir {
			x.Dir = m.Ended[n-1].Dir
		}
		r := &LoggedEnd{x, at, x.Flags.Has(IsTombstone)}
		m.Ended = append(m.Ended, r)
		m.addToIndex(x.Stream, r)
		return nil
	case childTombstoneKind:
		x, err := readChildTombstone(text)
		if err == nil {
			m.Tombstones = append(m.Tombstones, x)
		}
		return err
	}
	var e Entry
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("session log: %w", err)
	}
	m.read(&e)
	return nil
}

func (m *Log) addWork(x *LoggedWork) {
	m.Work = append(m.Work, x)
	m.addToIndex(x.Request().Stream, x)
}

func (m *Log) addToIndex(stream string, x any) {
	if m.index == nil {
		m.index = map[string]any{}
	}
	m.index[strings.TrimPrefix(stream, ids.StreamPrefix)] = x
}

// read adds what an entry in JSON says.
func (m *Log) read(e *Entry) {
	switch {
	case e.Session != nil:
		m.Session, m.CommandsBegun, m.Last, m.Dir = e.Session, 0, e.Session.Last, e.Session.Cwd
	case e.Name != nil && m.Session != nil:
		m.Session.Name = *e.Name
	case e.Settings != nil && m.Session != nil:
		m.Session.Labels, m.Session.Timeout, m.Session.Idle = e.Settings.Labels, e.Settings.Timeout, e.Settings.Idle
	case e.Shell != nil:
		m.Shell, m.Reset = e.Shell, m.Reset && e.Shell.Pid == 0
		m.shellReplaced(e.Shell.After)
		e.Shell.After = nil // an event, which is told once
	case e.Revived != nil:
		m.Revived = e.Revived
	case e.Reset:
		m.Reset, m.Revived = true, nil
	case e.Exec != nil:
		m.addWork(&LoggedWork{Exec: e.Exec})
		if e.Begun != nil {
			m.read(&Entry{Begun: e.Begun})
		}
	case e.Begun != nil:
		if x := m.Find('x', e.Begun.ID); x != nil {
			if x.Begun == nil { // else Session has counted it already
				m.CommandsBegun++
			}
			x.Begun = e.Begun
		}
	case e.Cancel != nil:
		if x := m.Find('x', e.Cancel.ID); x != nil {
			x.Cancel = e.Cancel
		}
	case e.Done != nil:
		if x := m.Find('x', e.Done.ID); x != nil {
			x.Done, m.Dir = e.Done, e.Done.Exit.WorkingDir
			if x.Begun != nil || x.Done.Failure != nil { // else it was taken out of the queue
				m.Last = protocol.NewLastExec(x.Exec.Text, &e.Done.Exit, e.Done.At)
			}
		}
		if e.Done.Exit.ShellRestored { // its client was told
			m.Revived = nil
		}
	case e.Process != nil:
		m.addWork(&LoggedWork{Process: e.Process})
	case e.Expired != "":
		if x := m.Find('p', e.Expired); x != nil {
			x.Expired = true
		}
	case e.Exited != nil:
		if x := m.Find('p', e.Exited.ID); x != nil {
			x.Exited = e.Exited
		}
	case e.Terminal != nil:
		m.addWork(&LoggedWork{Terminal: e.Terminal})
	case e.Closed != nil:
		if x := m.Find('t', e.Closed.ID); x != nil {
			x.Closed = e.Closed
		}
	case e.Forgot != "":
		m.forget(e.Forgot)
	case e.Share != nil:
		m.Shares = append(m.Shares, e.Share)
	case e.Unshared != "":
		m.Shares = slices.DeleteFunc(m.Shares, func(x *Share) bool { return x.ID == e.Unshared })
	case e.Unwanted != "":
		m.dropRecording(e.Unwanted)
	case e.Ending != nil:
		m.Ending = e.Ending
	case e.Over != nil:
		m.Over = e.Over
	case e.Moved != nil:
		m.Moved = e.Moved
	case e.Arrived != nil:
		m.Arrived = e.Arrived
	}
}

// With adds what another shell before the next command has lost. r may be nil.
func (r *Revived) With(lost []string) *Revived {
	if r != nil {
		lost = shell.Union(r.Lost, lost)
	}
	return &Revived{Lost: lost}
}

// shellReplaced notes what was lost with the shell before.
func (m *Log) shellReplaced(r *saved.Replaced) {
	switch {
	case r == nil:
	case r.Seq == 0: // no command ran: the next command's client is told
		m.Revived = m.Revived.With(r.Lost)
	default:
		for _, x := range slices.Backward(m.Work) {
			if x.Done == nil && x.Begun != nil && x.Begun.Command.Seq == r.Seq {
				x.Begun.Command.Replaced = r
				return
			}
		}
	}
}

// forget notes that only the request_key of ended work is remembered, if it had one.
func (m *Log) forget(id string) {
	switch x := m.index[id].(type) {
	case *LoggedEnd:
		x.Forgotten = true
	case *LoggedWork:
		if x.Forgotten = x.HasEnded(); x.Forgotten && x.Terminal != nil {
			x.Terminal.Recording = ""
		}
	}
}

// dropRecording forgets a recording that was deleted while it was made.
func (m *Log) dropRecording(recording string) {
	for _, x := range m.Work {
		if x.Exec != nil && x.Exec.Recording == recording {
			x.Exec.Recording = ""
		}
		if x.Terminal != nil && x.Terminal.Recording == recording {
			x.Terminal.Recording = ""
		}
	}
}

// Find returns work that is in Work, or nil.
func (m *Log) Find(kind byte, id string) *LoggedWork {
	if x, _ := m.index[id].(*LoggedWork); x != nil && x.Kind() == kind {
		return x
	}
	return nil
}

// LastBegun returns the command that began last, or nil if that is not known.
func (m *Log) LastBegun() (last *Begun) {
	for _, x := range m.Work {
		if x.Begun != nil && (last == nil || x.Begun.Command.Seq > last.Command.Seq) {
			last = x.Begun
		}
	}
	return last
}

// ReserveLogs says which output will be read again.
func (m *Log) ReserveLogs(a *shell.Adoption) {
	for _, x := range m.Ended {
		if x.At != nil && x.At.Pipes != nil && !x.Forgotten {
			a.Reserve(x.At.Pipes.Log, x.At.Span)
		}
	}
	for _, x := range m.Work {
		if log, span, kept := x.Output(); kept {
			a.Reserve(log, span)
		}
	}
}
