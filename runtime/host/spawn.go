package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/confine"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// A Child is a process that we started. The child reaper reaps it; nobody else may
// wait for it. Its owner calls Close when it needs Pidfd no longer.
type Child struct {
	pid    int
	scope  *Scope        // nil: of no session
	exited chan struct{} // closed by the child reaper once status is set

	mu     sync.Mutex
	pidfd  int  // guarded by mu for closing; -1 afterwards
	reaped bool // guarded by mu: the number may be somebody else's from here on
	closed bool // guarded by mu: the owner has called Close
	status own.Status
}

// Spawn starts a process in the scope. The process is in the scope's cgroup, or has its mark, and the child reaper knows it, before it runs.
func (c *Scope) Spawn(spec own.Spec) (*Child, error) {
	h, s := c.group.host, spawnSpec{Spec: spec, scope: c}
	if !h.limitsProcesses() {
		return h.start(s)
	}
	h.startMu.Lock() // each start at work would take one
	defer h.startMu.Unlock()
	child, err := h.start(s)
	if s.Dir != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)) {
		if fault := c.group.Enterable(s.Dir); fault != nil { // it was not the program
			err = fault
		}
	}
	return child, err
}

// Spawn starts a process that belongs to no session, as user, or as our own user if that is nil.
func (h *Host) Spawn(spec own.Spec, user *confine.Account) (*Child, error) {
	return h.start(spawnSpec{Spec: spec, user: user})
}

// spawnSpec is what to start, and for whom.
type spawnSpec struct {
	own.Spec
	scope *Scope           // where the process belongs; nil: to no session
	user  *confine.Account // of a process of no session; nil: our own user
}

// limitsProcesses: processes are limited, and threads with them.
func (h *Host) limitsProcesses() bool { return h.processLimit != (unix.Rlimit{}) }

func (h *Host) start(s spawnSpec) (c *Child, err error) {
	held := s.scope != nil && s.scope.group.confinement.isConfined()
	spawn := func() (err error) {
		switch {
		case held:
			err = s.scope.group.confinement.restrictThread()
		case s.user != nil:
			err = noNewPrivileges()
		}
		if err == nil {
			c, err = h.spawn(&s)
		}
		return err
	}
	var thread func(func() error) error
	if held || s.user != nil {
		thread = confine.OnOwnThread
	}
	if s.scope != nil && s.Dir != "" && s.Dir != "/" {
		g := s.scope.group
		if fd := g.openCached(s.Dir); fd >= 0 {
			defer unix.Close(fd)
			s.Dir = "/proc/self/fd/" + strconv.Itoa(fd) // whose self is the child
		} else if !h.limitsProcesses() {
			if thread == nil {
				thread = h.onDirThread
			}
			err = g.enterDir(s.Dir, thread, func() error { return g.confinement.chdir(&s) }, spawn)
			return c, err
		}
	}
	if thread != nil {
		err = thread(spawn)
		return c, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if unix.Gettid() == h.pid {
		// Orphans are put into the main thread's list of children. As long as
		// our own are not in it, one small read tells whether there are any
		// (Scope.MembersExcept). This goroutine holds the main thread, so the new one
		// runs on another; it ends with Spawn, and we wait for it here.
		spawned := make(chan struct{})
		go func() { c, err = h.start(s); close(spawned) }()
		<-spawned
		return c, err
	}
	return h.spawn(&s)
}

// spawn is Spawn on this thread, which is not the main one.
func (h *Host) spawn(s *spawnSpec) (*Child, error) {
	if s.scope != nil {
		g := s.scope.group
		g.forkMu.Lock() // a closing group, which cannot see the child until it is in the list, waits for this
		defer g.forkMu.Unlock()
		h.forkSlots <- struct{}{}
		defer func() { <-h.forkSlots }()
	}
	// Until the child is in the child reaper's list, the child reaper takes its zombie for
	// a stranger's: it waits for forking.
	h.childReaper.forkMu.RLock()
	defer h.childReaper.forkMu.RUnlock()

	pidfd := -1
	bounds := s.scope.bounds()
	defer clearSignalMask(bounds.tracing())()
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY, PidFD: &pidfd, Ptrace: bounds.tracing()} // Ctty: its descriptor 0
	env := s.Env
	if s.user != nil {
		sys.Credential = &syscall.Credential{Uid: s.user.UID, Gid: s.user.GID, Groups: s.user.Groups}
	}
	if s.scope != nil {
		if t := s.scope.group.confinement; t.user != nil {
			sys.Credential = &syscall.Credential{Uid: t.uid, Gid: t.gid, Groups: t.user.Groups}
			env = t.user.Environment(t.uid, env)
			t.chown(s.Files)
		}
		dir, err := s.scope.cloneDir(bounds)
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

	giveBack := forkWithMark(s.scope)
	watched := h.watchFork(s)
	pid, err := syscall.ForkExec(s.Path, s.Argv, &syscall.ProcAttr{Dir: s.Dir, Env: env, Files: files, Sys: sys})
	giveBack()
	runtime.KeepAlive(s.Files)
	if err != nil {
		watched()
		return nil, &os.PathError{Op: "spawn", Path: s.Path, Err: err}
	}
	if bounds.tracing() {
		err = bounds.applyAfterExec(pid, s.scope)
	}
	if late := watched(); err == nil {
		err = late
	}
	if err != nil {
		h.childReaper.add(&Child{pid: pid, pidfd: pidfd, closed: true, exited: make(chan struct{})})
		return nil, fmt.Errorf("spawn %s: %w", s.Path, err)
	}
	if pidfd < 0 {
		// Older than 5.2, or clone3 is filtered; not reaped, so still ours.
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			h.childReaper.add(&Child{pid: pid, pidfd: -1, closed: true, exited: make(chan struct{})})
			return nil, os.NewSyscallError("pidfd_open", err)
		}
	}
	c := &Child{pid: pid, pidfd: pidfd, scope: s.scope, exited: make(chan struct{})}
	if s.scope != nil {
		s.scope.register(c)
		h.limitProcesses(pid)
	}
	h.childReaper.add(c)
	return c, nil
}

