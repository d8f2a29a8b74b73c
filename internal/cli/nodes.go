package cli

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newNodes() *cobra.Command {
	var t *target
	cmd := &cobra.Command{
		Use: "nodes", Short: "List the nodes of the cluster", Args: cmdline.NoArgs,
		Long: `List the nodes of the cluster, as the gateway that answers knows them. LOAD is how many processes want to run, for each processor.

A gateway without a cluster lists itself.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "system.nodes", nil, &raw); err != nil {
				return err
			}
			return printAnswer(cmd, t, raw, func(all protocol.Nodes) table {
				if all.Degraded {
					fmt.Fprintln(cmd.ErrOrStderr(), "trl: the cluster's directory does not answer; these are the nodes known by then")
				}
				return nodeTable(all)
			})
		},
	}
	t = connection(cmd)
	return cmd
}

func nodeTable(all protocol.Nodes) table {
	t := table{header: []string{"NODE", "STATE", "SESSIONS", "LOAD", "VERSION", "LABELS", "URL"}}
	for _, n := range all.Nodes {
		name, state := n.Node, "ready"
		if n.Self {
			name += " *"
		}
		switch {
		case n.Unreachable != "":
			state = "unreachable: " + cmdline.Shorten(n.Unreachable, 60)
		case n.Draining:
			state = "draining"
		case n.MaxSessions == 0:
			state = "no sessions"
		case n.ActiveSessions >= n.MaxSessions:
			state = "full"
		}
		t.add(name, state, fmt.Sprintf("%d/%d", n.ActiveSessions, n.MaxSessions), strconv.FormatFloat(n.Load, 'f', 2, 64), n.Version,
			labelWords(n.Labels), dashIfEmpty(n.URL))
	}
	return t
}

// labelWords are labels in one word, or a dash.
func labelWords(labels map[string]string) string {
	var words []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		words = append(words, key+"="+labels[key])
	}
	return dashIfEmpty(strings.Join(words, ","))
}
