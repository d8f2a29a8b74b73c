package cmdline

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags.
const (
	ChoiceMark  = "choice"  // the only values
	ChoicesMark = "several" // the only values of a list
)

// MarkChoice says what alone a setting may be.
func MarkChoice(f *pflag.FlagSet, name string, of ...string) { Mark(f, ChoiceMark, of, name) }

// MarkChoices says what alone may be in a list.
func MarkChoices(f *pflag.FlagSet, name string, of ...string) { Mark(f, ChoicesMark, of, name) }

// Mark sets an annotation of flags.
func Mark(f *pflag.FlagSet, key string, values []string, names ...string) {
	for _, name := range names {
		if err := f.SetAnnotation(name, key, values); err != nil {
			panic(err) // no such flag
		}
	}
}

// groupAnnotation is the annotation of a flag with the title under which --help lists it.
const groupAnnotation = "group"

// MarkGroup says under which title --help lists flags.
func MarkGroup(f *pflag.FlagSet, title string, names ...string) {
	Mark(f, groupAnnotation, []string{title}, names...)
}

func groupOf(g *pflag.Flag) string { return strings.Join(g.Annotations[groupAnnotation], "") }

// WhichGateway is the group of the flags by which a client finds its gateway.
const WhichGateway = "Which gateway"

// CompleteChoices has the shell offer the values of every flag that takes one of a closed list.
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
