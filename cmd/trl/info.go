package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/protocol"
)

func newInfo() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use: "info [SESSION]", Short: "Show one session, by id or name", Args: maybeOneArg,
		Long: "Show one session, by id or name.\n" + defaultHelp,
		RunE: func(cmd *cobra.Command, args []string) error {
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "session.info", sessionRef(sessionOf(args)), &raw); err != nil {
				return hintSession(err, args)
			}
			if t.json {
				return printJSON(cmd.OutOrStdout(), raw)
			}
			var s protocol.SessionInfo
			if err := json.Unmarshal(raw, &s); err != nil {
				return err
			}
			rows := [][]string{
				{"session", s.SessionID}, {"name", dashIfEmpty(s.Name)}, {"state", s.State}, {"shell", shellWords(s)},
				{"directory", s.WorkingDir}, {"created", s.CreatedAt.Local().Format(time.DateTime)}, {"last active", formatAge(s.LastActiveAt) + " ago"},
				{"commands run", fmt.Sprint(s.CommandsRun)}, {"waiting", fmt.Sprint(s.QueueLength)}, {"processes", fmt.Sprint(s.Processes)},
				{"terminals", fmt.Sprint(s.Terminals)},
			}
			if c := s.CurrentExec; c != nil {
				rows = append(rows, []string{"running", fmt.Sprintf("%s for %s: %s", c.ID, formatAge(c.StartedAt), shorten(c.Command, 60))})
			}
			for _, r := range s.InTerminals {
				rows = append(rows, []string{"in a terminal", fmt.Sprintf("%s: %s", r.TermID, shorten(r.Command, 60))})
			}
			if len(s.Unmanaged) > 0 {
				rows = append(rows, []string{"left running", strings.Trim(fmt.Sprint(s.Unmanaged), "[]")})
			}
			if s.TerminatedAt != nil {
				rows = append(rows, []string{"ended", fmt.Sprintf("%s ago: %s", formatAge(*s.TerminatedAt), s.Reason)})
			}
			return printTable(cmd.OutOrStdout(), nil, rows)
		},
	}
	t = connection(cmd)
	cmd.ValidArgsFunction = completeSessions(t)
	return cmd
}

// shellWords is a session's shell, with its process while there is one.
func shellWords(s protocol.SessionInfo) string {
	if s.Pid == 0 {
		return s.Shell
	}
	return fmt.Sprintf("%s (pid %d)", s.Shell, s.Pid)
}
