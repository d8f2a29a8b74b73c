// Package terminal starts the first process of a terminal. It may start a bash before anybody asks for the terminal.
package terminal

import (
	"os"

	"golang.org/x/sys/unix"

	"trl/runtime/own"
	"trl/runtime/stream"
)

// First is a terminal's first process, in a scope of its own, with what survives the gateway.
type First struct {
	PTY   *stream.PTY
	Stdin *stream.Stdin
	Scope own.KeptScope
	Child own.KeptChild
}

// Start starts the first process that spec describes, without its files. It inherits startup as descriptor 3, if that is not nil. One request starts it
// and has the keeper hold what the next gateway needs. The caller owns the parts, and attaches a journal to the PTY's log.
func Start(group own.KeptGroup, logs *stream.Logs, spec own.Spec, startup *os.File, cols, rows int) (f First, err error) {
	defer func() {
		if err != nil {
			f.close()
			f = First{}
		}
	}()
	if f.PTY, err = stream.OpenPTY(group, logs, cols, rows); err != nil {
		return f, err
	}
	if f.Stdin, err = stream.OpenStdin(group); err != nil {
		return f, err
	}
	dup, err := unix.FcntlInt(uintptr(f.PTY.Slave()), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return f, err
	}
	tty := os.NewFile(uintptr(dup), "tty")
	defer tty.Close()
	if spec.Files = []*os.File{tty, tty, tty}; startup != nil {
		spec.Files = append(spec.Files, startup)
	}
	pty := f.PTY.Fds()
	d, err := group.StartInNewScope(spec, append(pty, f.Stdin.Fds()...)...)
	if err != nil {
		return f, err
	}
	f.PTY.SetHeld(d.Held[:len(pty)])
	f.Stdin.SetHeld(d.Held[len(pty):])
	f.Scope, f.Child = d.Scope, d.Child
	return f, nil
}

// close closes and releases the files of a terminal that nobody used.
func (f *First) close() {
	if f.PTY != nil {
		f.PTY.Close()
		f.PTY.Release()
	}
	if f.Stdin != nil {
		f.Stdin.Close()
	}
}
