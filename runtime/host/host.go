// Package host owns the processes of all sessions: it starts, reaps, groups, limits and kills them, and hands them over to a successor.
// The keeper runs it; with --single-process the gateway does.
//
// A Host starts every process below trl (Spawn), reaps it (the child reaper) and is its subreaper, so whatever a command
// starts stays a descendant. A Group is one session's processes; its Close returns when none is left. A Scope is the part
// of a group that one command started, so a command can be ended without its shell and without the jobs of earlier
// commands. A Child is one process that the host started; its Status is recorded exactly once.
//
// No signal is sent to a bare process number: the host opens a pidfd, looks at the process, and then sends the signal
// through the pidfd. If the number was reused meanwhile, the signal reaches nobody.
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

// Config of a Host.
type Config struct {
	Isolation    string           // "auto", or a tier: an error where it cannot be had
	Instance     Instance         // what marks its processes; 0: a new one
	RestoreFrom  *HandoverState   // of the Host in whose place it goes on, with its Instance, isolation and users; nil: none
	SessionUser  *confine.Account // whom sessions run as; nil: as this process
	WritableDirs []string         // the directories below which alone sessions may write; nil: wherever their user may
	GatewayUser  *confine.Account // whom the gateway runs as; nil: as this process
	Metrics      *metrics.Metrics
	Log          zerolog.Logger
}

// A Host owns every process below this one. One per program; tests make many.
type Host struct {
	pid, sid    int         // our own
	markBase    procfs.Mark // upper half of every mark that this host gives out
	startTicks  uint64      // clock ticks after boot
	childReaper *childReaper
	Metrics     *metrics.Metrics
	Log         zerolog.Logger
	signalSink  chan os.Signal // never read: see defaultSignals

	isolation
	privileges
	forks
	orphanScan

	mu               sync.Mutex
	closed           bool                   // guarded by mu
	groups           map[string]*Group      // guarded by mu; until their Close has succeeded
	scopes           map[procfs.Mark]*Scope // guarded by mu; until removed
	restoredChildren map[int]*Child         // guarded by mu; of a HandoverState, by pid, until Child gives them out
}

// isolation is how a host keeps a session's processes together, and what limits them. NewHost sets it.
type isolation struct {
	tier, why     string
	tiers         []own.TierReport
	root          *cgroup.Root                 // nil but in tier "cgroup"
	unenforceable map[string]string            // see Unenforceable
	controllers   map[string]bool              // the controllers of v2 that are on for groups
	hierarchies   map[string]*cgroup.Hierarchy // of v1
	processLimit  unix.Rlimit                  // of every child in a scope, see limitProcesses
}

// privileges is what sessions may do, see confinement. Its first four fields are set by NewHost.
type privileges struct {
	sessionUser    *confine.Account // Config.SessionUser
	gatewayGID     *uint32          // the group of Config.GatewayUser
	writableDirs   []int            // Config.WritableDirs, opened
	fifoDir        string           // the directory of the confinements' FIFO directories, "": there is none
	fifoDirMounted bool             // fifoDir is a tmpfs of our own, and so is each directory in it
	fifoDirLock    int              // fd of its lock; -1: there is none

	confinements map[string]*confinement // guarded by Host.mu; by session
	uids         map[uint32]string       // guarded by Host.mu; of a range, the numbers in use and whose; "": of somebody else, or not quite gone
	nextUID      uint32                  // guarded by Host.mu
}

// forks bounds what a start of a process may wait for.
type forks struct {
	chdirSlots chan struct{} // a slot for each thread in Group.enterDir
	forkSlots  chan struct{} // a slot for each fork into a scope, see minGOMAXPROCS
	startMu    sync.Mutex    // held by a start in a scope, where processes are limited
	slowForks  slowForks
	dirThreads []chan func() // guarded by Host.mu; the idle ones, see onDirThread

	chdirTimeout, forkTimeout time.Duration // set once in NewHost, and by tests
}

// orphanScan is what KillOrphans knows.
type orphanScan struct {
	orphanList         int            // fd of the main thread's list of children, see Scope.MembersExcept; -1: the kernel has none
	scanMu             sync.Mutex     // one orphan scan at a time
	killNext           map[int]uint64 // guarded by scanMu; start times, by pid, of the processes that the last scan chose to kill
	sameSessionOrphans map[int]uint64 // guarded by scanMu; the same of orphans that only their process session tied to a group
}

