// Package source describes what a stream of output comes from: a command, a background process or a terminal.
package source

import (
	"cmp"
	"errors"

	"trl/pool"
	"trl/protocol"
)

// A Source is where a stream comes from.
type Source struct {
	Stream, Exec, Process string
	Terminal              *pool.Terminal // nil for a command or process
	Session               string
	Output, InputMethod   string // the names of the event that carries output, and of the method that takes input
	Journal               *pool.Journal
	Done                  <-chan struct{}      // closed when the command, process or terminal has ended
	EndOffset             func() int64         // after Done: where its own output ends. Processes that it left running may have written more
	Exit                  func() (string, any) // after Done: name and data of the last event
	Recording             string               // id of a command's recording; "" if there is none

	input func(at int64, p []byte, eof bool) (end int64, err error) // nil for a terminal
}

// OfExec returns a command as a Source.
func OfExec(e *pool.Exec) Source {
	return Source{
		Stream: e.StreamID(), Exec: e.ID(), Session: e.Session().ID(), Output: "exec.output", InputMethod: "exec.input",
		Journal: e.Journal(), Done: e.Done(), EndOffset: e.EndOffset,
		Exit: func() (string, any) { x := e.Exit(); return "exec.exit", &x }, Recording: e.RecordingID(), input: e.Input,
	}
}

// OfProcess returns a background process as a Source.
func OfProcess(p *pool.Process) Source {
	return Source{
		Stream: p.StreamID(), Process: p.ID(), Session: p.Session().ID(), Output: "process.output", InputMethod: "process.input",
		Journal: p.Journal(), Done: p.Done(), EndOffset: p.EndOffset,
		Exit: func() (string, any) { x := p.Info(); return "process.exit", &x }, input: p.Input,
	}
}

// OfTerminal returns a terminal as a Source.
func OfTerminal(t *pool.Terminal) Source {
	return Source{
		Stream: t.StreamID(), Terminal: t, Session: t.Session().ID(), Output: "term.output", InputMethod: "term.input",
		Journal: t.Journal(), Done: t.Done(), EndOffset: t.Journal().Size,
		Exit: func() (string, any) { i := t.Info(); return "term.exit", &i },
	}
}

// Term returns the terminal's id, or "" for a command or process.
func (src *Source) Term() string {
	if src.Terminal == nil {
		return ""
	}
	return src.Terminal.ID()
}

// Name returns the id under which the session's events know the source.
func (src *Source) Name() string { return cmp.Or(src.Exec, src.Process, src.Term()) }

// Ended reports whether the command, process or terminal has ended.
func (src *Source) Ended() bool {
	select {
	case <-src.Done:
		return true
	default:
		return false
	}
}

// Attach makes a reader of the output from offset on.
func (src *Source) Attach(offset int64, f pool.ReadOptions) (*pool.Reader, error) {
	r, err := src.Journal.Attach(offset, f)
	if errors.Is(err, pool.ErrOffsetBeyondEnd) {
		return nil, protocol.Errorf(protocol.StreamNotFound, "offset lies beyond the end of the stream").With("size", src.Journal.Size())
	}
	return r, err
}

// Input adds input that came in a frame from a client, which is the viewer v of a terminal.
func (src *Source) Input(v *pool.Viewer, f *protocol.InputFrame) (err error) {
	switch {
	case src.Terminal == nil:
		_, err = src.input(f.Offset, f.Data, f.EOF)
	case f.EOF:
		err = protocol.Errorf(protocol.InvalidRequest, "the input of a terminal has no end")
	default:
		_, err = src.Terminal.Input(v, f.Offset, f.Data)
	}
	return err
}

// InputOffset returns how much input there is, or nil if the source takes none.
func (src *Source) InputOffset() *int64 {
	if src.Ended() {
		return nil
	}
	var end int64
	var err error
	if src.Terminal != nil {
		end, err = src.Terminal.Input(nil, pool.Anywhere, nil)
	} else {
		end, err = src.input(pool.Anywhere, nil, false)
	}
	if err != nil {
		return nil
	}
	return &end
}
