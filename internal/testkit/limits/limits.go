// Package limits compares docs/limits.md with what trl does.
package limits

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
)

// root is the directory of go.mod.
func root(t *testing.T) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == "/" {
			t.Fatal("no directory above this one has a go.mod")
		}
		dir = filepath.Dir(dir)
	}
}

// Probe goes beyond a bound of a real server. It returns what came, in the page's words.
type Probe func(*testing.T) []string

// Check compares the rows of the page that are mine with the code and with their probes. Each of these rows needs a probe.
func Check(t *testing.T, mine func(constant string) bool, probes map[string]Probe) {
	left := map[string]bool{}
	for what := range probes {
		left[what] = true
	}
	for _, r := range rows(t) {
		if !mine(r.by) {
			continue
		}
		delete(left, r.what)
		t.Run(strings.Map(subtestName, r.what), func(t *testing.T) {
			if want := r.wantBound(t); !slices.ContainsFunc(want, func(w string) bool {
				return regexp.MustCompile(`(^|[^\d,])` + regexp.QuoteMeta(w) + `($|[^\d,])`).MatchString(r.bound)
			}) {
				t.Errorf("the bound is %q, %s is %s", r.bound, r.by, want)
			}
			probe := probes[r.what]
			if probe == nil {
				t.Fatal("no probe goes beyond this bound")
			}
			for _, came := range probe(t) {
				if !strings.Contains(r.at, came) {
					t.Errorf("%s came, the page says %s", came, r.at)
				}
			}
		})
	}
	for what := range left {
		t.Errorf("the page has no row %q", what)
	}
}

// row is a row of docs/limits.md.
type row struct{ what, bound, at, by string }

func rows(t *testing.T) (all []row) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs/limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| What |") {
			continue
		}
		if len(cells) != 4 {
			t.Fatalf("%d cells: %s", len(cells), line)
		}
		all = append(all, row{strings.TrimSpace(cells[0]), cells[1], cells[2], strings.Trim(strings.TrimSpace(cells[3]), "`")})
	}
	if len(all) < 50 {
		t.Fatalf("%d rows", len(all))
	}
	return all
}

// Constant is the value of a constant of ours, by package.name. Constants of tests count for nothing.
func Constant(t *testing.T, name string) int64 {
	dir, name, _ := strings.Cut(name, ".")
	values := map[string]ast.Expr{}
	files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v", dir, err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, n := range v.Names {
					if i < len(v.Values) {
						values[n.Name] = v.Values[i]
					}
				}
			}
		}
	}
	var eval func(ast.Expr) int64
	eval = func(e ast.Expr) int64 {
		switch e := e.(type) {
		case *ast.BasicLit:
			n, err := strconv.ParseInt(e.Value, 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		case *ast.ParenExpr:
			return eval(e.X)
		case *ast.Ident:
			if values[e.Name] == nil {
				t.Fatalf("%s has no constant %s", dir, e.Name)
			}
			return eval(values[e.Name])
		case *ast.SelectorExpr: // time.Second
			return map[string]int64{"Second": 1, "Minute": 60, "Hour": 3600}[e.Sel.Name]
		case *ast.BinaryExpr:
			x, y := eval(e.X), eval(e.Y)
			switch e.Op {
			case token.ADD:
				return x + y
			case token.MUL:
				return x * y
			case token.SHL:
				return x << y
			}
		}
		t.Fatalf("%s.%s is no expression that this test knows", dir, name)
		return 0
	}
	return eval(&ast.Ident{Name: name})
}

// setting is a flag's default, as docs/configuration.md, which is made from the flags, has it.
func setting(t *testing.T, flag string) string {
	text, err := os.ReadFile(filepath.Join(root(t), "docs/configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	key := strings.ReplaceAll(strings.TrimPrefix(flag, "--"), "-", "_")
	m := regexp.MustCompile("(?m)^\\| `" + key + "` \\| [^|]* \\| [^|]* \\| `([^`]*)` \\|").FindSubmatch(text)
	if m == nil {
		t.Fatalf("configuration.md has no default of %s", flag)
	}
	return string(m[1])
}

// spellings are the ways in which the page may write a number.
func spellings(n int64) (all []string) {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	all = append(all, digits)
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if size := int64(1) << (10 * (i + 1)); n%size == 0 && n/size < 1024 {
			all = append(all, fmt.Sprintf("%d %s", n/size, unit))
		}
	}
	return all
}

func (r row) wantBound(t *testing.T) []string {
	switch {
	case r.by == "rate` of the token":
		return []string{"what its token says"}
	case !strings.HasPrefix(r.by, "--"):
		return spellings(Constant(t, r.by))
	}
	value := setting(t, r.by)
	if value == "0" {
		return []string{"seven eighths of all; an admin: all"}
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return spellings(n)
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("%s is %q", r.by, value)
	}
	return []string{fmt.Sprintf("%g s", d.Seconds()), fmt.Sprintf("%g h", d.Hours())}
}

func subtestName(r rune) rune {
	if r == ' ' || r == '/' {
		return '_'
	}
	if r == '`' || r == ',' {
		return -1
	}
	return r
}

// Came is a refusal in the page's words.
func Came(f *rig.Frame) []string {
	if f.Error == nil {
		return []string{fmt.Sprintf("an answer: %.200v", f.Data)}
	}
	words := []string{"`" + f.Code() + "`"}
	if field := f.Error.Details.Str("field"); field != "" {
		words = append(words, "`"+field+"`")
	}
	return words
}

// Sleep begins a command that does not end, and returns its id.
func Sleep(c *rig.Client, session ...string) string {
	params := rig.Object{"command": "sleep 300"}
	if len(session) > 0 {
		params["session_id"] = session[0]
	}
	return c.Call("exec.stream", params).Str("exec_id")
}
