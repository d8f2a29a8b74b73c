package cli

import (
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
)

// A table is an answer of the gateway in a form for people.
type table struct {
	header []string
	rows   [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// printAnswer prints an answer of the gateway: unchanged with --json, otherwise as the table that show makes of it.
func printAnswer[T any](cmd *cobra.Command, t *target, answer jsontext.Value, show func(T) table) error {
	if t.json {
		return cmdline.PrintJSON(cmd.OutOrStdout(), answer)
	}
	var decoded T
	if err := json.Unmarshal(answer, &decoded); err != nil {
		return err
	}
	shown := show(decoded)
	return cmdline.PrintTable(cmd.OutOrStdout(), shown.header, shown.rows)
}

// aboutSession gives cmd a RunE that asks for one session (without an argument for the default session) and prints the answer. If it is
// given several methods, it merges their answers into one document; the answers have no field in common.
func aboutSession[T any](cmd *cobra.Command, show func(T) table, methods ...string) *cobra.Command {
	t := connection(cmd)
	cmd.Long += "\n" + defaultHelp
	cmd.Args, cmd.ValidArgsFunction = cmdline.MaybeOneArg, completeSessions(t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		all := map[string]jsontext.Value{}
		var answer jsontext.Value
		for _, method := range methods {
			err := t.call(cmd.Context(), method, sessionRef(sessionOf(args)), &answer)
			if err == nil && len(methods) > 1 {
				err = json.Unmarshal(answer, &all)
			}
			if err != nil {
				return hintSession(err, args)
			}
		}
		if len(methods) > 1 {
			var err error
			if answer, err = json.Marshal(all, json.Deterministic(true)); err != nil {
				return err
			}
		}
		return printAnswer(cmd, t, answer, show)
	}
	return cmd
}

// formatAge returns the time since t in one unit, the largest that is precise enough.
func formatAge(t time.Time) string {
	d := time.Since(t)
	switch {
	case t.IsZero():
		return "-"
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// dashIfEmpty shows that a cell is empty on purpose.
func dashIfEmpty(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
