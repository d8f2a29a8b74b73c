package runtime

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Spec says what to start. The child gets its own process session, default
// dispositions for all signals and an empty signal mask.
type Spec struct {
	Path      string // absolute, or relative to Dir; not searched for in PATH
	Argv, Env []string
	Dir       string
	Files     []*os.File // its descriptors 0, 1, 2…; nil is a closed one. Each is switched to blocking, as os/exec does
	Cell      *Cell      // where it belongs; nil: to no session
}

// Status is how a child ended.
type Status struct {
	Code   int            // 0…255; 128+n after signal n; -1 when it cannot be known
	Signal syscall.Signal // 0 when it was none
	CPU    time.Duration  // user and system, its own and that of the children it waited for
	MaxRSS int64          // bytes
}

// A Child is a process that we started. The nursery reaps it; nobody else may
// wait for it. Its owner calls Close when it needs Pidfd no longer.
type Child struct {
	pid    int
	cell   *Cell         // nil: of no session
	exited chan struct{} // closed by the nursery once status is set

	mu     sync.Mutex
	pidfd  int  // guarded by mu for closing; -1 afterwards
	reaped bool // guarded by mu: the number may be somebody else's from here on
	closed bool // guarded by mu: the owner has called Close
	status Status
}

// Spawn starts a process. From the first moment it is where it belongs (in the
// cell's cgroup, or marked) and known to the nursery.
func (h *Host) Spawn(s Spec) (*Child, error) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if unix.Gettid() == h.pid {
		// Orphans are put into the main thread's list of children. As long as
		// our own are not in it, one small read tells whether there are any
		// (Cell.Others). This goroutine holds the main thread, so the new one
		// runs on another; it ends with Spawn, and we wait for it here.
		var c *Child
		var err error
		spawned := make(chan struct{})
		go func() { c, err = h.Spawn(s); close(spawned) }()
		<-spawned
		return c, err
	}
	defer emptySignalMask()()
	// Until the child is in the nursery's list, the nursery takes its zombie for
	// a stranger's, and a closing group cannot see it: both wait for forking.
	h.nursery.forking.RLock()
	defer h.nursery.forking.RUnlock()

	pidfd := -1
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if s.Cell != nil {
		dir, err := s.Cell.enter()
		if err != nil {
			return nil, fmt.Errorf("spawn %s: %w", s.Path, err)
		}
		if dir >= 0 {
			defer unix.Close(dir)
			sys.UseCgroupFD, sys.CgroupFD = true, dir
		}
	}
	files := make([]uintptr, len(s.Files))
	for i, f := range s.Files {
		files[i] = f.Fd() // of a nil *os.File: -1, closed in the child
	}

	giveBack := inherit(s.Cell)
	pid, err := syscall.ForkExec(s.Path, s.Argv, &syscall.ProcAttr{Dir: s.Dir, Env: s.Env, Files: files, Sys: sys})
	giveBack()
	goruntime.KeepAlive(s.Files)
	if err != nil {
		return nil, &os.PathError{Op: "spawn", Path: s.Path, Err: err}
	}
	if pidfd < 0 {
		// Older than 5.2, or clone3 is filtered; not reaped, so still ours.
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			h.nursery.add(&Child{pid: pid, pidfd: -1, closed: true, exited: make(chan struct{})})
			return nil, os.NewSyscallError("pidfd_open", err)
		}
	}
	c := &Child{pid: pid, pidfd: pidfd, cell: s.Cell, exited: make(chan struct{})}
	if s.Cell != nil {
		s.Cell.admit(c)
	}
	h.nursery.add(c)
	return c, nil
}

// lending is held for writing while our own limit of file locks is a cell's mark, and for reading by every other fork.
var lending sync.RWMutex

// inherit makes the next fork's child begin with c's mark where that is all that keeps it together: set from outside
// afterwards, it could come after the child's own first fork, which would then belong to nobody. The caller forks, and
// calls giveBack at once.
func inherit(c *Cell) (giveBack func()) {
	if c == nil || c.dir != "" {
		lending.RLock()
		return lending.RUnlock
	}
	lending.Lock()
	var own unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own) != nil || setMark(0, c.mark) != nil { // admit tries once more
		return lending.Unlock
	}
	return func() {
		_ = unix.Prlimit(0, unix.RLIMIT_LOCKS, &own, nil)
		lending.Unlock()
	}
}

// emptySignalMask clears the thread's signal mask, which a child inherits, and
// returns what puts it back. It is empty unless we were started with blocked
// signals.
func emptySignalMask() (restore func()) {
	var none, old unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_SETMASK, nil, &old) != nil || old == none {
		return func() {}
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &none, nil)
	return func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }
}

// Pid stays readable after the end, but only for logs and answers.
func (c *Child) Pid() int { return c.pid }

// Pidfd is readable from the child's end on, which is a little before Exited
// closes. It is valid until Close,
// then -1.
func (c *Child) Pidfd() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pidfd
}

// Exited closes when the child has been reaped and Status is known.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Status is the zero Status until Exited is closed.
func (c *Child) Status() Status {
	select {
	case <-c.exited:
		return c.status
	default:
		return Status{}
	}
}

// Signal reaches this process or nobody: os.ErrProcessDone after its end.
func (c *Child) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped || c.pidfd < 0 {
		return os.ErrProcessDone
	}
	err := unix.PidfdSendSignal(c.pidfd, sig, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return os.NewSyscallError("pidfd_send_signal", err)
}

// Close gives the descriptor back; it neither ends the child nor waits for it.
func (c *Child) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.reaped { // else the nursery does, so that Signal works to the end
		c.closePidfdLocked()
	}
	return nil
}

// closePidfdLocked: mu is held.
func (c *Child) closePidfdLocked() {
	if c.pidfd >= 0 {
		unix.Close(c.pidfd)
		c.pidfd = -1
	}
}

// reap collects the exit status if the child has ended; only the nursery calls it.
func (c *Child) reap() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ws syscall.WaitStatus
	var use syscall.Rusage
	pid, err := syscall.Wait4(c.pid, &ws, syscall.WNOHANG, &use)
	switch {
	case err == syscall.EINTR || (err == nil && pid == 0):
		return false
	case err != nil: // somebody else in this process waited for it: how it ended is lost
		c.status = Status{Code: -1}
	case ws.Signaled():
		c.status = Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	default:
		c.status = Status{Code: ws.ExitStatus()}
	}
	if err == nil {
		c.status.CPU = time.Duration(use.Utime.Nano() + use.Stime.Nano())
		c.status.MaxRSS = use.Maxrss << 10
	}
	c.reaped = true
	if c.closed {
		c.closePidfdLocked()
	}
	return true
}

// whileUnreaped runs f while the pid is certainly this child's.
func (c *Child) whileUnreaped(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return os.ErrProcessDone
	}
	return f()
}
