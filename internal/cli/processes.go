package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newProcesses() *cobra.Command {
	return aboutSession(&cobra.Command{
		Use: "ps [SESSION]", Short: "List a session's background processes and terminals",
		Long: "List the background processes and terminals of a session (id or name), and the processes that its commands left running.",
	}, processTable, "process.list", "term.list")
}

func processTable(all struct {
	protocol.Processes
	protocol.Terminals
}) table {
	t := table{header: []string{"PROCESS", "NAME", "PID", "STATE", "AGE", "OUTPUT", "ATTACHED", "COMMAND"}}
	for _, p := range all.Processes.Processes {
		t.add(p.ProcessID, dashIfEmpty(p.Name), fmt.Sprint(p.Pid), stateWords(p.State, p.Signal, p.ExitCode), formatAge(p.StartedAt), fmt.Sprint(p.OutputBytes), "-", cmdline.Shorten(p.Command, 40))
	}
	for _, p := range all.Terminals.Terminals {
		t.add(p.TermID, "terminal", fmt.Sprint(p.Pid), stateWords(p.State, p.Signal, p.ExitCode), formatAge(p.StartedAt), fmt.Sprint(p.OutputBytes), attachedWords(p.Attached), cmdline.Shorten(p.Command, 40))
	}
	commands := map[int]string{}
	for _, e := range all.BackgroundCommands {
		commands[e.Pid] = e.Command
	}
	for _, pid := range all.Background {
		t.add("-", "-", fmt.Sprint(pid), "left running", "-", "-", "-", dashIfEmpty(cmdline.Shorten(commands[pid], 40)))
	}
	return t
}

func stateWords(state, signal string, code *int) string {
	switch {
	case signal != "":
		return state + " " + signal
	case code != nil:
		return state + " " + fmt.Sprint(*code)
	}
	return state
}

// attachedWords names the viewers of a terminal. A guest has the name of the share link.
func attachedWords(all []protocol.TermViewer) string {
	var words []string
	for _, v := range all {
		words = append(words, fmt.Sprintf("%s (%s)", cmp.Or(v.Via, v.Subject), v.Mode))
	}
	return dashIfEmpty(strings.Join(words, ", "))
}