// forkTimeout bounds how long a child may take to its exec: it is a millisecond, and with a fork storm around it a tenth of
// a second. Who stops it there, by its user's signals or its cgroup's freezer, would hold up all that fork or are reaped.
const forkTimeout = 5 * time.Second

// A pendingFork is one under way.
type pendingFork struct {
	scope  *Scope
	tid    int // the thread that forks
	began  time.Time
	killed bool // guarded by Host.slowForks.mu
}

// slowForks is the watch over forks. One timer does for all that are under way: to set one for each would wake a thread.
type slowForks struct {
	mu    sync.Mutex
	forks map[*pendingFork]struct{} // guarded by mu
	armed bool                      // guarded by mu; look will be called
}

// watchFork kills what this thread is forking when it takes too long. The caller calls watched before the child reaper knows
// the child; it says whether that was killed.
func (h *Host) watchFork(s *spawnSpec) (watched func() error) {
	if s.scope == nil {
		return func() error { return nil }
	}
	f := &pendingFork{scope: s.scope, tid: unix.Gettid(), began: time.Now()}
	h.slowForks.mu.Lock()
	h.slowForks.forks[f] = struct{}{}
	if !h.slowForks.armed {
		h.slowForks.armed = true
		time.AfterFunc(h.forkTimeout, h.killSlowForks)
	}
	h.slowForks.mu.Unlock()
	return func() error {
		h.slowForks.mu.Lock()
		defer h.slowForks.mu.Unlock()
		if delete(h.slowForks.forks, f); f.killed {
			return unix.ETIMEDOUT
		}
		return nil
	}
}

// killSlowForks kills what has been forked for too long, and comes back as long as anything is. It ends with the last fork.
func (h *Host) killSlowForks() {
	h.slowForks.mu.Lock()
	defer h.slowForks.mu.Unlock()
	next := h.forkTimeout
	for f := range h.slowForks.forks {
		if left := h.forkTimeout - time.Since(f.began); left > 0 {
			next = min(next, left)
			continue
		}
		for _, pid := range f.scope.notYetExeced(f.tid) {
			f.killed = true
			_ = unix.Kill(pid, unix.SIGKILL) // nobody reaps it before watched
		}
		h.Log.Error().Str("session", f.scope.group.id).Bool("killed", f.killed).Msg("process that does not get to its exec")
	}
	if h.slowForks.armed = len(h.slowForks.forks) > 0; h.slowForks.armed {
		time.AfterFunc(next, h.killSlowForks)
	}
}

// notYetExeced are the children of one of our threads, which forks into c, that the child reaper has not been told of.
func (c *Scope) notYetExeced(tid int) []int {
	h := c.group.host
	pids := procfs.ChildrenOfThread(h.pid, tid)
	if !procfs.HaveChildren() {
		pids = slices.DeleteFunc(procfs.ChildrenByScan(h.pid), func(pid int) bool { // orphans are among them
			return c.dir != "" && !c.contains(pid) || c.dir == "" && procfs.ReadMark(pid) != c.mark
		})
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return h.childReaper.child(pid) != nil })
}

