package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Tier "pidns": a session is a PID namespace. Its first process is ours, and when that ends the kernel kills all others
// and lets it be reaped only when they are gone: one KILL, and the proof that it has worked. All of them end when trl
// does, however that ends. Scopes are told apart as in tier "none".
//
// The shells are children of ours that were forked into the namespace, so that a new one can take an old one's place.
// What loses its parent in there goes to the namespace's first process. /proc is the one that everybody has, with the
// numbers that everybody knows processes by; inside, getpid and kill have others.

// namespaces is what a Host in tier "pidns" makes them with.
type namespaces struct {
	program int    // fd of init, see openProgram
	life    [2]int // a pipe that nobody writes to: inits wait for the end of our writing end
}

func openNamespaces() (*namespaces, error) {
	n := &namespaces{}
	var err error
	if n.program, err = openProgram("trl-init", initText()); err != nil {
		return nil, err
	}
	if err := unix.Pipe2(n.life[:], unix.O_CLOEXEC); err != nil {
		unix.Close(n.program)
		return nil, os.NewSyscallError("pipe2", err)
	}
	if err := n.probe(); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *namespaces) close() {
	unix.Close(n.program)
	unix.Close(n.life[0])
	unix.Close(n.life[1])
}

// probe does what NewGroup and Spawn do. It comes before the child reaper, so it waits itself.
func (n *namespaces) probe() error {
	pid, pidfd, err := n.start()
	if err != nil {
		return err
	}
	err = onThrowawayThread(func() error {
		if err := unix.Setns(pidfd, unix.CLONE_NEWPID); err != nil {
			return os.NewSyscallError("setns to a PID namespace (Linux 5.8)", err)
		}
		_, err := syscall.ForkExec("/proc/self/no-such-program", []string{"probe"}, nil)
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("start in a PID namespace: %w", err)
		}
		return nil
	})
	_ = unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
	_, _ = retryEINTR(func() (int, error) { return unix.Wait4(pid, nil, 0, nil) })
	unix.Close(pidfd)
	return err
}

// start starts the first process of a new namespace.
func (n *namespaces) start() (pid, pidfd int, err error) {
	pidfd = -1
	err = onThrowawayThread(func() (err error) {
		clearSignalMask(false)
		pid, err = syscall.ForkExec("/proc/self/fd/"+strconv.Itoa(n.program), []string{"trl-init"}, &syscall.ProcAttr{
			Dir: "/", Files: []uintptr{uintptr(n.life[0])},
			Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID, PidFD: &pidfd},
		})
		return err
	})
	if err == nil && pidfd < 0 { // see Spawn
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = retryEINTR(func() (int, error) { return unix.Wait4(pid, nil, 0, nil) })
		}
	}
	if err != nil {
		return 0, -1, fmt.Errorf("new PID namespace: %w", err)
	}
	return pid, pidfd, nil
}

// startInit makes a new group's namespace.
func (g *Group) startInit() error {
	h := g.host
	h.childReaper.forkMu.RLock()
	defer h.childReaper.forkMu.RUnlock()
	giveBack := forkWithMark(nil)
	pid, pidfd, err := h.spaces.start()
	giveBack()
	if err != nil {
		return err
	}
	g.init = &Child{pid: pid, pidfd: pidfd, exited: make(chan struct{})}
	h.childReaper.add(g.init)
	if haveChildren() {
		g.orphanList, _ = openFile(procPath(pid, "/task/"+strconv.Itoa(pid)), "children", unix.O_RDONLY)
	}
	return nil
}

// endInit kills the namespace, if the group has one; it does not wait.
func (g *Group) endInit() {
	if g.init == nil {
		return
	}
	_ = g.init.Signal(unix.SIGKILL)
	_ = g.init.Close()
	g.orphanListMu.Lock()
	defer g.orphanListMu.Unlock()
	if g.orphanList >= 0 {
		unix.Close(g.orphanList)
		g.orphanList = -1
	}
}

// killNamespace returns the pids that are left when ctx ends.
func (g *Group) killNamespace(ctx context.Context) []int {
	_ = g.init.Signal(unix.SIGKILL)
	select {
	case <-g.init.exited:
		return nil
	case <-ctx.Done():
	}
	if left := g.Members(); len(left) > 0 {
		return left
	}
	return []int{g.init.pid}
}

// orphanListLocked is the fd of the list in which the group's orphans are, maybe with others: -1 if there is none. listing
// is held.
func (g *Group) orphanListLocked() int {
	if g.init != nil {
		return g.orphanList
	}
	return g.host.orphanList
}

// walkOrphans visits the namespace's orphans and all below them.
func (g *Group) walkOrphans(visit func(p proc, c *Scope)) {
	var pids []int
	_ = g.init.whileUnreaped(func() error { // afterwards there is nobody, and the number may be somebody else's
		pids = proc{pid: g.init.pid, threads: 1}.children()
		return nil
	})
	for _, pid := range pids {
		p, ok := readProc(pid)
		if !ok || p.ppid != g.init.pid {
			g.vanished.Add(1)
			continue
		}
		c, _ := g.host.scopeOf(pid)
		if c == nil || c.group != g {
			c = g.scopeAt(p.start) // it took the mark off, but who else could be here
		}
		g.descend(p, c, visit)
	}
}

// outerPid is the number by which we know a child of shell that its own namespace knows as inner; 0: there is no such child. The
// session says what inner is, and need not tell the truth.
func outerPid(shell, inner int) int {
	const looks = 3 // the kernel's list may miss one while others end
	is := func(pid int) bool {
		p, ok := readProc(pid)
		text, _ := readSmallFile(procPath(pid, "/status"), make([]byte, 4<<10))
		return ok && p.ppid == shell && bytes.HasSuffix(statusLine(text, "NSpid:"), fmt.Appendf(nil, "\t%d\n", inner))
	}
	if is(inner) { // it is in our namespace
		return inner
	}
	for range looks {
		p, ok := readProc(shell)
		if !ok {
			return 0
		}
		for _, pid := range p.children() {
			if is(pid) {
				return pid
			}
		}
	}
	return 0
}
