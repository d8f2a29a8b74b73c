package arrows

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/ARCHITECTURE.md has the same table of folders as this package, and names every package of each.
func TestFolderTableIsCurrent(t *testing.T) {
	page, err := os.ReadFile(root + "/docs/ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Folders\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string]string{} // folder: its row
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|(.*)\\| ([^|]+) \\|$").FindAllStringSubmatch(section, -1) {
		folder, text, may := m[1], m[2], m[3]
		rows[folder] = "`" + folder + "`" + text
		if want, ok := imports[folder]; ok && !sameWords(may, want) {
			t.Errorf("docs/ARCHITECTURE.md: %s may import %s, arrows allows %v", folder, may, want)
		}
		if _, err := os.Stat(path.Join(root, folder)); err != nil {
			t.Errorf("docs/ARCHITECTURE.md has a row of a folder that is not there: %v", err)
		}
	}
	if len(rows) < 10 {
		t.Fatalf("%d rows found: the reading of the table is broken", len(rows))
	}
	var packages []string
	for _, f := range goFiles(t) {
		packages = append(packages, path.Dir(f.path))
	}
	slices.Sort(packages)
packages:
	for _, dir := range slices.Compact(packages) {
		for up := dir; up != "."; up = path.Dir(up) {
			row, ok := rows[up]
			if !ok {
				continue
			}
			if strings.Contains(row, "`"+dir+"`") || up != dir && strings.Contains(row, "`"+path.Base(dir)+"`") {
				continue packages
			}
		}
		t.Errorf("docs/ARCHITECTURE.md: the table of folders does not name %s", dir)
	}
	for _, m := range regexp.MustCompile("`([a-z]+(?:/[a-z]+)+)`").FindAllStringSubmatch(section, -1) {
		if _, err := os.Stat(path.Join(root, m[1])); err != nil {
			t.Errorf("docs/ARCHITECTURE.md names %s, which is not there", m[1])
		}
	}
}

// sameWords says that a cell lists want, in any order; a dash is the empty list.
func sameWords(cell string, want []string) bool {
	got := strings.FieldsFunc(cell, func(r rune) bool { return r == ',' || r == ' ' || r == '–' })
	slices.Sort(got)
	return slices.Equal(got, slices.Sorted(slices.Values(want)))
}
