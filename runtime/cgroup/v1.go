package cgroup

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/procfs"
)

// Controllers of cgroup v1, each with its own hierarchy. A session's group is trl-<pid>-<random>/<session> below our own cgroup there, and
// is made when the session is limited, not before.

// Hierarchy is the hierarchy of one controller of v1.
type Hierarchy struct {
	Controller string
	Dir, Path  string // of our own cgroup, in the file system and in /proc/PID/cgroup; "" if it cannot be used
	Why        string // why it cannot be used

	mu   sync.Mutex
	Root *Root // guarded by mu; of this instance; nil before the first group
}

// Controllers are the controllers that enforce limits.
var Controllers = []string{"memory", "pids", "cpu"}

// FindHierarchies finds the hierarchies that limits need, and removes what dead instances left in them.
func FindHierarchies(log zerolog.Logger) map[string]*Hierarchy {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	self, _ := os.ReadFile("/proc/self/cgroup")
	all := map[string]*Hierarchy{}
	for _, controller := range Controllers {
		y := &Hierarchy{Controller: controller}
		all[controller] = y
		var err error
		if y.Dir, y.Path, err = FindController(string(mounts), string(self), controller); err == nil {
			err = unix.Access(y.Dir, unix.W_OK)
			if err == nil {
				RemoveLeftovers(y.Dir, y.killLeftover, log)
				continue
			}
			err = &fs.PathError{Op: "write", Path: y.Dir, Err: err}
		}
		y.Dir, y.Why = "", err.Error()
	}
	return all
}

// FindController returns the directory of our own cgroup in a controller's v1 hierarchy, and its path in /proc/self/cgroup.
func FindController(mountinfo, self, controller string) (dir, path string, err error) {
	path, ok := ControllerPath(self, controller)
	if !ok {
		return "", "", fmt.Errorf("no %s controller: neither delegated to us in cgroup v2 nor in v1", controller)
	}
	dir, err = mountedAt(mountinfo, path, func(kind, options string) bool {
		return kind == "cgroup" && slices.Contains(strings.Split(options, ","), controller)
	})
	if err != nil {
		err = fmt.Errorf("%s controller (cgroup v1): %w", controller, err)
	}
	return dir, path, err
}

// ControllerPath returns the path in a controller's line of a /proc/PID/cgroup: 4:cpu,cpuacct:/path.
func ControllerPath(text, controller string) (path string, ok bool) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(names, ","), controller) {
			return path, true
		}
	}
	return "", false
}

func (y *Hierarchy) MakeGroup(id string) (dir string, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.Root == nil {
		if y.Root, err = newRoot(y.Dir, y.Path); err != nil {
			return "", err
		}
	}
	dir = filepath.Join(y.Root.Dir, id)
	return dir, os.Mkdir(dir, 0o755)
}

// RemoveGroup removes a group of v1. Usually its processes are dead, but one that left its cgroup of v2 may still be in it.
func (y *Hierarchy) RemoveGroup(ctx context.Context, dir string) error {
	if err := RemoveTree(dir); err == nil {
		return nil
	}
	_ = WriteFile(dir, "pids.max", "0") // only one hierarchy has this file; it prevents forks
	path := filepath.Join(y.Path, strings.TrimPrefix(dir, y.Dir))
	var pause procfs.Backoff
	for {
		for _, pid := range PidsBelow(dir) {
			procfs.SignalIf(pid, unix.SIGKILL, func(pid int) bool { return y.contains(pid, path) })
		}
		err := RemoveTree(dir)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause.Sleep()
	}
}

func (y *Hierarchy) killLeftover(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), LeftoverTimeout)
	defer cancel()
	return y.RemoveGroup(ctx, dir)
}

// contains says whether pid is in the cgroup or below it at this moment.
func (y *Hierarchy) contains(pid int, path string) bool {
	text, err := procfs.ReadSmallFile(procfs.Path(pid, "/cgroup"), make([]byte, 1<<10))
	if err != nil {
		return false
	}
	in, _ := ControllerPath(string(text), y.Controller)
	return in == path || strings.HasPrefix(in, path+"/")
}

// Close removes the directory. Its groups are closed already.
func (y *Hierarchy) Close() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.Root == nil {
		return nil
	}
	err := y.killLeftover(y.Root.Dir)
	unix.Close(y.Root.lock)
	y.Root = nil
	return err
}
