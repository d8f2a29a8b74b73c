package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/cgroup"
	"trl/runtime/confine"
	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// makeDir makes the cgroup of a new group.
func (g *Group) makeDir(root string) error {
	dir := filepath.Join(root, g.id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	g.dir = dir
	return nil
}

// makeDir makes the cgroup of a new scope.
func (c *Scope) makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	c.dir = dir
	return nil
}

// move moves a process into the scope's cgroup. The caller ensures that the pid cannot have been reused.
func (c *Scope) move(pid int) error {
	return descriptor.WithReserve(func() error { return cgroup.WriteFile(c.dir, "cgroup.procs", strconv.Itoa(pid)) })
}

func (c *Scope) cgroupMembersExcept(shell int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return nil
	}
	if c.pidList < 0 { // gateways normally read the list themselves, see EmptyCheck
		c.pidList, _ = cgroup.OpenFile(c.dir, "cgroup.procs", unix.O_RDONLY)
	}
	var pids []int
	if c.pidList < 0 || cgroup.HasSubgroups(c.dir) {
		pids = cgroup.PidsBelow(c.dir)
	} else {
		n, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(c.pidList, c.listBuf, 0) })
		if err != nil || cgroup.ListsOnly(c.listBuf[:n], shell) {
			return nil
		}
		text, err := procfs.PreadAll(c.pidList, c.listBuf)
		if err != nil {
			return nil
		}
		c.listBuf = text[:cap(text)]
		pids = procfs.ParsePids(text)
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == shell })
}

// contains reports whether pid is in the scope's cgroup at this moment.
func (c *Scope) contains(pid int) bool {
	return cgroup.Contains(pid, c.group.cgroupPath()+"/"+filepath.Base(c.dir))
}

func (g *Group) contains(pid int) bool { return cgroup.Contains(pid, g.cgroupPath()) }

func (g *Group) cgroupPath() string { return g.host.root.Path + "/" + g.id }

// killCgroup kills the scope's processes except shell. It returns the pids that are left when ctx ends.
func (c *Scope) killCgroup(ctx context.Context, shell int) []int {
	var pause procfs.Backoff
	for {
		if shell != 0 && c.contains(shell) { // the shell was not moved out, so the others are killed one by one
			others := c.cgroupMembersExcept(shell)
			if len(others) == 0 {
				return nil
			}
			for _, pid := range others {
				procfs.SignalIf(pid, unix.SIGKILL, c.contains)
			}
		} else {
			_ = cgroup.KillDir(c.dir)
			there, known := cgroup.Populated(c.dir)
			if !known {
				there = len(c.cgroupMembersExcept(0)) > 0
			}
			if !there {
				return nil
			}
		}
		if ctx.Err() != nil {
			return cgroup.PidsBelow(c.dir)
		}
		pause.Sleep()
	}
}

// killCgroup removes the group's directory and everything in it, or returns the
// pids that are left when ctx ends.
func (g *Group) killCgroup(ctx context.Context) []int {
	if cgroup.KillTree(ctx, g.dir) == nil {
		return nil
	}
	if left := cgroup.PidsBelow(g.dir); len(left) > 0 {
		return left
	}
	return []int{0} // a process that we cannot see keeps the directory busy
}

func (h *Host) closeHierarchies() error {
	var errs []error
	for _, y := range h.hierarchies {
		errs = append(errs, y.Close())
	}
	return errors.Join(errs...)
}

// stagingDir returns the cgroup in which a child of a session with a CPU limit starts. If it started in the session's
// own group, which may have used up its CPU time, its exec could take many periods, and every other start or end of a
// process would wait for it (childReaper.forkMu). The child moves into its scope when it has stopped at the end of its
// exec. No session id begins with a dash, so the name cannot collide.
func (h *Host) stagingDir() (dir string, err error) {
	dir = filepath.Join(h.root.Dir, "-stage")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// restrictsWrites reports whether sessions may write only in some places.
func (h *Host) restrictsWrites() bool { return len(h.writableDirs) > 0 }

// openLandlockRules makes the rules for a session whose FIFO directory is dir.
func (h *Host) openLandlockRules(dir string) (f confine.LandlockRules, err error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: confine.AllWrites}
	// We pass only the field of Landlock's version 1; the other fields belong to later versions.
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if e != 0 {
		return confine.LandlockRules{Rules: -1}, os.NewSyscallError("landlock_create_ruleset", e)
	}
	f = confine.LandlockRules{Rules: int(fd)}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	for _, fd := range h.writableDirs {
		if err := f.Allow(fd, confine.TreeWrites); err != nil {
			return f, err
		}
	}
	for _, path := range append([]string{dir}, confine.AlwaysWritable...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil && path != dir {
			continue // a container need not have all of these paths
		} else if err != nil {
			return f, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		err = f.Allow(fd, confine.FileWrites)
		unix.Close(fd)
		if err != nil {
			return f, err
		}
	}
	return f, nil
}
