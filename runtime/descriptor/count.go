package descriptor

import (
	"fmt"

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

// KeptBack returns an EMFILE error if only a tenth of this process's descriptors is left: they are for the sessions that exist, so that these can still
// run commands when there is no room for another one. Those that shell.readyShare lets stay ready need seven hundredths.
func KeptBack() error {
	if open, most := Count(); most > 0 && open > most-most/10 {
		return fmt.Errorf("%d of %d descriptors are open; the others are for the sessions that exist: %w", open, most, unix.EMFILE)
	}
	return nil
}

// Short reports whether a process has so many descriptors open (four fifths) that ended work must give back its own before a
// request is refused for want of one.
func Short(open, most int) bool { return most > 0 && open >= most/5*4 }
