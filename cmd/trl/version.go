package main

import (
	"fmt"
	goruntime "runtime"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asJSON {
				return printJSON(cmd.OutOrStdout(), map[string]string{
					"version": buildVersion(), "go": goruntime.Version(), "platform": goruntime.GOOS + "/" + goruntime.GOARCH,
				})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "trl %s %s %s/%s\n", buildVersion(), goruntime.Version(), goruntime.GOOS, goruntime.GOARCH)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
