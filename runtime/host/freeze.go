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

// FreezeSessions stops everything that runs in sessions until unfreeze is called, which must be soon. A process that
// waits in the kernel leaves its system call and so releases what it holds there; it restarts the call afterwards. In
// tier "cgroup" no process can notice the freeze. In tier "none" FreezeSessions sends SIGSTOP to the processes that
// were not stopped, and unfreeze sends SIGCONT to the same processes.
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
	// Parents are stopped before their children and continued after them: a shell that runs while its job is stopped
	// takes the terminal from the job.
	slices.SortFunc(stopped, func(a, b procfs.Process) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Pid, b.Pid)) })
	stopped = slices.DeleteFunc(stopped, func(p procfs.Process) bool { return !procfs.SignalIf(p.Pid, unix.SIGSTOP, p.IsStill) })
	return func() {
		for _, p := range slices.Backward(stopped) {
			procfs.SignalIf(p.Pid, unix.SIGCONT, p.IsStill)
		}
	}
}

// CountAsEnded treats a child as ended that has been killed and cannot end (see Dying). Its threads run no code of
// their own any more, but one waits in the kernel and cannot be interrupted. When the child ends, it is reaped like an
// orphan.
func (h *Host) CountAsEnded(c *Child) {
	n := h.childReaper
	n.reapMu.Lock()
	defer n.reapMu.Unlock()
	if n.child(c.pid) != c {
		return // it has been reaped already
	}
	n.mu.Lock()
	delete(n.children, c.pid)
	n.mu.Unlock()
	c.mu.Lock()
	if !c.closed {
		c.keepPidfdLocked()
	}
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

// WaitsForFileSystem reports whether a thread of this process waits for a file system. An exec of this process would
// wait for that thread.
func (h *Host) WaitsForFileSystem() bool { return len(h.chdirSlots) > 0 }

// Dying reports whether the process has been killed or has begun to exit and has not ended. If that lasts, one of its
// threads is in a system call that no signal interrupts. Dying also returns true for a process that is just about to
// end.
func (c *Child) Dying() bool {
	p, ok := procfs.Read(c.pid)
	if !ok {
		return false
	}
	if p.State == 'Z' { // its main thread has ended; either other threads have not, or nothing has reaped it yet
		return true
	}
	return procfs.InMask(c.pid, "SigPnd:", syscall.SIGKILL)
}
