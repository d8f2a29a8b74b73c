package quick_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"trl/runtime/quick"
)

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// pipe is the caller's to close.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	return p[0], p[1]
}

// What comes back is what unix's functions say of the same descriptors, at the end of a pipe, too.
func TestCalls(t *testing.T) {
	count := must[int](t)
	r, w := pipe(t)
	defer unix.Close(r)
	buf := make([]byte, 100)
	if n, err := quick.Read(r, buf); n != -1 || err != unix.EAGAIN {
		t.Errorf("an empty pipe: %d %v", n, err)
	}
	text := []byte("some text")
	if n := count(quick.Write(w, text)); n != len(text) {
		t.Errorf("wrote %d", n)
	}
	if n := count(quick.Unread(r)); n != len(text) {
		t.Errorf("unread %d", n)
	}
	if n := count(quick.Read(r, buf[:4])); string(buf[:n]) != "some" {
		t.Errorf("read %q", buf[:n])
	}

	fd := must[int](t)(unix.MemfdCreate("quick", unix.MFD_CLOEXEC))
	defer unix.Close(fd)
	if n := count(quick.Splice(r, fd, 100)); n != 5 {
		t.Errorf("spliced %d", n)
	}
	if n, err := quick.Splice(r, fd, 100); n != -1 || err != unix.EAGAIN {
		t.Errorf("of an empty pipe: %d %v", n, err)
	}
	if n := count(quick.Pwrite(fd, []byte("T"), 1)); n != 1 {
		t.Errorf("wrote %d", n)
	}
	if n := count(quick.Pread(fd, buf, 1)); string(buf[:n]) != "Text" {
		t.Errorf("read %q", buf[:n])
	}
	var st unix.Stat_t
	for _, want := range []bool{false, true} {
		if err := quick.ClearTimes(fd); err != nil {
			t.Error(err)
		}
		if want {
			count(quick.Pread(fd, buf, 1))
		}
		if err := unix.Fstat(fd, &st); err != nil || st.Mtim.Sec != 0 || (st.Atim.Sec != 0) != want {
			t.Errorf("read since: %v; %v written %v, read %v", want, err, st.Mtim, st.Atim)
		}
	}
	if err := quick.Ftruncate(fd, 3); err != nil {
		t.Error(err)
	}
	if n := count(quick.Pread(fd, buf, 0)); string(buf[:n]) != " Te" {
		t.Errorf("read %q", buf[:n])
	}

	unix.Close(w)
	if n := count(quick.Read(r, buf)); n != 0 {
		t.Errorf("at the end: %d", n)
	}
	if n := count(quick.Read(r, nil)); n != 0 {
		t.Errorf("nothing asked for: %d", n)
	}
}

func TestErrors(t *testing.T) {
	for name, call := range map[string]func() (int, error){
		"read":      func() (int, error) { return quick.Read(-1, nil) },
		"write":     func() (int, error) { return quick.Write(-1, nil) },
		"pread":     func() (int, error) { return quick.Pread(-1, nil, 0) },
		"pwrite":    func() (int, error) { return quick.Pwrite(-1, nil, 0) },
		"splice":    func() (int, error) { return quick.Splice(-1, -1, 1) },
		"times":     func() (int, error) { return -1, quick.ClearTimes(-1) },
		"ftruncate": func() (int, error) { return -1, quick.Ftruncate(-1, 0) },
	} {
		if n, err := call(); n != -1 || err != unix.EBADF {
			t.Errorf("%s: %d %v", name, n, err)
		}
	}
	if _, err := quick.Unread(-1); err != unix.EBADF {
		t.Error(err)
	}
	if n, err := quick.Readlink("/proc/self/none", make([]byte, 10)); n != -1 || err != unix.ENOENT {
		t.Errorf("readlink: %d %v", n, err)
	}
	if n, err := quick.Readlink("a\x00b", make([]byte, 10)); n != -1 || err != unix.EINVAL {
		t.Errorf("readlink: %d %v", n, err)
	}
	r, w := pipe(t)
	defer unix.Close(w)
	unix.Close(r)
	if n, err := quick.Write(w, []byte("x")); n != -1 || err != unix.EPIPE {
		t.Errorf("nobody reads: %d %v", n, err)
	}
}

func TestReadlink(t *testing.T) {
	want := must[string](t)(os.Getwd())
	buf := make([]byte, 4096)
	n := must[int](t)(quick.Readlink("/proc/self/cwd", buf))
	if got := string(buf[:n]); got != want {
		t.Errorf("%q, is in %q", got, want)
	}
	if n := must[int](t)(quick.Readlink("/proc/self/cwd", buf[:3])); n != 3 || string(buf[:3]) != want[:3] {
		t.Errorf("cut short: %d %q", n, buf[:3])
	}
}

// A child has our open file as its stdin; the same file, opened again, is another.
func TestSameFile(t *testing.T) {
	null := must[*os.File](t)(os.Open(os.DevNull))
	defer null.Close()
	again := must[*os.File](t)(os.Open(os.DevNull))
	defer again.Close()
	child := exec.Command("sleep", "60")
	child.Stdin = null
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill(); _ = child.Wait() }()
	pid := child.Process.Pid
	if _, _, errno := unix.RawSyscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), 0, 0, 0, 0); errno != 0 {
		t.Logf("kcmp: %v", errno)
	} else if !quick.SameFile(pid, 0, int(null.Fd())) {
		t.Error("its stdin is not ours")
	}
	if quick.SameFile(pid, 0, int(again.Fd())) || quick.SameFile(pid, 99, int(null.Fd())) || quick.SameFile(1<<22+1, 0, int(null.Fd())) {
		t.Error("what is not one open file is")
	}
}

// Nothing of it is allocated: it is called several times for each command.
func TestNoAllocations(t *testing.T) {
	r, w := pipe(t)
	defer unix.Close(r)
	defer unix.Close(w)
	text := bytes.Repeat([]byte("x"), 10)
	if n := testing.AllocsPerRun(100, func() {
		var buf [20]byte
		_, _ = quick.Write(w, text)
		_, _ = quick.Unread(r)
		_, _ = quick.Read(r, buf[:])
		_, _ = quick.Read(r, buf[:]) // EAGAIN
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
