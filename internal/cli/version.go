package cli

import (
	"cmp"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"trl/internal/buildinfo"
	"trl/internal/cmdline"
	"trl/protocol"
	"trl/runtime/keeper/wire"
)

func NewVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the versions of trl and of its protocols", Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if asJSON {
				return cmdline.PrintJSON(cmd.OutOrStdout(), map[string]any{
					"version": buildinfo.Version(), "commit": buildinfo.Commit(), "go": runtime.Version(), "platform": platform,
					"protocol": protocol.Version, "keeper_protocol": wire.Version,
				})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "trl %s\ncommit           %s\nbuilt with       %s for %s\nprotocol         %s\nkeeper protocol  %d\n",
				buildinfo.Version(), cmp.Or(buildinfo.Commit(), "unknown"), runtime.Version(), platform, protocol.Version, wire.Version)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
