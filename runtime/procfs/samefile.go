package procfs

import (
	"os"

	"golang.org/x/sys/unix"
)

// SameFile tells whether fd of the process pid and our descriptor own share one open file description. It returns false, too, if we
// may not look, or if the kernel has no kcmp.
func SameFile(pid, fd, own int) bool {
	const file = 0 // KCMP_FILE
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, ownPid, uintptr(pid), file, uintptr(own), uintptr(fd), 0)
	return errno == 0 && order == 0
}

var ownPid = uintptr(os.Getpid())
