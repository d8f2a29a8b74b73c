// Package cmdline has what all commands of trl share: errors with hints, exit codes, flags with closed lists, help pages, tables and JSON.
package cmdline

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"trl/protocol"
)

// ExitCode is an error that ends the program with this code and prints nothing.
type ExitCode int

// ExitBySignal is the exit code of a program that ends because of sig, as a shell reports it.
func ExitBySignal(sig os.Signal) ExitCode {
	return ExitCode(protocol.SignalExitCode(sig.(syscall.Signal)))
}

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Exit codes of trl run, term, attach and wait that do not come from the command; timeout(1) has the same numbers.
const (
	ExitTimeout = 124
	ExitOwn     = 125
)

// ExitUsage is the exit code for an invalid command line: an unknown command or flag, a value of the wrong type, too few or too many
// arguments. Commands that end with another program's exit code use ExitOwn instead.
const ExitUsage = 2

// PipeWriter is stdout or stderr. When its reader is gone (trl ls | head), a write returns the exit code of SIGPIPE, so the program prints
// nothing.
type PipeWriter struct{ *os.File }

func (o PipeWriter) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = ExitBySignal(syscall.SIGPIPE)
	}
	return n, err
}

// HintedError is an error with a hint for the user.
type HintedError struct {
	Err  error
	Hint string
}

func (r *HintedError) Error() string { return r.Err.Error() }

func (r *HintedError) Unwrap() error { return r.Err }

// WithHint adds a hint to err.
func WithHint(err error, hint string, args ...any) error {
	return &HintedError{err, fmt.Sprintf(hint, args...)}
}

// PrintError prints the error and its hint.
func PrintError(w io.Writer, err error) {
	if all := (Faults)(nil); errors.As(err, &all) {
		for _, err := range all {
			PrintError(w, err)
		}
		return
	}
	fmt.Fprintf(w, "trl: %s\n", Printable(err.Error()))
	var r *HintedError
	if errors.As(err, &r) && r.Hint != "" {
		fmt.Fprintf(w, "     %s\n", strings.ReplaceAll(r.Hint, "\n", "\n     "))
	}
}

// WithHelp points to the command's help if the gateway refused the parameters and there is no other hint.
func WithHelp(cmd *cobra.Command, err error) error {
	e, r := (*protocol.Error)(nil), (*HintedError)(nil)
	if errors.As(err, &e) && e.Code == protocol.InvalidParams && !(errors.As(err, &r) && r.Hint != "") {
		return WithHint(err, "see `%s --help`", cmd.CommandPath())
	}
	return err
}

// Faults are all errors in the settings, each with its hint.
type Faults []error

func (f Faults) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f Faults) Unwrap() []error { return f }

// Add appends err; if err is itself Faults, it appends each of them.
func (f *Faults) Add(err error) {
	var all Faults
	switch {
	case err == nil:
	case errors.As(err, &all): // possibly empty
		*f = append(*f, all...)
	default:
		*f = append(*f, err)
	}
}

// Err returns nil, the only fault, or all of them.
func (f Faults) Err() error {
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

// UsageError marks an error in the command line.
type UsageError struct{ error }

func (m UsageError) Unwrap() error { return m.error }

// NewUsageError marks err as an error in the command line.
func NewUsageError(err error) error { return UsageError{err} }

// UsageErrorWithHint is WithHint for an error in the command line.
func UsageErrorWithHint(err error, hint string, args ...any) error {
	return UsageError{WithHint(err, hint, args...)}
}
