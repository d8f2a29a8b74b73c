package runtime

import (
	"golang.org/x/sys/unix"
)

// Descriptors is how many descriptors this process has open, and how many it may have. Two system calls.
func Descriptors() (open, most int) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, 0
	}
	most = int(min(l.Cur, 1<<30))
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/fd", &st); err == nil && st.Size > 0 { // Linux 6.2
		return int(st.Size), most
	}
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0) // the lowest number that is free: at least as many are open
	if err != nil {
		return most, most
	}
	unix.Close(fd)
	return fd, most
}

// DescriptorsShort says that so many descriptors of a process are open that what has ended shall give back its own, before somebody is
// refused one: four fifths.
func DescriptorsShort(open, most int) bool { return most > 0 && open >= most/5*4 }
