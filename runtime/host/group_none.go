package host

import (
	"context"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// Tier "none" has no cgroups, so ancestry connects a session's processes. Every process of a session is a descendant of
// a child that we started in the session, or of an orphan that the kernel gave to us as the subreaper. The mark of a
// process tells its scope (see procfs.Mark).

// walk visits every process of the group, including zombies. It visits the orphans first, because a process that forks
// and exits to escape becomes an orphan. c is nil if the group has no scope.
func (g *Group) walk(visit func(p procfs.Process, c *Scope)) {
	for _, pid := range g.host.childReaper.foreignChildren() {
		if p, ok := procfs.Read(pid); ok && p.Ppid == g.host.pid {
			if c, ok := g.scopeOfOrphan(p); ok {
				g.descend(p, c, visit)
			}
		}
	}
	for _, child := range g.ownChildren() {
		if p, ok := procfs.Read(child.pid); ok && p.Ppid == g.host.pid {
			c, _ := g.host.scopeOf(p.Pid)
			if c == nil || c.group != g {
				c = child.scope // its mark could not be set, or the process changed it
			}
			g.descend(p, c, visit)
		}
	}
}

// descend visits p, which belongs to c, and all of p's descendants.
func (g *Group) descend(p procfs.Process, c *Scope, visit func(p procfs.Process, c *Scope)) {
	visit(p, c)
	child := g.host.childReaper.child(p.Pid)
	for _, pid := range p.Children() {
		kid, ok := procfs.Read(pid)
		if !ok || kid.Ppid != p.Pid {
			continue // it got another parent; the next walk visits it there
		}
		of, _ := g.host.scopeOf(pid)
		switch {
		case of != nil && of.group == g:
		case child != nil: // p is a shell, which starts processes of one scope after the other
			of = g.scopeAt(kid.Start)
		default:
			of = c
		}
		g.descend(kid, of, visit)
	}
}

// scopeOfOrphan returns whether an orphan belongs to the group, and to which scope.
func (g *Group) scopeOfOrphan(p procfs.Process) (c *Scope, ok bool) {
	if c, _ := g.host.scopeOf(p.Pid); c != nil {
		return c, c.group == g
	}
	// The process removed its mark or never had one.
	if !g.inLeaderSession(p) && procfs.SessionOf(p.Pid) != g.id {
		return nil, false
	}
	return g.scopeAt(p.Start), true
}

// inLeaderSession reports whether p is in the process session or process group of one of the group's children. It
// returns false if p only has the reused pid of such a child.
func (g *Group) inLeaderSession(p procfs.Process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, sid := g.leaders[p.Sid]
	_, job := g.leaders[p.Pgrp]
	_, reused := g.leaders[p.Pid]
	return (sid || job) && !reused
}

// scopeAt returns the scope that was the newest at the time start.
func (g *Group) scopeAt(start uint64) (c *Scope) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, next := range g.scopes {
		if c == nil || next.begin <= start {
			c = next
		}
	}
	return c
}

// killByWalk kills the processes that match picks until it finds none, and returns the pids that are left when ctx
// ends. reaped counts those of them that became orphans and were reaped.
//
// One walk that finds nothing proves nothing. A process that forks and exits all the time may have become another
// process between the read of the list of children and the check of each child, and the kernel's list may skip a
// process while others end. A walk is therefore quiet only if it met no new process, not even a zombie, and if no
// orphan has been reaped since the walk before: each time such a process becomes another one, it leaves an orphan.
// killByWalk ends after three quiet walks in a row. The last of them looks at all processes of the machine, and it
// misses none that does not change meanwhile.
func (g *Group) killByWalk(ctx context.Context, reaped func() int64, match func(p procfs.Process, c *Scope) bool) (left []int) {
	const enough = 3
	met := map[int]uint64{} // start time by pid; one KILL per process is enough
	var pause procfs.Backoff
	gone := reaped()
	for quiet := 0; quiet < enough; {
		g.killOrphansFast(ctx, match)
		fresh := false
		left = left[:0]
		visit := func(p procfs.Process, c *Scope) {
			if !match(p, c) {
				return
			}
			if !p.Dead() {
				left = append(left, p.Pid)
			}
			if met[p.Pid] != p.Start {
				fresh = true
				met[p.Pid] = p.Start
				procfs.SignalIf(p.Pid, unix.SIGKILL, p.IsStill)
			}
		}
		if quiet < enough-1 {
			g.walk(visit)
		} else {
			g.walkMarked(visit)
		}
		_, sighted := procfs.Read(g.host.pid) // without a free descriptor a walk sees no process
		before := gone
		if gone = reaped(); len(left) == 0 && !fresh && sighted && gone == before {
			quiet++
			continue
		}
		quiet = 0
		switch {
		case ctx.Err() != nil && len(left) == 0:
			return []int{0} // there are processes, but every walk meets other ones
		case ctx.Err() != nil:
			return left
		case fresh: // a race with a process that forks: no pause
			pause = 0
		default:
			pause.Sleep()
		}
	}
	return nil
}

