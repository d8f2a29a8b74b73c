package procfs

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// Siginfo is the part of siginfo_t that waitid fills in (64-bit layout).
type Siginfo struct {
	signo, errno, code, _ int32
	Pid                   int32
	_                     [108]byte
}

// Waitid is waitid(2), with the kernel's siginfo.
func Waitid(kind, id int, info *Siginfo, options int) error {
	_, err := descriptor.RetryEINTR(func() (int, error) {
		return 0, unix.Waitid(kind, id, (*unix.Siginfo)(unsafe.Pointer(info)), options, nil)
	})
	return err
}

// PeekZombie returns the pid of a child that can be reaped, without reaping it; 0 when there is none.
func PeekZombie() int {
	var info Siginfo
	if Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT) != nil {
		return 0
	}
	return int(info.Pid)
}

// IsZombie reports whether a child has ended and is not reaped yet. It takes a third of a microsecond.
func IsZombie(pid int) bool {
	var info Siginfo
	err := Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT)
	return err == nil && info.Pid != 0
}

// Backoff paces a loop that waits for an end. It begins with microseconds, since most ends come at once.
type Backoff time.Duration

// Sleep waits longer each time, 5 ms at most.
func (b *Backoff) Sleep() {
	*b = min(max(2**b, Backoff(50*time.Microsecond)), Backoff(5*time.Millisecond))
	time.Sleep(time.Duration(*b))
}
