package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Annotations of flags.
const (
	choiceMark  = "choice"  // the only values
	choicesMark = "several" // the only values of a list
)

// markChoice says what alone a setting may be.
func markChoice(f *pflag.FlagSet, name string, of ...string) { mark(f, choiceMark, of, name) }

// markChoices says what alone may be in a list.
func markChoices(f *pflag.FlagSet, name string, of ...string) { mark(f, choicesMark, of, name) }

// mark sets an annotation of flags.
func mark(f *pflag.FlagSet, key string, values []string, names ...string) {
	for _, name := range names {
		if err := f.SetAnnotation(name, key, values); err != nil {
			panic(err) // no such flag
		}
	}
}

// groupAnnotation is the annotation of a flag with the title under which --help lists it.
const groupAnnotation = "group"

// markGroup says under which title --help lists flags.
func markGroup(f *pflag.FlagSet, title string, names ...string) {
	mark(f, groupAnnotation, []string{title}, names...)
}

func groupOf(g *pflag.Flag) string { return strings.Join(g.Annotations[groupAnnotation], "") }

// whichGateway is the group of the flags by which a client finds its gateway.
const whichGateway = "Which gateway"

// completeChoices has the shell offer the values of every flag that takes one of a closed list.
func completeChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(g *pflag.Flag) {
		of := append(slices.Clone(g.Annotations[choiceMark]), g.Annotations[choicesMark]...)
		if len(of) > 0 {
			_ = cmd.RegisterFlagCompletionFunc(g.Name, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, sub := range cmd.Commands() {
		completeChoices(sub)
	}
}
