package confine

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// Exec replaces this process's program, and keeps fds open. It returns only if that fails, and then nothing has changed. It must run on the
// main thread: another thread that execs first waits for the main thread to end and then takes its place. Meanwhile, for a millisecond or
// more, /proc/PID/fd is empty for the shells, so their commands would not be read and their reports would be lost.
//
// Afterwards our children are in the main thread's list, where before there were only orphans. From then on tier "none" checks twice
// (Scope.MembersExcept).
func Exec(program string, argv, env []string, fds []int) error {
	syscall.ForkLock.Lock() // a child forked meanwhile would inherit fds
	defer syscall.ForkLock.Unlock()
	err := descriptor.KeepOpen(fds, true)
	switch {
	case err != nil:
	case unix.Gettid() != unix.Getpid():
		err = errors.New("not on the main thread")
	default:
		err = syscall.Exec(program, argv, env)
	}
	_ = descriptor.KeepOpen(fds, false)
	return fmt.Errorf("exec %s: %w", program, err)
}
