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

// A Child is a process that we started. The child reaper reaps it, and no other code may wait for it. Its owner calls
// Close when it no longer needs Pidfd.
type Child struct {
	pid    int
	scope  *Scope        // nil: the child belongs to no session
	exited chan struct{} // closed by the child reaper once status is set

	mu     sync.Mutex
	pidfd  int  // guarded by mu for closing; -1 after that, and after DropPidfd until the child ends
	reaped bool // guarded by mu; another process may have the pid from here on
	closed bool // guarded by mu; the owner has called Close
	status own.Status
}

// Spawn starts a process in the scope. The process is in the scope's cgroup or has its mark before it runs. The child
// reaper knows the process when Spawn returns.
func (c *Scope) Spawn(spec own.Spec) (*Child, error) {
	h, s := c.group.host, spawnSpec{Spec: spec, scope: c}
	if !h.limitsProcesses() {
		return h.start(s)
	}
	h.startMu.Lock() // each start that runs at the same time would need one more thread
	defer h.startMu.Unlock()
	child, err := h.start(s)
	if s.Dir != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.ENOTDIR)) {
		if fault := c.group.Enterable(s.Dir); fault != nil { // the error concerned the directory and not the program
			err = fault
		}
	}
	return child, err
}

// Spawn starts a process that belongs to no session. The process runs as user; nil means our own user.
func (h *Host) Spawn(spec own.Spec, user *confine.Account) (*Child, error) {
	return h.start(spawnSpec{Spec: spec, user: user})
}

// A spawnSpec says what to start, in which scope and as which user.
type spawnSpec struct {
	own.Spec
	scope *Scope           // the process belongs to it; nil: it belongs to no session
	user  *confine.Account // of a process that belongs to no session; nil: our own user
}

// limitsProcesses reports whether the number of the user's processes is limited. Threads count as processes.
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
			s.Dir = "/proc/self/fd/" + strconv.Itoa(fd) // "self" is the child
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
		// Orphans are added to the main thread's list of children. As long as our own children are not in it, one small
		// read shows whether there are orphans (Scope.MembersExcept). This goroutine holds the main thread, so the new
		// one runs on another thread. The new goroutine ends with the start, and we wait for it here.
		spawned := make(chan struct{})
		go func() { c, err = h.start(s); close(spawned) }()
		<-spawned
		return c, err
	}
	return h.spawn(&s)
}

// spawn starts the process from this thread, which is not the main one.
func (h *Host) spawn(s *spawnSpec) (*Child, error) {
	if s.scope != nil {
		g := s.scope.group
		g.forkMu.Lock() // a closing group waits for this lock, because it cannot see the child until the child is in children
		defer g.forkMu.Unlock()
		h.forkSlots <- struct{}{}
		defer func() { <-h.forkSlots }()
	}
	// Until the child is in the child reaper's list, the reaper would take the child's zombie for a foreign one. The
	// reaper therefore waits for forkMu.
	h.childReaper.forkMu.RLock()
	defer h.childReaper.forkMu.RUnlock()

	pidfd := -1
	bounds := s.scope.bounds()
	defer clearSignalMask(bounds.tracing())()
	sys := &syscall.SysProcAttr{Setsid: true, Setctty: s.TTY, PidFD: &pidfd, Ptrace: bounds.tracing()} // the terminal is descriptor 0: Ctty is 0
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
		files[i] = f.Fd() // -1 for a nil *os.File, which is closed in the child
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
		// Linux is older than 5.2, or a filter refuses clone3. The child has not been reaped, so the pid is its own.
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

// forkTimeout bounds the time from a fork to the child's exec. It normally takes a millisecond, and during a fork storm
// a tenth of a second. The session's user can stop a child there, with a signal or with its cgroup's freezer. That
// child would block every other fork, and the child reaper too.
const forkTimeout = 5 * time.Second

// A pendingFork is a fork that is under way.
type pendingFork struct {
	scope  *Scope
	tid    int // the thread that forks
	began  time.Time
	killed bool // guarded by Host.slowForks.mu
}

// slowForks watches the forks that are under way. One timer is enough for all: a timer for each fork would wake a
// thread each time.
type slowForks struct {
	mu    sync.Mutex
	forks map[*pendingFork]struct{} // guarded by mu
	armed bool                      // guarded by mu; killSlowForks will be called
}

// watchFork kills the child that this thread is about to fork, if its exec takes too long. The caller calls watched
// before it tells the child reaper about the child. watched returns an error if the child was killed.
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

// killSlowForks kills the children whose exec takes too long. It sets its timer again as long as a fork is under way.
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
			_ = unix.Kill(pid, unix.SIGKILL) // no other code reaps it before watched
		}
		h.Log.Error().Str("session", f.scope.group.id).Bool("killed", f.killed).Msg("a process does not get to its exec")
	}
	if h.slowForks.armed = len(h.slowForks.forks) > 0; h.slowForks.armed {
		time.AfterFunc(next, h.killSlowForks)
	}
}

