package procfs

import (
	"bytes"
	"os"
	"slices"
	"strconv"
)

// AnonymousMemory returns the anonymous memory of the processes in bytes, without shared files and libraries.
func AnonymousMemory(pids []int) (total int64) {
	for _, pid := range pids {
		text, err := os.ReadFile(Path(pid, "/statm"))
		if err != nil {
			continue // the process has ended
		}
		fields := bytes.Fields(text) // size resident shared …, in pages
		if len(fields) < 3 {
			continue
		}
		resident, _ := strconv.ParseInt(string(fields[1]), 10, 64)
		shared, _ := strconv.ParseInt(string(fields[2]), 10, 64)
		total += max(0, resident-shared) * int64(os.Getpagesize())
	}
	return total
}

// ResidentMemory returns the resident memory of this process in bytes, or 0 if proc(5) does not tell.
func ResidentMemory() int64 {
	text, _ := os.ReadFile("/proc/self/statm")
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	resident, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return resident * int64(os.Getpagesize())
}

// Ports returns the TCP ports on which the processes accept connections, sorted. A process at which we may not look has none.
func Ports(pids []int) (ports []int) {
	for _, pid := range pids {
		inodes := SocketInodes(pid)
		if len(inodes) == 0 {
			continue
		}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} { // the sockets of its network namespace
			text, err := os.ReadFile(Path(pid, table))
			if err == nil {
				ports = append(ports, Listening(string(text), inodes)...)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
