// Package cgroup finds, makes, limits, reads, kills and removes cgroups, of version 2 and of version 1. It knows directories and processes
// and nothing of sessions.
package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/procfs"
)

// Tier "cgroup" has the directories trl-<pid>-<random>/<session>/c<n> in our own cgroup of version 2. It needs no controllers, so it works
// in hybrid layouts, too.

// Root is the directory of this instance. Its lock shows that the instance lives: the kernel releases it when the process ends, however it
// ends.
type Root struct {
	Dir  string // in the file system
	Path string // as /proc/PID/cgroup shows it
	lock int    // fd of dir
}

// LeftoverTimeout bounds the wait for a dead instance's processes to die. The directory of a process that hangs in the kernel stays for the
// next start.
const LeftoverTimeout = 2 * time.Second

// OpenRoot makes and locks our directory, and proves that a process can be started in it.
func OpenRoot() (*Root, error) {
	dir, path, err := Own()
	if err != nil {
		return nil, err
	}
	if LeafName.MatchString(filepath.Base(dir)) { // an earlier instance in this process, or of a parent, has moved us into its leaf
		dir, path = filepath.Dir(dir), filepath.Dir(path)
	}
	r, err := newRoot(dir, path)
	if err != nil {
		return nil, err
	}
	if err := r.probe(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// newRoot makes and locks a directory of this instance in dir.
func newRoot(dir, path string) (r *Root, err error) {
	for range 10 { // another instance's clean-up may hold a new directory for a moment
		name := fmt.Sprintf("trl-%d-%08x", os.Getpid(), rand.Uint32())
		r := &Root{Dir: filepath.Join(dir, name), Path: filepath.Join(path, name), lock: -1}
		if err := os.Mkdir(r.Dir, 0o755); err != nil {
			return nil, err
		}
		if r.lock, err = LockDir(r.Dir); err == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("lock of %s: %w", dir, err)
}

// Own is Find for this process.
func Own() (dir, path string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", err
	}
	return Find(string(mounts), string(self))
}

// Find returns the directory of our own cgroup v2, and its path in /proc/self/cgroup.
func Find(mountinfo, self string) (dir, path string, err error) {
	path, ok := cgroupPath(self)
	if !ok {
		return "", "", errors.New("no cgroup v2")
	}
	dir, err = mountedAt(mountinfo, path, func(kind, _ string) bool { return kind == "cgroup2" })
	return dir, path, err
}

// mountedAt returns the directory of a cgroup. is selects the mounts of the cgroup's hierarchy by their type and options.
func mountedAt(mountinfo, path string, is func(kind, options string) bool) (dir string, err error) {
	if strings.HasPrefix(path, "/..") {
		return "", errors.New("our cgroup is outside the cgroup namespace")
	}
	for _, m := range ParseMounts(mountinfo) {
		if !is(m.Kind, m.Options) {
			continue
		}
		if below, ok := strings.CutPrefix(path, strings.TrimSuffix(m.root, "/")); ok && (below == "" || below[0] == '/') {
			return filepath.Join(m.Point, below), nil
		}
	}
	return "", errors.New("our cgroup is not mounted")
}

// mount is a line of /proc/PID/mountinfo.
type mount struct {
	root, Point   string // the part of the file system that is mounted, and where
	Kind, Options string // of the file system
}

func ParseMounts(mountinfo string) (all []mount) {
	for line := range strings.Lines(mountinfo) {
		// 36 35 98:0 /root /mount/point rw,noatime … - cgroup2 source options
		before, after, _ := strings.Cut(line, " - ")
		where, what := strings.Fields(before), strings.Fields(after)
		if len(where) >= 5 && len(what) >= 3 {
			all = append(all, mount{unescapeMount(where[3]), unescapeMount(where[4]), what[0], what[2]})
		}
	}
	return all
}

// unescapeMount decodes the escapes of mountinfo for blanks and backslashes, such as \040.
func unescapeMount(s string) string {
	for i := 0; i+4 <= len(s); i++ {
		if s[i] == '\\' {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				s = s[:i] + string(rune(n)) + s[i+4:]
			}
		}
	}
	return s
}

// cgroupPath returns the path in the v2 line of a /proc/PID/cgroup.
func cgroupPath(text string) (path string, ok bool) {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSuffix(path, "\n"), true
		}
	}
	return "", false
}

// Contains says whether pid is in the cgroup or below it. A zombie counts as in the cgroup in which it died, even if that is gone.
func Contains(pid int, path string) bool {
	text, err := procfs.ReadSmallFile(procfs.Path(pid, "/cgroup"), make([]byte, 1<<10))
	if err != nil {
		return false
	}
	in, _ := cgroupPath(string(text))
	below, ok := strings.CutPrefix(in, path)
	return ok && (below == "" || below[0] == '/' || below[0] == ' ') // " (deleted)"
}

// LockDir locks a directory, and checks that the locked one still has that name.
func LockDir(dir string) (fd int, err error) {
	fd, err = unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	var locked, named unix.Stat_t
	if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = errors.Join(unix.Fstat(fd, &locked), unix.Stat(dir, &named))
		if err == nil && locked.Ino != named.Ino {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, &fs.PathError{Op: "lock", Path: dir, Err: err}
	}
	return fd, nil
}

