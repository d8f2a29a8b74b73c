package arrows

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// With text/template Go's linker keeps every exported method of every type: 3.4 MB. cobra has it, but uses it only for templates that a program sets.
func TestTemplatesAreNotLinked(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, module+"/cmd/trl").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		names := strings.Fields(line)
		if from := names[0]; from != "github.com/spf13/cobra" && from != "html/template" && slices.ContainsFunc(names[1:], func(s string) bool { return s == "text/template" || s == "html/template" }) {
			t.Errorf("%s imports templates", from)
		}
	}
	sets := regexp.MustCompile(`\.Set(Version|Help|Usage)Template\(`)
	for _, name := range productFiles(t) {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if sets.Match(text) {
			t.Errorf("%s sets a template of cobra", name)
		}
	}
}
