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

// killTimeout bounds how long we wait for killed processes to end. Processes normally end within milliseconds of KILL.
// A fork storm delays that by one or two seconds, and by ten seconds without cgroups on a busy machine. A process that
// is left after 20 s hangs in the kernel (state D), and a longer wait would make us hang too.
const killTimeout = 20 * time.Second

// A Group is the processes of one session. A Scope is those that one of its commands started. In tier "cgroup" both are
// directories, and the kernel keeps the list of processes. In tier "none" a scope is a mark that its processes inherit.
type Group struct {
	id          string
	host        *Host
	confinement *confinement  // set once in NewGroup
	dir         string        // the group's cgroup; "" in tier "none"
	closeSlot   chan struct{} // one slot: held by the Close that is running
	removed     bool          // owned by the holder of closeSlot

	forkMu    sync.Mutex    // held from before a fork until the child is in children; taken before childReaper.forkMu
	chdirSlot chan struct{} // one slot: held by the thread in enterDir

	limitMu sync.Mutex             // held by Limit
	bounds  atomic.Pointer[bounds] // nil: there are no limits; set once, by Limit

	mu       sync.Mutex
	closed   bool                // guarded by mu; nothing may be started in the group any more
	children map[*Child]struct{} // guarded by mu; those that have not been reaped
	// The pid of every child, which is also the id of its process session. A pid stays here after the child has ended.
	// guarded by mu
	leaders map[int]struct{}
	scopes  []*Scope // guarded by mu; in order of begin, without the removed ones
	serial  int      // guarded by mu; the number of the newest scope
}

// A Scope must be removed with Remove, or closed with its group.
type Scope struct {
	group  *Group
	number int // unique within its group
	mark   procfs.Mark
	begin  uint64 // clock ticks after boot
	dir    string // the scope's cgroup; "" in tier "none"

	reaped atomic.Int64 // how many orphans of the scope the child reaper has reaped or is about to reap

	mu        sync.Mutex
	pidList   int    // guarded by mu; fd of cgroup.procs, or in tier "none" of the list of children of pidListOf; -1: not opened yet
	removed   bool   // guarded by mu; close was called
	pidListOf int    // guarded by mu; in tier "none" the shell that pidList belongs to
	listBuf   []byte // guarded by mu; buffer for reading pidList
}

