package host

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// A EmptyCheck is Scope.MembersExcept for a process that does not have the Scope: what a gateway asks after every command, without a
// round trip to the keeper. It says for certain that nobody is there besides the shell, or that the Host must be asked.
type EmptyCheck struct {
	Mark       uint64                 // the scope's, see Scope.Mark
	List       int                    // descriptor of its OpenPIDList, ours to close; -1: none
	Orphans    int                    // descriptor of Host.OpenOrphanList, not ours; -1: the kernel has no such list
	IsLiveMark func(mark uint64) bool // the mark of a scope that is there

	mu             sync.Mutex
	closed         bool // guarded by mu
	childList      int  // guarded by mu; fd of the list of children of the process of; invalid while that is 0
	childListOf    int  // guarded by mu
	cgroupDir      int  // guarded by mu; fd of the cgroup whose list List is; invalid while found is false
	cgroupDirFound bool // guarded by mu
	buf            [256]byte
}

// ShellAlone is Others(shell) == nil; false means that there may be somebody.
func (g *EmptyCheck) ShellAlone(shell int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return true
	}
	if g.List >= 0 {
		n, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(g.List, g.buf[:], 0) })
		return err != nil || cgroup.ListsOnly(g.buf[:n], shell) && !g.hasSubgroupsLocked()
	}
	if shell == 0 || g.Orphans < 0 {
		return false
	}
	if g.childListOf != shell {
		g.forgetLocked()
		fd, err := cgroup.OpenFile(procfs.Path(shell, "/task/"+strconv.Itoa(shell)), "children", unix.O_RDONLY)
		if err != nil {
			return false
		}
		g.childList, g.childListOf = fd, shell
	}
	return g.noneMarkedLocked(g.childList, shell) && g.noneMarkedLocked(g.Orphans, shell)
}

// hasSubgroupsLocked: there may be cgroups below the scope's. mu is held.
func (g *EmptyCheck) hasSubgroupsLocked() bool {
	if !g.cgroupDirFound {
		list, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(g.List))
		if err != nil {
			return true
		}
		if g.cgroupDir, err = unix.Open(filepath.Dir(list), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return true
		}
		g.cgroupDirFound = true
	}
	var st unix.Stat_t
	return unix.Fstat(g.cgroupDir, &st) != nil || st.Nlink > cgroup.LinksWithoutSubgroups
}

// noneMarkedLocked is Host.noneMarked for those who know the marks only. mu is held.
func (g *EmptyCheck) noneMarkedLocked(fd, shell int) bool {
	self := os.Getpid() // in the list after an Exec of the keeper, as shells are
	n, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, g.buf[:], 0) })
	if err != nil || n == len(g.buf) {
		return false
	}
	for pid := range procfs.PidsIn(g.buf[:n]) {
		if m := uint64(procfs.ReadMark(pid)); (m == g.Mark || !g.IsLiveMark(m)) && pid != shell && pid != self {
			return false
		}
	}
	return true
}

// forgetLocked: mu is held.
func (g *EmptyCheck) forgetLocked() {
	if g.childListOf != 0 {
		unix.Close(g.childList)
		g.childListOf = 0
	}
}

// Close is for when the scope is gone: nobody is in it from then on.
func (g *EmptyCheck) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.closed = true
	g.forgetLocked()
	if g.List >= 0 {
		unix.Close(g.List)
	}
	if g.cgroupDirFound {
		unix.Close(g.cgroupDir)
	}
}

// Mark is what tells the scope's processes from others, see endMarks.
func (c *Scope) Mark() uint64 { return uint64(c.mark) }

// OpenPIDList opens the scope's cgroup.procs for reading, for an EmptyCheck; -1 in tier "none".
func (c *Scope) OpenPIDList() (fd int, err error) {
	if c.dir == "" {
		return -1, nil
	}
	return cgroup.OpenFile(c.dir, "cgroup.procs", unix.O_RDONLY)
}

// OpenOrphanList opens the list of what the kernel gives to this process, for a EmptyCheck; -1: there is none.
func (h *Host) OpenOrphanList() int {
	if h.orphanList < 0 {
		return -1
	}
	fd, err := cgroup.OpenFile(procfs.Path(h.pid, "/task/"+strconv.Itoa(h.pid)), "children", unix.O_RDONLY)
	if err != nil {
		return -1
	}
	return fd
}

// OrphanSessions lists what KillOrphans would ask its caller about, for callers that are another process.
func (h *Host) OrphanSessions() (ids []string) {
	for _, pid := range h.childReaper.foreignChildren() {
		id := procfs.SessionOf(pid)
		if id != "" && id != os.Getenv("TRL_SESSION_ID") && h.group(id) == nil && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
