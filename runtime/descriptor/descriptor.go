// Package descriptor makes file descriptors, passes them on and closes each once. It keeps a few in reserve, so that a process that
// has no descriptor left can still look at other processes and signal them.
package descriptor

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Memfd makes a file in memory.
func Memfd(name string) (int, error) {
	fd, err := unix.MemfdCreate("trl-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd: %w", err)
	}
	return fd, nil
}

// HalfPipe makes a pipe. Only the end number ours does not block, because programs that inherit the other end expect it to block.
func HalfPipe(ours int) (fd [2]int, err error) {
	if err = unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return fd, err
	}
	return fd, unix.SetNonblock(fd[ours], true)
}

// BothEnds makes a pipe with one descriptor, which reads and writes. It does not block.
func BothEnds() (int, error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	defer CloseAll(fd[:])
	return unix.Open("/proc/self/fd/"+strconv.Itoa(fd[0]), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// Close closes a descriptor once.
func Close(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// OwnDir returns the directory of this process's own descriptors. Paths below it end with this process, also for descriptors that the
// keeper holds as well.
func OwnDir() string { return "/proc/" + strconv.Itoa(os.Getpid()) + "/fd" }

// CloseOnExec marks every descriptor above stderr as close-on-exec.
func CloseOnExec() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return os.NewSyscallError("close_range", err)
	}
	for _, fd := range NumbersIn("/proc/self/fd") { // before 5.11, or filtered
		if fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// KeepOpen clears (keep) or sets the close-on-exec flag of fds.
func KeepOpen(fds []int, keep bool) error {
	for _, fd := range fds {
		flags := unix.FD_CLOEXEC
		if keep {
			flags = 0
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags); err != nil {
			return fmt.Errorf("descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// IsTTY reports whether fd is a terminal.
func IsTTY(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// Poll reports whether one of fds is ready, and marks which. It does not wait.
func Poll(fds []unix.PollFd) bool {
	for {
		n, err := unix.Poll(fds, 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// NumbersIn lists the numeric names in a directory, such as /proc or /proc/self/fd.
func NumbersIn(dir string) []int {
	var names []string
	_ = WithReserve(func() error {
		d, err := os.Open(dir)
		if err == nil {
			names, _ = d.Readdirnames(-1)
			d.Close()
		}
		return err
	})
	numbers := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// RetryEINTR repeats a call that a signal interrupted. Go preempts goroutines with signals, and SA_RESTART does not cover every
// file system.
func RetryEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}
