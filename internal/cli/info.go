package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newInfo() *cobra.Command {
	return aboutSession(&cobra.Command{
		Use: "info [SESSION]", Short: "Show one session, by id or name", Long: "Show one session, by id or name.",
	}, infoTable, "session.info")
}

func infoTable(s protocol.SessionInfo) table {
	t := table{rows: [][]string{
		{"session", s.SessionID}, {"name", dashIfEmpty(s.Name)}, {"state", s.State}, {"shell", shellWords(s)},
		{"directory", s.WorkingDir}, {"created", s.CreatedAt.Local().Format(time.DateTime)}, {"last active", formatAge(s.LastActiveAt) + " ago"},
		{"commands run", fmt.Sprint(s.CommandsRun)}, {"waiting", fmt.Sprint(s.QueueLength)}, {"processes", fmt.Sprint(s.Processes)},
		{"terminals", fmt.Sprint(s.Terminals)},
	}}
	if s.Node != "" {
		t.add("node", s.Node)
	}
	if len(s.Where) > 0 {
		t.add("where", labelWords(s.Where))
	}
	if c := s.CurrentExec; c != nil {
		t.add("running", fmt.Sprintf("%s for %s: %s", c.ID, formatAge(c.StartedAt), cmdline.Shorten(c.Command, 60)))
	}
	for _, r := range s.InTerminals {
		t.add("in a terminal", fmt.Sprintf("%s: %s", r.TermID, cmdline.Shorten(r.Command, 60)))
	}
	if len(s.Unmanaged) > 0 {
		t.add("left running", strings.Trim(fmt.Sprint(s.Unmanaged), "[]"))
	}
	if s.TerminatedAt != nil {
		t.add("ended", fmt.Sprintf("%s ago: %s", formatAge(*s.TerminatedAt), s.Reason))
	}
	return t
}

// shellWords describes a session's shell, with its pid while it runs.
func shellWords(s protocol.SessionInfo) string {
	if s.Pid == 0 {
		return s.Shell
	}
	return fmt.Sprintf("%s (pid %d)", s.Shell, s.Pid)
}
