package dialect

import (
	"slices"
	"testing"
)

func TestEnvironmentOfATerminal(t *testing.T) {
	got := TerminalEnv([]string{"A=1", "NO_COLOR=1", "GIT_PAGER=less", "TERM=dumb", "COLUMNS=7", "LINES=9"})
	if want := []string{"A=1", "GIT_PAGER=less", "TERM=xterm-256color", "COLORTERM=truecolor"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	got = MergeEnv([]string{"A=1", "B=2", "C=3"}, map[string]*string{"A": nil, "B": new("x=y")})
	if want := []string{"C=3", "B=x=y"}; !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
