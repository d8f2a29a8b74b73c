package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/procfs"
)

// Controllers of cgroup v2 must be enabled from above, in every cgroup down to the parent of those that they limit, and only in cgroups
// without own processes (cgroups(7), "no internal processes"). Therefore, if our own cgroup was delegated to us, its processes, which are
// ours and those of whoever started us there, move into a leaf next to our root.

// LeafName matches the name of the leaf: that of our root and a suffix.
var LeafName = regexp.MustCompile(`^trl-[0-9]+-[0-9a-f]{8}\.self$`)

// EnableControllers enables for sessions the controllers that limits need, and returns which of them are enabled.
func (r *Root) EnableControllers(log zerolog.Logger) map[string]bool {
	own := filepath.Dir(r.Dir)
	removeLeaves(own)
	there := ReadWords(own, "cgroup.controllers")
	on := map[string]bool{}
	for _, controller := range Controllers {
		if slices.Contains(there, controller) {
			on[controller] = true
		}
	}
	if len(on) == 0 {
		return nil
	}
	// Above a process the kernel would let us enable pids and cpu, but not memory. That would make our cgroup a threaded domain for good,
	// and then no process could be started below it.
	if !isHierarchyRoot(own) && len(ReadWords(own, "cgroup.procs")) > 0 {
		if !isDelegated(own) {
			log.Debug().Str("cgroup", own).Msg("not delegated to us: no controllers of cgroup v2")
			return nil
		}
		if err := moveAll(own, r.Dir+".self"); err != nil {
			log.Warn().Err(err).Str("cgroup", own).Msg("no controllers of cgroup v2")
			return nil
		}
	}
	for controller := range on {
		err := enableController(own, controller)
		if err == nil {
			err = enableController(r.Dir, controller)
		}
		if err != nil {
			log.Warn().Err(err).Str("controller", controller).Msg("controller of cgroup v2 not available")
			delete(on, controller)
		}
	}
	return on
}

// isHierarchyRoot says whether dir is the root of the hierarchy. Only the root may have processes next to children with controllers; it has
// no type.
func isHierarchyRoot(dir string) bool {
	return errors.Is(unix.Access(filepath.Join(dir, "cgroup.type"), unix.F_OK), unix.ENOENT)
}

func enableController(dir, controller string) error {
	if slices.Contains(ReadWords(dir, "cgroup.subtree_control"), controller) {
		return nil
	}
	return WriteFile(dir, "cgroup.subtree_control", "+"+controller)
}

func ReadWords(dir, name string) []string {
	text, _ := procfs.ReadSmallFile(filepath.Join(dir, name), make([]byte, 256))
	return strings.Fields(string(text))
}

// isDelegated says whether we may organise the cgroup. systemd says so in an attribute. A directory that we own without being root was
// given to us. The root of a cgroup namespace belongs to the container.
func isDelegated(dir string) bool {
	var room [8]byte
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		if n, err := unix.Getxattr(dir, name, room[:]); err == nil && string(room[:n]) == "1" {
			return true
		}
	}
	var st unix.Stat_t
	if unix.Stat(dir, &st) == nil && os.Getuid() != 0 && int(st.Uid) == os.Getuid() {
		return true
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	path, ok := cgroupPath(string(self))
	return err == nil && ok && path == "/"
}

// moveAll moves every process of a cgroup into a new one, until none is left.
func moveAll(from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for range 10 { // processes that fork meanwhile are found in the next round
		text, err := procfs.ReadSmallFile(filepath.Join(from, "cgroup.procs"), make([]byte, 4<<10))
		if err != nil {
			return err
		}
		pids := procfs.ParsePids(text)
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := WriteFile(to, "cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return &fs.PathError{Op: "empty cgroup", Path: from, Err: unix.EBUSY}
}

// removeLeaves removes the leaves of dead instances. A leaf with a process cannot be removed.
func removeLeaves(dir string) {
	for _, below := range Subdirs(dir) {
		if LeafName.MatchString(filepath.Base(below)) {
			_ = unix.Rmdir(below)
		}
	}
}
