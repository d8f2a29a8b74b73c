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

// These constants say how long the reaper leaves a zombie alone that may belong to other code in this process. Code
// that starts a command with os/exec usually waits for it at once, so a zombie that is still there after
// foreignZombieWait has no parent but us. A zombie that has our own process session id hardly comes from one of our
// sessions, because each of those has its own process session. It gets ownZombieWait, because it may belong to a caller
// of os/exec that calls Wait late.
const (
	foreignZombieWait = 2 * time.Second // 300 ms was too short with sixteen other callers and the race detector
	ownZombieWait     = 10 * time.Second
)

// A childReaper reaps our children and records their status. It also reaps the orphans that the kernel gives to us as
// the subreaper or as PID 1.
//
// SIGCHLD wakes it but does not say which child ended, because the kernel merges signals of one kind. The reaper
// therefore looks until it finds no zombie. A pidfd in an epoll set for each child would work for our children but not
// for orphans, whose start we do not see, and it would be a second way beside this one.
type childReaper struct {
	host *Host

	// forkMu is read-held from before a fork until the child is in children. waitForForks takes it for writing for a
	// moment, to know that no fork is under way.
	forkMu sync.RWMutex

	// reapMu is held from before a child's status is taken from the kernel until exited is closed. It is taken before
	// forkMu and mu.
	reapMu sync.Mutex

	mu       sync.Mutex
	children map[int]*Child // guarded by mu; the children that have not been reaped, by pid

	zombiesSeen map[int]zombieSeen // owned by reapWhenSignalled; zombies that may belong to other code
	sigchld     chan os.Signal
	stop        chan struct{} // closed by Host.Close
	stopped     chan struct{} // closed when reapWhenSignalled has returned
}

// A zombieSeen is a zombie that the reaper has seen and left alone.
type zombieSeen struct {
	start uint64 // start time; with the pid it identifies the process
	since time.Time
}

func newChildReaper(h *Host) *childReaper {
	n := &childReaper{
		host: h, children: map[int]*Child{}, zombiesSeen: map[int]zombieSeen{},
		sigchld: make(chan os.Signal, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	reapers.Store(n, struct{}{})
	return n
}

// reapers has the child reapers of all Hosts of this process: a keeper has one, and tests have several. A session that moves between two of them has
// processes with the same session id in both.
var reapers sync.Map

// add puts c into the list of children. The caller read-holds forkMu. If c has already ended, reapOrphan has found its
// zombie and is waiting for forkMu.
func (n *childReaper) add(c *Child) {
	n.mu.Lock()
	n.children[c.pid] = c
	n.mu.Unlock()
}

// child returns our child with that pid, or nil if there is none or it has been reaped.
func (n *childReaper) child(pid int) *Child {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.children[pid]
}

// waitForForks returns when every fork that had begun has failed or has put its child into children.
func (n *childReaper) waitForForks() {
	n.forkMu.Lock()
	//lint:ignore SA2001 the wait is the point
	n.forkMu.Unlock() //nolint:staticcheck // the wait is the point
}

// reapWhenSignalled is the child reaper's goroutine. It ends when stop is closed; Host.Close waits for it.
func (n *childReaper) reapWhenSignalled() {
	defer close(n.stopped)
	defer reapers.Delete(n)
	defer signal.Stop(n.sigchld)
	again := time.NewTimer(0) // fires at once: children that ended before NewHost sent their SIGCHLD when nothing listened
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

// reapAll reaps every zombie that may be reaped. It returns after how long to look again if no signal comes, or 0 if
// that is not needed.
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
	// The first zombie in the kernel's list may not be reaped yet, and waitid does not show the others. So we ask for
	// each child by its pid.
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
	return max(wait, 10*time.Millisecond) // wait is 0 if the zombie was reaped meanwhile or is being traced
}

// reapChild reaps pid if it is a child of ours that has ended. It reports whether it did.
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

// reapOrphan reaps the zombie pid, and perhaps others, if it certainly comes from one of our sessions. It reports
// whether it reaped one. A session may start hundreds of processes a second that end as orphans, and leave us little of
// the processors; so this takes few system calls for each of them, and waits for a fork only if it must.
func (n *childReaper) reapOrphan(pid int) bool {
	if n.forkMu.TryLock() {
		n.forkMu.Unlock() // no fork is under way
	} else if n.reapOrphans() {
		return true
	} else {
		n.waitForForks()
	}
	if n.child(pid) != nil {
		return n.reapChild(pid)
	}
	return n.reapIfOrphan(pid)
}

// reapOrphans reaps all orphans that have ended and certainly come from our sessions. It reports whether there were any.
// It may be called during a fork, because the main thread's list of children has no child of ours that is new.
func (n *childReaper) reapOrphans() (any bool) {
	text, _ := procfs.PreadAll(n.host.orphanList, make([]byte, 4<<10))
	for pid := range procfs.PidsIn(text) {
		if procfs.IsZombie(pid) && n.child(pid) == nil && n.reapIfOrphan(pid) {
			any = true
		}
	}
	return any
}

// reapIfOrphan reaps the zombie pid if it certainly comes from one of our sessions. The caller knows that it is no
// child of ours. So nobody else reaps it, and the pid cannot become that of another process before this does.
func (n *childReaper) reapIfOrphan(pid int) bool {
	c, ok := n.host.wasOurs(pid)
	if !ok {
		return false
	}
	if c != nil {
		c.reaped.Add(1) // counted before the zombie goes: see killByWalk
	}
	var info procfs.Siginfo
	if procfs.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG) != nil || info.Pid == 0 {
		return false
	}
	n.host.Metrics.ZombiesReaped.Inc()
	return true
}

// reapForeign reaps the zombie p, which other code might have reaped. It does not reap another process that got the same
// pid.
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

// foreignChildren returns our direct children that no host started: orphans, and processes that other code in
// this process started with os/exec.
func (n *childReaper) foreignChildren() []int {
	self, ok := procfs.Read(n.host.pid)
	if !ok {
		return nil
	}
	pids := self.Children()
	for other := range reapers.Range {
		o := other.(*childReaper)
		o.waitForForks() // a child that is in the kernel's list and not yet in o.children would count as foreign
		o.mu.Lock()
		pids = slices.DeleteFunc(pids, func(pid int) bool { return o.children[pid] != nil })
		o.mu.Unlock()
	}
	return pids
}