// rootName matches the names that OpenRoot gives, and no others.
var rootName = regexp.MustCompile(`^trl-[0-9]+-[0-9a-f]{8}$`)

// RemoveLeftovers calls end for every directory that a dead instance left. It knows such a directory by its free lock.
func RemoveLeftovers(dir string, end func(dir string) error, log zerolog.Logger) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left := filepath.Join(dir, e.Name())
		if !e.IsDir() || !rootName.MatchString(e.Name()) {
			continue
		}
		fd, err := LockDir(left)
		if err != nil {
			continue // alive
		}
		pids := PidsBelow(left)
		err = end(left)
		unix.Close(fd)
		log.Warn().Str("cgroup", left).Ints("pids", pids).Err(err).Msg("ended what a dead instance left behind")
	}
}

func KillLeftover(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), LeftoverTimeout)
	defer cancel()
	return KillTree(ctx, dir)
}

// probe tries what NewGroup, NewScope and Spawn do. The kernel refuses with EBUSY if controllers are enabled for our own cgroup's children
// ("no internal processes"), with EOPNOTSUPP in a threaded cgroup, and with EACCES if we own the directory but not its parent. The program
// does not exist, so the failure comes either from the clone into the cgroup or from the exec.
func (r *Root) probe() error {
	dir := filepath.Join(r.Dir, "probe")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer unix.Rmdir(dir)
	if err := unix.Access(filepath.Join(dir, "cgroup.kill"), unix.W_OK); err != nil {
		return fmt.Errorf("cgroup.kill (Linux 5.14): %w", err)
	}
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	_, err = syscall.ForkExec(filepath.Join(r.Dir, "no-such-program"), []string{"probe"},
		&syscall.ProcAttr{Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}})
	if !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("start in cgroup %s: %w", dir, err)
	}
	return nil
}

// Close removes the directory. Its groups are closed already.
func (r *Root) Close() error {
	err := KillLeftover(r.Dir)
	unix.Close(r.lock)
	return err
}

func OpenFile(dir, name string, flags int) (int, error) {
	path := filepath.Join(dir, name)
	fd, err := descriptor.RetryEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// HasSubgroups says whether there are cgroups below dir. Sessions with the necessary rights can make some.
func HasSubgroups(dir string) bool {
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Nlink > LinksWithoutSubgroups
}

// LinksWithoutSubgroups is the link count of a cgroup's directory; each subgroup adds one.
const LinksWithoutSubgroups = 2

// ListsOnly says whether text lists no process but pid.
func ListsOnly(text []byte, pid int) bool {
	for other := range procfs.PidsIn(text) {
		if other != pid {
			return false
		}
	}
	return true
}

// KillTree kills until it can remove the directory. That proves that no process is left, because a fork that was under way during a kill
// may add one.
func KillTree(ctx context.Context, dir string) error {
	var pause procfs.Backoff
	for {
		_ = KillDir(dir)
		err := RemoveTree(dir)
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause.Sleep()
	}
}

// KillDir sends KILL to every process in a cgroup and below it. It needs a descriptor for a moment, if necessary from the reserve.
func KillDir(dir string) error {
	return descriptor.WithReserve(func() error { return WriteFile(dir, "cgroup.kill", "1") })
}

// RemoveTree removes a cgroup and those below it, if all are empty. Zombies do not count.
func RemoveTree(dir string) error {
	err := unix.Rmdir(dir)
	if errors.Is(err, unix.EBUSY) { // the kernel also returns it if there are subgroups
		for _, below := range Subdirs(dir) {
			if err := RemoveTree(below); err != nil {
				return err
			}
		}
		err = unix.Rmdir(dir)
	}
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &fs.PathError{Op: "remove cgroup", Path: dir, Err: err}
}

func Subdirs(dir string) (below []string) {
	var entries []os.DirEntry
	_ = descriptor.WithReserve(func() (err error) {
		entries, err = os.ReadDir(dir)
		return err
	})
	for _, e := range entries {
		if e.IsDir() {
			below = append(below, filepath.Join(dir, e.Name()))
		}
	}
	return below
}

// Populated says whether a live process is in the cgroup or below it. known is false if there was no free descriptor to read it.
func Populated(dir string) (there, known bool) {
	text, err := procfs.ReadSmallFile(filepath.Join(dir, "cgroup.events"), make([]byte, 256))
	if err != nil {
		return false, errors.Is(err, fs.ErrNotExist)
	}
	return !bytes.Contains(text, []byte("populated 0")), true
}

// PidsBelow lists the live processes of a cgroup and of all below it. A 0 stands for a list that could not be read.
func PidsBelow(dir string) []int {
	text, err := procfs.ReadSmallFile(filepath.Join(dir, "cgroup.procs"), make([]byte, 4<<10))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EOPNOTSUPP) { // the list of the cgroup above has the processes of a threaded cgroup
		return []int{0}
	}
	pids := procfs.ParsePids(text)
	for _, below := range Subdirs(dir) {
		pids = append(pids, PidsBelow(below)...)
	}
	return pids
}
