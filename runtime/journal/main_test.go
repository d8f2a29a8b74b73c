package journal

import (
	"os"
	"testing"

	"trl/internal/testkit"
)

// TestMain turns into a writer that is about to be killed (see TestNothingIsLostWhenTheWriterIsKilled) when it is started
// as
//
//	journal.test writer SPAN
//
// and else runs the tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "writer" {
		writer(os.Args[2])
		return
	}
	testkit.Main(m)
}
