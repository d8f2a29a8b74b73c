package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/protocol"
)

func newProcesses() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use: "ps [SESSION]", Short: "List a session's background processes and terminals", Args: maybeOneArg,
		Long: "List the background processes and terminals of a session (id or name), and what its commands left running.\n" + defaultHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, ref := map[string]jsontext.Value{}, sessionRef(sessionOf(args))
			for _, method := range []string{"process.list", "term.list"} { // their answers have no field in common
				if err := t.call(cmd.Context(), method, ref, &raw); err != nil {
					return hintSession(err, args)
				}
			}
			if t.json {
				return printJSON(cmd.OutOrStdout(), raw)
			}
			var all struct {
				protocol.Processes
				protocol.Terminals
			}
			text, err := json.Marshal(raw)
			if err == nil {
				err = json.Unmarshal(text, &all)
			}
			if err != nil {
				return err
			}
			var rows [][]string
			for _, p := range all.Processes.Processes {
				rows = append(rows, []string{
					p.ProcessID, dashIfEmpty(p.Name), fmt.Sprint(p.Pid), stateWords(p.State, p.Signal, p.ExitCode), formatAge(p.StartedAt), fmt.Sprint(p.OutputBytes), "-", shorten(p.Command, 40),
				})
			}
			for _, p := range all.Terminals.Terminals {
				rows = append(rows, []string{
					p.TermID, "terminal", fmt.Sprint(p.Pid), stateWords(p.State, p.Signal, p.ExitCode), formatAge(p.StartedAt), fmt.Sprint(p.OutputBytes), attachedWords(p.Attached), shorten(p.Command, 40),
				})
			}
			commands := map[int]string{}
			for _, e := range all.BackgroundCommands {
				commands[e.Pid] = e.Command
			}
			for _, pid := range all.Background {
				rows = append(rows, []string{"-", "-", fmt.Sprint(pid), "left running", "-", "-", "-", dashIfEmpty(shorten(commands[pid], 40))})
			}
			return printTable(cmd.OutOrStdout(), []string{"PROCESS", "NAME", "PID", "STATE", "AGE", "OUTPUT", "ATTACHED", "COMMAND"}, rows)
		},
	}
	t = connection(cmd)
	cmd.ValidArgsFunction = completeSessions(t)
	return cmd
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

// attachedWords names who is at a terminal, by the share link for who came by one.
func attachedWords(all []protocol.TermViewer) string {
	var words []string
	for _, v := range all {
		words = append(words, fmt.Sprintf("%s (%s)", cmp.Or(v.Via, v.Subject), v.Mode))
	}
	return dashIfEmpty(strings.Join(words, ", "))
}
