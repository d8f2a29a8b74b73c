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

// An EmptyCheck answers Scope.MembersExcept in a process that does not have the Scope. A gateway uses it after every
// command and so saves a round trip to the keeper. It says either that the scope certainly has no member besides the
// shell, or that the Host must be asked.
type EmptyCheck struct {
	Mark       uint64                 // of the scope, see Scope.Mark
	List       int                    // fd from Scope.OpenPIDList, closed by Close; -1: the scope has no cgroup
	Orphans    int                    // fd from Host.OpenOrphanList, not closed by Close; -1: the kernel has no such list
	IsLiveMark func(mark uint64) bool // whether a scope that has not been removed has this mark

	mu             sync.Mutex
	closed         bool   // guarded by mu
	listPath       string // guarded by mu; the path of List, which is closed; "": it is open
	childList      int    // guarded by mu; fd of the list of children of process childListOf; invalid while childListOf is 0
	childListOf    int    // guarded by mu
	cgroupDir      int    // guarded by mu; fd of the cgroup that List belongs to; invalid while cgroupDirFound is false
	cgroupDirFound bool   // guarded by mu
	buf            [256]byte
}

// ShellAlone returns true if the scope certainly has no member besides shell. It returns false if there may be one.
func (g *EmptyCheck) ShellAlone(shell int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return true
	}
	if g.listPath != "" && !g.reopenLocked() {
		return false
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

// Rest closes the descriptors until ShellAlone needs them.
func (g *EmptyCheck) Rest() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.forgetLocked()
	if g.cgroupDirFound {
		unix.Close(g.cgroupDir)
		g.cgroupDirFound = false
	}
	if g.List < 0 {
		return
	}
	if path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(g.List)); err == nil {
		g.listPath = path
		descriptor.Close(&g.List)
	}
}

// reopenLocked opens the list again. mu is held.
func (g *EmptyCheck) reopenLocked() bool {
	fd, err := cgroup.OpenFile(filepath.Dir(g.listPath), filepath.Base(g.listPath), unix.O_RDONLY)
	if err != nil {
		return false
	}
	g.List, g.listPath = fd, ""
	return true
}

// hasSubgroupsLocked returns false if there are certainly no cgroups below the scope's. mu is held.
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

// noneMarkedLocked does the same as Host.noneMarked, with the marks alone. mu is held.
func (g *EmptyCheck) noneMarkedLocked(fd, shell int) bool {
	self := os.Getpid() // after an exec of the keeper, this process and the shells are in the list of children
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

// forgetLocked closes the list of children. mu is held.
func (g *EmptyCheck) forgetLocked() {
	if g.childListOf != 0 {
		unix.Close(g.childList)
		g.childListOf = 0
	}
}

// Close frees the descriptors. It is called when the scope is gone; ShellAlone returns true from then on.
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

// Mark returns the number by which the scope's processes can be told from others, see procfs.Mark.
func (c *Scope) Mark() uint64 { return uint64(c.mark) }

// OpenPIDList opens the scope's cgroup.procs for reading, for an EmptyCheck. It returns -1 in tier "none".
func (c *Scope) OpenPIDList() (fd int, err error) {
	if c.dir == "" {
		return -1, nil
	}
	return cgroup.OpenFile(c.dir, "cgroup.procs", unix.O_RDONLY)
}

// OpenOrphanList opens the main thread's list of children, to which the kernel adds the orphans, for an EmptyCheck. It
// returns -1 if the kernel has no such list.
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

// OrphanSessions returns the ids of the sessions that KillOrphans would pass to its function live. A caller in another
// process decides about them in advance.
func (h *Host) OrphanSessions() (ids []string) {
	for _, pid := range h.childReaper.foreignChildren() {
		id := procfs.SessionOf(pid)
		if id != "" && id != os.Getenv("TRL_SESSION_ID") && h.group(id) == nil && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}
