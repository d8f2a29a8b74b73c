package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// --allow-write: Landlock. A session's processes may change what is below some directories, and nothing else, whoever they
// are: the thread that starts them enters the session's rules before, which its children inherit and nobody can leave. What
// may be read, and executed, is as before. No package does this: those that there are restrict a whole process.

// A landlockRules is one session's rules.
type landlockRules struct {
	rules int // descriptor; -1: there are none
}

// allWrites is every right to change the file system that Landlock knows of in its third version (Linux 6.2): before that,
// truncate(2) could not be held back, and a promise with such a hole is none.
const (
	allWrites = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	// No device: with one of its own making root would write to the disk below all directories.
	treeWrites  = allWrites &^ (unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)
	fileWrites  = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	landlockABI = 3
)

// alwaysWritable is what every program expects to be able to write to, and where that changes nothing.
var alwaysWritable = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts"}

// Landlock tells why it cannot be had; nil: it can.
func Landlock() error {
	abi, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch {
	case e == unix.ENOSYS:
		return errors.New("this kernel has no Landlock (Linux 6.2, CONFIG_SECURITY_LANDLOCK)")
	case e == unix.EOPNOTSUPP:
		return errors.New("Landlock is not switched on in this kernel (boot parameter lsm=landlock,…)")
	case e != 0:
		return fmt.Errorf("Landlock: %w", e)
	case abi < landlockABI:
		return fmt.Errorf("Landlock of this kernel is version %d and does not hold back truncation; %d does (Linux 6.2)", abi, landlockABI)
	}
	return nil
}

// restrictsWrites: sessions may write to some places only.
func (h *Host) restrictsWrites() bool { return len(h.writableDirs) > 0 }

// openWritable opens the directories once, so that they stay the ones that were meant.
func openWritable(dirs []string) (fds []int, err error) {
	for _, dir := range dirs {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			descriptor.CloseAll(fds)
			return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// openLandlockRules makes rules for who has its ports in dir.
func (h *Host) openLandlockRules(dir string) (f landlockRules, err error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: allWrites}
	// Only the field of version 1: the rest of the struct is of later ones.
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr.Handled_access_fs), 0)
	if e != 0 {
		return landlockRules{rules: -1}, os.NewSyscallError("landlock_create_ruleset", e)
	}
	f = landlockRules{rules: int(fd)}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	for _, fd := range h.writableDirs {
		if err := f.allow(fd, treeWrites); err != nil {
			return f, err
		}
	}
	for _, path := range append([]string{dir}, alwaysWritable...) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil && path != dir {
			continue // a container need not have all of them
		} else if err != nil {
			return f, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		err = f.allow(fd, fileWrites)
		unix.Close(fd)
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

func (f landlockRules) allow(fd int, access uint64) error {
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(f.rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return os.NewSyscallError("landlock_add_rule", e)
	}
	return nil
}

// apply holds this thread to the rules; no_new_privs is set.
func (f landlockRules) apply() error {
	if f.rules < 0 {
		return nil
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(f.rules), 0, 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}

func (f *landlockRules) close() { descriptor.Close(&f.rules) }
