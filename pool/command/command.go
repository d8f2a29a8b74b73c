// Package command makes the shell's form of a command that a client sends.
package command

import (
	"errors"
	"time"

	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/shell"
	"trl/runtime/stream"
)

// New makes the command of a request. Its output goes to j.
func New(q *protocol.Exec, j *journal.Journal, timeout, grace time.Duration) (*shell.Command, error) {
	c := shell.NewCommand(q.Command)
	c.Env, c.Dir, c.OpenStdin, c.Journal = q.Env, q.WorkingDir, q.InteractiveStdin, j
	c.Timeout, c.Grace = timeout, grace
	if q.NoOutputTimeout != nil {
		c.NoOutput = q.NoOutputTimeout.Duration()
	}
	if q.Stdin == nil {
		return c, nil
	}
	stdin, fault := protocol.DecodeBytes(*q.Stdin, q.StdinEncoding)
	if fault != nil {
		return nil, fault
	}
	if !c.OpenStdin {
		c.Stdin = stdin
		return c, nil
	}
	_, err := Taken(c.Input(0, stdin, false)) // this input comes first, before that of exec.input
	return c, err
}

// Taken tells a client where its input ends now, or why its piece was not taken.
func Taken(end int64, err error) (int64, error) {
	switch {
	case errors.Is(err, stream.ErrStdinClosed):
		err = protocol.Errorf(protocol.StdinClosed, "stdin is closed")
	case errors.Is(err, stream.ErrStdinFull):
		err = protocol.Errorf(protocol.LimitExceeded, "stdin is not being read").With("limit", "stdin")
	}
	if e, ok := errors.AsType[*stream.OffsetError](err); ok {
		err = protocol.Errorf(protocol.OffsetMismatch, "offset is not where the input so far ends").With("field", "offset").With("input_offset", e.End)
	}
	return end, err
}

// Typed is Taken for a terminal.
func Typed(end int64, err error) (int64, error) {
	switch {
	case errors.Is(err, stream.ErrLongLine):
		err = protocol.Errorf(protocol.LimitExceeded, "terminal is in line mode, which holds 4095 bytes of a line").With("limit", "line")
	case errors.Is(err, stream.ErrStdinFull):
		err = protocol.Errorf(protocol.LimitExceeded, "terminal is not being read").With("limit", "stdin")
	}
	return Taken(end, err)
}
