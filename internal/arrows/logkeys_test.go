package arrows

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every key of the log is in docs/operations.md, and the keys of durations tell their unit.
func TestLogKeysAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "\n## Logs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !found {
		t.Fatal("docs/operations.md has no section Logs")
	}
	key := regexp.MustCompile(`\.(Str|Strs|Stringer|Int|Ints|Int64|Uint32|Uint64|Float64|Dur|Durs|Bool|AnErr|Bytes|Interface|Any)\("([A-Za-z_]+)",`)
	n := 0
	for _, folder := range []string{"internal/serve", "internal/config", "internal/member", "web", "pool", "runtime", "reaper"} {
		err := filepath.WalkDir(filepath.Join("../..", folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/web/ui/") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range key.FindAllStringSubmatch(string(text), -1) {
				n++
				if strings.HasPrefix(m[1], "Dur") != strings.HasSuffix(m[2], "_ms") && m[2] != "duration_ms" {
					t.Errorf("%s: %s(%q): the key of a duration, and of nothing else, ends with _ms", path, m[1], m[2])
				}
				if !strings.Contains(section, "`"+m[2]+"`") {
					t.Errorf("%s: the key %q is not in the section Logs of docs/operations.md", path, m[2])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n < 50 {
		t.Errorf("%d keys found: the reading of the sources is broken", n)
	}
}
