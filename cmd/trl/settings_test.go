package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trl/internal/testkit"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// TestQuoteIsReadBackAsItWas asks a real shell.
func TestQuoteIsReadBackAsItWas(t *testing.T) {
	testkit.StartsProcesses(t)
	words := []string{"", "plain", "a b", "it's", "$HOME", "`id`", "*", "~", "\\", "\"", "a\nb", "-n", "x=y", "é", "#", "!", "{a,b}", "'", "''"}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = quote(w)
	}
	for _, sh := range []string{"sh", "bash"} {
		out, err := exec.Command(sh, "-c", `printf '%s\0' `+strings.Join(quoted, " ")).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); strings.Join(got, "|") != strings.Join(words, "|") {
			t.Errorf("%s: %q", sh, got)
		}
	}
}

// TestEverySettingHasItsVariable: one name, derived; and no default that check would refuse.
func TestEverySettingHasItsVariable(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "TRL_") {
			t.Setenv(name, "")
			os.Unsetenv(name)
		}
	}
	var s settings
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.define(f)
	if err := s.load(f); err != nil {
		t.Fatalf("defaults: %v", err)
	}
	t.Setenv("TRL_MAX_SESSIONS_PER_PRINCIPAL", "5")
	t.Setenv("TRL_ORIGIN", "http://a,http://b")
	if err := s.load(f); err != nil {
		t.Fatal(err)
	}
	if s.pool.MaxPerPrincipal != 5 || len(s.web.Origins) != 2 {
		t.Errorf("%+v", s)
	}
}

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

func TestPrintableShowsNoEscapes(t *testing.T) {
	if got := printable("a\x1b[31mb\nc\td\u202e"); strings.ContainsAny(got, "\x1b\n\u202e") {
		t.Errorf("%q", got)
	}
}

func TestLocalURL(t *testing.T) {
	for _, c := range []struct{ url, listen, want string }{
		{"http://0.0.0.0:80", "0.0.0.0:80", "http://127.0.0.1:80"},
		{"https://[::]:443", "[::]:443", "https://[::1]:443"},
		{"http://[::]:80", ":80", "http://127.0.0.1:80"},
		{"http://[::]:80", "0.0.0.0:80", "http://127.0.0.1:80"}, // bound by who did not tell them apart
		{"http://127.0.0.1:1", "127.0.0.1:1", "http://127.0.0.1:1"},
	} {
		if got := localURL(c.url, c.listen); got != c.want {
			t.Errorf("%s, --listen %s: %s", c.url, c.listen, got)
		}
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "100": 100, "100B": 100, "1K": 1 << 10, "512M": 512 << 20, "512MB": 512 << 20, "512MiB": 512 << 20, "2g": 2 << 30, "1T": 1 << 40,
		"": -1, "M": -1, "1.5G": -1, "-1": -1, "1X": -1, "1MM": -1, "1 M": -1, "9999999T": -1, "9223372036854775807": 9223372036854775807,
	} {
		n := size(7)
		if err := n.Set(text); err != nil {
			n = -1
		}
		if int64(n) != want {
			t.Errorf("%q: %d", text, n)
		}
	}
}
