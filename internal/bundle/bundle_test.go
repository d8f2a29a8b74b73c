package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChangedSourceIsNoticed: of each source, and of what npm brings, but not of a file that has another test.
func TestChangedSourceIsNoticed(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"go.mod", "page/src/a.ts", "page/src/generated.ts", "page/package.json", "page/package-lock.json", "page/node_modules/x", "other/b.ts", "page/dist/old.js"} {
		write(name, name)
	}
	b := Bundle{Dir: "page", Sources: []string{"page/src", "other/b.ts"}, Except: []string{"page/src/generated.ts"},
		Make: func() (map[string][]byte, error) { return map[string][]byte{"app.js": []byte("made")}, nil }}
	remake := func() {
		t.Helper()
		if err := b.run(false); err != nil {
			t.Fatal(err)
		}
		t.Chdir(root)
		if err := b.Check(); err != nil {
			t.Fatal(err)
		}
	}
	remake()
	if _, err := os.Stat("page/dist/old.js"); err == nil {
		t.Error("what is no longer made is still there")
	}
	for name, noticed := range map[string]bool{"page/src/a.ts": true, "page/src/new.ts": true, "other/b.ts": true, "page/package-lock.json": true, "page/src/generated.ts": false} {
		write(name, "changed")
		err := b.Check()
		if (err != nil) != noticed {
			t.Errorf("%s has changed: %v", name, err)
		}
		remake()
	}
	write("page/dist/app.js", "edited by hand")
	if err := b.run(true); err == nil || !strings.Contains(err.Error(), "page/dist/app.js is not what the sources give") {
		t.Errorf("an edited dist: %v", err)
	}
}

// TestSourcesAreNamed: a file that goes into dist, and whose change nobody would notice, is refused.
func TestSourcesAreNamed(t *testing.T) {
	b := Bundle{Dir: "page", Sources: []string{"page/src", "other/b.ts"}}
	if err := b.Covers([]string{"src/a.ts", "../other/b.ts", "node_modules/x/y.js"}); err != nil {
		t.Error(err)
	}
	if err := b.Covers([]string{"../other/c.ts"}); err == nil || !strings.Contains(err.Error(), "other/c.ts") {
		t.Errorf("a file that is not named: %v", err)
	}
}
