package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestQuoteIsReadBackAsItWas asks a real shell.
func TestQuoteIsReadBackAsItWas(t *testing.T) {
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

func TestPrintableShowsNoEscapes(t *testing.T) {
	if got := printable("a\x1b[31mb\nc\td\u202e"); strings.ContainsAny(got, "\x1b\n\u202e") {
		t.Errorf("%q", got)
	}
}

func TestLocalURL(t *testing.T) {
	for in, want := range map[string]string{
		"http://0.0.0.0:80": "http://127.0.0.1:80", "https://[::]:443": "https://[::1]:443", "http://127.0.0.1:1": "http://127.0.0.1:1",
	} {
		if got := localURL(in); got != want {
			t.Errorf("%s: %s", in, got)
		}
	}
}
