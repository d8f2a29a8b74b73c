package cmdline

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags.
const (
	ChoiceMark  = "choice"  // the only valid values
	ChoicesMark = "several" // the only valid values of a list
)

// MarkChoice lists the only valid values of a flag.
func MarkChoice(f *pflag.FlagSet, name string, of ...string) { Mark(f, ChoiceMark, of, name) }

// MarkChoices lists the only valid values in a list flag.
func MarkChoices(f *pflag.FlagSet, name string, of ...string) { Mark(f, ChoicesMark, of, name) }

// Mark annotates flags.
func Mark(f *pflag.FlagSet, key string, values []string, names ...string) {
	for _, name := range names {
		if err := f.SetAnnotation(name, key, values); err != nil {
			panic(err) // no such flag
		}
	}
}

// groupAnnotation has the title under which --help lists a flag.
const groupAnnotation = "group"

// MarkGroup sets the title under which --help lists flags.
func MarkGroup(f *pflag.FlagSet, title string, names ...string) {
	Mark(f, groupAnnotation, []string{title}, names...)
}

func groupOf(g *pflag.Flag) string { return strings.Join(g.Annotations[groupAnnotation], "") }

// WhichGateway is the group of the flags by which a client finds its gateway.
const WhichGateway = "Which gateway"

// CompleteChoices adds shell completion to every flag with a closed list of values.
func CompleteChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(g *pflag.Flag) {
		of := append(slices.Clone(g.Annotations[ChoiceMark]), g.Annotations[ChoicesMark]...)
		if len(of) > 0 {
			_ = cmd.RegisterFlagCompletionFunc(g.Name, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, sub := range cmd.Commands() {
		CompleteChoices(sub)
	}
}
