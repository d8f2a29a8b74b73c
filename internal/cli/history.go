package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newHistory() *cobra.Command {
	return aboutSession(&cobra.Command{
		Use: "history [SESSION]", Short: "List a session's commands, with their ids and how they ended",
		Long: `List the latest 200 commands of a session (id or name), oldest first: ended ones within the retention time, the running one, and
waiting ones. trl logs EXEC prints the output of a command.`,
	}, historyTable, "exec.list")
}

func historyTable(all protocol.Execs) table {
	t := table{header: []string{"EXEC", "WHEN", "TOOK", "END", "COMMAND"}}
	for _, e := range all.Execs {
		began, took := e.QueuedAt, "-"
		if e.StartedAt != nil {
			began, took = *e.StartedAt, time.Since(*e.StartedAt).Round(time.Second).String()
		}
		if e.Exit != nil {
			took = (time.Duration(e.Exit.DurationMS) * time.Millisecond).String()
		}
		t.add(e.ExecID, began.Local().Format(time.DateTime), took, endWords(e), cmdline.Shorten(e.Command, 60))
	}
	return t
}

// endWords says how a command ended; if it has not ended, its state.
func endWords(e protocol.ExecEntry) string {
	if e.Exit == nil {
		return e.State
	}
	var words []string
	if e.Exit.ExitCode != nil {
		words = append(words, fmt.Sprint(*e.Exit.ExitCode))
	}
	if e.Exit.Signal != "" {
		words = append(words, e.Exit.Signal)
	}
	switch {
	case e.Exit.Error != nil:
		words = append(words, string(e.Exit.Error.Code))
	case e.Exit.TimedOut:
		words = append(words, "timed out")
	case e.Exit.Cancelled:
		words = append(words, "cancelled")
	}
	return dashIfEmpty(strings.Join(words, " "))
}
