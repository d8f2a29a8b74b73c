package host

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"trl/internal/testkit"
	"trl/runtime/cgroup"
)

// nobody is the number of an ordinary user on every machine.
const nobody = 65534

// An ordinary user with a delegated cgroup (Delegate=yes in systemd) gets tier "cgroup". Root delegates a cgroup here
// and runs the tests of that tier in it as an ordinary user.
func TestDelegatedCgroup(t *testing.T) {
	testkit.StartsProcesses(t)
	if os.Getuid() != 0 {
		t.Skip("only root can delegate a cgroup")
	}
	above, _, err := cgroup.Own()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(above, fmt.Sprintf("trl-test-delegated-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := cgroup.KillLeftover(dir); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} { // cgroups(7), delegation
		if err := os.Chown(filepath.Join(dir, name), nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)

	tests := "^(TestIsolation|TestNothingSurvivesAKill|TestJobOfAnEarlierCellSurvives|TestGroupsLeaveNothing|TestOnlyDeadInstancesAreCleanedUp)$/^cgroup$"
	c := exec.Command(publicCopy(t), "-test.run="+tests, "-test.v", "-test.timeout=10m",
		fmt.Sprint("-test.short=", !testkit.Soak)) // short, because root runs the same tests at their usual length
	c.Dir = "/"
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "HOME=/")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	text, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(text), "cgroup: cgroup, cgroup v2 at "+dir) || strings.Contains(string(text), "--- SKIP") {
		t.Fatalf("%v\n%s", err, text)
	}
	if left := cgroup.Subdirs(dir); len(left) > 0 {
		t.Error("left: ", left)
	}
}

// publicCopy returns the path of a copy of this program that every user can reach. go test builds the program in a
// private directory.
func publicCopy(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "trl-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(testkit.TestBinary)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "runtime.test")
	if err := os.WriteFile(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil { // sets the mode whatever the umask is
		t.Fatal(err)
	}
	return path
}
