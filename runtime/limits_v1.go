package runtime

import (
	"context"
	"errors"
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

// Controllers of cgroup v1, each a hierarchy of its own: trl-<pid>-<random>/<session> in our own cgroup there, made when
// a session is limited and not before.

// A hierarchy is where one controller of v1 is.
type hierarchy struct {
	controller string
	dir, path  string // of our own cgroup, in the file system and in /proc/PID/cgroup; "" where it is of no use
	why        string // it is of no use

	mu   sync.Mutex
	root *cgroupRoot // guarded by mu; of this instance, nil before the first group
}

// limitControllers are those that enforce limits.
var limitControllers = []string{"memory", "pids", "cpu"}

// findHierarchies looks for those that limits need, and removes what dead instances left in them.
func findHierarchies(log zerolog.Logger) map[string]*hierarchy {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	self, _ := os.ReadFile("/proc/self/cgroup")
	all := map[string]*hierarchy{}
	for _, controller := range limitControllers {
		y := &hierarchy{controller: controller}
		all[controller] = y
		var err error
		if y.dir, y.path, err = findController(string(mounts), string(self), controller); err == nil {
			err = unix.Access(y.dir, unix.W_OK)
			if err == nil {
				removeLeftovers(y.dir, y.killLeftover, log)
				continue
			}
			err = &fs.PathError{Op: "write", Path: y.dir, Err: err}
		}
		y.dir, y.why = "", err.Error()
	}
	return all
}

// findController tells where our own cgroup is in a controller's v1 hierarchy, and its name in /proc/self/cgroup.
func findController(mountinfo, self, controller string) (dir, path string, err error) {
	path, ok := controllerPath(self, controller)
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

// controllerPath picks the line of a controller in a /proc/PID/cgroup: 4:cpu,cpuacct:/path.
func controllerPath(text, controller string) (path string, ok bool) {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		names, path, _ := strings.Cut(rest, ":")
		if slices.Contains(strings.Split(names, ","), controller) {
			return path, true
		}
	}
	return "", false
}

// makeGroup makes a session's directory.
func (y *hierarchy) makeGroup(id string) (dir string, err error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.root == nil {
		if y.root, err = newCgroupRoot(y.dir, y.path); err != nil {
			return "", err
		}
	}
	dir = filepath.Join(y.root.dir, id)
	return dir, os.Mkdir(dir, 0o755)
}

// removeGroup removes a group of v1. Its processes are dead, as a rule; one that left its cgroup of v2 may be in it still.
func (y *hierarchy) removeGroup(ctx context.Context, dir string) error {
	if err := removeTree(dir); err == nil {
		return nil
	}
	_ = writeFile(dir, "pids.max", "0") // only there in one of the hierarchies: nobody forks any more
	path := filepath.Join(y.path, strings.TrimPrefix(dir, y.dir))
	var pause procfs.Backoff
	for {
		for _, pid := range pidsBelow(dir) {
			procfs.SignalIf(pid, unix.SIGKILL, func(pid int) bool { return y.contains(pid, path) })
		}
		err := removeTree(dir)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause.Sleep()
	}
}

func (y *hierarchy) killLeftover(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), leftoverTimeout)
	defer cancel()
	return y.removeGroup(ctx, dir)
}

// contains: pid is in the cgroup or below it at this moment.
func (y *hierarchy) contains(pid int, path string) bool {
	text, err := procfs.ReadSmallFile(procfs.Path(pid, "/cgroup"), make([]byte, 1<<10))
	if err != nil {
		return false
	}
	in, _ := controllerPath(string(text), y.controller)
	return in == path || strings.HasPrefix(in, path+"/")
}

// close removes the directory; the groups in it have been closed before.
func (y *hierarchy) close() error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.root == nil {
		return nil
	}
	err := y.killLeftover(y.root.dir)
	unix.Close(y.root.lock)
	y.root = nil
	return err
}

func (h *Host) closeHierarchies() error {
	var errs []error
	for _, y := range h.hierarchies {
		errs = append(errs, y.close())
	}
	return errors.Join(errs...)
}
