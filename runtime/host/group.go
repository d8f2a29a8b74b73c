package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// killTimeout bounds how long we wait for killed processes to go. KILL works
// in milliseconds, a fork storm holds it up for a second or two, without cgroups on
// a machine that is busy otherwise for ten; what is there
// after 20 s hangs in the kernel (state D), and waiting longer would hang us.
const killTimeout = 20 * time.Second

// A Group is the processes of one session, a Scope those that one of its
// commands started. In tier "cgroup" both are directories and the kernel keeps
// the list; in tier "none" a scope is a mark that its processes inherit.
type Group struct {
	id          string
	host        *Host
	confinement *confinement  // set once in NewGroup
	dir         string        // its cgroup; "" in tier "none"
	closeSlot   chan struct{} // one slot: held by the Close at work
	removed     bool          // owned by the holder of ending

	forkMu    sync.Mutex    // held from before a fork until the child is in children; before childReaper.forkMu
	chdirSlot chan struct{} // one slot: held by the thread in enter

	limitMu sync.Mutex             // held by Limit
	bounds  atomic.Pointer[bounds] // nil: none; set once, by Limit

	mu       sync.Mutex
	closed   bool                // guarded by mu: nothing may enter any more
	children map[*Child]struct{} // guarded by mu; those not reaped
	leaders  map[int]struct{}    // guarded by mu; every child's pid, which is its session id: it outlives the child
	scopes   []*Scope            // guarded by mu; in order of begin, less the removed ones
	serial   int                 // guarded by mu
}

// A Scope must be given up with Remove, or with its group.
type Scope struct {
	group  *Group
	number int // within its group
	mark   procfs.Mark
	begin  uint64 // clock ticks after boot
	dir    string // its cgroup; "" in tier "none"

	reaped atomic.Int64 // orphans of the scope that the child reaper is reaping or has reaped

	mu        sync.Mutex
	pidList   int    // guarded by mu; fd of cgroup.procs, in tier "none" of the shell's list of children; -1: not opened yet
	removed   bool   // guarded by mu; it was given up
	pidListOf int    // guarded by mu; tier "none": the shell whose list it is
	listBuf   []byte // guarded by mu; what list is read into
}

// NewScope opens a place for what the next command starts.
func (g *Group) NewScope() (*Scope, error) {
	begin := procfs.TicksNow()
	if !g.host.markBase.Fits() && g.dir == "" {
		// Start times will have to tell, so the scopes must differ in theirs.
		for now := begin; begin == now; begin = procfs.TicksNow() {
			time.Sleep(time.Millisecond)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("new scope: %w", fs.ErrClosed)
	}
	c := &Scope{group: g, begin: begin, pidList: -1, listBuf: make([]byte, 256)}
	for {
		g.serial++
		c.number = g.serial
		if g.dir == "" {
			break
		}
		err := c.makeDir(fmt.Sprintf("%s/c%d", g.dir, g.serial))
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) { // the session made it
			return nil, err
		}
	}
	h := g.host
	h.mu.Lock() // lock order: Group.mu, Host.mu
	c.mark = h.newMarkLocked()
	h.scopes[c.mark] = c
	h.mu.Unlock()
	g.scopes = append(g.scopes, c)
	return c, nil
}

// Number tells the scope from the others of its group, also from those before it.
func (c *Scope) Number() int { return c.number }

// SignalSome sends sig to those of pids that are in the scope.
func (c *Scope) SignalSome(sig syscall.Signal, pids ...int) {
	if c.dir != "" {
		for _, pid := range pids {
			procfs.SignalIf(pid, sig, c.contains)
		}
		return
	}
	// The mark is asked first, because a walk can miss a process whose parent is just ending. One walk serves all others.
	marked := func(pid int) bool { of, _ := c.group.host.scopeOf(pid); return of == c }
	pids = slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return procfs.SignalIf(pid, sig, marked) })
	if len(pids) == 0 {
		return
	}
	c.group.walk(func(p procfs.Process, of *Scope) {
		if of == c && slices.Contains(pids, p.Pid) {
			procfs.SignalIf(p.Pid, sig, p.IsStill)
		}
	})
}

// AddForkedCopy is Adopt for what a shell of the group's forked: not our child, so its number is only good while a gate holds it. The
// session says the number, and what is in a scope ends with a KILL: any other process is refused.
func (c *Scope) AddForkedCopy(pid int) error {
	p, ok := procfs.Read(pid)
	if !ok {
		return fmt.Errorf("adopt %d: %w", pid, unix.ESRCH)
	}
	parent := c.group.host.childReaper.child(p.Ppid)
	if parent == nil || parent.scope == nil || parent.scope.group != c.group {
		return fmt.Errorf("adopt %d: %w", pid, unix.EPERM)
	}
	err := c.setMark(pid)
	if c.dir != "" {
		err = c.move(pid)
	}
	return err
}

