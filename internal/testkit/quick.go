package testkit

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// Quick says that this run skips every test that starts a process (make quick).
var Quick = os.Getenv("TRL_QUICK") == "1"

// StartsProcesses must be the first call of a test, or of its set-up, that starts a process. In a quick run it skips the test.
func StartsProcesses(t testing.TB) {
	t.Helper()
	if Quick {
		t.Skip("starts processes: not in a quick run")
	}
}

// TakesLong must be the first call of a test that starts no process but takes more than a second. In a quick run it skips the test.
func TakesLong(t testing.TB) {
	t.Helper()
	if Quick {
		t.Skip("takes long: not in a quick run")
	}
}

// Main runs a package's tests. A TestMain calls it last. The run fails if a goroutine is left at its end, or if a test has started a
// process in a quick run.
func Main(m *testing.M) {
	goleak.VerifyTestMain(Suite{m}, goleak.IgnoreTopFunction("trl/internal/testkit.startPrograms"))
}

// Suite runs a package's tests, for a TestMain that does not end with Main.
type Suite struct{ *testing.M }

func (s Suite) Run() int {
	HearSignals()
	code := s.M.Run()
	if Quick && !listsTests() && startedProcess() {
		fmt.Fprintln(os.Stderr, "--- FAIL: a test has started a process in a quick run (TRL_QUICK=1). Such a test calls testkit.StartsProcesses first.")
		return 1
	}
	return code
}

// listsTests says whether this run only prints the names of the tests.
func listsTests() bool { return flag.Lookup("test.list").Value.String() != "" }

// startedProcess says whether this process has, or has had, a child.
func startedProcess() bool {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err == nil && u.Minflt > 0 {
		return true // a child that was waited for
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		children, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if strings.TrimSpace(string(children)) != "" {
			return true
		}
	}
	return false
}
