package confine

import (
	"io/fs"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Enterable says whether the account, or the first one of a range, may enter a directory. The caller must be root.
func (a *Account) Enterable(dir string) error {
	return OnOwnThread(func() error { return a.CheckEnterable(a.UID, a.GID, dir) })
}

// CheckEnterable changes the thread's groups, so its thread must end afterwards.
func (a *Account) CheckEnterable(uid, gid uint32, dir string) error {
	return a.AsUser(uid, gid, func() error {
		fd, err := unix.Open(dir+"/.", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "chdir", Path: dir, Err: err}
		}
		unix.Close(fd)
		return nil
	})
}

// AsUser calls f with the file access rights of another user. It uses raw system calls, which change only this thread. The groups stay
// changed.
func (a *Account) AsUser(uid, gid uint32, f func() error) error {
	groups := a.Groups
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	ownGID, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	ownUID, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0) // this also removes the capabilities that override file permissions
	defer func() {
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, ownUID, 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, ownGID, 0, 0)
	}()
	return f()
}

// Enterable says whether we may enter a directory. It is called before a command runs in it and before the shell hears of it; the shell's
// own cd decides. The file system may never answer: see slowfs.Enterable.
func Enterable(dir string) error {
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = &fs.PathError{Op: "chdir", Path: dir, Err: syscall.ENOTDIR}
	}
	if err == nil {
		if e := unix.Access(dir, unix.X_OK); e != nil {
			err = &fs.PathError{Op: "chdir", Path: dir, Err: e}
		}
	}
	return err
}
