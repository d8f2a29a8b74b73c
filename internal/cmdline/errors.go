// Package cmdline is what all commands of trl share: errors with hints, exit codes, flags with closed lists, help pages, tables and JSON.
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

// ExitBySignal is for a program that ends because of sig, as a shell reports it.
func ExitBySignal(sig os.Signal) ExitCode {
	return ExitCode(protocol.SignalExitCode(sig.(syscall.Signal)))
}

func (c ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Exit codes of trl run, term, attach and wait that are not those of what ran; the numbers of timeout(1).
const (
	ExitTimeout = 124
	ExitOwn     = 125
)

// ExitUsage is for a command line that could not be read: an unknown command or flag, a value of the wrong kind, too few or too
// many arguments. Commands that end with the code of something else use ExitOwn instead.
const ExitUsage = 2

// PipeWriter is stdout or stderr. When its reader has gone away (trl ls | head), the program ends with the code of SIGPIPE and prints nothing.
type PipeWriter struct{ *os.File }

func (o PipeWriter) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = ExitBySignal(syscall.SIGPIPE)
	}
	return n, err
}

// HintedError is an error and what to do about it.
type HintedError struct {
	Err  error
	Hint string
}

func (r *HintedError) Error() string { return r.Err.Error() }

func (r *HintedError) Unwrap() error { return r.Err }

// WithHint is err, and what to do about it.
func WithHint(err error, hint string, args ...any) error {
	return &HintedError{err, fmt.Sprintf(hint, args...)}
}

// PrintError says what went wrong, then what to do.
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

// WithHelp names the command's help where the gateway did not take what the command asked, and there is no other hint.
func WithHelp(cmd *cobra.Command, err error) error {
	e, r := (*protocol.Error)(nil), (*HintedError)(nil)
	if errors.As(err, &e) && e.Code == protocol.InvalidParams && !(errors.As(err, &r) && r.Hint != "") {
		return WithHint(err, "see `%s --help`", cmd.CommandPath())
	}
	return err
}

// Faults is all that is wrong with the settings, each with its hint.
type Faults []error

func (f Faults) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f Faults) Unwrap() []error { return f }

// Add appends err, one by one if it is faults itself.
func (f *Faults) Add(err error) {
	var all Faults
	switch {
	case err == nil:
	case errors.As(err, &all): // which may be none
		*f = append(*f, all...)
	default:
		*f = append(*f, err)
	}
}

// Err is nil, the only fault, or all of them.
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
