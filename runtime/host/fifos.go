package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/confine"
	"trl/runtime/descriptor"
	"trl/runtime/own"
)

// Pipes, texts and snapshots are opened both by trl and by a session's shells, and the shells open them by path. Where
// a shell may look into the keeper's /proc/PID/fd, the path is there. A session that runs as another user may not look
// there, and a session with Landlock rules may not either.
//
// Such a session has a FIFO directory instead, in memory (tmpfs). It contains FIFOs and files. Each is named by the
// number that the keeper uses for it, and only the session's user may open it (mode 0600). Only we can change the
// directory. It also contains a file that zsh reads when a terminal begins (runtime/shell/termshell.go). The directory
// contains nothing that belongs to others, the session cannot reach the keeper's own descriptors, and what the session
// does in the directory harms only itself.
//
// The alternative is a process of that user that holds copies of the descriptors for /proc/PID/fd. We do not use it:
// the user cannot open a pipe again that root made (`>/dev/stderr`), a session with Landlock rules may not look into
// that process either, and the session could kill it.

// firstFileNumber is where the file numbers of channels begin. It is above every descriptor, so that no number has two
// meanings.
const firstFileNumber = 1 << 24

// fifoDirCandidates returns the places where the FIFO directory may be. All are in memory, because the data may be
// secret and must not be written to a disk.
func fifoDirCandidates() []string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); os.Geteuid() != 0 && filepath.IsAbs(dir) {
		return []string{dir, "/dev/shm"}
	}
	return []string{"/run", "/dev/shm"}
}

// fifoDirName returns the name of an instance's FIFO directory. It depends on the instance alone, so the directory can
// be found when its keeper is dead.
func fifoDirName(i Instance) string { return fmt.Sprintf("trl-ports-%d", i) }

// FIFODirParent returns the directory in which the FIFO directory can be made.
func FIFODirParent() (dir string, err error) {
	var why []error
	for _, dir := range fifoDirCandidates() {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			why = append(why, &fs.PathError{Op: "statfs", Path: dir, Err: err})
		} else if st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC {
			why = append(why, fmt.Errorf("%s is not in memory", dir))
		} else if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			why = append(why, &fs.PathError{Op: "access", Path: dir, Err: err})
		} else {
			return dir, nil
		}
	}
	return "", fmt.Errorf("no place in memory (tmpfs) for the pipes of sessions: %w", errors.Join(why...))
}

// openFIFODir makes the FIFO directory of the host, in which each confinement gets a directory of its own. If we may
// mount, the directory is a separate tmpfs (mounted is true), and so is each confinement's directory. Then no session
// can fill another one's directory or the rest of /run.
//
// The directory stays locked until the returned descriptor is closed, see removeLeftoverFIFODirs.
func openFIFODir(i Instance, as *confine.Account) (dir string, mounted bool, lock int, err error) {
	defer func() {
		if err == nil {
			lock, err = lockFIFODir(dir)
		}
		if err != nil && dir != "" {
			err = errors.Join(err, removeDir(dir))
		}
	}()
	for _, parent := range fifoDirCandidates() {
		dir := filepath.Join(parent, fifoDirName(i))
		if makeDir(dir, as != nil) != nil {
			continue
		}
		if mountTmpfs(dir, fifoDirSize, as != nil) == nil {
			return dir, true, -1, nil
		}
		_ = removeDir(dir)
	}
	parent, err := FIFODirParent()
	if err != nil {
		return "", false, -1, err
	}
	dir = filepath.Join(parent, fifoDirName(i))
	if err := makeDir(dir, as != nil); err != nil {
		return "", false, -1, err
	}
	return dir, false, -1, nil
}

// lockName is the file in a FIFO directory on which its keeper holds a lock. No session's directory can have this name
// (validID).
const lockName = ".lock"

// lockFIFODir makes the lock file and locks it. The file gets its final name after it is locked, so that no other
// process can find it unlocked.
func lockFIFODir(dir string) (lock int, err error) {
	path := filepath.Join(dir, lockName)
	lock, err = unix.Open(path+".new", unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if err = unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = unix.Rename(path+".new", path)
	}
	if err != nil {
		unix.Close(lock)
		return -1, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return lock, nil
}

// removeLeftoverFIFODirs removes the FIFO directories of keepers that were killed together with their gateways,
// whatever their state directories are. The kernel drops a lock when the process that holds it has ended, so a lock
// that can be taken proves that the keeper is dead. A directory of another user is left alone, and so is one without a
// lock (earlier builds made none).
func removeLeftoverFIFODirs(log zerolog.Logger) {
	for _, parent := range fifoDirCandidates() {
		dirs, _ := filepath.Glob(filepath.Join(parent, "trl-ports-*"))
		for _, dir := range dirs {
			var st unix.Stat_t
			if unix.Lstat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
				continue
			}
			lock, err := unix.Open(filepath.Join(dir, lockName), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
			if err != nil {
				continue
			}
			if unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB) == nil {
				log.Warn().Str("directory", dir).Err(removeDir(dir)).Msg("removed the FIFO directory that a killed keeper left")
			}
			unix.Close(lock)
		}
	}
}

// sessionDirSize is how much one session can store in its directory: two snapshots of its state and the texts of its
// commands.
const sessionDirSize = 64 << 20

// fifoDirSize is the size of the tmpfs that contains the confinements' directories and nothing else.
const fifoDirSize = 1 << 20

