package arrows

import (
	"os/exec"
	"strings"
	"testing"
)

// What only a build with -tags otel may link: the plain one would pay for it in size, in start-up time and in what must be kept current.
func TestTracingIsLinkedOnlyWhenAskedFor(t *testing.T) {
	for tags, want := range map[string]bool{"": false, "otel": true} {
		out, err := exec.Command("go", "list", "-deps", "-tags", tags, module+"/cmd/trl").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, path := range []string{"go.opentelemetry.io/", "google.golang.org/grpc"} {
			if got := strings.Contains("\n"+string(out), "\n"+path); got != want {
				t.Errorf("-tags %q: %s is linked: %v", tags, path, got)
			}
		}
	}
}

// The keeper lives for months and holds everything, so it has as little code as it can.
func TestKeeperLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", module+"/runtime/keeper").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for path := range strings.FieldsSeq(string(out)) {
		ours, ok := strings.CutPrefix(path, module+"/")
		if !ok {
			continue
		}
		for _, no := range []string{"pool", "web", "runtime/shell", "runtime/dialect", "runtime/journal", "runtime/screen", "runtime/cast", "runtime/sessionlog", "runtime/keeper/client"} {
			if ours == no || strings.HasPrefix(ours, no+"/") {
				t.Errorf("the keeper links %s", ours)
			}
		}
	}
}
