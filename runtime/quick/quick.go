// Package quick calls the kernel without telling Go's scheduler, for what each command does and cannot wait.
//
// A system call that may wait hands its processor over first, and where all was idle that wakes the scheduler's monitor: a
// thread more to run, for every command, beside the shell that the client waits for. Calls that end at once need neither.
//
// What goes through here must not wait: a pipe, an event or a socket that is non-blocking, a memfd, a small file of the
// kernel's that takes no lock for long. A goroutine in a call of these cannot be stopped, nor can another run in its place.
// Nothing here is an edge to the race detector, either: as in Go's memory model, a pipe does not order memory.
//
// The functions are x/sys/unix's, errors and all.
package quick

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Read is for a descriptor that is non-blocking.
func Read(fd int, p []byte) (int, error) {
	return count(unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))))
}

// Write is for a descriptor that is non-blocking, or a memfd.
func Write(fd int, p []byte) (int, error) {
	return count(unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p))))
}

// Pread is for a memfd, or a small file of /proc or of a cgroup.
func Pread(fd int, p []byte, off int64) (int, error) {
	return count(unix.RawSyscall6(unix.SYS_PREAD64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(off), 0, 0))
}

// Pwrite is for a memfd.
func Pwrite(fd int, p []byte, off int64) (int, error) {
	return count(unix.RawSyscall6(unix.SYS_PWRITE64, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(off), 0, 0))
}

// Ftruncate is for a memfd.
func Ftruncate(fd int, size int64) error {
	_, err := count(unix.RawSyscall(unix.SYS_FTRUNCATE, uintptr(fd), uintptr(size), 0))
	return err
}

// ClearTimes makes the times of a memfd those of 1970, until it is read or written.
func ClearTimes(fd int) error {
	var times [2]unix.Timespec
	_, err := count(unix.RawSyscall6(unix.SYS_UTIMENSAT, uintptr(fd), 0, uintptr(unsafe.Pointer(&times)), 0, 0, 0))
	return err
}

// Fstat is for a memfd, or a directory of a cgroup.
func Fstat(fd int, st *unix.Stat_t) error {
	_, err := count(unix.RawSyscall(unix.SYS_FSTAT, uintptr(fd), uintptr(unsafe.Pointer(st)), 0))
	return err
}

// Splice moves bytes with SPLICE_F_NONBLOCK between a pipe that is non-blocking and a memfd, at their positions.
func Splice(from, to, n int) (int, error) {
	return count(unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), unix.SPLICE_F_NONBLOCK))
}

// Readlink is for a link of /proc.
func Readlink(path string, p []byte) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	at := unix.AT_FDCWD
	return count(unix.RawSyscall6(unix.SYS_READLINKAT, uintptr(at), uintptr(unsafe.Pointer(name)), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0))
}

// SameFile says whether a descriptor of another process and one of ours are of one open file, not only of the same one. False
// also where we may not look, or the kernel does not tell (kcmp).
func SameFile(pid, fd, own int) bool {
	const file = 0 // KCMP_FILE
	order, _, errno := unix.RawSyscall6(unix.SYS_KCMP, self, uintptr(pid), file, uintptr(own), uintptr(fd), 0)
	return errno == 0 && order == 0
}

var self = uintptr(os.Getpid())

// Unread is how many bytes a pipe holds.
func Unread(fd int) (int, error) {
	var n int32
	_, err := count(unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n))))
	return int(n), err
}

func count(n, _ uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
