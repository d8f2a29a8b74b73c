package procfs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// SocketInodes returns the inodes of the sockets that a process holds.
func SocketInodes(pid int) map[string]bool {
	dir := Path(pid, "/fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	inodes := map[string]bool{}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes
}

// Listening returns the ports of a table of /proc/net on which one of the sockets listens. A line of the table is
// `sl local_address rem_address st … uid timeout inode`; a listener's st is 0A.
func Listening(table string, inodes map[string]bool) (ports []int) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" || !inodes[f[9]] {
			continue
		}
		if i := strings.LastIndexByte(f[1], ':'); i >= 0 {
			if port, err := strconv.ParseUint(f[1][i+1:], 16, 16); err == nil {
				ports = append(ports, int(port))
			}
		}
	}
	return ports
}

// CommandLine returns the first most bytes of a process's command line, with spaces between the words; "" when it cannot be read. The
// words are in the process's own memory, which can make the kernel wait. Callers bound that wait.
func CommandLine(pid, most int) string {
	f, err := os.Open(Path(pid, "/cmdline"))
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, most)
	n, _ := f.Read(text) // one read of cmdline gives all that fits
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(text[:n]), "\x00", " "), "\uFFFD"))
}
