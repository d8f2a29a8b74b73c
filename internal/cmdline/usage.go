package cmdline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"trl/protocol"
)

// ReadStrictly turns errors in the command line of cmd and its subcommands into usage errors. Cobra finds those before it calls RunE, which
// sets read.
func ReadStrictly(cmd *cobra.Command, read *bool) {
	if len(cmd.Commands()) > 0 && cmd.RunE == nil {
		cmd.Args = subcommand
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*read = true
			return run(cmd, args)
		}
	}
	for _, sub := range cmd.Commands() {
		ReadStrictly(sub, read)
	}
}

// subcommand checks the arguments of a command that only has subcommands.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	hint := fmt.Sprintf("see `%s --help`", cmd.CommandPath())
	if near := protocol.Nearest(args[0], names); near != "" {
		hint = fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), near)
	}
	return WithHint(fmt.Errorf("unknown command %q", Shorten(cmd.CommandPath()+" "+args[0], 80)), "%s", hint)
}

// FlagError explains an invalid flag. In `trl rnu --session x` the unknown command is the error, not the flag.
func FlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); len(args) > 0 && len(cmd.Commands()) > 0 && !takesArgs(cmd) {
		return subcommand(cmd, args)
	}
	return WithHint(err, "see `%s --help`", cmd.CommandPath())
}

// takesArgs says whether a command has arguments of its own besides its subcommands.
func takesArgs(cmd *cobra.Command) bool { return strings.Contains(cmd.Use, " ") }

// NewHelp replaces cobra's help command, which does not refuse an unknown command.
func NewHelp() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Explain a command",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			of, rest, err := cmd.Root().Find(args)
			if err == nil && len(rest) == 0 {
				for _, sub := range of.Commands() {
					if sub.IsAvailableCommand() {
						names = append(names, sub.Name())
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return UsageError{err}
			case len(rest) > 0:
				return UsageError{subcommand(of, rest)}
			}
			return of.Help()
		},
	}
}

// NoArgs, OneArg and MaybeOneArg are cobra's checks with errors that say what to do.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return WithHint(fmt.Errorf("unexpected argument %q", args[0]), "usage: %s", cmd.UseLine())
	}
	return nil
}

func OneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		words := strings.Fields(cmd.Use)
		return WithHint(fmt.Errorf("which %s?", words[len(words)-1]), "usage: %s", cmd.UseLine())
	}
	return MaybeOneArg(cmd, args)
}

func MaybeOneArg(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 1:
		return NoArgs(cmd, args[1:])
	case len(args) == 1 && args[0] == "":
		return WithHint(errors.New("an empty argument"), "is a variable unset? usage: %s", cmd.UseLine())
	}
	return nil
}

// NonEmpty is a flag value that must not be empty: an unset variable in a script must not have the meaning of an absent flag.
type NonEmpty string

func (n *NonEmpty) Set(text string) error {
	if text == "" {
		return errors.New("it is empty; is a variable unset?")
	}
	*n = NonEmpty(text)
	return nil
}

func (n *NonEmpty) String() string { return string(*n) }
func (n *NonEmpty) Type() string   { return "string" }
