package confine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Go moves goroutines between threads. Some things in Linux belong to a thread: its working directory once it is unshared, its
// groups, its capabilities, its Landlock rules. The functions below choose the thread.

// OnOwnThread runs f on a thread that is not the main one and that ends with f. It is for changes that a thread cannot undo.
func OnOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() { // ends with f, and takes its thread along
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		done <- OnOwnThread(f) // on another one, since this one is held here
		runtime.UnlockOSThread()
	}()
	return <-done
}

// OnOtherThread runs f on another thread than this one, which the caller's goroutine is locked to.
func OnOtherThread(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }() // ends with f; waited for here
	return <-done
}

// Capabilities returns this thread's effective capabilities below 32, as a bit mask.
func Capabilities() uint32 {
	var data [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]) != nil {
		return 0
	}
	return data[0].Effective
}
