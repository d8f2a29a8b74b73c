// Command trl is the terminal-runtime gateway (trl serve) and its command line.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"trl/internal/buildinfo"
	"trl/internal/cli"
	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/serve"
)

// The keeper replaces itself on the main thread (confine.Exec). Only here is it certain that we run on it.
func init() { runtime.LockOSThread() }

func main() {
	// Go ends a program whose stdout or stderr is a broken pipe, unless it subscribes to SIGPIPE. We want the error instead: a server whose
	// launcher is gone continues, and `trl run … | head` cancels its command. signal.Ignore would not do, because children inherit ignored
	// signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	var start serve.Startup
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		asked, err := start.ReadEnvironment()
		if err != nil {
			cmdline.PrintError(os.Stderr, err)
			os.Exit(1)
		}
		if asked {
			os.Exit(0)
		}
	} else {
		runtime.UnlockOSThread()
	}
	os.Exit(execute(os.Args[1:], start))
}

// execute runs one command line and returns the exit code.
func execute(args []string, start serve.Startup) int {
	root := newRoot(start)
	read := false // the command line was valid
	cmdline.ReadStrictly(root, &read)
	root.SetArgs(args)
	root.SetOut(cmdline.PipeWriter{File: os.Stdout})
	root.SetErr(cmdline.PipeWriter{File: os.Stderr})
	cmd, err := root.ExecuteContextC(context.Background())
	var code cmdline.ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	cmdline.PrintError(os.Stderr, cmdline.WithHelp(cmd, err))
	switch {
	case slices.Contains([]string{"run", "term", "attach", "wait"}, cmd.Name()):
		return cmdline.ExitOwn
	case !read || errors.As(err, new(cmdline.UsageError)):
		return cmdline.ExitUsage
	}
	return 1
}

func newRoot(start serve.Startup) *cobra.Command {
	root := &cobra.Command{
		Use:   "trl",
		Short: "Persistent shell sessions over WebSocket",
		Long: `trl runs shell sessions that survive their commands, and streams their output.

  trl serve                        start the gateway
  trl run -- 'cd /tmp && pwd'      run a command in your session; the next one is already in /tmp
  trl term                         open a terminal there; Ctrl-P Ctrl-Q leaves it running
  trl attach SESSION               return to it
  trl start -- ./server            start a background process; trl wait waits for it, trl logs -f ID follows it
  trl ls                           list your sessions`,
		Version:           buildinfo.Version(),
		SilenceErrors:     true, // execute prints them with their hints
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	root.SetFlagErrorFunc(cmdline.FlagError)
	root.SetHelpCommand(cmdline.NewHelp())
	root.SetUsageFunc(cmdline.UsageWithGroups(config.GroupTitles))
	cobra.EnableCommandSorting = false // they are grouped
	group := func(title string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: title, Title: title})
		for _, cmd := range commands {
			cmd.GroupID = title
		}
		root.AddCommand(commands...)
	}
	group("Work in sessions", cli.WorkCommands()...)
	group("List and show", cli.ListCommands()...)
	group("Share and record", cli.SharingCommands()...)
	group("Serve agents", cli.NewMCP())
	group("Operate the gateway", serve.NewServe(start), config.NewCommand(), cli.NewToken(), cli.NewUpgrade(), cli.NewDrain(), cli.NewAudit(), serve.NewDoctor(), cli.NewBench())
	group("About trl", cli.NewVersion(), cli.NewSDK())
	root.AddCommand(serve.NewKillOrphans())
	root.SetHelpCommandGroupID("About trl")
	root.SetCompletionCommandGroupID("About trl")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	cmdline.CompleteChoices(root)
	return root
}