// minGOMAXPROCS is of Go's own, of which a fork holds one while it lasts: two that hang, and one for watchFork. More would
// cost each start, for the threads that they wake.
const minGOMAXPROCS = 3

// NewHost takes charge of this process's descendants. What it changes in the
// process stays changed after Close: it remains a subreaper, and inherited
// descriptors remain closed to children.
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
	// First of all, before we open anything: launchers leak descriptors into us.
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
		return nil, errors.New("no /proc: mount one, processes are found and identified there")
	}
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("/proc is that of another PID namespace: it calls this process %q, and getpid says %d; mount a new one (mount -t proc proc /proc)", name, os.Getpid())
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), minGOMAXPROCS)) // and from here on Go, which stops all threads for it, does not change it
	h = &Host{
		pid: self.Pid, sid: self.Sid,
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
	if fd, err := unix.PidfdOpen(h.pid, 0); err != nil { // no signal could be sent
		return nil, os.NewSyscallError("pidfd_open (Linux 5.3)", err)
	} else {
		unix.Close(fd)
	}
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil { // ours hold secrets, and nobody asked for a child's
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
	go h.childReaper.reapWhenSignalled() // until Close, which waits for it
	return h, nil
}

// Isolation tells which way of keeping processes together is in force, and why
// that one.
func (h *Host) Isolation() (tier, why string) { return h.tier, h.why }

// Close ends every group and stops reaping.
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

	// At once, not one after the other: each may take its killTimeout.
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

// release gives back what NewHost has taken, when no process is left.
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

// ids are ours (s-…), but become directory names: nothing else gets through.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// NewGroup opens the place for a session's processes. Its owner ends it with
// Close; until then the group and all in it count as alive.
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
		if err := g.makeDir(h.root.Dir); err != nil { // kernfs: no disk behind it, mu may be held
			t.hasGroup, t.released = false, true
			h.releaseConfinementLocked(t)
			return nil, err
		}
	}
	h.groups[id] = g
	return g, nil
}

// Instance is what marks the host's processes.
func (h *Host) Instance() Instance { return Instance(h.markBase >> 32) }

// group finds one that has not ended.
func (h *Host) group(id string) *Group {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups[id]
}

// scopeOf finds the scope whose mark pid carries. given: this host gave it out, though the scope may be gone, or of another
// user than the process, who has put it on himself. We are of no scope, though we carry its mark while we fork (inherit).
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

// newMarkLocked is one that no scope has, nor a process could guess. h.mu is held.
func (h *Host) newMarkLocked() procfs.Mark {
	for {
		m := h.markBase | procfs.Mark(1+rand.Uint32N(math.MaxUint32))
		if h.scopes[m] == nil {
			return m
		}
	}
}

// wasOurs: the process, or zombie, came out of one of our groups.
func (h *Host) wasOurs(pid int) bool {
	_, given := h.scopeOf(pid)
	return given || h.root != nil && cgroup.Contains(pid, h.root.Path)
}

// defaultSignals makes our children start with default dispositions although we
// were started with some signals ignored: SIGHUP under nohup, SIGINT and SIGTSTP
// in the background of some launchers. Only SIG_IGN survives an exec, a handler
// does not, and a channel that nobody reads is a handler: we go on ignoring the
// signal, our children do not. (signal.Reset would put SIG_IGN back.)
func (h *Host) defaultSignals() {
	text, err := procfs.ReadSmallFile("/proc/thread-self/status", make([]byte, 4<<10))
	if err != nil {
		return
	}
	ignored := procfs.StatusMask(text, "SigIgn:")
	var handle []os.Signal
	for s := syscall.Signal(1); s < 32; s++ { // beyond 31 Go's runtime has handlers
		if ignored&(1<<(s-1)) != 0 {
			handle = append(handle, s)
		}
	}
	for s := uintptr(32); s <= 33; s++ { // those two are libc's, and neither Go nor os/signal touches them
		if ignored&(1<<(s-1)) != 0 {
			var byDefault [4]uint64 // struct sigaction of the kernel: SIG_DFL, no flags, no mask
			_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
		}
	}
	if len(handle) > 0 { // Notify with none would mean all
		signal.Notify(h.signalSink, handle...)
	}
}
