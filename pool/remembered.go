package pool

import (
	"fmt"
	"slices"
	"strings"

	"trl/protocol"
	"trl/runtime"
	"trl/runtime/journal"
)

// A remembered is what a ledger says of one session.
type remembered struct {
	id      string
	session *sessionEntry
	shell   *runtime.ShellRecord
	execs   []*rememberedExec // as accepted
	procs   []*rememberedProcess
	terms   []*rememberedTerminal
	shares  []*shareEntry
	ending  *endingEntry
	over    *overEntry
	revived *revivedEntry
	begun   int64 // after session was written
	reset   bool  // was going on
	last    *protocol.LastExec
	dir     string   // the shell's after the last command
	watches []func() // for goroutines of their own, once all is made
}

type rememberedExec struct {
	*execEntry
	begun  *begunEntry
	cancel *cancelEntry
	done   *doneEntry
	exec   *Exec
}

type rememberedProcess struct {
	*processEntry
	expired bool
	exited  *exitedEntry
	process *Process
}

type rememberedTerminal struct {
	*termEntry
	closed   *closedEntry
	terminal *Terminal
}

// check says whether what is remembered is the session's own.
func (m *remembered) check() error {
	if len(m.session.Tag) != tagLen {
		return fmt.Errorf("ledger: tag %q", m.session.Tag)
	}
	for _, x := range m.execs {
		if !m.owns('x', x.Stream) {
			return fmt.Errorf("ledger: exec %q", x.Stream)
		}
	}
	for _, x := range m.procs {
		if !m.owns('p', x.Stream) {
			return fmt.Errorf("ledger: process %q", x.Stream)
		}
	}
	for _, x := range m.terms {
		if !m.owns('t', x.Stream) {
			return fmt.Errorf("ledger: terminal %q", x.Stream)
		}
	}
	return nil
}

func (m *remembered) owns(kind byte, stream string) bool {
	id, prefixed := strings.CutPrefix(stream, streamPrefix)
	_, is := minted(kind, id)
	return prefixed && is && tagOf(id) == m.session.Tag
}

// read adds what an entry says.
func (m *remembered) read(e *entry) {
	switch {
	case e.Session != nil:
		m.session, m.begun, m.last, m.dir = e.Session, 0, e.Session.Last, e.Session.Cwd
	case e.Name != nil && m.session != nil:
		m.session.Name = *e.Name
	case e.Shell != nil:
		m.shell, m.reset = e.Shell, m.reset && e.Shell.Pid == 0
		m.replaced(e.Shell.After)
		e.Shell.After = nil // an event, which is not told twice
	case e.Revived != nil:
		m.revived = e.Revived
	case e.Reset:
		m.reset, m.revived = true, nil
	case e.Exec != nil:
		m.execs = append(m.execs, &rememberedExec{execEntry: e.Exec})
		if e.Begun != nil {
			m.read(&entry{Begun: e.Begun})
		}
	case e.Begun != nil:
		if x := m.exec(e.Begun.ID); x != nil {
			if x.begun == nil { // else it has ended, and is not done
				m.begun++
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
				m.last = lastExec(e.Done.ID, x.Text, &e.Done.Exit, e.Done.At)
			}
		}
		if e.Done.Exit.ShellRestored { // it told of that
			m.revived = nil
		}
	case e.Process != nil:
		m.procs = append(m.procs, &rememberedProcess{processEntry: e.Process})
	case e.Expired != "":
		for _, x := range m.procs {
			x.expired = x.expired || x.Stream == streamPrefix+e.Expired
		}
	case e.Exited != nil:
		for _, x := range m.procs {
			if x.Stream == streamPrefix+e.Exited.ID {
				x.exited = e.Exited
			}
		}
	case e.Terminal != nil:
		m.terms = append(m.terms, &rememberedTerminal{termEntry: e.Terminal})
	case e.Closed != nil:
		for _, x := range m.terms {
			if x.Stream == streamPrefix+e.Closed.ID {
				x.closed = e.Closed
			}
		}
	case e.Forgot != "":
		m.forget(e.Forgot)
	case e.Share != nil:
		m.shares = append(m.shares, e.Share)
	case e.Unshared != "":
		m.shares = slices.DeleteFunc(m.shares, func(x *shareEntry) bool { return x.ID == e.Unshared })
	case e.Unwanted != "":
		m.unwant(e.Unwanted)
	case e.Ending != nil:
		m.ending = e.Ending
	case e.Over != nil:
		m.over = e.Over
	}
}

// replaced notes what ended with the shell before.
func (m *remembered) replaced(r *runtime.Replaced) {
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

// forget leaves of an exec, a process or a terminal its request_key, if it had one.
func (m *remembered) forget(id string) {
	m.terms = slices.DeleteFunc(m.terms, func(x *rememberedTerminal) bool {
		if x.Stream != streamPrefix+id || x.closed == nil {
			return false
		}
		x.closed.Husk, x.Recording = true, ""
		return x.Key.Key == ""
	})
	m.procs = slices.DeleteFunc(m.procs, func(x *rememberedProcess) bool {
		if x.Stream != streamPrefix+id || x.exited == nil {
			return false
		}
		x.exited.Husk = true
		return x.Key.Key == ""
	})
	m.execs = slices.DeleteFunc(m.execs, func(x *rememberedExec) bool {
		if x.Stream != streamPrefix+id || x.done == nil {
			return false
		}
		x.done.Husk, x.done.Lane, x.Text = true, nil, ""
		return x.Key.Key == ""
	})
}

// unwant forgets that something was to be recorded.
func (m *remembered) unwant(recording string) {
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

// exec finds one; the newest first, as that is mostly meant.
func (m *remembered) exec(id string) *rememberedExec {
	for _, x := range slices.Backward(m.execs) {
		if strings.TrimPrefix(x.Stream, streamPrefix) == id {
			return x
		}
	}
	return nil
}

func (x *rememberedTerminal) span() journal.Span {
	if x.closed != nil {
		return x.closed.Span
	}
	return x.Terminal.Span
}

// want says whose output is to be read again.
func (m *remembered) want(a *runtime.Adoption) {
	for _, x := range m.execs {
		if x.done != nil && x.done.Lane != nil {
			a.Want(x.done.Lane.Log, x.done.Span)
		} else if x.done == nil && x.begun != nil {
			a.Want(x.begun.Command.Lane.Log, x.begun.Command.Span)
		}
	}
	for _, x := range m.procs {
		span := x.Process.Span
		if x.exited != nil {
			if span = x.exited.Span; x.exited.Husk {
				continue
			}
		}
		a.Want(x.Process.Lane.Log, span)
	}
	for _, x := range m.terms {
		if x.closed != nil && x.closed.Husk {
			continue
		}
		a.Want(x.Terminal.Line.Log, x.span())
	}
}
