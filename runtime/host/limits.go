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

// These are the limits of a session. Memory, pids and CPU are limited for all its processes together, by a cgroup
// controller: v2 if one was delegated to us, otherwise v1. The file size and the number of open files are limited for
// each process, by rlimits. No process dumps core, whether it is limited or not, because our own limit is 0 (NewHost)
// and children inherit it.
//
// A child is limited before its first instruction, which may be the user's (LD_PRELOAD, ENV). It is traced, so it stops
// at the end of its exec; then we set its limits and let it run. The limits of a cgroup v2 apply to it from its start.

// Unenforceable returns the limits that cannot be enforced here, by name, and why not.
func (h *Host) Unenforceable() map[string]string { return maps.Clone(h.unenforceable) }

// findUnenforceable sets h.unenforceable, and finds the controllers that groups can use.
func (h *Host) findUnenforceable(isolation string) {
	h.unenforceable = map[string]string{}
	if isolation == "none" { // the user asked for no cgroups
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

// canTrace reports once whether we can trace children. Seccomp, Yama or a debugger that follows forks may prevent it.
// The program that it starts does not exist, so either the tracing fails or the exec does.
var canTrace = sync.OnceValue(func() error {
	_, err := syscall.ForkExec("/no-such-program", []string{"probe"}, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
})

// A bounds applies limits to a group's processes. Group.Limit makes it, and it does not change afterwards.
type bounds struct {
	limits      protocol.Limits
	v1          map[string]string // the group's cgroup v1 directory, by controller
	countedDir  string            // the cgroup that counts the pids but does not refuse a new one, because we move processes there; "": there is none
	stagingDir  string            // where children start (Host.stagingDir); "": in their scope
	host        *Host
	confinement *confinement
	rlimits     []rlimit
}

type rlimit struct {
	resource int
	most     uint64
}

// Limit applies l to the group's children and to the processes that start from now on. It does not look for processes
// that a child has started already, so it must be called before any of the user's programs run. It may be called only
// once.
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
	g.waitForForks() // a child that was being forked without the limits is in children now
	for _, c := range g.ownChildren() {
		if err := c.whileUnreaped(func() error { return b.apply(c.pid) }); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	return nil
}

// bounds returns the limits of the scope's group, or nil if it has none.
func (c *Scope) bounds() *bounds {
	if c == nil {
		return nil
	}
	return c.group.bounds.Load()
}

// tracing reports whether a child must be stopped before its limits can be set.
func (b *bounds) tracing() bool {
	return b != nil && (len(b.v1) > 0 || len(b.rlimits) > 0 || b.stagingDir != "")
}

// applyAfterExec waits until a child that this thread traces has stopped at the end of its exec, sets its limits and
// lets it run. If the child was killed meanwhile, the child reaper reaps it.
func (b *bounds) applyAfterExec(pid int, scope *Scope) error {
	var info procfs.Siginfo
	if err := procfs.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT); err != nil {
		return os.NewSyscallError("waitid", err)
	}
	err := confine.OnOtherThread(func() error { // the session's Landlock rules may apply to this thread, see confinement.restrictThread
		if err := b.apply(pid); err != nil || b.stagingDir == "" {
			return err
		}
		return scope.move(pid)
	})
	if err == nil && b.atPIDLimit() {
		err = fmt.Errorf("limit of %d processes: %w", b.limits.Pids, unix.EAGAIN)
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL) // it has not been reaped, so the pid is still its own
	}
	// The child started with all signals blocked (see clearSignalMask). It now gets those that arrived meanwhile.
	var none uint64
	_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, ptraceSetSigmask, uintptr(pid), unsafe.Sizeof(none), uintptr(unsafe.Pointer(&none)), 0, 0)
	if e := unix.PtraceDetach(pid); err == nil && e != nil && e != unix.ESRCH {
		err = os.NewSyscallError("ptrace detach", e)
	}
	return err
}

const ptraceSetSigmask = 0x420b // PTRACE_SETSIGMASK (Linux 3.11)

// apply sets the limits of a process. The caller ensures that the pid cannot have been reused.
func (b *bounds) apply(pid int) error {
	for _, dir := range b.v1 {
		if err := cgroup.WriteFile(dir, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	for _, r := range b.rlimits {
		var now unix.Rlimit
		err := unix.Prlimit(pid, r.resource, nil, &now)
		if err == unix.EPERM && b.confinement.user != nil { // not permitted, as in confinement.prlimit; the child inherited our limits, so we read those
			err = unix.Prlimit(0, r.resource, nil, &now)
		}
		if most := min(r.most, now.Max); err == nil { // raising the limit would need a privilege, and a session's limit is not meant to raise it
			err = b.confinement.prlimit(pid, r.resource, unix.Rlimit{Cur: most, Max: most})
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// atPIDLimit reports whether the group has more processes than its limit allows. The kernel counts a process that we
// move into a cgroup but does not refuse it.
func (b *bounds) atPIDLimit() bool {
	if b.countedDir == "" {
		return false
	}
	text, err := procfs.ReadSmallFile(b.countedDir+"/pids.current", make([]byte, 32))
	now, _ := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return err != nil || now > b.limits.Pids
}

// liftCPULimit removes the CPU limit of a group that is about to be killed. Ending takes CPU time too, and with a
// hundredth of a CPU it takes seconds.
func (b *bounds) liftCPULimit(g *Group) {
	if dir := b.v1["cpu"]; dir != "" {
		_ = cgroup.WriteFile(dir, "cpu.cfs_quota_us", "-1")
	} else if b.limits.CPU > 0 {
		_ = cgroup.WriteFile(g.dir, "cpu.max", "max")
	}
}

// remove removes the directories in v1, and kills the processes that are still in them.
func (b *bounds) remove(ctx context.Context) error {
	var errs []error
	for controller, dir := range b.v1 {
		errs = append(errs, b.host.hierarchies[controller].RemoveGroup(ctx, dir))
	}
	return errors.Join(errs...)
}

// Meters returns the files with the group's usage. The files that belong to a limit are there once the limit is set.
func (g *Group) Meters() (m own.Meters) {
	if g.dir != "" {
		m.CPU = g.dir + "/cpu.stat" // is there without any controller
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

// Usage returns the group's usage so far.
func (g *Group) Usage() own.Usage {
	gauge := g.Meters().Open()
	defer gauge.Close()
	return gauge.Read()
}
