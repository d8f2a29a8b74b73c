package descriptor

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// WriteMemfd writes b to the beginning of a memfd.
func WriteMemfd(fd int, b []byte) error {
	for off := 0; off < len(b); {
		n, err := unix.Pwrite(fd, b[off:], int64(off))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("memfd: %w", err)
		}
		off += n
	}
	return nil
}

// PollFor waits for fds for the time d; a negative d means no limit. After EINTR it returns with nothing ready; every caller checks
// again.
func PollFor(fds []unix.PollFd, d time.Duration) {
	var ts *unix.Timespec
	if d >= 0 {
		t := unix.NsecToTimespec(int64(d))
		ts = &t
	}
	if _, err := unix.Ppoll(fds, ts, nil); err != nil {
		for i := range fds {
			fds[i].Revents = 0
		}
	}
}

// Futimens is futimens(3).
func Futimens(fd int, times *[2]unix.Timespec) error {
	_, _, errno := unix.Syscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(times)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// WaitPidfd returns when the process of f has exited.
func WaitPidfd(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n > 0
	})
}
