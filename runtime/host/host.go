// Package host owns the processes of all sessions: it starts, reaps, groups, limits and kills them, and hands them over
// to a successor. The keeper runs it; with --single-process the gateway does.
//
// A Host starts every process below trl (Spawn), reaps it (the child reaper) and is its subreaper, so whatever a
// command starts stays a descendant. A Group is one session's processes; its Close returns when none is left. A Scope
// is the part of a group that one command started, so a command can be ended without its shell and without the jobs of
// earlier commands. A Child is one process that the host started; its Status is recorded exactly once.
//
// No signal is sent to the bare number of a process that may have been reaped: the host opens a pidfd, looks at the process, and
// then sends the signal through the pidfd. If the number was reused meanwhile, the signal reaches no process.
package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/metrics"
	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/descriptor"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// Config configures a Host.
type Config struct {
	Isolation    string           // "auto", or the name of a tier; NewHost fails if the machine does not have that tier
	Instance     Instance         // part of the marks of its processes; 0: NewHost makes a new one
	RestoreFrom  *HandoverState   // the state of the Host to replace, with its instance, tier and users; nil: there is none
	SessionUser  *confine.Account // the user that sessions run as; nil: the user of this process
	WritableDirs []string         // sessions may write only below these directories; nil: wherever their user may
	GatewayUser  *confine.Account // the user that the gateway runs as; nil: the user of this process
	Alone        bool             // no other code of this process starts processes in process sessions of their own
	Metrics      *metrics.Metrics
	Log          zerolog.Logger
}

// A Host owns every process below this one. A program has one Host; tests make many.
type Host struct {
	pid, sid    int         // of this process
	alone       bool        // see Config
	markBase    procfs.Mark // the upper half of every mark that this host gives out
	startTicks  uint64      // when the first Host started, in clock ticks after boot
	childReaper *childReaper
	Metrics     *metrics.Metrics
	Log         zerolog.Logger
	signalSink  chan os.Signal // nothing reads it, see defaultSignals

	isolation
	privileges
	forks
	orphanScan

	mu               sync.Mutex
	closed           bool                   // guarded by mu
	groups           map[string]*Group      // guarded by mu; by session; a group stays here until its Close has succeeded
	scopes           map[procfs.Mark]*Scope // guarded by mu; a scope stays here until it is removed
	restoredChildren map[int]*Child         // guarded by mu; from the HandoverState, by pid; a child stays here until RestoredChild returns it
}

// isolation holds how the host keeps a session's processes together, and how it limits them. NewHost sets it.
type isolation struct {
	tier, why     string
	tiers         []own.TierReport
	root          *cgroup.Root                 // nil except in tier "cgroup"
	unenforceable map[string]string            // see Unenforceable
	controllers   map[string]bool              // the cgroup v2 controllers that groups can use
	hierarchies   map[string]*cgroup.Hierarchy // of cgroup v1
	processLimit  unix.Rlimit                  // of every child in a scope, see limitProcesses
}

// privileges holds what sessions may do, see confinement. NewHost sets the fields above confinements.
type privileges struct {
	sessionUser    *confine.Account // Config.SessionUser
	gatewayGID     *uint32          // the group of Config.GatewayUser
	writableDirs   []int            // Config.WritableDirs, opened
	fifoDir        string           // contains the FIFO directories of confinements; "": there is none
	fifoDirMounted bool             // fifoDir is a separate tmpfs, and so is each confinement's directory
	fifoDirLock    int              // fd of the lock on fifoDir; -1: there is none

	confinements map[string]*confinement // guarded by Host.mu; by session
	// The numbers of Config.SessionUser's range that are in use, with their sessions. "" means that a process which does
	// not belong to a session uses the number, or a process that an ended session left.
	// guarded by Host.mu
	uids    map[uint32]string
	nextUID uint32 // guarded by Host.mu
}

// forks holds the bounds on starts of processes.
type forks struct {
	chdirSlots chan struct{} // one slot for each thread in Group.enterDir
	forkSlots  chan struct{} // one slot for each fork into a scope, see minGOMAXPROCS
	startMu    sync.Mutex    // held by a start in a scope if processes are limited
	slowForks  slowForks
	dirThreads []chan func() // guarded by Host.mu; the idle threads, see onDirThread

	chdirTimeout, forkTimeout time.Duration // set in NewHost, and by tests before they use the Host
}

// orphanScan holds what KillOrphans remembers from one call to the next, and the list of orphans.
type orphanScan struct {
	orphanList         int            // fd of the main thread's list of children, see Scope.MembersExcept; -1: the kernel has none
	scanMu             sync.Mutex     // held during an orphan scan
	killNext           map[int]uint64 // guarded by scanMu; start time by pid of the orphans that the next scan kills
	sameSessionOrphans map[int]uint64 // guarded by scanMu; start time by pid of the orphans that only their process session connects with a group
}