// killOrphansFast kills the orphans of the group as fast as possible, the youngest first: it takes two system calls to
// recognize an orphan and one to kill it. A process that forks and exits every few hundred microseconds is gone before
// a walk comes to it.
func (g *Group) killOrphansFast(ctx context.Context, match func(p procfs.Process, c *Scope) bool) {
	h := g.host
	struck := map[int]bool{}
	buf := make([]byte, 4<<10)
	for again := true; again && ctx.Err() == nil; {
		again = false
		text, _ := procfs.PreadAll(h.orphanList, buf)
		pids := procfs.ParsePids(text)
		for _, pid := range slices.Backward(pids) {
			if struck[pid] {
				continue
			}
			ours := func(pid int) bool {
				c, _ := h.scopeOf(pid)
				return c != nil && c.group == g && match(procfs.Process{Pid: pid}, c)
			}
			if procfs.SignalIf(pid, unix.SIGKILL, ours) {
				struck[pid], again = true, true
			}
		}
	}
}

// reaped returns the number of reaped orphans in all scopes.
func (g *Group) reaped() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.scopes {
		n += c.reaped.Load()
	}
	return n
}

// walkMarked visits every process of the machine that has a mark of the group.
func (g *Group) walkMarked(visit func(p procfs.Process, c *Scope)) {
	for _, pid := range descriptor.NumbersIn("/proc") {
		if c, _ := g.host.scopeOf(pid); c != nil && c.group == g {
			if p, ok := procfs.Read(pid); ok {
				visit(p, c)
			}
		}
	}
}

// populated reports whether a live process is in scope c.
func (g *Group) populated(c *Scope) (found bool) {
	look := func(p procfs.Process, of *Scope) { found = found || of == c && !p.Dead() }
	if g.walk(look); !found {
		g.walkMarked(look)
	}
	return found
}

// markedMembersExcept reads two lists of children: the list of the shell and the list of the main thread. The latter
// has the orphans but none of our own children (see Host.start). Both are nearly always empty, however many sessions
// there are. If one is not, markedMembersExcept walks the process tree.
func (c *Scope) markedMembersExcept(shell int) (pids []int) {
	if c.looksEmpty(shell) {
		return nil
	}
	look := func(p procfs.Process, of *Scope) {
		if of == c && p.Pid != shell && !p.Dead() {
			pids = append(pids, p.Pid)
		}
	}
	if c.group.walk(look); len(pids) == 0 {
		c.group.walkMarked(look) // the kernel's list may have skipped a process while others ended
	}
	return pids
}

// looksEmpty returns true if certainly no child of shell and no orphan belongs to c.
func (c *Scope) looksEmpty(shell int) bool {
	h := c.group.host
	if shell == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidListOf != shell {
		if c.pidList >= 0 {
			unix.Close(c.pidList)
		}
		// The descriptor stays with this process even if its pid is reused.
		c.pidList, _ = cgroup.OpenFile(procfs.Path(shell, "/task/"+strconv.Itoa(shell)), "children", unix.O_RDONLY)
		c.pidListOf = shell
	}
	return h.noneMarked(c.pidList, c, shell) && h.noneMarked(h.orphanList, c, shell)
}

// noneMarked reads a list of children from fd into c's buffer. It returns true if no process in the list, except shell,
// has c's mark or could have removed it. After an exec of the keeper, our own children are in the list too. c.mu is
// held.
func (h *Host) noneMarked(fd int, c *Scope, shell int) bool {
	n, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, c.listBuf, 0) })
	if err != nil || n == len(c.listBuf) {
		return false
	}
	for pid := range procfs.PidsIn(c.listBuf[:n]) {
		other, given := h.scopeOf(pid)
		if !given || other == nil || other == c {
			if child := h.childReaper.child(pid); child == nil || child.scope == c && pid != shell {
				return false
			}
		}
	}
	return true
}
