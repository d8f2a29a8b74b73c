package host

import (
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// How long a zombie that may be somebody else's is left alone. Code in this
// process that starts a command with os/exec waits for it at once, so what is
// still there after foreignZombieWait has no parent but us. With our own session
// id it can hardly come from one of our sessions (each has its own), so a caller
// of os/exec that is slow to Wait gets longer.
const (
	foreignZombieWait = 2 * time.Second // beside sixteen others and the race detector 300 ms were not enough
	ownZombieWait     = 10 * time.Second
)

// A childReaper reaps: our children, whose status it records, and the orphans that
// the kernel gives us as subreaper or PID 1.
//
// SIGCHLD wakes it and says nothing else (signals of one kind merge), so it
// then looks until there is no zombie. A pidfd in an epoll set for each child
// would do for ours, but orphans come unannounced, and two ways are one more
// than needed.
type childReaper struct {
	host *Host

	// Read-held from before a fork until the child is in children; taken for
	// writing, for a moment, to know that no fork is under way.
	forkMu sync.RWMutex

	// Held from before a child's status is taken from the kernel until Exited is closed. Taken before forking and mu.
	reapMu sync.Mutex

	mu       sync.Mutex
	children map[int]*Child // guarded by mu; not reaped, by pid

	zombiesSeen map[int]zombieSeen // owned by reapWhenSignalled; zombies that may be somebody else's
	sigchld     chan os.Signal
	stop        chan struct{} // closed by Host.Close
	stopped     chan struct{} // closed when reapWhenSignalled has returned
}

// A zombieSeen is a zombie that we have looked at before.
type zombieSeen struct {
	start uint64 // its identity, with the pid
	since time.Time
}

func newChildReaper(h *Host) *childReaper {
	return &childReaper{
		host: h, children: map[int]*Child{}, zombiesSeen: map[int]zombieSeen{},
		sigchld: make(chan os.Signal, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
}

// add makes c known. The caller holds forking for reading: should c have ended
// already, reapOrphan is waiting for it with the zombie in hand.
func (n *childReaper) add(c *Child) {
	n.mu.Lock()
	n.children[c.pid] = c
	n.mu.Unlock()
}

// child finds a child of ours that has not been reaped.
func (n *childReaper) child(pid int) *Child {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.children[pid]
}

// waitForForks returns when every fork that had begun is in children or has failed.
func (n *childReaper) waitForForks() {
	n.forkMu.Lock()
	//lint:ignore SA2001 the wait is the point
	n.forkMu.Unlock() //nolint:staticcheck // the wait is the point
}

// reapWhenSignalled is the child reaper's goroutine. It ends when stop closes;
// Host.Close waits for it.
func (n *childReaper) reapWhenSignalled() {
	defer close(n.stopped)
	defer signal.Stop(n.sigchld)
	again := time.NewTimer(0) // what died before NewHost sent its signal to nobody
	defer again.Stop()
	for {
		select {
		case <-n.sigchld:
		case <-again.C:
		case <-n.stop:
			return
		}
		if wait := n.reapAll(); wait > 0 {
			again.Reset(wait)
		}
	}
}

// reapAll reaps what may be reaped and says when to look again without being
// signalled; 0: there is no need.
func (n *childReaper) reapAll() time.Duration {
	for {
		pid := procfs.PeekZombie()
		if pid == 0 {
			clear(n.zombiesSeen)
			return 0
		}
		if !n.reapChild(pid) && !n.reapOrphan(pid) {
			break
		}
	}
	// The first in the kernel's list is not ours to take yet, and the kernel
	// shows no other: ask for each.
	n.mu.Lock()
	ours := make([]int, 0, len(n.children))
	for pid := range n.children {
		ours = append(ours, pid)
	}
	n.mu.Unlock()
	for _, pid := range ours {
		if procfs.IsZombie(pid) {
			n.reapChild(pid)
		}
	}
	seen, wait := map[int]zombieSeen{}, time.Duration(0)
	for _, pid := range n.foreignChildren() {
		if !procfs.IsZombie(pid) || n.reapOrphan(pid) {
			continue
		}
		p, ok := procfs.Read(pid)
		if !ok {
			continue
		}
		s, old := n.zombiesSeen[pid]
		if !old || s.start != p.Start {
			s = zombieSeen{start: p.Start, since: time.Now()}
		}
		timeout := foreignZombieWait
		if p.Sid == n.host.sid {
			timeout = ownZombieWait
		}
		left := timeout - time.Since(s.since)
		if left <= 0 {
			n.reapForeign(p)
			continue
		}
		seen[pid] = s
		if wait == 0 || left < wait {
			wait = left
		}
	}
	n.zombiesSeen = seen
	return max(wait, 10*time.Millisecond) // no suspect: it was reaped meanwhile, or it is being traced
}

// reapChild reports whether pid was a child of ours and is reaped.
func (n *childReaper) reapChild(pid int) bool {
	n.reapMu.Lock()
	defer n.reapMu.Unlock()
	c := n.child(pid)
	if c == nil || !c.reap() {
		return false
	}
	n.mu.Lock()
	delete(n.children, pid)
	n.mu.Unlock()
	if c.scope != nil {
		c.scope.group.childReaped(c)
	}
	close(c.exited)
	return true
}

// reapOrphan reaps a zombie that certainly came out of one of our sessions.
func (n *childReaper) reapOrphan(pid int) bool {
	n.waitForForks()
	if n.child(pid) != nil {
		return n.reapChild(pid)
	}
	p, ok := procfs.Read(pid)
	if !ok || !n.host.wasOurs(pid) {
		return false
	}
	if c, _ := n.host.scopeOf(pid); c != nil {
		c.reaped.Add(1) // before it goes: see killByWalk
	}
	return n.reapForeign(p)
}

// reapForeign takes the zombie p and no other process that got its number.
func (n *childReaper) reapForeign(p procfs.Process) bool {
	err := descriptor.WithReserve(func() error {
		fd, err := unix.PidfdOpen(p.Pid, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var info procfs.Siginfo
		if !p.IsStill(p.Pid) {
			return unix.ECHILD
		}
		if err := procfs.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG); err != nil {
			return err
		}
		if info.Pid == 0 {
			return unix.EAGAIN
		}
		return nil
	})
	if err != nil {
		return false
	}
	n.host.Metrics.ZombiesReaped.Inc()
	return true
}

// foreignChildren are our direct children that we did not start: orphans, and what
// other code in this process started with os/exec.
func (n *childReaper) foreignChildren() []int {
	self, ok := procfs.Read(n.host.pid)
	if !ok {
		return nil
	}
	pids := self.Children()
	n.waitForForks() // a child that is in the list but not yet known would look like one
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(pids, func(pid int) bool { return n.children[pid] != nil })
}