// cloneDir is asked before a child is started in c. In tier "cgroup" it returns
// the directory to clone into, for the caller to close; else -1.
func (c *Scope) cloneDir(b *bounds) (dir int, err error) {
	c.group.mu.Lock()
	closed := c.group.closed
	c.group.mu.Unlock()
	if closed {
		return -1, fs.ErrClosed
	}
	if c.dir == "" {
		return -1, nil
	}
	// A session that has frozen itself would freeze the child before its exec.
	_ = cgroup.WriteFile(c.group.dir, "cgroup.freeze", "0")
	path := c.dir
	if b != nil && b.stagingDir != "" {
		path = b.stagingDir
	}
	dir, err = unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return dir, nil
}

// setMark makes a process c's by its mark.
func (c *Scope) setMark(pid int) error {
	if c.group.confinement.user == nil {
		return procfs.SetMark(pid, c.mark)
	}
	var own unix.Rlimit // which the process has, unless it changed that
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	return c.group.confinement.prlimit(pid, unix.RLIMIT_LOCKS, unix.Rlimit{Cur: uint64(c.mark), Max: own.Max})
}

// register makes a new child c's, before the child reaper can reap it.
func (c *Scope) register(child *Child) {
	// Where it fails, ancestry, process session, environment and start time
	// still tell, and in tier "cgroup" it is only for what moves itself out.
	_ = c.setMark(child.pid)
	c.group.mu.Lock()
	c.group.children[child] = struct{}{}
	c.group.leaders[child.pid] = struct{}{}
	c.group.mu.Unlock()
}

// childReaped is told by the child reaper that a child has been reaped.
func (g *Group) childReaped(child *Child) {
	g.mu.Lock()
	delete(g.children, child)
	g.mu.Unlock()
}

// AddChild moves one of the group's own children in, so that what it starts from
// now on is c's.
func (c *Scope) AddChild(pid int) error {
	child := c.group.host.childReaper.child(pid)
	if child == nil || child.scope == nil || child.scope.group != c.group {
		return fmt.Errorf("adopt %d: %w", pid, unix.ESRCH)
	}
	return child.whileUnreaped(func() error {
		_ = c.setMark(pid) // see register
		if c.dir == "" {
			return nil
		}
		return c.move(pid)
	})
}

// MembersExcept lists the live processes of the scope besides shell: nil, after one or
// two short reads and without allocating, when there is none. A 0 in the list
// stands for a process of a pid namespace that we cannot see into.
func (c *Scope) MembersExcept(shell int) []int {
	if c.dir == "" {
		return c.markedMembersExcept(shell)
	}
	return c.cgroupMembersExcept(shell)
}

// Signal goes once to every member but shell.
func (c *Scope) Signal(sig syscall.Signal, shell int) {
	if c.dir == "" {
		c.group.walk(func(p procfs.Process, of *Scope) {
			if of == c && p.Pid != shell {
				procfs.SignalIf(p.Pid, sig, p.IsStill)
			}
		})
		return
	}
	for _, pid := range c.cgroupMembersExcept(shell) {
		procfs.SignalIf(pid, sig, c.contains)
	}
}

// Kill ends every member but shell and returns when none is left; it goes on
// until nothing new is found, so processes that fork meanwhile do not escape.
// With shell 0, or a shell that was moved to another scope before, the kernel
// does it in one go.
func (c *Scope) Kill(shell int) error {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	var left []int
	if c.dir == "" {
		left = c.group.killByWalk(ctx, c.reaped.Load, func(p procfs.Process, of *Scope) bool { return of == c && p.Pid != shell })
	} else {
		left = c.killCgroup(ctx, shell)
	}
	return c.group.host.killResult(c.group.id, left)
}

// Remove gives the scope up if nobody is left in it.
func (c *Scope) Remove() bool {
	if c.dir == "" {
		if c.group.populated(c) {
			return false
		}
	} else if cgroup.RemoveTree(c.dir) != nil {
		return false
	}
	g := c.group
	g.mu.Lock()
	g.scopes = slices.DeleteFunc(g.scopes, func(o *Scope) bool { return o == c })
	g.mu.Unlock()
	c.close()
	return true
}

// close forgets the mark and closes the descriptors.
func (c *Scope) close() {
	h := c.group.host
	h.mu.Lock()
	delete(h.scopes, c.mark)
	h.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	descriptor.Close(&c.pidList)
	c.removed = true
}

