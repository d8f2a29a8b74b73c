package main

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestHelpNamesWhatFlagsTake: back-quotes in a flag's text are what it takes, wherever they stand.
func TestHelpNamesWhatFlagsTake(t *testing.T) {
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(g *pflag.Flag) {
			takes, _ := pflag.UnquoteUsage(g)
			if g.Value.Type() == "bool" && takes != "" || slices.Contains(g.Annotations[choiceMark], takes) {
				t.Errorf("%s --%s takes %q", cmd.CommandPath(), g.Name, takes)
			}
		})
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(newRoot(startup{}))
}
