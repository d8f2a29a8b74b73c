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

// What trl and a session's shells both open, the shells open by path: pipes, texts, snapshots. As long as they may look into
// the keeper's /proc/PID/fd, that is the path. A session that runs as another user may not, nor may one that Landlock holds.
// Such a session has a directory instead, in memory (tmpfs): FIFOs and files, each named by the number that the keeper calls
// it, for the session's user alone (mode 0600), in a directory that only we can change; and a file that zsh reads when a
// terminal begins (termshell.go). Nothing in it is anybody else's, the
// keeper's own descriptors stay out of reach, and whatever the session does there it does to itself.
//
// Not a process of that user in between, which holds copies for /proc/PID/fd: pipes that root made cannot be opened anew
// (`>/dev/stderr`), whom Landlock holds may not look into it either, and the session could kill it.

// firstFileNumber is the number of the first port: above those of any descriptor, so that no number means two things.
const firstFileNumber = 1 << 24

// fifoDirCandidates are where the directory of ports may be. What is in it may be secret, and must not come to a disk.
func fifoDirCandidates() []string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); os.Geteuid() != 0 && filepath.IsAbs(dir) {
		return []string{dir, "/dev/shm"}
	}
	return []string{"/run", "/dev/shm"}
}

// fifoDirName is that of an instance's directory, which so can be found when its keeper is dead.
func fifoDirName(i Instance) string { return fmt.Sprintf("trl-ports-%d", i) }

// FIFODirParent is where the directory of ports can be made.
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

// openFIFODir makes the directory of ports, in which each confinement gets one of its own. Where we may mount, it is a tmpfs of our own, and
// so is each confinement's (mounted): then no session can fill another one's, or what else is in /run.
//
// It stays locked until the returned descriptor is closed, see removeLeftoverFIFODirs.
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

// lockName is the file in a directory of ports that its keeper has locked. No session's directory has such a name (validID).
const lockName = ".lock"

// lockFIFODir makes the file and locks it. The file gets its name when it is locked, so that nobody finds it unlocked before.
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

// removeLeftoverFIFODirs removes the directories of ports that keepers left which were killed together with their gateways, whatever
// their state directories are. The kernel drops a lock when its process is dead, so a lock that can be taken proves that the
// keeper is dead. A directory of another user, or without a lock (builds before this made none), is left alone.
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
				log.Warn().Str("directory", dir).Err(removeDir(dir)).Msg("removed the pipes of sessions that a killed keeper left")
			}
			unix.Close(lock)
		}
	}
}

// sessionDirSize is what one session can put into its files there: snapshots of its state, twice, and the texts of what it runs.
const sessionDirSize = 64 << 20

// fifoDirSize is that of the tmpfs in which confinements have their directories, and nothing else is.
const fifoDirSize = 1 << 20

// mountTmpfs mounts a tmpfs of that size. Other mount namespaces do not get what is mounted in it.
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

// CanMount says why this process may not mount file systems of its own, nil where it may. It is asked in a mount namespace that
// ends with the thread which asks.
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

// unmountBelow unmounts what is mounted at dir, if anything is, and what is below it.
func unmountBelow(dir string) {
	for unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
}

// isMounted: dir is another file system than the directory that it is in.
func isMounted(dir string) bool {
	own, ok := descriptor.DeviceOf(unix.AT_FDCWD, dir)
	above, ok2 := descriptor.DeviceOf(unix.AT_FDCWD, filepath.Dir(dir))
	return ok && ok2 && own != above
}

// removeDir removes a directory of ports, mounted or not.
func removeDir(dir string) error {
	unmountBelow(dir)
	return os.RemoveAll(dir)
}

// makeDir makes a directory that others may pass through, or not; whatever the umask is.
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

// removeFIFODir removes what an instance that is dead left of its ports.
func removeFIFODir(i Instance) {
	for _, parent := range fifoDirCandidates() {
		_ = removeDir(filepath.Join(parent, fifoDirName(i)))
	}
}

// UsesFIFOs: the session's shells cannot open what only has a path below /proc, so everything they open is made by Make.
func (g *Group) UsesFIFOs() bool { return g.confinement.dir != "" }

// MakeChannels makes ports: of a Private group.
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
			return all, fmt.Errorf("port: %w", err)
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
		if m.R, err = unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|flags, 0); err != nil { // else it would wait for a writer
			return m, err
		}
		mode := unix.O_WRONLY
		if k == own.InPipe {
			mode |= unix.O_NONBLOCK
		}
		if m.W, err = unix.Open(path, mode|flags, 0); err != nil {
			return m, err
		}
		if k == own.InPipe { // that the shell has opened it can be seen only as long as nobody else reads, see stdinBuffer.hadReader
			descriptor.Close(&m.R)
			m.HeldR = -1
		}
	}
	if t.user != nil {
		gid := t.gid
		mode := uint32(0o600)
		if k == own.InPipe && t.gatewayGID != nil { // it tries whether there is a reader yet, see stdinBuffer.hadReader
			gid, mode = *t.gatewayGID, 0o620
		}
		if err = unix.Fchown(m.W, int(t.uid), int(gid)); err == nil {
			err = unix.Fchmod(m.W, mode)
		}
	}
	return m, err
}

// chown lets a child open anew the pipes that it is given, as the shells do with their script channel (/proc/self/fd/3).
func (t *confinement) chown(files []*os.File) {
	for _, f := range files {
		var st unix.Stat_t
		if fd := int(f.Fd()); unix.Fstat(fd, &st) == nil && (st.Mode&unix.S_IFMT == unix.S_IFIFO || descriptor.IsTTY(fd)) && st.Uid != t.uid {
			_ = unix.Fchown(fd, int(t.uid), int(t.gid)) // else the shell says that it cannot be opened
		}
	}
}

// unlink takes a port's name away; who has it open has it still.
func (g *Group) unlink(number int) {
	if number > firstFileNumber && g.confinement.dir != "" {
		_ = unix.Unlink(g.confinement.dir + "/" + strconv.Itoa(number))
	}
}

// Unlink takes names of ports away, of numbers that are none it knows nothing.
func (g *Group) Unlink(numbers ...int) {
	for _, n := range numbers {
		g.unlink(n)
	}
}

// FIFODir is where confinements have their directories, "" where everything is found below /proc.
func (h *Host) FIFODir() string { return h.fifoDir }