// minGOMAXPROCS is the minimum GOMAXPROCS. A fork holds one of Go's Ps until the child's exec. With three Ps, two forks
// may hang and watchFork still runs. With more, each start would take longer, because Go would wake more threads.
const minGOMAXPROCS = 3

// NewHost takes charge of this process's descendants. Some changes to the process last after Close: it remains a
// subreaper, and inherited descriptors remain closed in children.
func NewHost(c Config) (h *Host, err error) {
	if c.Isolation != "auto" && !slices.Contains(TierNames, c.Isolation) {
		return nil, fmt.Errorf("isolation %q: not one of auto, %s", c.Isolation, strings.Join(TierNames, ", "))
	}
	switch {
	case c.RestoreFrom != nil:
		c.Instance = c.RestoreFrom.Instance
	case c.Instance == 0:
		c.Instance = NewInstance()
	}
	// This comes before we open anything, because launchers leak descriptors into us.
	if err := descriptor.CloseOnExec(); err != nil {
		return nil, err
	}
	descriptor.Reserve.Retain()
	defer func() {
		if err != nil {
			descriptor.Reserve.Release()
		}
	}()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl subreaper", err)
	}
	self, ok := procfs.Read(os.Getpid())
	if !ok {
		return nil, errors.New("no /proc: mount one, trl finds and identifies processes there")
	}
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("/proc belongs to another PID namespace: it calls this process %q, and getpid says %d; mount a new one (mount -t proc proc /proc)", name, os.Getpid())
	}
	// A change stops all threads, so this is done here, and Go does not change it by itself from here on.
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), minGOMAXPROCS))
	h = &Host{
		pid: self.Pid, sid: self.Sid, alone: c.Alone,
		markBase: procfs.Mark(c.Instance) << 32, startTicks: procfs.TicksNow(),
		Metrics: c.Metrics, Log: c.Log,
		signalSink: make(chan os.Signal, 1),
		groups:     map[string]*Group{}, scopes: map[procfs.Mark]*Scope{}, restoredChildren: map[int]*Child{},
		privileges: privileges{fifoDirLock: -1, confinements: map[string]*confinement{}, uids: map[uint32]string{}},
		forks: forks{
			chdirSlots: make(chan struct{}, maxChdirThreads), chdirTimeout: chdirTimeout,
			forkSlots: make(chan struct{}, runtime.GOMAXPROCS(0)-1), forkTimeout: forkTimeout, slowForks: slowForks{forks: map[*pendingFork]struct{}{}},
		},
		orphanScan: orphanScan{orphanList: -1},
	}
	if fd, err := unix.PidfdOpen(h.pid, 0); err != nil { // without pidfds no signal could be sent
		return nil, os.NewSyscallError("pidfd_open (Linux 5.3)", err)
	} else {
		unix.Close(fd)
	}
	// Our core dump would contain secrets; children inherit the limit, and nobody asked for core dumps of theirs.
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil {
		return nil, os.NewSyscallError("prlimit", err)
	}
	if h.processLimit = childProcessLimit(); h.processLimit != (unix.Rlimit{}) {
		makeThreads()
	}
	h.childReaper = newChildReaper(h)
	h.defaultSignals()
	if c.RestoreFrom != nil {
		h.restore(c.RestoreFrom, c.GatewayUser)
	} else {
		if err := h.chooseTier(c.Isolation); err != nil {
			signal.Stop(h.signalSink)
			return nil, err
		}
		h.findUnenforceable(c.Isolation)
		removeLeftoverFIFODirs(h.Log)
		if err := h.setUpConfinement(&c); err != nil {
			signal.Stop(h.signalSink)
			return nil, errors.Join(err, h.release())
		}
	}
	if procfs.HaveChildren() {
		fd, err := unix.Open(procfs.Path(h.pid, "/task/"+strconv.Itoa(h.pid)+"/children"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			h.orphanList = fd
		}
	}
	signal.Notify(h.childReaper.sigchld, unix.SIGCHLD)
	go h.childReaper.reapWhenSignalled() // ends when Close closes stop; Close waits for it
	return h, nil
}

// Isolation returns the tier that is used and why.
func (h *Host) Isolation() (tier, why string) { return h.tier, h.why }

// Close ends every group and stops the child reaper.
func (h *Host) Close() error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	groups := make([]*Group, 0, len(h.groups))
	for _, g := range h.groups {
		groups = append(groups, g)
	}
	h.mu.Unlock()

	// All groups are closed at the same time, because each may take its killTimeout.
	errs := make([]error, len(groups))
	var ends sync.WaitGroup
	for i, g := range groups {
		ends.Go(func() { errs[i] = g.Close(context.Background()) })
	}
	ends.Wait()
	h.killLeftovers()
	h.endDirThreads()
	close(h.childReaper.stop)
	<-h.childReaper.stopped
	signal.Stop(h.signalSink)
	if h.orphanList >= 0 {
		unix.Close(h.orphanList)
	}
	errs = append(errs, h.release())
	descriptor.Reserve.Release()
	return errors.Join(errs...)
}

