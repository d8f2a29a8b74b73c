package main

import (
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/protocol"
)

func newProcesses() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use: "ps SESSION", Short: "List a session's background processes", Args: oneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "process.list", sessionRef(args[0]), &raw); err != nil {
				return err
			}
			if t.json {
				return printJSON(cmd.OutOrStdout(), raw)
			}
			var all protocol.Processes
			if err := json.Unmarshal(raw, &all); err != nil {
				return err
			}
			var rows [][]string
			for _, p := range all.Processes {
				state := p.State
				switch {
				case p.Signal != "":
					state += " " + p.Signal
				case p.ExitCode != nil:
					state += " " + fmt.Sprint(*p.ExitCode)
				}
				rows = append(rows, []string{p.ProcessID, dash(p.Name), fmt.Sprint(p.Pid), state, ago(p.StartedAt), fmt.Sprint(p.OutputBytes), brief(p.Command, 40)})
			}
			for _, pid := range all.Background {
				rows = append(rows, []string{"-", "-", fmt.Sprint(pid), "left running", "-", "-", "-"})
			}
			return printTable(cmd.OutOrStdout(), []string{"PROCESS", "NAME", "PID", "STATE", "AGE", "OUTPUT", "COMMAND"}, rows)
		},
	}
	t = connection(cmd)
	cmd.ValidArgsFunction = completeSessions(t)
	return cmd
}
