package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// --allow-write uses Landlock. A session's processes may change files below some directories and nothing else, whatever user they are. The
// thread that starts them first enters the session's rules; children inherit the rules, and nobody can leave them. Reading and executing
// stay as they are. Existing packages restrict a whole process, so we do not use one.

// LandlockRules are one session's rules.
type LandlockRules struct {
	Rules int // descriptor; -1: no rules
}

// AllWrites are all rights to change the file system in Landlock's third version (Linux 6.2). Earlier versions could not restrict
// truncate(2), which would leave a hole.
const (
	AllWrites = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_REFER |
		unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK |
		unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM
	// No device files: with one, root could write to the disk below every directory.
	TreeWrites  = AllWrites &^ (unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK)
	FileWrites  = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	landlockABI = 3
)

// AlwaysWritable are files that programs expect to be writable, and that store nothing.
var AlwaysWritable = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts"}

// Landlock returns nil if Landlock is available, otherwise why it is not.
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
		return fmt.Errorf("Landlock of this kernel is version %d and does not restrict truncation; %d does (Linux 6.2)", abi, landlockABI)
	}
	return nil
}

// OpenWritable opens the directories once, so that a rename cannot exchange them.
func OpenWritable(dirs []string) (fds []int, err error) {
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

func (f LandlockRules) Allow(fd int, access uint64) error {
	rule := unix.LandlockPathBeneathAttr{Allowed_access: access, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(f.Rules), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return os.NewSyscallError("landlock_add_rule", e)
	}
	return nil
}

// Apply restricts this thread to the rules. The thread must have no_new_privs.
func (f LandlockRules) Apply() error {
	if f.Rules < 0 {
		return nil
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(f.Rules), 0, 0); e != 0 {
		return os.NewSyscallError("landlock_restrict_self", e)
	}
	return nil
}

func (f *LandlockRules) Close() { descriptor.Close(&f.Rules) }
