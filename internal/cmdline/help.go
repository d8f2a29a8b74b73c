package cmdline

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

const (
	flagColumn = 30  // column of the flags' descriptions; a longer name gets a line of its own
	helpWidth  = 100 // if stdout is not a terminal
)

// helpColumns is the width of --help: the terminal's, but at most 120, because longer lines are hard to read.
func helpColumns() int {
	w, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 {
		return helpWidth
	}
	return min(max(int(w.Col), 60), 120)
}

// UsageWithGroups prints the part of --help below the description. It groups commands and flags, and wraps their descriptions. titles are
// the groups of flags in their order; "" is for flags without a group.
func UsageWithGroups(titles []string) func(*cobra.Command) error {
	return func(cmd *cobra.Command) error { return printUsage(cmd, titles) }
}

func printUsage(cmd *cobra.Command, titles []string) error {
	w := cmd.OutOrStderr()
	fmt.Fprintln(w, "Usage:")
	subs := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(sub *cobra.Command) bool { return !sub.IsAvailableCommand() })
	if len(subs) == 0 || takesArgs(cmd) {
		fmt.Fprintln(w, "  "+cmd.UseLine())
	}
	if len(subs) > 0 {
		fmt.Fprintln(w, "  "+cmd.CommandPath()+" COMMAND")
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(w, "\nAlso: %s\n", strings.Join(cmd.Aliases, ", "))
	}
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	width := 0
	for _, sub := range subs {
		width = max(width, len(sub.Name()))
	}
	inGroups(w, "Commands", subs, func(sub *cobra.Command) string { return sub.GroupID }, func(sub *cobra.Command) {
		fmt.Fprintf(w, "  %-*s  %s\n", width, sub.Name(), sub.Short)
	})
	columns := helpColumns()
	inGroups(w, "Flags", flagsOf(cmd.LocalFlags(), titles), groupOf, func(g *pflag.Flag) { printFlag(w, g, columns) })
	inGroups(w, "Also", flagsOf(cmd.InheritedFlags(), titles), groupOf, func(g *pflag.Flag) { printFlag(w, g, columns) })
	if len(subs) > 0 {
		fmt.Fprintf(w, "\n`%s COMMAND --help` describes a command in detail.\n", cmd.CommandPath())
	}
	return nil
}

// inGroups prints things under the titles of their groups, in the order in which the groups appear. rest is the title for things without a
// group.
func inGroups[T any](w io.Writer, rest string, things []T, title func(T) string, print func(T)) {
	var titles []string
	of := map[string][]T{}
	for _, thing := range things {
		t := title(thing)
		if len(of[t]) == 0 {
			titles = append(titles, t)
		}
		of[t] = append(of[t], thing)
	}
	for i, t := range titles {
		heading := cmp.Or(t, rest)
		if t == "" && i > 0 {
			heading = "Other " + strings.ToLower(rest)
		}
		fmt.Fprintf(w, "\n%s:\n", heading)
		for _, thing := range of[t] {
			print(thing)
		}
	}
}

func flagsOf(f *pflag.FlagSet, titles []string) (all []*pflag.Flag) {
	f.VisitAll(func(g *pflag.Flag) {
		if !g.Hidden {
			all = append(all, g)
		}
	})
	slices.SortStableFunc(all, func(a, b *pflag.Flag) int {
		return slices.Index(titles, groupOf(a)) - slices.Index(titles, groupOf(b))
	})
	return all
}

func printFlag(w io.Writer, g *pflag.Flag, columns int) {
	takes, text := pflag.UnquoteUsage(g)
	name := "      --" + g.Name
	if g.Shorthand != "" {
		name = "  -" + g.Shorthand + ", --" + g.Name
	}
	switch {
	case takes == "duration":
		takes = "time"
	case strings.ContainsAny(takes, "|/"): // the description lists the values
		takes = "word"
	}
	if takes != "" {
		name += " " + takes
	}
	if def := g.DefValue; !slices.Contains([]string{"", "0", "0s", "false", "[]"}, def) && !strings.Contains(text, "default ") && !strings.Contains(text, "default:") {
		if g.Value.Type() == "duration" {
			def = BriefDuration(def)
		}
		text += " (default " + strings.Trim(def, "[]") + ")"
	}
	for i, line := range wrap(text, columns-flagColumn) {
		if i > 0 || utf8.RuneCountInString(name) > flagColumn-2 {
			if i == 0 {
				fmt.Fprintln(w, name)
			}
			name = ""
		}
		fmt.Fprintf(w, "%-*s%s\n", flagColumn, name, line)
	}
}

// wrap breaks a text into lines of at most width characters, at spaces.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// BriefDuration writes 4h0m0s as 4h.
func BriefDuration(text string) string {
	for _, unit := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, unit) {
			text = text[:len(text)-2]
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d == 0 {
		return "0"
	}
	return text
}
