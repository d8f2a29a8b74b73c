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
	maxLines        = 600 // of a file
	maxFields       = 25  // of a struct
	maxPackageLines = 5000
)

func TestPackagesAreSmall(t *testing.T) {
	lines := map[string]int{}
	for _, name := range productFiles(t) {
		if !strings.HasSuffix(name, ".go") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		lines[filepath.ToSlash(filepath.Dir(name))] += bytes.Count(b, []byte("\n"))
	}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if n := lines[name]; n > maxPackageLines {
			t.Errorf("%s has %d lines, at most %d are allowed", name, n, maxPackageLines)
		}
	}
}

// Only what ships, and is written by people, is held to the limits: no tests, no generated files, no measuring from outside.
func TestFilesAreShort(t *testing.T) {
	for _, name := range productFiles(t) {
		b, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(b, []byte("\n")); n > maxLines {
			t.Errorf("%s has %d lines, at most %d are allowed", name, n, maxLines)
		}
	}
}

func TestStructsAreNarrow(t *testing.T) {
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
					t.Errorf("%s: %s has %d fields, at most %d are allowed", name, typ.Name.Name, s.Fields.NumFields(), maxFields)
				}
			}
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
var notShipped = []string{"internal/testkit", "internal/rig", "internal/natsrig", "internal/acceptance", "internal/bench", "internal/arrows"}
