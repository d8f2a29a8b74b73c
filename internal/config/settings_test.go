package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestEverySettingHasItsVariable: the name of each variable is derived from its flag, and check accepts all defaults.
func TestEverySettingHasItsVariable(t *testing.T) {
	withoutVariables(t)
	var s Settings
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.Define(f)
	if err := s.load(f); err != nil {
		t.Fatalf("defaults: %v", err)
	}
	t.Setenv("TRL_MAX_SESSIONS_PER_PRINCIPAL", "5")
	t.Setenv("TRL_ORIGIN", "http://a,http://b")
	if err := s.load(f); err != nil {
		t.Fatal(err)
	}
	if s.Pool.MaxPerPrincipal != 5 || len(s.Web.Origins) != 2 {
		t.Errorf("%+v", s)
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

// TestEverySettingIsInOneGroup: --help shows each setting once.
func TestEverySettingIsInOneGroup(t *testing.T) {
	in := map[string]int{}
	for _, g := range settingGroups {
		for _, name := range strings.Fields(g.flags) {
			in[name]++
		}
	}
	for _, g := range append(allSettings(), &pflag.Flag{Name: "config"}) {
		if in[g.Name] != 1 {
			t.Errorf("--%s is in %d groups", g.Name, in[g.Name])
		}
	}
}