// release undoes what NewHost has set up. No process is left when it is called.
func (h *Host) release() error {
	descriptor.CloseAll(h.writableDirs)
	errs := []error{h.closeHierarchies()}
	if h.fifoDir != "" {
		errs = append(errs, removeDir(h.fifoDir))
	}
	if h.fifoDirLock >= 0 {
		unix.Close(h.fifoDirLock)
	}
	if h.root != nil {
		errs = append(errs, h.root.Close())
	}
	return errors.Join(errs...)
}

// validID restricts the ids of groups. We make the ids ourselves (s-…), but they become directory names.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// NewGroup makes the group for a session's processes. Its owner ends it with Close; until then the group and everything
// in it count as alive.
func (h *Host) NewGroup(id string) (*Group, error) {
	if !validID.MatchString(id) {
		return nil, fmt.Errorf("group id %q: %w", id, fs.ErrInvalid)
	}
	g := &Group{
		id: id, host: h, closeSlot: make(chan struct{}, 1), chdirSlot: make(chan struct{}, 1),
		children: map[*Child]struct{}{}, leaders: map[int]struct{}{},
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, fmt.Errorf("new group: %w", fs.ErrClosed)
	case h.groups[id] != nil:
		return nil, fmt.Errorf("group %s: %w", id, fs.ErrExist)
	}
	t, err := h.confinementForLocked(id)
	if err != nil {
		return nil, err
	}
	g.confinement = t
	if h.root != nil {
		if err := g.makeDir(h.root.Dir); err != nil { // a directory in cgroupfs is never on a disk, so this may happen with h.mu held
			t.hasGroup, t.released = false, true
			h.releaseConfinementLocked(t)
			return nil, err
		}
	}
	h.groups[id] = g
	return g, nil
}

// Instance returns the instance that is part of the marks of the host's processes.
func (h *Host) Instance() Instance { return Instance(h.markBase >> 32) }

// group returns the group of a session, or nil if it has ended.
func (h *Host) group(id string) *Group {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups[id]
}

// scopeOf returns the scope whose mark pid has. given is true if this host gave out the mark. c is nil in that case if
// the scope is gone, or if the process runs as another user than the scope's and so put the mark on itself. This
// process belongs to no scope, although it has a scope's mark while it forks (see forkWithMark).
func (h *Host) scopeOf(pid int) (c *Scope, given bool) {
	if pid == h.pid {
		return nil, false
	}
	m := procfs.ReadMark(pid)
	if m>>32 != h.markBase>>32 {
		return nil, false
	}
	h.mu.Lock()
	c = h.scopes[m]
	h.mu.Unlock()
	if c != nil && !c.group.confinement.hasProcess(pid) {
		c = nil
	}
	return c, true
}

// newMarkLocked returns a mark that no scope has and that a process cannot guess. h.mu is held.
func (h *Host) newMarkLocked() procfs.Mark {
	for {
		m := h.markBase | procfs.Mark(1+rand.Uint32N(math.MaxUint32))
		if h.scopes[m] == nil {
			return m
		}
	}
}

// wasOurs reports whether the zombie pid certainly comes from one of our groups. c is its scope, if it is known.
func (h *Host) wasOurs(pid int) (c *Scope, ok bool) {
	if c, given := h.scopeOf(pid); given {
		return c, true
	}
	if h.alone { // a session's process may have removed its mark
		sid, err := unix.Getsid(pid)
		return nil, err == nil && sid != h.sid
	}
	return nil, h.root != nil && cgroup.Contains(pid, h.root.Path)
}

// defaultSignals makes our children start with default dispositions although we may have been started with some signals
// ignored: SIGHUP under nohup, SIGINT and SIGTSTP in the background of some launchers. SIG_IGN survives an exec, and a
// handler does not. A channel that nothing reads is a handler: this process goes on ignoring the signal, and its
// children do not. signal.Reset would restore SIG_IGN instead.
func (h *Host) defaultSignals() {
	text, err := procfs.ReadSmallFile("/proc/thread-self/status", make([]byte, 4<<10))
	if err != nil {
		return
	}
	ignored := procfs.StatusMask(text, "SigIgn:")
	var handle []os.Signal
	for s := syscall.Signal(1); s < 32; s++ { // Go's runtime has handlers for the signals above 31
		if ignored&(1<<(s-1)) != 0 {
			handle = append(handle, s)
		}
	}
	for s := uintptr(32); s <= 33; s++ { // libc uses these two; neither Go's runtime nor os/signal changes them
		if ignored&(1<<(s-1)) != 0 {
			var byDefault [4]uint64 // the kernel's struct sigaction: SIG_DFL, no flags, no mask
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
		}
	}
	if len(handle) > 0 { // Notify without signals would mean all signals
		signal.Notify(h.signalSink, handle...)
	}
}
