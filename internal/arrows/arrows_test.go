// Package arrows holds the table of folders and of the arrows between them, and
// fails on a wrong one. It has no code of its own: what it guards is the tree.
package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "trl"

// imports says which of our folders a folder may import. A folder below another one that
// has its own line is not part of that one; else it and its sub-packages may always import
// each other. Only what ships is held to it: a test of the client needs
// a real gateway, and Go itself refuses cycles.
//
// An arrow points from what acts to what it acts on. What must travel the other way
// arrives as an event on a channel that its reader owns.
var imports = map[string][]string{
	"protocol":          nil,
	"statemachine":      nil,
	"metrics":           nil,
	"runtime":           {"protocol", "statemachine", "metrics"},
	"pool":              {"runtime", "statemachine", "protocol", "metrics"},
	"reaper":            {"statemachine", "metrics"},                                                                                  // sees the pool through its own small interface
	"web":               {"pool", "protocol", "metrics", "cluster", "client", "client/typescript", "internal/mcp", "internal/bundle"}, // of the clients: the script that it serves, and what the tools of internal/mcp use
	"client":            {"protocol"},
	"client/typescript": {"internal/bundle"},    // its other files are for other programs
	"client/python":     nil,                    // the same
	"examples":          {"client", "protocol"}, // programs for users, each in a language of a client
	"cluster":           {"protocol", "metrics"},

	"cmd":                {"internal/buildinfo", "internal/cmdline", "internal/config", "internal/cli", "internal/serve"},
	"internal/buildinfo": nil,
	"internal/bundle":    nil,
	"internal/cmdline":   {"protocol"},
	"internal/statedir":  {"internal/cmdline"},
	"internal/config":    {"protocol", "runtime", "pool", "web", "internal/cmdline", "internal/statedir"},
	"internal/serve": {"protocol", "metrics", "runtime", "pool", "reaper", "web",
		"internal/buildinfo", "internal/cmdline", "internal/config", "internal/member", "internal/statedir"},
	"internal/member": {"protocol", "metrics", "cluster", "pool", "web", "internal/buildinfo", "internal/cmdline", "internal/config"},
	"internal/mcp":    {"protocol", "client", "pool", "internal/buildinfo"}, // of pool: bounded patterns
	"internal/cli": {"protocol", "client", "client/typescript", "client/python", "runtime", "web", "internal/mcp", // of runtime: journals, screens and recordings; of web: token files and audit logs
		"internal/bench", "internal/buildinfo", "internal/cmdline", "internal/statedir"},
	"internal/bench":           {"protocol", "client"}, // it measures from outside
	"internal":                 {"protocol", "client"}, // tests of the whole: this one
	"internal/testkit/gateway": {"protocol", "metrics", "pool", "runtime", "cluster", "web", "internal"},
}

// folderOf is the folder of the table that a package, by its path from the root, belongs to.
func folderOf(dir string) string {
	for dir != "." {
		if _, ok := imports[dir]; ok {
			return dir
		}
		dir = path.Dir(dir)
	}
	return ""
}

