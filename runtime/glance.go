package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A Glance is Cell.Others for a process that does not have the Cell: what a gateway asks after every command, without a
// round trip to the keeper. It says for certain that nobody is there besides the shell, or that the Host must be asked.
type Glance struct {
	Mark    uint64                 // the cell's, see Cell.Mark
	List    int                    // descriptor of its OpenList, ours to close; -1: none
	Spaces  bool                   // tier "pidns": List is of its namespace's orphans, and Orphans of nobody
	Orphans int                    // descriptor of Host.OpenOrphans, not ours; -1: the kernel has no such list
	Known   func(mark uint64) bool // the mark of a cell that is there

	mu     sync.Mutex
	closed bool // guarded by mu
	kids   int  // guarded by mu; fd of the list of children of the process of; invalid while that is 0
	of     int  // guarded by mu
	dir    int  // guarded by mu; fd of the cgroup whose list List is; invalid while found is false
	found  bool // guarded by mu
	buf    [256]byte
}

// Nobody is Others(shell) == nil; false means that there may be somebody.
func (g *Glance) Nobody(shell int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return true
	}
	if g.List >= 0 && !g.Spaces {
		n, err := retry(func() (int, error) { return unix.Pread(g.List, g.buf[:], 0) })
		return err != nil || isOnly(g.buf[:n], shell) && !g.dividedLocked()
	}
	orphans := g.Orphans
	if g.Spaces {
		orphans = g.List
	}
	if shell == 0 || orphans < 0 {
		return false
	}
	if g.of != shell {
		g.forgetLocked()
		fd, err := openFile(procPath(shell, "/task/"+strconv.Itoa(shell)), "children", unix.O_RDONLY)
		if err != nil {
			return false
		}
		g.kids, g.of = fd, shell
	}
	return g.noneLocked(g.kids, shell) && g.noneLocked(orphans, shell)
}

// dividedLocked: there may be cgroups below the cell's. mu is held.
func (g *Glance) dividedLocked() bool {
	if !g.found {
		list, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(g.List))
		if err != nil {
			return true
		}
		if g.dir, err = unix.Open(filepath.Dir(list), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			return true
		}
		g.found = true
	}
	var st unix.Stat_t
	return unix.Fstat(g.dir, &st) != nil || st.Nlink > undivided
}

// noneLocked is Host.noneMarked for those who know the marks only. mu is held.
func (g *Glance) noneLocked(fd, shell int) bool {
	self := os.Getpid() // in the list after an Exec of the keeper, as shells are
	n, err := retry(func() (int, error) { return unix.Pread(fd, g.buf[:], 0) })
	if err != nil || n == len(g.buf) {
		return false
	}
	pid := 0
	for _, b := range g.buf[:n] {
		if b != ' ' {
			pid = pid*10 + int(b-'0')
			continue
		}
		if m := uint64(readMark(pid)); (m == g.Mark || !g.Known(m)) && pid != shell && pid != self {
			return false
		}
		pid = 0
	}
	return true
}

// forgetLocked: mu is held.
func (g *Glance) forgetLocked() {
	if g.of != 0 {
		unix.Close(g.kids)
		g.of = 0
	}
}

// Close is for when the cell is gone: nobody is in it from then on.
func (g *Glance) Close() {
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
	if g.found {
		unix.Close(g.dir)
	}
}

// Mark is what tells the cell's processes from others, see mark.
func (c *Cell) Mark() uint64 { return uint64(c.mark) }

// OpenList opens the cell's cgroup.procs for reading, for a Glance; in tier "pidns" the list of its namespace's orphans;
// -1 in tier "none".
func (c *Cell) OpenList() (fd int, err error) {
	if init := c.group.init; init != nil && haveChildren() {
		err = init.whileUnreaped(func() (err error) { // its number is good as long
			fd, err = openFile(procPath(init.pid, "/task/"+strconv.Itoa(init.pid)), "children", unix.O_RDONLY)
			return err
		})
		if err != nil {
			return -1, err
		}
		return fd, nil
	}
	if c.dir == "" {
		return -1, nil
	}
	return openFile(c.dir, "cgroup.procs", unix.O_RDONLY)
}

// OpenOrphans opens the list of what the kernel gives to this process, for a Glance; -1: there is none.
func (h *Host) OpenOrphans() int {
	if h.adopted < 0 {
		return -1
	}
	fd, err := openFile(procPath(h.pid, "/task/"+strconv.Itoa(h.pid)), "children", unix.O_RDONLY)
	if err != nil {
		return -1
	}
	return fd
}

// OrphanSessions lists what KillOrphans would ask its caller about, for callers that are another process.
func (h *Host) OrphanSessions() (ids []string) {
	for _, pid := range h.nursery.strangers() {
		id := environSession(pid)
		if id != "" && id != os.Getenv("TRL_SESSION_ID") && h.group(id) == nil && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Descends tells whether the process pid, which may be a zombie, is below ancestor.
func Descends(pid, ancestor int) bool {
	for pid > 1 {
		p, ok := readProc(pid)
		if !ok {
			return false
		}
		if p.ppid == ancestor {
			return true
		}
		pid = p.ppid
	}
	return false
}
