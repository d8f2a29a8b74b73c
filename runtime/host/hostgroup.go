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

// makeDir gives a new group its directory.
func (g *Group) makeDir(root string) error {
	dir := filepath.Join(root, g.id)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	g.dir = dir
	return nil
}

// makeDir gives a new scope its directory.
func (c *Scope) makeDir(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	c.dir = dir
	return nil
}

// move puts a process in that is certainly the one meant.
func (c *Scope) move(pid int) error {
	return descriptor.WithReserve(func() error { return cgroup.WriteFile(c.dir, "cgroup.procs", strconv.Itoa(pid)) })
}

func (c *Scope) cgroupMembersExcept(shell int) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.removed {
		return nil
	}
	if c.pidList < 0 { // a gateway looks for itself, as a rule, see EmptyCheck
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

// contains: pid is in the scope's cgroup at this moment.
func (c *Scope) contains(pid int) bool {
	return cgroup.Contains(pid, c.group.cgroupPath()+"/"+filepath.Base(c.dir))
}

func (g *Group) contains(pid int) bool { return cgroup.Contains(pid, g.cgroupPath()) }

func (g *Group) cgroupPath() string { return g.host.root.Path + "/" + g.id }

// killCgroup returns the pids that are left when ctx ends.
func (c *Scope) killCgroup(ctx context.Context, shell int) []int {
	var pause procfs.Backoff
	for {
		if shell != 0 && c.contains(shell) { // it was not moved out: one by one, around it
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
	return []int{0} // something that we cannot see keeps the directory busy
}

func (h *Host) closeHierarchies() error {
	var errs []error
	for _, y := range h.hierarchies {
		errs = append(errs, y.Close())
	}
	return errors.Join(errs...)
}

// stagingDir is where a child of a session with a cpu limit is born: in the session's own group, which may have used up its
// time, its way to the exec could take many periods, and what starts or ends elsewhere waits for that (childReaper.forkMu).
// It moves when it is caught. No session's id begins with a dash.
func (h *Host) stagingDir() (dir string, err error) {
	dir = filepath.Join(h.root.Dir, "-stage")
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// restrictsWrites: sessions may write to some places only.
func (h *Host) restrictsWrites() bool { return len(h.writableDirs) > 0 }

// openLandlockRules makes rules for who has its ports in dir.
func (h *Host) openLandlockRules(dir string) (f confine.LandlockRules, err error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: confine.AllWrites}
	// Only the field of version 1: the rest of the struct is of later ones.
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
			continue // a container need not have all of them
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
