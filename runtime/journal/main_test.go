package journal

import (
	"flag"
	"os"
	"testing"

	"trl/internal/testkit"
)

// TestMain turns the test binary into a writer that will be killed (see TestNothingIsLostWhenTheWriterIsKilled) if it is started as
//
//	journal.test writer SPAN
//
// and otherwise runs the tests.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "writer" {
		writer(os.Args[2])
		return
	}
	if !testkit.Soak { // the usual 100 take half a minute, with the race detector
		if err := flag.Set("rapid.checks", "40"); err != nil {
			panic(err)
		}
	}
	testkit.Main(m)
}
