package host

import (
	"cmp"
	"maps"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// FreezeSessions stops all that runs in sessions until resume is called, soon: whatever waits in the kernel there lets go of what it
// has meanwhile, and takes up its system call again afterwards. In tier "cgroup" nobody can tell; elsewhere it is SIGSTOP and
// SIGCONT, to what was not stopped.
func (h *Host) FreezeSessions() (unfreeze func()) {
	if h.root != nil {
		_ = cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "1")
		return func() { _ = cgroup.WriteFile(h.root.Dir, "cgroup.freeze", "0") }
	}
	h.mu.Lock()
	groups := slices.Collect(maps.Values(h.groups))
	h.mu.Unlock()
	var stopped []procfs.Process
	for _, g := range groups {
		for _, pid := range g.Members() {
			if p, ok := procfs.Read(pid); ok && p.State != 'T' && p.State != 't' {
				stopped = append(stopped, p)
			}
		}
	}
	// Parents before what they have started, and the other way round afterwards: a shell that runs while its job is stopped takes
	// the terminal from the job.
	slices.SortFunc(stopped, func(a, b procfs.Process) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Pid, b.Pid)) })
	stopped = slices.DeleteFunc(stopped, func(p procfs.Process) bool { return !procfs.SignalIf(p.Pid, unix.SIGSTOP, p.IsStill) })
	return func() {
		for _, p := range slices.Backward(stopped) {
			procfs.SignalIf(p.Pid, unix.SIGCONT, p.IsStill)
		}
	}
}

// CountAsEnded makes a child that has been killed and cannot end (Dying) count as ended: its threads run no more code of their own, but
// one waits in the kernel, and nothing makes it let go. Once it has ended, it is reaped like an orphan.
func (h *Host) CountAsEnded(c *Child) {
	n := h.childReaper
	n.reapMu.Lock()
	defer n.reapMu.Unlock()
	if n.child(c.pid) != c {
		return // it was reaped
	}
	n.mu.Lock()
	delete(n.children, c.pid)
	n.mu.Unlock()
	c.mu.Lock()
	c.status, c.reaped = own.SignalStatus(syscall.SIGKILL), true
	if c.closed {
		c.closePidfdLocked()
	}
	c.mu.Unlock()
	if c.scope != nil {
		c.scope.group.childReaped(c)
	}
	close(c.exited)
}

// WaitsForFileSystem says that a thread of this process waits for a file system. No exec gets past such a thread.
func (h *Host) WaitsForFileSystem() bool { return len(h.chdirSlots) > 0 }

// Dying tells that the process has been killed, or has begun to exit, and cannot end: a thread of it is in a system call that
// no signal ends. Of one that is about to end it says the same.
func (c *Child) Dying() bool {
	p, ok := procfs.Read(c.pid)
	if !ok {
		return false
	}
	if p.State == 'Z' { // the main thread has gone, others have not, or nobody has reaped it yet
		return true
	}
	return procfs.InMask(c.pid, "SigPnd:", syscall.SIGKILL)
}
