package python

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFilesAreWhole: everything that git has of the package is among the files that the program carries.
func TestFilesAreWhole(t *testing.T) {
	var have, want []string
	if err := fs.WalkDir(Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			have = append(have, name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want = append(want, "README.md", "pyproject.toml")
	if err := filepath.WalkDir("trl_client", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(name, ".pyc") {
			want = append(want, filepath.ToSlash(name))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("embedded: %v\nthere is: %v", have, want)
	}
	if text, err := os.ReadFile("trl_client/_client.py"); err != nil || len(text) == 0 {
		t.Fatal("this test looks at the wrong directory:", err)
	}
}