// Members lists every live process of the session; a 0 as in Others.
func (g *Group) Members() []int {
	if g.dir != "" {
		return cgroup.PidsBelow(g.dir)
	}
	var pids []int
	g.walk(func(p procfs.Process, _ *Scope) {
		if !p.Dead() {
			pids = append(pids, p.Pid)
		}
	})
	slices.Sort(pids)
	return slices.Compact(pids) // one that lost its parent during the walk was met twice
}

// Signal goes once to every member but those named.
func (g *Group) Signal(sig syscall.Signal, except ...int) {
	if g.dir == "" {
		g.walk(func(p procfs.Process, _ *Scope) {
			if !slices.Contains(except, p.Pid) {
				procfs.SignalIf(p.Pid, sig, p.IsStill)
			}
		})
		return
	}
	for _, pid := range cgroup.PidsBelow(g.dir) {
		if !slices.Contains(except, pid) {
			procfs.SignalIf(pid, sig, g.contains)
		}
	}
}

// Close kills the session's processes and returns when none is left. An error
// names those that withstood KILL, or is ctx's; the group then counts as alive,
// and Close may be called again. It may be called by several at once.
func (g *Group) Close(ctx context.Context) error {
	select {
	case g.closeSlot <- struct{}{}: // also with ctx done: KILL is sent in any case
	default:
		select {
		case g.closeSlot <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-g.closeSlot }()
	if g.removed {
		return nil
	}
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	h := g.host
	g.endForks() // whoever entered before we closed is in children now
	if b := g.bounds.Load(); b != nil {
		b.liftCPULimit(g)
	}

	timeout, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	var left []int
	if g.dir == "" {
		left = g.killByWalk(timeout, g.reaped, func(procfs.Process, *Scope) bool { return true })
	} else {
		left = g.killCgroup(timeout)
	}
	if len(left) == 0 {
		left = g.awaitChildren(timeout)
	}
	if b := g.bounds.Load(); b != nil && len(left) == 0 && b.remove(timeout) != nil {
		left = []int{0} // somebody who left the session's cgroup, and withstands KILL
	}
	if len(left) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.killResult(g.id, left)
	}

	g.removed = true
	g.mu.Lock()
	scopes := g.scopes
	g.scopes = nil
	g.mu.Unlock()
	for _, c := range scopes {
		c.close()
	}
	h.mu.Lock()
	delete(h.groups, g.id)
	g.confinement.hasGroup = false
	leftover := h.releaseConfinementLocked(g.confinement)
	h.mu.Unlock()
	if leftover {
		h.killByUID(g.confinement)
	}
	return nil
}

// endForks returns when no fork is under way in a group that is closed. One that does not come to an end is killed, with
// all others, until it does.
func (g *Group) endForks() {
	if g.forkMu.TryLock() {
		g.forkMu.Unlock()
		return
	}
	settled := make(chan struct{})
	go func() { // ends with the fork; waited for below
		defer close(settled)
		g.waitForForks()
	}()
	for {
		select {
		case <-settled:
			return
		case <-time.After(5 * time.Millisecond):
		}
		if g.dir == "" {
			g.walkMarked(func(p procfs.Process, _ *Scope) { procfs.SignalIf(p.Pid, unix.SIGKILL, p.IsStill) })
		} else {
			_ = cgroup.KillDir(g.dir)
		}
	}
}

// waitForForks returns when no fork that had begun in the group is under way.
func (g *Group) waitForForks() {
	g.forkMu.Lock()
	//lint:ignore SA2001 the wait is the point
	g.forkMu.Unlock() //nolint:staticcheck // the wait is the point
}

// awaitChildren returns when the child reaper has reaped the group's children, or
// with the pids of those that it has not.
func (g *Group) awaitChildren(ctx context.Context) (left []int) {
	for _, c := range g.ownChildren() {
		_ = c.Signal(unix.SIGKILL) // Root's may have left the session's cgroup
		select {
		case <-c.exited:
		case <-ctx.Done():
			left = append(left, c.pid)
		}
	}
	return left
}

func (g *Group) ownChildren() []*Child {
	g.mu.Lock()
	defer g.mu.Unlock()
	children := make([]*Child, 0, len(g.children))
	for c := range g.children {
		children = append(children, c)
	}
	return children
}

// killResult turns what is left of a kill into an error, and into a number that
// somebody watches.
func (h *Host) killResult(group string, left []int) error {
	if len(left) == 0 {
		return nil
	}
	h.Metrics.KillFailed.Inc()
	h.Log.Error().Str("session", group).Ints("pids", left).Msg("processes withstood KILL")
	return fmt.Errorf("processes %v of %s withstood KILL for %v", left, group, killTimeout)
}
