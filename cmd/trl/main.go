// Command trl is the terminal-runtime gateway (trl serve) and its command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"trl/protocol"
	"trl/runtime/keeper"
)

// The linker sets both in release builds (-X main.version=v0.1.0 -X main.commit=…).
var (
	version = "v0.1.0-dev"
	commit  string
)

// The keeper replaces itself on the main thread (runtime.Exec), and this is the only time at which it is certain that we are
// on it.
func init() { goruntime.LockOSThread() }

func main() {
	// Go ends a program whose stdout or stderr is a broken pipe, unless somebody listens for SIGPIPE. We want the error
	// instead: a server whose launcher went away goes on, and `trl run … | head` cancels its command. Not Ignore: children
	// would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	var start startup
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		asked, err := start.readEnvironment()
		if err != nil {
			printError(os.Stderr, err)
			os.Exit(1)
		}
		if asked {
			os.Exit(0)
		}
	} else {
		goruntime.UnlockOSThread()
	}
	os.Exit(execute(os.Args[1:], start))
}

// A startup is how `trl serve` was started.
type startup struct {
	exposed  error            // why sessions may read our environment
	handover *keeper.Handover // of the keeper that we go on as; nil: none
}

// readEnvironment comes before anything reads the environment. asked: a keeper wanted to know whether we could go on as it, no more.
func (b *startup) readEnvironment() (asked bool, err error) {
	b.exposed = hideEnviron()
	if asked, err = keeper.CheckHandover(); asked || err != nil {
		return asked, err
	}
	if b.handover, err = keeper.ReadHandover(); err != nil {
		return false, err
	}
	return false, keeper.RestoreEnviron()
}

// execute runs one command line and returns the exit code.
func execute(args []string, start startup) int {
	root := newRoot(start)
	read := false // the command line, and nothing was wrong with it
	readStrictly(root, &read)
	root.SetArgs(args)
	root.SetOut(pipeWriter{os.Stdout})
	root.SetErr(pipeWriter{os.Stderr})
	cmd, err := root.ExecuteContextC(context.Background())
	var code exitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	printError(os.Stderr, withHelp(cmd, err))
	switch {
	case slices.Contains([]string{"run", "term", "attach", "wait"}, cmd.Name()):
		return exitOwn
	case !read || errors.As(err, new(usageError)):
		return exitUsage
	}
	return 1
}

func newRoot(start startup) *cobra.Command {
	root := &cobra.Command{
		Use:   "trl",
		Short: "Persistent shell sessions over WebSocket",
		Long: `trl runs shell sessions that survive their commands, and streams what they print.

  trl serve                        start the gateway
  trl run -- 'cd /tmp && pwd'      run a command in your session; the next one is already in /tmp
  trl term                         open a terminal there; Ctrl-P Ctrl-Q leaves it running
  trl attach SESSION               come back to it
  trl start -- ./server            start a background process; trl wait waits for it, trl logs -f ID follows it
  trl ls                           what is running`,
		Version:           buildVersion(),
		SilenceErrors:     true, // execute prints them, with their hints
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	root.SetVersionTemplate("trl {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelp())
	root.SetUsageFunc(printUsage)
	cobra.EnableCommandSorting = false // they are grouped
	group := func(title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: title, Title: title})
		for _, cmd := range commands {
			cmd.GroupID = title
		}
		root.AddCommand(commands...)
	}
	group("Work in sessions", newRun(), newStart(), newWait(), newTerm(), newAttach(), newKill())
	group("See what there is", newList(), newInfo(), newProcesses(), newHistory(), newLogs(), newStats())
	group("Share and record", newShare(), newShares(), newUnshare(), newRecordings(), newPlay())
	group("Operate the gateway", newServe(start), newConfig(), newToken(), newUpgrade(), newDrain(), newAudit(), newDoctor(), newBench())
	group("About trl", newVersion())
	root.AddCommand(newKillOrphans())
	root.SetHelpCommandGroupID("About trl")
	root.SetCompletionCommandGroupID("About trl")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	completeChoices(root)
	return root
}

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

func errorWithHint(err error, hint string, args ...any) error {
	return &hintedError{err, fmt.Sprintf(hint, args...)}
}

func (r *hintedError) Error() string { return r.err.Error() }
func (r *hintedError) Unwrap() error { return r.err }

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

// buildVersion is the release, or the one that is being worked on with the commit: v0.1.0, v0.1.0-dev+0123456789ab.
func buildVersion() string {
	if c := buildCommit(); c != "" && strings.HasSuffix(version, "-dev") {
		return version + "+" + c
	}
	return version
}

// buildCommit is the linker's, else what the Go tool recorded; "" where neither knows.
func buildCommit() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	recorded := map[string]string{}
	for _, s := range info.Settings {
		recorded[s.Key] = s.Value
	}
	c := recorded["vcs.revision"]
	c = c[:min(12, len(c))]
	if c != "" && recorded["vcs.modified"] == "true" {
		c += "-dirty"
	}
	return c
}
