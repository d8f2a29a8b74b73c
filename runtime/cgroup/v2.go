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

// Controllers of cgroup v2 must be switched on from above, in every cgroup down to the one whose children they are to
// limit, and only where no process is in it itself (cgroups(7), "no internal processes"). So where our own cgroup was
// delegated to us, what is in it, which is us and whoever started us there, moves into a leaf beside our root.

// LeafName is the leaf's: that of our root and a suffix.
var LeafName = regexp.MustCompile(`^trl-[0-9]+-[0-9a-f]{8}\.self$`)

// EnableControllers switches on, for the sessions, the controllers that limits need, and returns which of them are on.
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
	// The kernel would let us switch on pids and cpu, but not memory, above a process: that makes a threaded domain of
	// our cgroup, for good, and no process can be started below it any more.
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

// isHierarchyRoot: the one cgroup that may hold processes beside children with controllers, and has no type.
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

// isDelegated: the cgroup is ours to arrange. systemd says so in an attribute; a directory that is ours though we are not
// root was given to us; and the root of a cgroup namespace is a container's own.
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
	for range 10 { // what forks meanwhile is met by the next look
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

// removeLeaves removes the leaves of instances that are gone: one that holds a process cannot be removed.
func removeLeaves(dir string) {
	for _, below := range Subdirs(dir) {
		if LeafName.MatchString(filepath.Base(below)) {
			_ = unix.Rmdir(below)
		}
	}
}
