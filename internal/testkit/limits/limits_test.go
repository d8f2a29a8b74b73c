package limits

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLimitsText compares the bounds that docs/limits.md lists below its tables with the code, and looks whether the tests are there that go
// beyond them.
func TestLimitsText(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "docs/limits.md"))
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
		if want := spellings(Constant(t, m[2])); !slices.Contains(want, strings.TrimSuffix(m[1], " s")) {
			t.Errorf("the bound is %q, %s is %s", m[1], m[2], want)
		}
		files, _ := filepath.Glob(filepath.Join(root(t), m[3], "*_test.go"))
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