// reservedThreads is how many of the user's processes we keep to ourselves where they are limited (ulimit -u), as far as that is
// no more than a quarter of them. They are counted together, threads of ours with the sessions' processes, and a Go program
// that cannot have a thread aborts: a session that forks too much would end all others.
const reservedThreads = 64

func childProcessLimit() (l unix.Rlimit) {
	if unix.Getrlimit(unix.RLIMIT_NPROC, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return unix.Rlimit{}
	}
	if os.Geteuid() == 0 { // not limited in truth
		return unix.Rlimit{}
	}
	l.Cur -= min(l.Cur/4, reservedThreads)
	l.Max = l.Cur
	return l
}

// preparedThreads are made before they are needed where processes are limited: Go never gives an idle one back. With them
// the keeper gets by while it has the sessions' limit itself, in which moment it may not have another (inherit).
const preparedThreads = 16

func makeThreads() {
	var have, ended sync.WaitGroup
	have.Add(preparedThreads)
	for range preparedThreads {
		ended.Go(func() { // ends when all hold a thread at once; waited for here
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			have.Done()
			have.Wait()
		})
	}
	ended.Wait()
}

// limitProcesses gives a new child its limit of processes. What it had forked before keeps ours.
func (h *Host) limitProcesses(pid int) {
	if h.processLimit != (unix.Rlimit{}) {
		_ = unix.Prlimit(pid, unix.RLIMIT_NPROC, &h.processLimit, nil)
	}
}

// markLock is held for writing while our own limit of file locks is a scope's mark, and for reading by every other fork.
var markLock sync.RWMutex

// forkWithMark makes the next fork's child begin with c's mark where that is all that keeps it together: set from outside
// afterwards, it could come after the child's own first fork, which would then belong to nobody. The caller forks, and
// calls giveBack at once.
//
// The same goes for the limit of processes (limitProcesses): a fork is counted against the limit of who forks.
func forkWithMark(c *Scope) (giveBack func()) {
	if c != nil && c.group.host.processLimit != (unix.Rlimit{}) {
		markLock.Lock()
		var own unix.Rlimit
		if unix.Prlimit(0, unix.RLIMIT_NPROC, nil, &own) != nil {
			return setOwnMark(c, markLock.Unlock)
		}
		fewer := unix.Rlimit{Cur: c.group.host.processLimit.Cur, Max: own.Max}
		_ = unix.Prlimit(0, unix.RLIMIT_NPROC, &fewer, nil)
		return setOwnMark(c, func() {
			_ = unix.Prlimit(0, unix.RLIMIT_NPROC, &own, nil)
			markLock.Unlock()
		})
	}
	if c == nil || c.dir != "" {
		markLock.RLock()
		return markLock.RUnlock
	}
	markLock.Lock()
	return setOwnMark(c, markLock.Unlock)
}

// ForkOutsideSessions calls fork, which starts a process that is of no session, and not this package's to wait for. At another moment it
// could begin with a session's mark, be reaped as an orphan of it, and end with it.
func ForkOutsideSessions(fork func() error) error {
	defer forkWithMark(nil)()
	return fork()
}

// setOwnMark is for who holds lending for writing, and gives it back with unlock.
func setOwnMark(c *Scope, unlock func()) (giveBack func()) {
	if c.dir != "" {
		return unlock
	}
	var own unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own) != nil || procfs.SetMark(0, c.mark) != nil { // admit tries once more
		return unlock
	}
	return func() {
		_ = unix.Prlimit(0, unix.RLIMIT_LOCKS, &own, nil)
		unlock()
	}
}

// clearSignalMask clears the thread's signal mask, which a child inherits, and
// returns what puts it back. It is empty unless we were started with blocked
// signals.
//
// A traced child is born with all blocked but the one that says its exec is
// done: it would stop at any other, and before its exec this thread waits for
// that, not for a stop.
func clearSignalMask(traced bool) (restore func()) {
	var mask, old unix.Sigset_t
	if traced {
		for i := range mask.Val {
			mask.Val[i] = ^mask.Val[i]
		}
		mask.Val[0] &^= 1 << (unix.SIGTRAP - 1)
	}
	if unix.PthreadSigmask(unix.SIG_SETMASK, nil, &old) != nil || old == mask {
		return func() {}
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &mask, nil)
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
func (c *Child) Status() own.Status {
	select {
	case <-c.exited:
		return c.status
	default:
		return own.Status{}
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
	if c.reaped { // else the child reaper does, so that Signal works to the end
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

// reap collects the exit status if the child has ended; only the child reaper calls it.
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
		c.status = own.Status{Code: -1}
	case ws.Signaled():
		c.status = own.SignalStatus(ws.Signal())
	default:
		c.status = own.Status{Code: ws.ExitStatus()}
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
