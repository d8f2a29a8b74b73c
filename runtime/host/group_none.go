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

// Tier "none": no cgroup, so the family tells. Every process of a session is
// below a child that we started in it or, its parents gone, was given to us as
// subreaper. Which scope it belongs to it carries with it (endMarks).

// walk visits every process of the group, zombies included, orphans first:
// what forks and exits to get away is found there. c is nil if the group has no
// scope.
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
				c = child.scope // its mark could not be set, or it has changed it
			}
			g.descend(p, c, visit)
		}
	}
}

// descend visits p, which belongs to c, and all below it.
func (g *Group) descend(p procfs.Process, c *Scope, visit func(p procfs.Process, c *Scope)) {
	visit(p, c)
	child := g.host.childReaper.child(p.Pid)
	for _, pid := range p.Children() {
		kid, ok := procfs.Read(pid)
		if !ok || kid.Ppid != p.Pid {
			continue // it moved up; the next look meets it there
		}
		of, _ := g.host.scopeOf(pid)
		switch {
		case of != nil && of.group == g:
		case child != nil: // a shell: its scopes follow one another
			of = g.scopeAt(kid.Start)
		default:
			of = c
		}
		g.descend(kid, of, visit)
	}
}

// scopeOfOrphan tells whether an orphan belongs to the group, and to which scope.
func (g *Group) scopeOfOrphan(p procfs.Process) (c *Scope, ok bool) {
	if c, _ := g.host.scopeOf(p.Pid); c != nil {
		return c, c.group == g
	}
	// It took the mark off, or never had it.
	if !g.inLeaderSession(p) && procfs.SessionOf(p.Pid) != g.id {
		return nil, false
	}
	return g.scopeAt(p.Start), true
}

// inLeaderSession: p is in a process session or job of one of the group's children. A
// process that has the number of one, being none, has nothing to do with it.
func (g *Group) inLeaderSession(p procfs.Process) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, sid := g.leaders[p.Sid]
	_, job := g.leaders[p.Pgrp]
	_, reused := g.leaders[p.Pid]
	return (sid || job) && !reused
}

// scopeAt is the scope that was the newest when start was now.
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

// killByWalk kills what match picks until it finds nobody, and returns the pids
// that are left when ctx ends. reaped counts the orphans among them that are
// gone.
//
// Finding nobody once proves nothing: what forks and exits all the time may have
// become another process between the list of children and the look at each, and
// the kernel's list may skip one while others go. So a look is quiet only if it
// met nobody new, not even a zombie, and no orphan was reaped since the look
// before, for each such change of skin leaves one. The last look
// is at every process there is, which misses none that stands still.
func (g *Group) killByWalk(ctx context.Context, reaped func() int64, match func(p procfs.Process, c *Scope) bool) (left []int) {
	const enough = 3
	met := map[int]uint64{} // start time by pid; KILL once will do
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
		_, sighted := procfs.Read(g.host.pid) // without a free descriptor we see nobody
		before := gone
		if gone = reaped(); len(left) == 0 && !fresh && sighted && gone == before {
			quiet++
			continue
		}
		quiet = 0
		switch {
		case ctx.Err() != nil && len(left) == 0:
			return []int{0} // somebody, but never the same
		case ctx.Err() != nil:
			return left
		case fresh: // a race with something that forks: no pause
			pause = 0
		default:
			pause.Sleep()
		}
	}
	return nil
}

// killOrphansFast kills the orphans of the group as fast as can be: two system calls to
// know one, one to kill it, the youngest first. What hops from fork to fork
// every few hundred microseconds has moved on when a walk comes to it.
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

// reaped is the sum over the scopes.
func (g *Group) reaped() (n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.scopes {
		n += c.reaped.Load()
	}
	return n
}

// walkMarked visits every process on the machine that carries a mark of the group.
func (g *Group) walkMarked(visit func(p procfs.Process, c *Scope)) {
	for _, pid := range descriptor.NumbersIn("/proc") {
		if c, _ := g.host.scopeOf(pid); c != nil && c.group == g {
			if p, ok := procfs.Read(pid); ok {
				visit(p, c)
			}
		}
	}
}

// populated: a live process is in scope c.
func (g *Group) populated(c *Scope) (found bool) {
	look := func(p procfs.Process, of *Scope) { found = found || of == c && !p.Dead() }
	if g.walk(look); !found {
		g.walkMarked(look)
	}
	return found
}

// markedMembersExcept reads two lists of children: the shell's, and the main thread's,
// which holds the orphans and none of our own (see Spawn). Nearly always both
// are empty, however many sessions there are; else the tree is walked.
func (c *Scope) markedMembersExcept(shell int) (pids []int) {
	if c.looksEmpty(shell) {
		return nil
	}
	c.group.walk(func(p procfs.Process, of *Scope) {
		if of == c && p.Pid != shell && !p.Dead() {
			pids = append(pids, p.Pid)
		}
	})
	return pids
}

// looksEmpty: no process that could be c's is a child of shell or an orphan.
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
		// It stays that process's, should the number be reused.
		c.pidList, _ = cgroup.OpenFile(procfs.Path(shell, "/task/"+strconv.Itoa(shell)), "children", unix.O_RDONLY)
		c.pidListOf = shell
	}
	return h.noneMarked(c.pidList, c, shell) && h.noneMarked(h.orphanList, c, shell)
}

// noneMarked reads a list of children from fd, with c's buffer: none of them
// but shell carries c's mark, or could have taken it off. Our own children are in it after an Exec. c.mu is held.
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
