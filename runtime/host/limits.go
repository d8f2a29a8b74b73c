package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// Limits of a session. Memory, pids and cpu are of all its processes together, and take a cgroup controller: of v2 where
// one was delegated to us, else of v1. The size of a file and the number of descriptors are of each process, and are
// rlimits. No process dumps core, limited or not: ours is 0 (NewHost), and inherited.
//
// A child is within its limits before its first instruction, which may be the user's (LD_PRELOAD, ENV): it stops at the
// end of its exec, being traced, is bound, and let go. What comes with a group of v2 it has from its birth.

// Unenforceable tells which limits cannot be enforced here, by name, and why not.
func (h *Host) Unenforceable() map[string]string { return maps.Clone(h.unenforceable) }

// findUnenforceable finds out what Unenforceable tells.
func (h *Host) findUnenforceable(isolation string) {
	h.unenforceable = map[string]string{}
	if isolation == "none" { // what cgroups do was not asked for
		for _, limit := range []string{own.LimitMemory, own.LimitPIDs, own.LimitCPU} {
			h.unenforceable[limit] = "isolation is none"
		}
	} else {
		if h.root != nil {
			h.controllers = h.root.EnableControllers(h.Log)
		}
		h.hierarchies = cgroup.FindHierarchies(h.Log)
		for limit, controller := range map[string]string{own.LimitMemory: "memory", own.LimitPIDs: "pids", own.LimitCPU: "cpu"} {
			if y := h.hierarchies[controller]; !h.controllers[controller] && y.Dir == "" {
				h.unenforceable[limit] = y.Why
			}
		}
	}
	if err := canTrace(); err != nil {
		why := "processes cannot be traced: " + err.Error()
		h.unenforceable[own.LimitFileSize], h.unenforceable[own.LimitOpenFiles] = why, why
		for limit, controller := range map[string]string{own.LimitMemory: "memory", own.LimitPIDs: "pids", own.LimitCPU: "cpu"} {
			if !h.controllers[controller] || limit == own.LimitCPU {
				h.unenforceable[limit] = why
			}
		}
	}
}

// canTrace asks once: seccomp, Yama and a debugger that follows forks may be against it. The program does not exist, so
// what fails is either the tracing or then the exec.
var canTrace = sync.OnceValue(func() error {
	_, err := syscall.ForkExec("/no-such-program", []string{"probe"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
})

// bounds is what holds a group's processes to its limits. Made by Group.Limit, changed by nobody.
type bounds struct {
	limits      protocol.Limits
	v1          map[string]string // the group's directory, by controller
	countedDir  string            // where pids are counted but not refused, since we move them there; "" if nowhere
	stagingDir  string            // where children are born instead of their scope (Host.stagingDir); "": in the scope
	host        *Host
	confinement *confinement
	rlimits     []rlimit
}

type rlimit struct {
	resource int
	most     uint64
}

// Limit puts the group's processes within l: those that are started from now on, and the children there are. What a
// child has started itself is not looked for, so it comes before anything of the user's runs; and only once.
func (g *Group) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) {
		return nil
	}
	h := g.host
	for _, limit := range l.Names() {
		if why, cannot := h.unenforceable[limit]; cannot {
			return &own.LimitError{Limit: limit, Why: why}
		}
	}
	b := &bounds{limits: l, host: h, confinement: g.confinement, v1: map[string]string{}}
	for _, r := range []struct {
		resource int
		most     int64
	}{{unix.RLIMIT_FSIZE, l.FileSizeBytes}, {unix.RLIMIT_NOFILE, l.OpenFiles}} {
		if r.most > 0 {
			b.rlimits = append(b.rlimits, rlimit{r.resource, uint64(r.most)})
		}
	}
	g.limitMu.Lock()
	defer g.limitMu.Unlock()
	g.mu.Lock()
	closed := g.closed
	g.mu.Unlock()
	if closed || g.bounds.Load() != nil {
		return fmt.Errorf("limit group %s: %w", g.id, fs.ErrClosed)
	}
	for _, c := range []struct {
		limit, controller string
		set               bool
	}{{own.LimitMemory, "memory", l.MemoryBytes > 0}, {own.LimitPIDs, "pids", l.Pids > 0}, {own.LimitCPU, "cpu", l.CPU > 0}} {
		if !c.set {
			continue
		}
		dir, files := g.dir, cgroup.V2Files
		if !h.controllers[c.controller] {
			var err error
			if dir, err = h.hierarchies[c.controller].MakeGroup(g.id); err != nil {
				return errors.Join(&own.LimitError{Limit: c.limit, Why: err.Error()}, b.remove(context.Background()))
			}
			b.v1[c.controller], files = dir, cgroup.V1Files
		}
		if err := cgroup.WriteFiles(dir, files(c.controller, l)); err != nil {
			return errors.Join(&own.LimitError{Limit: c.limit, Why: err.Error()}, b.remove(context.Background()))
		}
	}
	b.countedDir = b.v1["pids"]
	if l.CPU > 0 && b.v1["cpu"] == "" {
		var err error
		if b.stagingDir, err = h.stagingDir(); err != nil {
			return errors.Join(&own.LimitError{Limit: own.LimitCPU, Why: err.Error()}, b.remove(context.Background()))
		}
		if l.Pids > 0 && b.countedDir == "" {
			b.countedDir = g.dir
		}
	}
	g.bounds.Store(b)
	g.waitForForks() // who was being forked without them is among the children now
	for _, c := range g.ownChildren() {
		if err := c.whileUnreaped(func() error { return b.apply(c.pid) }); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}

// bounds of the scope's group; nil: there are none.
func (c *Scope) bounds() *bounds {
	if c == nil {
		return nil
	}
	return c.group.bounds.Load()
}

// tracing: a child must be stopped to be bound.
func (b *bounds) tracing() bool {
	return b != nil && (len(b.v1) > 0 || len(b.rlimits) > 0 || b.stagingDir != "")
}

// applyAfterExec waits until a child that is traced by this thread has stopped at the end of its exec, binds it and lets it go.
// One that was killed meanwhile is left to the child reaper.
func (b *bounds) applyAfterExec(pid int, scope *Scope) error {
	var info procfs.Siginfo
	if err := procfs.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT); err != nil {
		return os.NewSyscallError("waitid", err)
	}
	err := confine.OnOtherThread(func() error { // this thread may be held to what the session may write, see confinement.restrictThread
		if err := b.apply(pid); err != nil || b.stagingDir == "" {
			return err
		}
		return scope.move(pid)
	})
	if err == nil && b.atPIDLimit() {
		err = fmt.Errorf("limit of %d processes: %w", b.limits.Pids, unix.EAGAIN)
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // not reaped, so still ours
	}
	// It was born with all signals blocked (see Spawn); what came for it meanwhile comes now.
	var none uint64
	_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, ptraceSetSigmask, uintptr(pid), unsafe.Sizeof(none), uintptr(unsafe.Pointer(&none)), 0, 0)
	if e := unix.PtraceDetach(pid); err == nil && e != nil && e != unix.ESRCH {
		err = os.NewSyscallError("ptrace detach", e)
	}
	return err
}

