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