// notYetExeced returns the children that our thread tid is forking into c: those that the child reaper does not know
// yet.
func (c *Scope) notYetExeced(tid int) []int {
	h := c.group.host
	pids := procfs.ChildrenOfThread(h.pid, tid)
	if !procfs.HaveChildren() {
		pids = slices.DeleteFunc(procfs.ChildrenByScan(h.pid), func(pid int) bool { // this list contains orphans too
			return c.dir != "" && !c.contains(pid) || c.dir == "" && procfs.ReadMark(pid) != c.mark
		})
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return h.childReaper.child(pid) != nil })
}

// reservedThreads is how many of the user's processes we reserve for ourselves if their number is limited (ulimit -u);
// it is at most a quarter of them. The kernel counts our threads and the sessions' processes together. A Go program
// that cannot make a thread aborts, so without the reserve a session that forks too much would end all others.
const reservedThreads = 64

func childProcessLimit() (l unix.Rlimit) {
	if unix.Getrlimit(unix.RLIMIT_NPROC, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return unix.Rlimit{}
	}
	if os.Geteuid() == 0 { // the kernel does not apply the limit to root
		return unix.Rlimit{}
	}
	l.Cur -= min(l.Cur/4, reservedThreads)
	l.Max = l.Cur
	return l
}

// preparedThreads is how many threads we make in advance if processes are limited. Go keeps idle threads. While the
// keeper has the sessions' lower limit itself, it may be unable to make a thread (see forkWithMark), and then it uses
// these.
const preparedThreads = 16

func makeThreads() {
	var have, ended sync.WaitGroup
	have.Add(preparedThreads)
	for range preparedThreads {
		ended.Go(func() { // ends when all goroutines hold a thread at the same time; makeThreads waits for it
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			have.Done()
			have.Wait()
		})
	}
	ended.Wait()
}

// limitProcesses sets the child's limit of processes. Processes that the child has forked before keep our limit.
func (h *Host) limitProcesses(pid int) {
	if h.processLimit != (unix.Rlimit{}) {
		_ = unix.Prlimit(pid, unix.RLIMIT_NPROC, &h.processLimit, nil)
	}
}

// markLock is held for writing while our own limit of file locks is a scope's mark. Every other fork holds it for
// reading.
var markLock sync.RWMutex

// forkWithMark ensures that the child of the next fork starts with c's mark if the mark alone connects the child with
// its scope. If we set the mark afterwards, the child might already have forked, and its child would belong to no
// scope. The caller forks and then calls giveBack at once.
//
// forkWithMark also sets our own limit of processes if processes are limited (see limitProcesses), because the kernel
// checks a fork against the limit of the process that forks.
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

// ForkOutsideSessions calls fork, which starts a process that belongs to no session and that this package does not wait
// for. At another moment the process could start with a session's mark, and the host would reap or kill it as an orphan
// of that session.
func ForkOutsideSessions(fork func() error) error {
	defer forkWithMark(nil)()
	return fork()
}

