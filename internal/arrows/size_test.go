package arrows

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	maxLines  = 600 // of a file
	maxFields = 25  // of a struct
)

// longFiles and wideStructs are those that were over the limits when these tests were written, with their sizes then. An entry goes when
// the file or struct is under the limit; none is added, and no number grows.
var (
	longFiles   = map[string]int{}
	wideStructs = map[string]int{ // by their name alone, since packages are being cut
		"Host": 42, "Shell": 32, "run": 34,
	}
)

// Only what ships, and is written by people, is held to the limits: no tests, no generated files, no measuring from outside.
func TestFilesAreShort(t *testing.T) {
	seen := map[string]int{}
	for _, name := range productFiles(t) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			seen[name] = n
		}
	}
	checkSizes(t, "lines", maxLines, seen, longFiles)
}

func TestStructsAreNarrow(t *testing.T) {
	seen := map[string]int{}
	for _, name := range productFiles(t) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range g.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				if s, ok := typ.Type.(*ast.StructType); ok && s.Fields.NumFields() > maxFields {
					seen[typ.Name.Name] = max(seen[typ.Name.Name], s.Fields.NumFields())
				}
			}
		}
	}
	checkSizes(t, "fields", maxFields, seen, wideStructs)
}

func checkSizes(t *testing.T, what string, most int, seen, known map[string]int) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if limit := max(most, known[name]); seen[name] > limit {
			t.Errorf("%s has %d %s, at most %d are allowed", name, seen[name], what, limit)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		if seen[name] == 0 {
			t.Errorf("%s is no longer over %d %s: take it off the list", name, most, what)
		}
	}
}

// productFiles are the Go files and the page's TypeScript files that ship, but for generated ones.
func productFiles(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, f := range goFiles(t) {
		if !strings.HasSuffix(f.path, "_test.go") && !within(filepath.ToSlash(filepath.Dir(f.path)), notShipped) && !ast.IsGenerated(f.File) {
			names = append(names, f.path)
		}
	}
	sources, err := filepath.Glob(filepath.Join(root, "web/ui/src/*.ts"))
	if err != nil || len(sources) < 10 {
		t.Fatalf("%d files of TypeScript: %v", len(sources), err)
	}
	for _, name := range sources {
		rel, _ := filepath.Rel(root, name)
		names = append(names, filepath.ToSlash(rel))
	}
	return names
}

// notShipped are packages for tests and for measuring.
var notShipped = []string{"internal/testkit", "internal/rig", "internal/acceptance", "internal/bench", "internal/arrows"}