// NewScope makes a scope for the processes that the next command starts.
func (g *Group) NewScope() (*Scope, error) {
	begin := procfs.TicksNow()
	if !g.host.markBase.Fits() && g.dir == "" {
		// Without marks, start times tell scopes apart, so two scopes must not begin in the same clock tick.
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
		if !errors.Is(err, fs.ErrExist) { // if it exists, the session made it: try the next number
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

// Number is unique within the group; removed scopes count too.
func (c *Scope) Number() int { return c.number }

// SignalSome sends sig to those of pids that are in the scope.
func (c *Scope) SignalSome(sig syscall.Signal, pids ...int) {
	if c.dir != "" {
		for _, pid := range pids {
			procfs.SignalIf(pid, sig, c.contains)
		}
		return
	}
	// The mark is checked first, because a walk can miss a process whose parent is just ending. One walk finds all
	// processes without a mark.
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

// AddForkedCopy moves a process into the scope that a shell of the group forked. The process is not our child, so its
// pid is valid only while it waits at a gate. The session tells us the pid, and the scope's processes are killed at the
// end: AddForkedCopy therefore refuses any process whose parent is not a child of the group.
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

// cloneDir is called before a child is started in c. In tier "cgroup" it returns a descriptor of the directory to clone
// into, which the caller closes; in tier "none" it returns -1.
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
	// If the session has frozen its own cgroup, the child would freeze before its exec.
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

// setMark gives a process the mark of c.
func (c *Scope) setMark(pid int) error {
	if c.group.confinement.user == nil {
		return procfs.SetMark(pid, c.mark)
	}
	var own unix.Rlimit // the process has the same limit, unless it changed it
	if err := unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own); err != nil {
		return os.NewSyscallError("prlimit", err)
	}
	return c.group.confinement.prlimit(pid, unix.RLIMIT_LOCKS, unix.Rlimit{Cur: uint64(c.mark), Max: own.Max})
}

// register adds a new child to c's group before the child reaper can reap it.
func (c *Scope) register(child *Child) {
	// If setMark fails, ancestry, process session, environment and start time still connect the process with the scope.
	// In tier "cgroup" only a process that leaves its cgroup needs the mark.
	_ = c.setMark(child.pid)
	c.group.mu.Lock()
	c.group.children[child] = struct{}{}
	c.group.leaders[child.pid] = struct{}{}
	c.group.mu.Unlock()
}

// childReaped is called by the child reaper when it has reaped a child of the group.
func (g *Group) childReaped(child *Child) {
	g.mu.Lock()
	delete(g.children, child)
	g.mu.Unlock()
}

// AddChild moves one of the group's own children into the scope, so that the processes that it starts from now on
// belong to c.
func (c *Scope) AddChild(pid int) error {
	child := c.group.host.childReaper.child(pid)
	if child == nil || child.scope == nil || child.scope.group != c.group {
		return fmt.Errorf("adopt %d: %w", pid, unix.ESRCH)
	}
	return child.whileUnreaped(func() error {
		_ = c.setMark(pid) // may fail, see register
		if c.dir == "" {
			return nil
		}
		return c.move(pid)
	})
}

// MembersExcept lists the live processes of the scope other than shell. If there are none, it returns nil after one or
// two short reads, without allocating. A 0 in the list stands for a process in a pid namespace that we cannot see into.
func (c *Scope) MembersExcept(shell int) []int {
	if c.dir == "" {
		return c.markedMembersExcept(shell)
	}
	return c.cgroupMembersExcept(shell)
}

// Signal sends sig once to every member except shell.
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

// Kill kills every member except shell and returns when none is left. It repeats until it finds no new member, so
// processes that fork meanwhile do not escape. If shell is 0, or was moved to another scope before, the kernel kills
// all members at once.
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

// Remove removes the scope if it has no members, and reports whether it did.
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

// Rest closes the list that MembersExcept keeps open, until it is needed again.
func (c *Scope) Rest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	descriptor.Close(&c.pidList)
	c.pidListOf = 0
}

// close removes the scope's mark from the host and closes the scope's descriptor.
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

// Members lists every live process of the session. A 0 has the same meaning as in MembersExcept.
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
	return slices.Compact(pids) // a process that lost its parent during the walk was visited twice
}

// Signal sends sig once to every member except those named.
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

// Close kills the session's processes and returns when none is left. It returns an error that names the processes that
// KILL did not end, or the error of ctx; the group then still counts as alive, and Close may be called again. Several
// goroutines may call it at the same time.
func (g *Group) Close(ctx context.Context) error {
	select {
	case g.closeSlot <- struct{}{}: // even if ctx is done, because KILL must be sent in any case
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
	g.endForks() // a child whose fork began before closed was set is in children now
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
		left = []int{0} // a process that left the session's cgroup, and that KILL did not end
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

// endForks returns when no fork is under way in a group that is closed. Until then it kills the group's processes again
// and again, so that a fork that hangs fails.
func (g *Group) endForks() {
	if g.forkMu.TryLock() {
		g.forkMu.Unlock()
		return
	}
	settled := make(chan struct{})
	go func() { // ends when no fork is under way; endForks waits for it
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

// waitForForks returns when every fork that had begun in the group has ended.
func (g *Group) waitForForks() {
	g.forkMu.Lock()
	//lint:ignore SA2001 the wait is the point
	g.forkMu.Unlock() //nolint:staticcheck // the wait is the point
}

// awaitChildren kills the group's children and waits until the child reaper has reaped them. It returns the pids of
// those that have not been reaped when ctx ends.
func (g *Group) awaitChildren(ctx context.Context) (left []int) {
	for _, c := range g.ownChildren() {
		_ = c.Signal(unix.SIGKILL) // a child of a session of root's may have left its cgroup
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

// killResult turns the pids that a kill has left into an error, a log line and a metric.
func (h *Host) killResult(group string, left []int) error {
	if len(left) == 0 {
		return nil
	}
	h.Metrics.KillFailed.Inc()
	h.Log.Error().Str("session", group).Ints("pids", left).Msg("processes did not end after KILL")
	return fmt.Errorf("processes %v of %s did not end within %v of KILL", left, group, killTimeout)
}
