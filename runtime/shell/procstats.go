package shell

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"trl/runtime/procfs"
)

// What people want to see of processes that run, read from proc(5) when they look. Nothing is counted along the way.

// Memory is what the session's processes have to themselves, in bytes: anonymous memory, without the files and libraries that they share.
func (s *Shell) Memory() (total int64) {
	s.mu.Lock()
	group := s.group
	s.mu.Unlock()
	if group == nil {
		return 0
	}
	for _, pid := range group.Members() {
		text, err := os.ReadFile(procfs.Path(pid, "/statm"))
		if err != nil {
			continue // it has ended
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

// Ports are the TCP ports on which the process, or what it started, accepts connections; none where we may not look.
func (p *Process) Ports() []int {
	if p.scope == nil { // it ended before our time
		return nil
	}
	var ports []int
	for _, pid := range p.scope.MembersExcept(0) {
		inodes := procfs.SocketInodes(pid)
		if len(inodes) == 0 {
			continue
		}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} { // as its network namespace has them
			text, err := os.ReadFile(procfs.Path(pid, table))
			if err == nil {
				ports = append(ports, procfs.Listening(string(text), inodes)...)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
