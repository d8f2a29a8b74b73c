package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newList() *cobra.Command {
	var (
		t *target
		q protocol.SessionList
	)
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List your sessions", Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.All && q.Owner != "" {
				return cmdline.UsageErrorWithHint(errors.New("--all and --owner exclude each other"), "--all lists everybody's sessions, --owner those of one")
			}
			if q.State = strings.ToUpper(q.State); q.State != "" && !slices.Contains(protocol.SessionStates, q.State) {
				return cmdline.UsageErrorWithHint(fmt.Errorf("--state %s: no such state", q.State), "want one of %s", strings.Join(protocol.SessionStates, ", "))
			}
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "session.list", q, &raw); err != nil {
				return err
			}
			return printAnswer(cmd, t, raw, func(all protocol.Sessions) table {
				if len(all.Partial) > 0 {
					fmt.Fprintf(cmd.ErrOrStderr(), "trl: no answer from %s; the list may lack sessions\n", strings.Join(all.Partial, ", "))
				}
				return sessionTable(all, q.All || q.Owner != "")
			})
		},
	}
	t = connection(cmd)
	cmd.Flags().StringVar(&q.State, "state", "", "only sessions in this `state`: "+strings.Join(protocol.SessionStates, ", ")+", in any case")
	cmdline.MarkChoice(cmd.Flags(), "state", protocol.SessionStates...)
	cmd.Flags().StringVar(&q.Label, "label", "", "only sessions with this label (`K or K=V`)")
	cmd.Flags().BoolVar(&q.All, "all", false, "everybody's sessions; for admins")
	cmd.Flags().StringVar(&q.Owner, "owner", "", "the sessions of this `principal`; for admins")
	return cmd
}

// sessionTable has a column for the owner if the sessions of others are listed. In a cluster it has one for the node, and one for the labels that it must
// have if a session was made with such.
func sessionTable(all protocol.Sessions, others bool) table {
	t := table{header: []string{"SESSION", "NAME", "STATE", "ACTIVE", "DIRECTORY", "COMMAND"}}
	if others {
		t.header = slices.Insert(t.header, 1, "OWNER")
	}
	clustered := slices.ContainsFunc(all.Sessions, func(s protocol.SessionInfo) bool { return s.Node != "" })
	if clustered {
		t.header = append(t.header, "NODE")
	}
	bound := slices.ContainsFunc(all.Sessions, func(s protocol.SessionInfo) bool { return len(s.Where) > 0 })
	if bound {
		t.header = append(t.header, "WHERE")
	}
	for _, s := range all.Sessions {
		doing := ""
		switch {
		case s.CurrentExec != nil:
			doing = cmdline.Shorten(s.CurrentExec.Command, 40)
		case len(s.InTerminals) > 0:
			doing = cmdline.Shorten(s.InTerminals[0].Command, 40)
		case s.Reason != "":
			doing = "ended: " + string(s.Reason)
		}
		row := []string{s.SessionID, dashIfEmpty(s.Name), s.State, formatAge(s.LastActiveAt), s.WorkingDir, dashIfEmpty(doing)}
		if others {
			row = slices.Insert(row, 1, s.Owner)
		}
		if clustered {
			row = append(row, s.Node)
		}
		if bound {
			row = append(row, labelWords(s.Where))
		}
		t.add(row...)
	}
	return t
}
