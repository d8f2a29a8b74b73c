package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newStats() *cobra.Command {
	var t *target
	var node string
	cmd := &cobra.Command{
		Use: "stats", Short: "Show the gateway's statistics", Args: cmdline.NoArgs,
		Long: "Show the gateway's statistics; in a cluster those of all nodes that answer, or of one.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "system.stats", protocol.SystemStats{Node: node}, &raw); err != nil {
				return err
			}
			return printAnswer(cmd, t, raw, statsTable)
		},
	}
	t = connection(cmd)
	cmd.Flags().StringVar(&node, "node", "", "count this `node` of the cluster alone")
	return cmd
}

func statsTable(s protocol.Stats) table {
	t := table{rows: [][]string{
		{"sessions", fmt.Sprintf("%d of %d (%d idle, %d running)", s.ActiveSessions, s.MaxSessions, s.ByState["IDLE"], s.ByState["RUNNING"])},
		{"commands run", fmt.Sprint(s.TotalCommandsRun)},
		{"commands now", fmt.Sprintf("%d running, %d waiting", s.Running, s.Queued)},
		{"processes", fmt.Sprint(s.Processes)},
		{"terminals", fmt.Sprint(s.Terminals)},
		{"warm shells", fmt.Sprint(s.WarmShells)},
		{"memory", fmt.Sprintf("%.1f MiB", float64(s.MemoryRSSBytes)/(1<<20))},
		{"up", (time.Duration(s.UptimeS) * time.Second).String()},
	}}
	if len(s.Partial) > 0 {
		t.add("not answered", strings.Join(s.Partial, ", "))
	}
	return t
}