// mountTmpfs mounts a tmpfs of that size. Mounts below it do not propagate to other mount namespaces.
func mountTmpfs(dir string, size int, pass bool) error {
	mode := "0700"
	if pass {
		mode = "0711"
	}
	err := unix.Mount("trl", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=%s,size=%d", mode, size))
	if err == nil {
		err = unix.Mount("", dir, "", unix.MS_PRIVATE, "")
	}
	return os.NewSyscallError("mount", err)
}

// CanMount returns nil if this process may mount file systems of its own, and otherwise why not. It tries in a mount
// namespace that ends with the thread that tries.
func CanMount() error {
	return confine.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
			return os.NewSyscallError("mount", err)
		}
		return os.NewSyscallError("mount", unix.Mount("trl", "/dev/shm", "tmpfs", 0, "size=4096"))
	})
}

// unmountBelow unmounts every file system at dir, together with the mounts below it.
func unmountBelow(dir string) {
	for unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
}

// isMounted reports whether dir is on another file system than its parent directory.
func isMounted(dir string) bool {
	own, ok := descriptor.DeviceOf(unix.AT_FDCWD, dir)
	above, ok2 := descriptor.DeviceOf(unix.AT_FDCWD, filepath.Dir(dir))
	return ok && ok2 && own != above
}

// removeDir removes a FIFO directory, whether it is mounted or not.
func removeDir(dir string) error {
	unmountBelow(dir)
	return os.RemoveAll(dir)
}

// makeDir makes a directory, whatever the umask is. If pass is true, other users may pass through it.
func makeDir(dir string, pass bool) error {
	mode := uint32(0o700)
	if pass {
		mode = 0o711
	}
	if err := unix.Mkdir(dir, mode); err != nil {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	if err := unix.Chmod(dir, mode); err != nil {
		return &fs.PathError{Op: "chmod", Path: dir, Err: err}
	}
	return nil
}

// removeFIFODir removes the FIFO directory of an instance that is dead.
func removeFIFODir(i Instance) {
	for _, parent := range fifoDirCandidates() {
		_ = removeDir(filepath.Join(parent, fifoDirName(i)))
	}
}

// UsesFIFOs reports whether the session's shells cannot open paths below /proc. If so, MakeChannels makes everything
// that the shells open.
func (g *Group) UsesFIFOs() bool { return g.confinement.dir != "" }

// MakeChannels makes channels for a group that uses FIFOs.
func (g *Group) MakeChannels(kinds []own.ChannelKind) (all []own.Channel, err error) {
	defer func() {
		if err != nil {
			own.CloseChannels(all)
			for _, m := range all {
				g.unlink(m.FileNumber)
			}
			all = nil
		}
	}()
	for _, k := range kinds {
		m, err := g.confinement.makeChannel(k)
		if err != nil {
			return all, fmt.Errorf("make channel: %w", err)
		}
		all = append(all, m)
	}
	return all, nil
}

func (t *confinement) makeChannel(k own.ChannelKind) (m own.Channel, err error) {
	t.mu.Lock()
	t.lastFileNumber += 2
	m = own.Channel{R: -1, W: -1, HeldR: t.lastFileNumber - 1, HeldW: t.lastFileNumber, FileNumber: t.lastFileNumber}
	t.mu.Unlock()
	path := t.dir + "/" + strconv.Itoa(m.FileNumber)
	defer func() {
		if err != nil {
			descriptor.Close(&m.R)
			descriptor.Close(&m.W)
			_ = unix.Unlink(path)
		}
	}()
	const flags = unix.O_CLOEXEC | unix.O_NOFOLLOW
	switch k {
	case own.MemFile:
		m.HeldR = -1
		if m.W, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|flags, 0o600); err != nil {
			return m, err
		}
	default:
		if err = unix.Mkfifo(path, 0o600); err != nil {
			return m, err
		}
		if m.R, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0); err != nil { // without O_NONBLOCK, open would wait for a writer
			return m, err
		}
		mode := unix.O_WRONLY
		if k == own.InPipe {
			mode |= unix.O_NONBLOCK
		}
		if m.W, err = unix.Open(path, mode|flags, 0); err != nil {
			return m, err
		}
		if k == own.InPipe { // only without a reader of our own can we see whether the shell has opened the pipe, see stream.Stdin
			descriptor.Close(&m.R)
			m.HeldR = -1
		}
	}
	if t.user != nil {
		gid := t.gid
		mode := uint32(0o600)
		if k == own.InPipe && t.gatewayGID != nil { // the gateway opens the pipe to see whether it has a reader, see stream.Stdin
			gid, mode = *t.gatewayGID, 0o620
		}
		if err = unix.Fchown(m.W, int(t.uid), int(gid)); err == nil {
			err = unix.Fchmod(m.W, mode)
		}
	}
	return m, err
}

// chown gives the session's user the pipes and terminals that a child gets, so that the child can open them again.
// Shells do this with their script channel (/proc/self/fd/3).
func (t *confinement) chown(files []*os.File) {
	for _, f := range files {
		var st unix.Stat_t
		if fd := int(f.Fd()); unix.Fstat(fd, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFIFO || descriptor.IsTTY(fd)) && st.Uid != t.uid {
			_ = unix.Fchown(fd, int(t.uid), int(t.gid)) // without it, the shell reports that it cannot open the file
		}
	}
}

// unlink removes the name of a channel. Processes that have the channel open keep it.
func (g *Group) unlink(number int) {
	if number > firstFileNumber && g.confinement.dir != "" {
		_ = unix.Unlink(g.confinement.dir + "/" + strconv.Itoa(number))
	}
}

// Unlink removes the names of channels. It ignores numbers that are not file numbers of channels.
func (g *Group) Unlink(numbers ...int) {
	for _, n := range numbers {
		g.unlink(n)
	}
}

// FIFODir returns the directory that contains the confinements' directories, or "" if shells open everything below
// /proc.
func (h *Host) FIFODir() string { return h.fifoDir }
