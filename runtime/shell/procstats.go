package shell

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"trl/runtime/procfs"
)

// This file reads facts about running processes from proc(5) when a client asks. Nothing is counted in advance.

// Memory returns the anonymous memory of the session's processes in bytes, without shared files and libraries.
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

// Ports returns the TCP ports on which the process, or a process that it started, accepts connections. It returns none if we may not
// look.
func (p *Process) Ports() []int {
	if p.scope == nil { // it ended under an earlier gateway
		return nil
	}
	var ports []int
	for _, pid := range p.scope.MembersExcept(0) {
		inodes := procfs.SocketInodes(pid)
		if len(inodes) == 0 {
			continue
		}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} { // the sockets of its network namespace
			text, err := os.ReadFile(procfs.Path(pid, table))
			if err == nil {
				ports = append(ports, procfs.Listening(string(text), inodes)...)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}
