package host

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trl/internal/testkit"
	"trl/runtime/confine"
)

// TestPortsOfDeadKeepersAreRemoved checks that the next start removes the FIFO directory of a killed keeper and the
// mounts below it. It leaves alone the directory of a living keeper and a directory without a lock.
func TestPortsOfDeadKeepersAreRemoved(t *testing.T) {
	testkit.StartsProcesses(t)
	if err := confine.Landlock(); err != nil {
		t.Skip("no session has a directory of ports: ", err)
	}
	other := exec.Command(testkit.TestBinary, "awkward", "instance-ports", testkit.Marker())
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	dir, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	dir = strings.TrimSuffix(dir, "\n")
	mounted := isMounted(dir)
	unlocked := filepath.Join(filepath.Dir(dir), fifoDirName(NewInstance())) // builds without locks made such directories
	if err := makeDir(unlocked, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = removeDir(unlocked) })

	testHost(t, "none")
	if _, err := os.Stat(filepath.Join(dir, "s-1")); err != nil {
		t.Fatalf("the living keeper's: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if _, err := os.Stat(filepath.Join(dir, "s-1")); err != nil {
		t.Fatalf("nothing was left to remove: %v", err)
	}
	testHost(t, "none")
	testkit.Eventually(t, "the dead keeper's are removed", func() bool { // another trl may be removing it and may not have finished
		_, err := os.Lstat(dir)
		return os.IsNotExist(err)
	})
	if mounts, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
	if _, err := os.Stat(unlocked); err != nil {
		t.Errorf("one without a lock: %v", err)
	}
}
