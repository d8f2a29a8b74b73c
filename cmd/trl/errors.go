package main

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

// exitCode ends the program with a code and without a word.
type exitCode int

// exitBySignal is for a program that ends because of sig, as a shell reports it.
func exitBySignal(sig os.Signal) exitCode {
	return exitCode(protocol.SignalExitCode(sig.(syscall.Signal)))
}

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// Exit codes of trl run, term, attach and wait that are not those of what ran; the numbers of timeout(1).
const (
	exitTimeout = 124
	exitOwn     = 125
)

// exitUsage is for a command line that could not be read: an unknown command or flag, a value of the wrong kind, too few or too
// many arguments. Commands that end with the code of something else use exitOwn instead.
const exitUsage = 2

// pipeWriter is stdout or stderr. When its reader has gone away (trl ls | head) there is nothing to say, and nobody to say it to.
type pipeWriter struct{ *os.File }

func (o pipeWriter) Write(p []byte) (int, error) {
	n, err := o.File.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		err = exitBySignal(syscall.SIGPIPE)
	}
	return n, err
}

// hintedError is an error and what to do about it.
type hintedError struct {
	err  error
	hint string
}

func (r *hintedError) Error() string { return r.err.Error() }

func (r *hintedError) Unwrap() error { return r.err }

func errorWithHint(err error, hint string, args ...any) error {
	return &hintedError{err, fmt.Sprintf(hint, args...)}
}

// printError says what went wrong, then what to do.
func printError(w io.Writer, err error) {
	if all := (faults)(nil); errors.As(err, &all) {
		for _, err := range all {
			printError(w, err)
		}
		return
	}
	fmt.Fprintf(w, "trl: %s\n", printable(err.Error()))
	var r *hintedError
	if errors.As(err, &r) && r.hint != "" {
		fmt.Fprintf(w, "     %s\n", strings.ReplaceAll(r.hint, "\n", "\n     "))
	}
}

// withHelp names the command's help where the gateway did not take what the command asked, and there is no other hint.
func withHelp(cmd *cobra.Command, err error) error {
	e, r := (*protocol.Error)(nil), (*hintedError)(nil)
	if errors.As(err, &e) && e.Code == protocol.InvalidParams && !(errors.As(err, &r) && r.hint != "") {
		return errorWithHint(err, "see `%s --help`", cmd.CommandPath())
	}
	return err
}

// faults is all that is wrong with the settings, each with its hint.
type faults []error

func (f faults) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f faults) Unwrap() []error { return f }

// add appends err, one by one if it is faults itself.
func (f *faults) add(err error) {
	var all faults
	switch {
	case err == nil:
	case errors.As(err, &all): // which may be none
		*f = append(*f, all...)
	default:
		*f = append(*f, err)
	}
}

func (f faults) err() error {
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}

// usageError marks an error in the command line.
type usageError struct{ error }

func (m usageError) Unwrap() error { return m.error }

// usageErrorWithHint is refuse for an error in the command line.
func usageErrorWithHint(err error, hint string, args ...any) error {
	return usageError{errorWithHint(err, hint, args...)}
}
