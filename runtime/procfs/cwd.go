package procfs

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Cwd returns a process's working directory, "" when it cannot be read. The kernel tells it to processes that may trace pid.
func Cwd(pid int) string {
	var room [512]byte
	link := Path(pid, "/cwd")
	n, err := unix.Readlink(link, room[:])
	if err != nil {
		return ""
	}
	dir := string(room[:n])
	if n == len(room) {
		dir, _ = os.Readlink(link)
	}
	if name, found := strings.CutSuffix(dir, " (deleted)"); found && !isLinked(link) {
		return name
	}
	return dir
}

// isLinked reports whether a directory is certain to be still in its parent: it has two links or more. A removed directory has none. One link
// proves nothing, because every directory of btrfs has one, and so has a removed directory of a lower layer of overlayfs. isLinked does not
// ask the file system, which may not answer.
func isLinked(link string) bool {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, link, unix.AT_STATX_DONT_SYNC, unix.STATX_NLINK, &st)
	return err == nil && st.Nlink >= 2
}
