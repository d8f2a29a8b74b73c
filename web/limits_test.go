package web

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
)

// limitRow is a row of docs/limits.md.
type limitRow struct{ what, bound, at, by string }

func limitRows(t *testing.T) (rows []limitRow) {
	text, err := os.ReadFile("../docs/limits.md")
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
		rows = append(rows, limitRow{strings.TrimSpace(cells[0]), cells[1], cells[2], strings.Trim(strings.TrimSpace(cells[3]), "`")})
	}
	if len(rows) < 50 {
		t.Fatalf("%d rows", len(rows))
	}
	return rows
}

// constant is the value of a constant of ours, by package.name. Constants of tests count for nothing.
func constant(t *testing.T, name string) int64 {
	dir, name, _ := strings.Cut(name, ".")
	values := map[string]ast.Expr{}
	files, err := filepath.Glob("../" + dir + "/*.go")
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
	text, err := os.ReadFile("../docs/configuration.md")
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

func (r limitRow) wantBound(t *testing.T) []string {
	switch {
	case r.by == "rate` of the token":
		return []string{"what its token says"}
	case !strings.HasPrefix(r.by, "--"):
		return spellings(constant(t, r.by))
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

// TestLimitsText compares the bounds that docs/limits.md lists below its tables with the code, and looks whether the tests are there that go
// beyond them.
func TestLimitsText(t *testing.T) {
	text, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "\n## Bounds below the protocol\n")
	if !found {
		t.Fatal("the page has no such section")
	}
	bullet := regexp.MustCompile("^- .+?: ([\\d,]+(?: [KMG]iB| s)?) \\(`([\\w/]+\\.\\w+)`, `([\\w/]+)\\.(Test\\w+)`\\)\\. ")
	n := 0
	for line := range strings.Lines(list) {
		if !strings.HasPrefix(line, "- ") {
			continue
		}
		n++
		m := bullet.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("no bound, constant and test: %s", line)
			continue
		}
		if want := spellings(constant(t, m[2])); !slices.Contains(want, strings.TrimSuffix(m[1], " s")) {
			t.Errorf("the bound is %q, %s is %s", m[1], m[2], want)
		}
		files, _ := filepath.Glob("../" + m[3] + "/*_test.go")
		if !slices.ContainsFunc(files, func(file string) bool {
			code, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(code), "\nfunc "+m[4]+"(")
		}) {
			t.Errorf("%s has no %s", m[3], m[4])
		}
	}
	if n == 0 {
		t.Error("the section lists no bound")
	}
}

// TestLimitsPage: docs/limits.md has the bounds that the code has, and what goes beyond one is answered as it says. Each row has its probe, which goes
// beyond the bound of a real server and returns what came, in the page's words, and the field.
func TestLimitsPage(t *testing.T) {
	left := map[string]bool{}
	for what := range limitProbes {
		left[what] = true
	}
	for _, r := range limitRows(t) {
		delete(left, r.what)
		t.Run(strings.Map(subtestName, r.what), func(t *testing.T) {
			if want := r.wantBound(t); !slices.ContainsFunc(want, func(w string) bool {
				return regexp.MustCompile(`(^|[^\d,])` + regexp.QuoteMeta(w) + `($|[^\d,])`).MatchString(r.bound)
			}) {
				t.Errorf("the bound is %q, %s is %s", r.bound, r.by, want)
			}
			probe := limitProbes[r.what]
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

func subtestName(r rune) rune {
	if r == ' ' || r == '/' {
		return '_'
	}
	if r == '`' || r == ',' {
		return -1
	}
	return r
}
