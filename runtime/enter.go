package runtime

import (
	"io/fs"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A file system whose other end is gone (NFS, FUSE) does not answer who asks for a directory, and a session may have made
// it itself. So a directory is asked for on a thread that nobody else needs, and never by a child on its way to the exec:
// the thread that forks waits for that without a bound.

// entryPatience bounds the wait for a directory. A disk that has to spin up takes some seconds.
const entryPatience = 5 * time.Second

// maxEntries is how many threads of a Host may be asking: one per session, as long as others have not left too many
// behind. Go ends a program with 10,000.
const maxEntries = 512

// enter calls ask, on what thread makes of it, and there f once that has succeeded. Who has to wait for longer than
// entryPatience, for ask or for the one before it in the group, is told that dir did not answer; then f is not called.
func (g *Group) enter(dir string, thread func(func() error) error, ask, f func() error) error {
	late := time.NewTimer(g.host.entryPatience)
	defer late.Stop()
	unanswered := &fs.PathError{Op: "chdir", Path: dir, Err: unix.ETIMEDOUT}
	select {
	case g.entering <- struct{}{}:
	case <-late.C:
		return unanswered
	}
	select {
	case g.host.entries <- struct{}{}:
	default:
		<-g.entering
		return &fs.PathError{Op: "chdir", Path: dir, Err: unix.EAGAIN}
	}
	leave := sync.OnceFunc(func() { <-g.host.entries; <-g.entering })
	asked, given, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() { // ends with f, which is waited for here, or once dir answers, which nobody waits for
		defer leave()
		done <- thread(func() error {
			err := ask()
			leave()
			select {
			case asked <- struct{}{}:
			case <-given:
				return unanswered
			}
			if err != nil {
				return err
			}
			return f()
		})
	}()
	select {
	case <-asked:
		return <-done
	case err := <-done: // there was no thread
		return err
	case <-late.C:
		close(given)
		g.host.log.Error().Str("session", g.id).Msg("directory that does not answer")
		return unanswered
	}
}

// Enterable says whether the session's user may enter a directory.
func (g *Group) Enterable(dir string) error {
	thread, ask := func(f func() error) error { return f() }, func() error { return Enterable(dir) }
	if t := g.tenant; t.as != nil {
		thread, ask = onItsOwnThread, func() error { return t.as.look(t.uid, t.gid, dir) }
	}
	return g.enter(dir, thread, ask, func() error { return nil })
}

// Enterable says whether the account may enter a directory; of a range, the first of it. For root to ask.
func (a *Account) Enterable(dir string) error {
	return onItsOwnThread(func() error { return a.look(a.UID, a.GID, dir) })
}

// look is for a thread that ends afterwards: it keeps the account's groups.
func (a *Account) look(uid, gid uint32, dir string) error {
	return a.asUser(uid, gid, func() error {
		fd, err := unix.Open(dir+"/.", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "chdir", Path: dir, Err: err}
		}
		unix.Close(fd)
		return nil
	})
}

// asUser calls f with the rights to files of another user, in raw calls, which are about this thread alone. Its groups stay.
func (a *Account) asUser(uid, gid uint32, f func() error) error {
	groups := a.Groups
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); e != 0 {
		return os.NewSyscallError("setgroups", e)
	}
	ownGID, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, uintptr(gid), 0, 0)
	ownUID, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, uintptr(uid), 0, 0) // and with it go what capabilities open files
	defer func() {
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSUID, ownUID, 0, 0)
		_, _, _ = unix.RawSyscall(unix.SYS_SETFSGID, ownGID, 0, 0)
	}()
	return f()
}

// chdir makes s.Dir the directory of this thread, which ends afterwards, and with it of what it forks. Where that is
// refused (seccomp forbids unshare, and with it what a session would need to mount anything), it is left to the child.
func (t *tenant) chdir(s *Spec) error {
	own := unix.Unshare(unix.CLONE_FS) == nil
	chdir := func() error {
		if !own {
			return Enterable(s.Dir)
		}
		if err := unix.Chdir(s.Dir); err != nil {
			return &fs.PathError{Op: "chdir", Path: s.Dir, Err: err}
		}
		return nil
	}
	var err error
	switch {
	case t.as == nil:
		err = chdir()
	case own:
		err = t.as.asUser(t.uid, t.gid, chdir)
	default:
		err = t.as.look(t.uid, t.gid, s.Dir)
	}
	if err == nil && own {
		s.Dir = ""
	}
	return err
}
