package client_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"trl/internal/testkit"
)

// block is a piece of Go in docs/clients/go.md, and what it prints.
type block struct{ code, output string }

var blocks = regexp.MustCompile("(?s)```go\n(.*?)```(?:\n```text\n(.*?)```)?")

// imports are the packages that the blocks on the page may use without an import.
var imports = map[string]string{
	"client": "trl/client", "context": "context", "errors": "errors", "fmt": "fmt", "log": "log", "os": "os", "regexp": "regexp", "strconv": "strconv",
	"strings": "strings", "time": "time",
}

// patient makes the pauses and the time limits of the page longer than a busy machine stands still: output that a reader finds together is one piece.
var patient = strings.NewReplacer("sleep 0.1", "sleep 3", "Timeout: 200 * time.Millisecond", "Timeout: 4 * time.Second")

// TestThePageRuns compiles and runs every block of docs/clients/go.md, and compares what it prints. A block that is a whole program runs as it is; the
// others have ctx and c, a Client, and may return an error.
func TestThePageRuns(t *testing.T) {
	testkit.StartsProcesses(t)
	page, err := os.ReadFile("../docs/clients/go.md")
	if err != nil {
		t.Fatal(err)
	}
	found := blocks.FindAllStringSubmatch(string(page), -1)
	if len(found) < 8 {
		t.Fatalf("%d blocks on the page", len(found))
	}
	g := startRig(t).start(t, nil)
	defer g.do("stop")
	var functions strings.Builder
	var parts []block
	for _, m := range found {
		b := block{patient.Replace(m[1]), m[2]}
		if strings.HasPrefix(b.code, "package main") {
			t.Run("the whole program", func(t *testing.T) { runProgram(t, g, buildProgram(t, b.code), "", b.output) })
			continue
		}
		fmt.Fprintf(&functions, "func block%d(ctx context.Context, c *client.Client) error {\n%s\nreturn nil\n}\n\n", len(parts), b.code)
		parts = append(parts, b)
	}
	bin := buildProgram(t, programOf(functions.String(), len(parts)))
	for i, b := range parts {
		t.Run(fmt.Sprint(i), func(t *testing.T) { runProgram(t, g, bin, fmt.Sprint(i), b.output) })
	}
}

// programOf makes a program whose first argument says which block it runs.
func programOf(functions string, n int) string {
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n")
	main := `
func main() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{URL: os.Getenv("TRL_URL"), Token: os.Getenv("TRL_TOKEN")})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := blocks[os.Args[1]](ctx, c); err != nil {
		log.Fatal(err)
	}
}

var blocks = map[string]func(context.Context, *client.Client) error{
`
	for i := range n {
		main += fmt.Sprintf("\t\"%d\": block%d,\n", i, i)
	}
	main += "}\n"
	for name, path := range imports {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(functions + main) {
			fmt.Fprintf(&b, "\t%q\n", path)
		}
	}
	b.WriteString(")\n")
	return b.String() + main + "\n" + functions
}

// buildProgram compiles a program as a package of this module, without writing into the module.
func buildProgram(t *testing.T, program string) (bin string) {
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("pageblocks/main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{here: source}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(dir, "page")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", bin, "./pageblocks")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, program)
	}
	return bin
}

// runProgram runs a block of the page and compares what it prints.
func runProgram(t *testing.T, g *gateway, bin, argument, want string) {
	cmd := exec.CommandContext(t.Context(), bin, argument)
	cmd.Env = append(os.Environ(), "TRL_URL="+g.URL, "TRL_TOKEN="+g.Tokens["user"])
	out, err := cmd.CombinedOutput()
	if got := trimmed(string(out)); err != nil || got != trimmed(want) {
		t.Errorf("%v\ngot:\n%s\nwant:\n%s", err, got, trimmed(want))
	}
}

// trimmed is a text without blanks at the ends of its lines.
func trimmed(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " \t\r")
	}
	return strings.Join(lines, "\n")
}
