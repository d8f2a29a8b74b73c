package runtime

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
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
		text, err := os.ReadFile(procPath(pid, "/statm"))
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

// CommandLine is the words of a process with spaces between them, the first most bytes of them; "" where they cannot be read. They are
// in memory of the process's, which can make the kernel wait for it: Ask asks for them.
func CommandLine(pid, most int) string {
	f, err := os.Open(procPath(pid, "/cmdline"))
	if err != nil {
		return ""
	}
	defer f.Close()
	text := make([]byte, most)
	n, _ := f.Read(text) // one read of cmdline gives all that fits
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(text[:n]), "\x00", " "), "\uFFFD"))
}

// Ports are the TCP ports on which the process, or what it started, accepts connections; none where we may not look.
func (p *Process) Ports() []int {
	if p.scope == nil { // it ended before our time
		return nil
	}
	var ports []int
	for _, pid := range p.scope.MembersExcept(0) {
		inodes := socketInodes(pid)
		if len(inodes) == 0 {
			continue
		}
		for _, table := range []string{"/net/tcp", "/net/tcp6"} { // as its network namespace has them
			text, err := os.ReadFile(procPath(pid, table))
			if err == nil {
				ports = append(ports, listening(string(text), inodes)...)
			}
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// socketInodes are those that the process holds.
func socketInodes(pid int) map[string]bool {
	dir := procPath(pid, "/fd")
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

// listening reads a table of /proc/net: `sl local_address rem_address st … uid timeout inode`, the state of a listener being 0A.
func listening(table string, inodes map[string]bool) (ports []int) {
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
