package cmdline

import (
	"strings"
	"testing"
)

func TestPrintableShowsNoEscapes(t *testing.T) {
	if got := Printable("a\x1b[31mb\nc\td\u202e"); strings.ContainsAny(got, "\x1b\n\u202e") {
		t.Errorf("%q", got)
	}
}
