package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/serve"
	"trl/web/auth"
)

// TestHelpIsGrouped: each group has its heading, descriptions of flags begin in one column, and no line is wider than a terminal.
func TestHelpIsGrouped(t *testing.T) {
	root := newRoot(serve.Startup{})
	for _, words := range [][]string{{}, {"serve"}, {"config", "check"}, {"run"}, {"token", "create"}, {"recordings"}} {
		cmd, _, err := root.Find(words)
		if err != nil {
			t.Fatal(err)
		}
		text := cmd.UsageString()
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "      --") && utf8.RuneCountInString(line) > 121 {
				t.Errorf("%s: %d wide: %s", cmd.CommandPath(), utf8.RuneCountInString(line), line)
			}
		}
		if len(words) == 1 && words[0] == "serve" {
			for _, title := range config.GroupTitles {
				if title != "" && title != cmdline.WhichGateway && strings.Count(text, "\n"+title+":\n") != 1 {
					t.Errorf("serve has not one heading %q", title)
				}
			}
		}
		for _, title := range []string{"Work in sessions", "Operate the gateway"} {
			if len(words) == 0 && !strings.Contains(text, "\n"+title+":\n") {
				t.Errorf("trl has no heading %q:\n%s", title, text)
			}
		}
	}
}

// complete returns the completions for a command line.
func complete(t *testing.T, words ...string) (offered []string) {
	root := newRoot(serve.Startup{})
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(new(bytes.Buffer))
	root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, words...))
	if err := root.Execute(); err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return lines[:len(lines)-1] // the last line tells the shell what else to do
}

// TestClosedListsAreCompleted checks every flag of every command: a flag whose help shows a|b has a closed list, and completion offers all
// values of a closed list.
func TestClosedListsAreCompleted(t *testing.T) {
	lists := map[string][]string{}
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(g *pflag.Flag) {
			name := cmd.CommandPath() + " --" + g.Name
			of := append(slices.Clone(g.Annotations[cmdline.ChoiceMark]), g.Annotations[cmdline.ChoicesMark]...)
			if takes, _ := pflag.UnquoteUsage(g); strings.Contains(takes, "|") && !slices.Equal(strings.Split(takes, "|"), of) {
				t.Errorf("%s takes %s, its closed list is %q", name, takes, of)
			}
			if len(of) == 0 {
				return
			}
			lists[name] = of
			if got := complete(t, append(strings.Fields(cmd.CommandPath())[1:], "--"+g.Name, "")...); !slices.Equal(got, of) {
				t.Errorf("%s offers %q, its closed list is %q", name, got, of)
			}
		})
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(newRoot(serve.Startup{}))
	for name, has := range map[string]string{
		"trl serve --isolation": "none", "trl serve --log-format": "json", "trl serve --require-isolation": "cgroup", "trl serve --jwt-alg": auth.JWTAlgorithms[0],
		"trl config check --auth": "none", "trl config print --format": "yaml", "trl token create --role": "viewer", "trl ls --state": "IDLE",
		"trl kill --signal": "USR1", "trl recordings get --format": "v2", "trl bench --format": "benchstat",
	} {
		if !slices.Contains(lists[name], has) {
			t.Errorf("%s: %q has no %s", name, lists[name], has)
		}
	}
}

// TestHelpNamesWhatFlagsTake: back-quotes in a flag's description name its value.
func TestHelpNamesWhatFlagsTake(t *testing.T) {
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(g *pflag.Flag) {
			takes, _ := pflag.UnquoteUsage(g)
			if g.Value.Type() == "bool" && takes != "" || slices.Contains(g.Annotations[cmdline.ChoiceMark], takes) {
				t.Errorf("%s --%s takes %q", cmd.CommandPath(), g.Name, takes)
			}
		})
		for _, sub := range cmd.Commands() {
			look(sub)
		}
	}
	look(newRoot(serve.Startup{}))
}