// setOwnMark gives this process c's mark. The caller holds markLock for writing. The returned function takes the mark
// back and calls unlock.
func setOwnMark(c *Scope, unlock func()) (giveBack func()) {
	if c.dir != "" {
		return unlock
	}
	var own unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &own) != nil || procfs.SetMark(0, c.mark) != nil { // Scope.register tries again
		return unlock
	}
	return func() {
		_ = unix.Prlimit(0, unix.RLIMIT_LOCKS, &own, nil)
		unlock()
	}
}

// clearSignalMask clears the thread's signal mask, which a child inherits, and returns a function that restores it. The
// mask is empty already unless we were started with blocked signals.
//
// A traced child starts with every signal blocked except SIGTRAP, which reports the end of its exec. Any other signal
// would stop the child before its exec, and this thread waits there for the exec and not for a stop.
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

// Pid returns the child's pid, also after the child has ended. Then it may only be used in logs and answers.
func (c *Child) Pid() int { return c.pid }

// Pidfd returns the child's pidfd, or -1 after Close and DropPidfd. The pidfd becomes readable when the child ends, which is slightly
// before Exited is closed.
func (c *Child) Pidfd() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pidfd
}

// Exited returns a channel that is closed when the child has been reaped and Status is known.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// Status returns how the child ended. It returns the zero Status until Exited is closed.
func (c *Child) Status() own.Status {
	select {
	case <-c.exited:
		return c.status
	default:
		return own.Status{}
	}
}

// Signal sends sig to this process and never to another one. It returns os.ErrProcessDone after the process has ended.
func (c *Child) Signal(sig syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return os.ErrProcessDone
	}
	name, send := "pidfd_send_signal", func() error { return unix.PidfdSendSignal(c.pidfd, sig, nil, 0) }
	if c.pidfd < 0 { // the pid is the child's own until it is reaped
		name, send = "kill", func() error { return unix.Kill(c.pid, sig) }
	}
	err := send()
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return os.NewSyscallError(name, err)
}

// DropPidfd closes the pidfd until the child ends. It is for an owner that waits for Exited, and gives others pidfds with
// OpenPidfd.
func (c *Child) DropPidfd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reaped {
		c.closePidfdLocked()
	}
}

// OpenPidfd returns a pidfd of the child, which the caller owns. It returns -1 after Close if the child has ended, and if there
// is no room.
func (c *Child) OpenPidfd() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd >= 0 {
		if fd, err := unix.FcntlInt(uintptr(c.pidfd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			return fd
		}
		return -1
	}
	if c.reaped {
		return -1
	}
	fd, err := unix.PidfdOpen(c.pid, 0)
	if err != nil {
		return -1
	}
	return fd
}

// keepPidfdLocked opens the pidfd again if it is not open. A child that is reaped has none otherwise. mu is held.
func (c *Child) keepPidfdLocked() {
	if c.pidfd >= 0 {
		return
	}
	if fd, err := unix.PidfdOpen(c.pid, 0); err == nil {
		c.pidfd = fd
	}
}

// Close frees the pidfd. It neither ends the child nor waits for it.
func (c *Child) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.reaped { // if not, the child reaper closes the pidfd, so that Signal works until the child ends
		c.closePidfdLocked()
	}
	return nil
}

// closePidfdLocked closes the pidfd. mu is held.
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
	if !c.closed {
		c.keepPidfdLocked()
	}
	pid, err := syscall.Wait4(c.pid, &ws, syscall.WNOHANG, &use)
	switch {
	case err == syscall.EINTR || (err == nil && pid == 0):
		return false
	case err != nil: // other code in this process waited for it, so its exit status is lost
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

// whileUnreaped runs f while the pid certainly belongs to this child.
func (c *Child) whileUnreaped(f func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reaped {
		return os.ErrProcessDone
	}
	return f()
}
