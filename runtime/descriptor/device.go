package descriptor

import (
	"sync"

	"golang.org/x/sys/unix"
)

// deviceNumber identifies the device of a file system. Its major is 0 when there is no block device.
type deviceNumber struct{ major, minor uint32 }

// DeviceOf returns the device of a file from the kernel's caches, without asking the file system.
func DeviceOf(at int, path string) (on deviceNumber, ok bool) {
	var st unix.Statx_t
	err := unix.Statx(at, path, unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	return deviceNumber{st.Dev_major, st.Dev_minor}, err == nil
}

// rootDevice is the device of the root directory.
var rootDevice = sync.OnceValue(func() deviceNumber {
	on, _ := DeviceOf(unix.AT_FDCWD, "/")
	return on
})

// OpenCached opens a directory if that cannot block and this process may enter it, else it returns -1. It opens only directories
// that the kernel has cached (RESOLVE_CACHED) and that are on a block device or on the root's file system, neither of which a session can make hang.
func OpenCached(dir string) (fd int) {
	if dir == "" {
		return -1
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, dir+"/.", &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: resolveCached})
	if err != nil { // the caller finds out why in the slow way
		return -1
	}
	if on, ok := DeviceOf(fd, ""); !ok || on.major == 0 && on != rootDevice() {
		unix.Close(fd)
		return -1
	}
	return fd
}

const resolveCached = 0x20 // RESOLVE_CACHED, openat2(2): EAGAIN where the kernel would have to ask the file system, as for every symlink in /proc