const ptraceSetSigmask = 0x420b // PTRACE_SETSIGMASK (Linux 3.11)

// apply puts a process that is certainly the one meant within the bounds.
func (b *bounds) apply(pid int) error {
	for _, dir := range b.v1 {
		if err := cgroup.WriteFile(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	for _, r := range b.rlimits {
		var now unix.Rlimit
		err := unix.Prlimit(pid, r.resource, nil, &now)
		if err == unix.EPERM && b.confinement.user != nil { // as below; what it was born with will do
			err = unix.Prlimit(0, r.resource, nil, &now)
		}
		if most := min(r.most, now.Max); err == nil { // to raise it takes a privilege, and was not meant
			err = b.confinement.prlimit(pid, r.resource, unix.Rlimit{Cur: most, Max: most})
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// atPIDLimit: whom we move into a group the kernel counts but does not refuse.
func (b *bounds) atPIDLimit() bool {
	if b.countedDir == "" {
		return false
	}
	text, err := procfs.ReadSmallFile(b.countedDir+"/pids.current", make([]byte, 32))
	now, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return err != nil || now > b.limits.Pids
}

// liftCPULimit takes the limit of cpu off a group that is about to be killed: to die takes time, too, and out of a hundredth of
// a processor it takes seconds.
func (b *bounds) liftCPULimit(g *Group) {
	if dir := b.v1["cpu"]; dir != "" {
		_ = cgroup.WriteFile(dir, "cpu.cfs_quota_us", "-1")
	} else if b.limits.CPU > 0 {
		_ = cgroup.WriteFile(g.dir, "cpu.max", "max")
	}
}

// remove removes the directories in v1, and what is still in them.
func (b *bounds) remove(ctx context.Context) error {
	var errs []error
	for controller, dir := range b.v1 {
		errs = append(errs, b.host.hierarchies[controller].RemoveGroup(ctx, dir))
	}
	return errors.Join(errs...)
}

// Meters of the group; those of a limit are there once it is set.
func (g *Group) Meters() (m own.Meters) {
	if g.dir != "" {
		m.CPU = g.dir + "/cpu.stat" // needs no controller
	}
	b := g.bounds.Load()
	if b == nil {
		return m
	}
	if dir := b.v1["memory"]; dir != "" {
		m.Peak, m.OOM = dir+"/memory.max_usage_in_bytes", dir+"/memory.oom_control"
	} else if b.limits.MemoryBytes > 0 {
		m.Peak, m.OOM = g.dir+"/memory.peak", g.dir+"/memory.events"
	}
	if dir := b.v1["pids"]; dir != "" {
		m.PIDs = dir + "/pids.events"
	} else if b.limits.Pids > 0 {
		m.PIDs = g.dir + "/pids.events"
	}
	return m
}

// Usage of the group so far.
func (g *Group) Usage() own.Usage {
	gauge := g.Meters().Open()
	defer gauge.Close()
	return gauge.Read()
}