// packages says which packages of its own folder a package may import. One that is not listed may import them all.
var packages = map[string][]string{
	"cluster/directory":     {"cluster/kv", "cluster/node"},
	"cluster/kv":            nil,
	"cluster/link":          nil,
	"cluster/node":          nil,
	"cluster/placement":     {"cluster/node"},
	"pool/command":          nil,
	"pool/faults":           nil,
	"pool/memory":           nil,
	"pool/moved":            {"pool/clock", "pool/entry"},
	"pool/outcome":          {"pool/shells"},
	"pool/queue":            nil,
	"pool/retained":         nil,
	"pool/settings":         {"pool/claims", "pool/ends", "pool/recording", "pool/requestkey", "pool/shells"},
	"pool/spec":             {"pool/entry", "pool/recording", "pool/settings", "pool/shells", "pool/timeouts"},
	"pool/viewers":          nil,
	"pool/restoring":        nil,
	"pool/share":            {"pool/clock", "pool/entry", "pool/ids"},
	"pool/answer":           {"pool/budget"},
	"pool/background":       nil,
	"pool/budget":           nil,
	"pool/claims":           nil,
	"pool/clock":            nil,
	"pool/token":            nil,
	"pool/entry":            {"pool/clock", "pool/ids", "pool/requestkey"},
	"pool/ends":             nil,
	"pool/events":           {"pool/token"},
	"pool/ids":              nil,
	"pool/places":           {"pool/claims", "pool/settings"},
	"pool/recording":        {"pool/ids"},
	"pool/requestkey":       {"pool/clock"},
	"pool/screenstate":      nil,
	"pool/shells":           nil,
	"pool/timeouts":         nil,
	"pool/waitfor":          nil,
	"pool/warm":             {"pool/shells", "pool/spec", "pool/token"},
	"runtime/cast":          {"runtime/journal"},
	"runtime/cgroup":        {"runtime/descriptor", "runtime/procfs"},
	"runtime/confine":       {"runtime/cgroup", "runtime/descriptor", "runtime/procfs"},
	"runtime/crashpoint":    nil,
	"runtime/descriptor":    nil,
	"runtime/dialect":       nil,
	"runtime/doctor":        {"runtime/cgroup", "runtime/confine", "runtime/dialect", "runtime/host", "runtime/procfs"},
	"runtime/escalate":      {"runtime/procfs"},
	"runtime/host":          {"runtime/cgroup", "runtime/confine", "runtime/descriptor", "runtime/own", "runtime/procfs"},
	"runtime/journal":       nil,
	"runtime/keeper":        {"runtime/confine", "runtime/descriptor", "runtime/host", "runtime/keeper/wire", "runtime/own", "runtime/procfs"},
	"runtime/keeper/client": {"runtime/crashpoint", "runtime/descriptor", "runtime/host", "runtime/keeper/wire", "runtime/own", "runtime/procfs", "runtime/slowfs"},
	"runtime/keeper/wire":   {"runtime/descriptor", "runtime/host", "runtime/own"},
	"runtime/namedshell":    {"runtime/dialect", "runtime/slowfs"},
	"runtime/own":           {"runtime/descriptor"},
	"runtime/procfs":        {"runtime/descriptor"},
	"runtime/screen":        nil,
	"runtime/sessionlog":    {"runtime/crashpoint"},
	"runtime/control":       nil,
	"runtime/saved":         {"runtime/journal", "runtime/stream"},
	"runtime/shell": {"runtime/control", "runtime/crashpoint", "runtime/descriptor", "runtime/dialect", "runtime/escalate", "runtime/journal", "runtime/namedshell", "runtime/own", "runtime/procfs",
		"runtime/saved", "runtime/sessionlog", "runtime/slowfs", "runtime/snapshot", "runtime/stream", "runtime/terminal"},
	"runtime/slowfs":   {"runtime/confine", "runtime/descriptor"},
	"runtime/snapshot": {"runtime/crashpoint", "runtime/descriptor", "runtime/dialect", "runtime/own", "runtime/saved", "runtime/sessionlog"},
	"runtime/stream":   {"runtime/descriptor", "runtime/journal", "runtime/own", "runtime/sessionlog"},
	"runtime/terminal": {"runtime/descriptor", "runtime/dialect", "runtime/own", "runtime/stream"},
	"web/audit":        nil,
	"web/auth":         {"web/filewatch", "web/listen", "web/transport"},
	"web/filewatch":    nil,
	"web/listen":       {"web/filewatch", "web/transport"},
	"web/rpc":          {"web/audit", "web/auth", "web/rpc/bounds", "web/rpc/cluster", "web/rpc/credit", "web/rpc/move", "web/rpc/recent", "web/rpc/source", "web/transport"},
	"web/rpc/bounds":   {"web/auth", "web/transport"},
	"web/rpc/cluster":  {"web/auth"},
	"web/rpc/credit":   nil,
	"web/rpc/source":   nil,
	"web/rpc/recent":   nil,
	"web/rpc/move":     {"web/audit", "web/auth", "web/rpc/cluster", "web/transport"},
	"web/transport":    nil,
}

// noGo are the other folders of the top: no package in them. bin is what make builds.
var noGo = []string{"deploy", "docs", "bin"}

// vague are names that say nothing about what is inside.
var vague = []string{"util", "utils", "common", "helper", "helpers", "types", "models", "misc", "shared"}

const root = "../.."

func TestTopLevelFolders(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if _, ok := imports[e.Name()]; !ok && !slices.Contains(noGo, e.Name()) {
			t.Errorf("%s/ is in no table: say in docs/CONTRIBUTING.md what it is for and add it here", e.Name())
		}
	}
}

func TestArrows(t *testing.T) {
	for _, f := range goFiles(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		from := folderOf(path.Dir(f.path))
		for _, imp := range f.imports() {
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok {
				continue
			}
			to := folderOf(ours)
			if to != from && !slices.Contains(imports[from], to) {
				t.Errorf("%s imports %s: %s may import %v of ours", f.path, imp, from, imports[from])
			}
			if own, listed := packages[path.Dir(f.path)]; to == from && listed && !slices.Contains(own, ours) {
				t.Errorf("%s imports %s: of its own folder it may import %v", f.path, imp, own)
			}
		}
	}
}

// Every package says what it is in its first sentence, once.
func TestPackageComments(t *testing.T) {
	said := map[string]int{}
	for _, f := range goFiles(t) {
		dir := path.Dir(f.path)
		said[dir] += 0
		doc := strings.TrimSpace(f.Doc.Text())
		if doc == "" || strings.HasSuffix(f.Name.Name, "_test") {
			continue
		}
		said[dir]++
		want := "Package " + f.Name.Name + " "
		if f.Name.Name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		if !strings.HasPrefix(doc, want) {
			t.Errorf("%s: the package comment does not begin with %q", f.path, want)
		}
	}
	for dir, n := range said {
		if n != 1 {
			t.Errorf("%s has %d package comments, want one", dir, n)
		}
	}
}

func TestNames(t *testing.T) {
	for _, f := range goFiles(t) {
		for elem := range strings.SplitSeq(path.Dir(f.path), "/") {
			if slices.Contains(vague, elem) {
				t.Errorf("%s: %q does not say what is in it", f.path, elem)
			}
		}
	}
}

// file is one parsed Go file; path is slash-separated, from the root.
type file struct {
	*ast.File
	path string
}

func (f file) imports() []string {
	var all []string
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser took it, so this cannot be
		}
		all = append(all, p)
	}
	return all
}

func goFiles(t *testing.T) []file {
	t.Helper()
	var files []file
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if p != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		files = append(files, file{parsed, filepath.ToSlash(rel)})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 5 {
		t.Fatalf("%d Go files found under %s: the walk is broken", len(files), root)
	}
	return files
}
