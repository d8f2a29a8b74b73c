package client

import (
	"os/exec"
	"strings"
	"testing"

	"trl/internal/testkit"
)

// TestQuoteIsReadBackAsItWas uses a real shell.
func TestQuoteIsReadBackAsItWas(t *testing.T) {
	testkit.StartsProcesses(t)
	words := []string{"", "plain", "a b", "it's", "$HOME", "`id`", "*", "~", "\\", "\"", "a\nb", "-n", "x=y", "é", "#", "!", "{a,b}", "'", "''"}
	for _, sh := range []string{"sh", "bash"} {
		out, err := exec.Command(sh, "-c", `printf '%s\0' `+Quote(words...)).Output()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); strings.Join(got, "|") != strings.Join(words, "|") {
			t.Errorf("%s: %q", sh, got)
		}
	}
}
