package testkit

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBinary is the path of the running test binary, which ActAwkward turns into an awkward child.
var TestBinary, _ = os.Executable()

var markers atomic.Int64

// Marker returns a text that no other process has on its command line, and that sleep takes for a duration.
func Marker() string {
	return fmt.Sprintf("%d.%06d%06d", int(AwkwardLife.Seconds()), os.Getpid(), markers.Add(1))
}

// DeadMount mounts a file system that answers nobody, until answer is called: then with an error.
func DeadMount(t *testing.T) (dir string, answer func()) {
	t.Helper()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip("no FUSE: ", err)
	}
	dir = t.TempDir()
	if err := unix.Mount("dead", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)); err != nil {
		unix.Close(fd)
		t.Skip("no FUSE may be mounted: ", err)
	}
	answer = sync.OnceFunc(func() {
		unix.Close(fd)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(answer)
	return dir, answer
}

// Passable makes a directory that every user may write to, and get to.
func Passable(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "trl-test-")
	if err == nil {
		err = os.Chmod(dir, 0o777)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
