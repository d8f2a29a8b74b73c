package arrows

import (
	"os"
	"path"
	"strings"
	"testing"
)

// startProcesses are the packages that make quick leaves out, since each of their tests starts processes. This one runs the go command.
var startProcesses = []string{"internal/acceptance", "internal/arrows", "web/ui/browser"}

// In the other packages a test that starts a process calls testkit.StartsProcesses, which skips it in a quick run. testkit.Main and
// testkit.Suite fail a quick run in which a process was started, so packages whose tests can start one need a TestMain that uses them.
func TestQuickRunsAreChecked(t *testing.T) {
	can, checked := map[string]string{}, map[string]bool{}
	for _, f := range goFiles(t) {
		dir := path.Dir(f.path)
		if !strings.HasSuffix(f.path, "_test.go") || within(dir, startProcesses) {
			continue
		}
		b, err := os.ReadFile(root + "/" + f.path)
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		for _, sign := range []string{"exec.Command(", "testkit.StartsProcesses(", "testkit.Start(", "os.StartProcess("} {
			if strings.Contains(text, sign) {
				can[dir] = f.path
			}
		}
		if strings.Contains(text, "testkit.Main(m)") || strings.Contains(text, "testkit.Suite{") {
			checked[dir] = true
		}
	}
	for dir, file := range can {
		if !checked[dir] {
			t.Errorf("%s starts processes: %s needs a TestMain that ends with testkit.Main(m)", file, dir)
		}
	}
	makefile, err := os.ReadFile(root + "/Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "grep -v -e /internal/acceptance/ -e /ui/browser)") {
		t.Error("make quick leaves out other packages than this test")
	}
}

// within says that dir is one of folders, or below one.
func within(dir string, folders []string) bool {
	for _, f := range folders {
		if dir == f || strings.HasPrefix(dir, f+"/") {
			return true
		}
	}
	return false
}
