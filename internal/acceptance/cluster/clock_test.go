package cluster

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// wallClock are the functions of package time that make a Time of a wall clock, and the methods that read the wall clock of a Time. Time.Sub, time.Since
// and timers use the monotonic clock for times of time.Now.
var wallClock = struct{ functions, methods []string }{
	[]string{"Unix", "UnixMilli", "UnixMicro", "Date", "Parse", "ParseInLocation"},
	[]string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Clock", "Format", "AppendFormat", "Round", "UTC", "In", "Local", "Equal", "MarshalText", "MarshalJSON", "MarshalBinary"},
}

// clockFiles may read a wall clock: certificates have one in them, and the time of change of a file is of the same machine.
var clockFiles = []string{"link/credentials.go"}

// No clock of a machine is compared with that of another one: in the code that nodes talk to each other with, and to NATS, nothing reads a wall clock,
// and no message has a point in time. `make test-soak RUN=TestClockIsAnHourOff` shows it with real processes.
func TestNoClockIsCompared(t *testing.T) {
	files := 0
	for _, root := range []string{"../../../cluster", "../../member"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				slices.ContainsFunc(clockFiles, func(file string) bool { return strings.HasSuffix(path, "/"+file) }) {
				return err
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			usesTime := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"time"` })
			ast.Inspect(file, func(node ast.Node) bool {
				switch x := node.(type) {
				case *ast.SelectorExpr:
					names := wallClock.methods
					if of, ok := x.X.(*ast.Ident); ok && of.Name == "time" {
						names = wallClock.functions
					}
					if usesTime && slices.Contains(names, x.Sel.Name) {
						t.Errorf("%s: %s may read a wall clock", set.Position(x.Pos()), x.Sel.Name)
					}
				case *ast.Field:
					if x.Tag == nil || !strings.Contains(x.Tag.Value, "json:") {
						break
					}
					if kind, ok := x.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Time" {
						t.Errorf("%s: a message has a point in time", set.Position(x.Pos()))
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 20 {
		t.Errorf("only %d files", files)
	}
}
