package acceptance

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// lines is how many lines of each letter there are, less those that were dropped; a row of docs/ACCEPTANCE.md is wanted for each.
var lines = map[string][]int{
	"A": {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12},
	"B": {1, 3, 4, 6, 7, 8, 9, 10, 11, 12},
	"C": {1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13},
	"D": {1, 3, 4, 5, 7, 9, 10, 12, 13, 14, 15},
	"E": {1, 3, 4, 5, 6, 8, 9, 10, 11},
	"F": {1, 2, 3, 4, 5, 7, 8},
	"G": {1, 3, 4, 5, 6, 7, 8, 10, 11, 12},
	"H": {1, 3, 4, 5, 8, 9, 10, 11, 12},
	"I": {1, 2, 3, 4, 5, 7, 8, 9, 10, 11},
	"J": {1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13},
	"L": {1, 2, 3, 4, 6},
	"M": {1, 2, 4, 5},
	"N": {1, 3},
	"O": {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14},
}

// docs/ACCEPTANCE.md has a row for every line, and the tests that it names exist.
func TestDocNamesTests(t *testing.T) {
	b, err := os.ReadFile("../../docs/ACCEPTANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err = filepath.WalkDir("../..", func(p string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(p, "_test.go") {
			return err
		}
		text, err := os.ReadFile(p)
		for _, m := range function.FindAllSubmatch(text, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`(Test\\w+)[/`]")
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-O]\d+) \|(.*)$`).FindAllStringSubmatch(string(b), -1) {
		line, text := m[1], m[2]
		if rows[line] {
			t.Errorf("%s has two rows", line)
		}
		rows[line] = true
		tests := name.FindAllStringSubmatch(text, -1)
		for _, test := range tests {
			if !have[test[1]] {
				t.Errorf("%s names %s, which is nowhere", line, test[1])
			}
		}
		if len(tests) == 0 && !strings.Contains(text, "terminal") && !strings.Contains(text, "later issue") {
			t.Errorf("%s has no test and no reason: %s", line, text)
		}
	}
	for letter, numbers := range lines {
		for _, n := range numbers {
			if line := fmt.Sprint(letter, n); !rows[line] {
				t.Errorf("%s has no row in docs/ACCEPTANCE.md", line)
			}
		}
	}
}
