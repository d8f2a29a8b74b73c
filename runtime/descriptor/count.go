package descriptor

import (
	"golang.org/x/sys/unix"
)

// Count returns how many descriptors this process has open and how many it may have. It takes two system calls.
func Count() (open, most int) {
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

// Short reports whether a process has so many descriptors open (four fifths) that ended work must give back its own before a
// request is refused for want of one.
func Short(open, most int) bool { return most > 0 && open >= most/5*4 }
