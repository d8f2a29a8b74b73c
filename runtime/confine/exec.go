package confine

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// Exec turns this process into program, with fds open. It returns only if that fails, and nothing has changed then. It is to
// be called on the main thread: one that execs while it is another waits for the main one to end, takes its place, and in
// between, a millisecond or more, /proc/PID/fd is empty for the shells, whose commands would not be read and whose reports
// be lost.
//
// Our children are in the main thread's list afterwards, where before there were only orphans: tier "none" looks twice
// from then on (Scope.MembersExcept).
func Exec(program string, argv, env []string, fds []int) error {
	syscall.ForkLock.Lock() // a child would have fds, too
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
