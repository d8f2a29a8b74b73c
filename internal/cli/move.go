package cli

import (
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newMove() *cobra.Command {
	var (
		t *target
		q protocol.SessionMove
	)
	cmd := &cobra.Command{
		Use: "move SESSION --node NODE", Short: "Move an idle session to another node of the cluster",
		Long: `Move an idle session (id or name) to another node of the cluster. Its id and its name stay, and so do its directory, variables, functions, options,
labels, limits and the output of its ended commands. Whoever uses the session notices nothing: commands that come meanwhile wait, and run there.

A session with a running command, a background process, a terminal, a job that a command left behind, or a share link cannot be moved.`,
		Example: "  trl move build --node n2",
		Args:    cmdline.OneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Node == "" {
				return cmdline.UsageErrorWithHint(errors.New("to which node?"), "name it: `trl move %s --node NODE`; `trl nodes` lists them", args[0])
			}
			q.SessionRef = sessionRef(args[0])
			var raw jsontext.Value
			if err := t.call(cmd.Context(), "session.move", q, &raw); err != nil {
				return hintSession(err, args)
			}
			if t.json {
				return cmdline.PrintJSON(cmd.OutOrStdout(), raw)
			}
			var moved protocol.SessionMoved
			if err := json.Unmarshal(raw, &moved); err != nil {
				return err
			}
			printLost(cmd, moved.StateLost)
			return nil
		},
	}
	t = connection(cmd)
	cmd.Flags().StringVar(&q.Node, "node", "", "move it to this `node`")
	cmd.ValidArgsFunction = completeIDs(t)
	return cmd
}
