package host

import (
	"io/fs"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/confine"
	"trl/runtime/descriptor"
)

// A file system whose other end is gone (NFS, FUSE) does not answer who asks for a directory, and a session may have made
// it itself. So a directory is asked for on a thread that nobody else needs, and never by a child on its way to the exec:
// the thread that forks waits for that without a bound.

// chdirTimeout bounds the wait for a directory. A disk that has to spin up takes some seconds.
const chdirTimeout = 5 * time.Second

// maxChdirThreads is how many threads of a Host may be asking: one per session, as long as others have not left too many
// behind. Go ends a program with 10,000.
const maxChdirThreads = 512

// enterDir calls ask, on what thread makes of it, and there f once that has succeeded. Who has to wait for longer than
// chdirTimeout, for ask or for the one before it in the group, is told that dir did not answer; then f is not called.
func (g *Group) enterDir(dir string, thread func(func() error) error, ask, f func() error) error {
	late := time.NewTimer(g.host.chdirTimeout)
	defer late.Stop()
	unanswered := &fs.PathError{Op: "chdir", Path: dir, Err: unix.ETIMEDOUT}
	select {
	case g.chdirSlot <- struct{}{}:
	case <-late.C:
		return unanswered
	}
	select {
	case g.host.chdirSlots <- struct{}{}:
	default:
		<-g.chdirSlot
		return &fs.PathError{Op: "chdir", Path: dir, Err: unix.EAGAIN}
	}
	leave := sync.OnceFunc(func() { <-g.host.chdirSlots; <-g.chdirSlot })
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
		g.host.Log.Error().Str("session", g.id).Msg("directory that does not answer")
		return unanswered
	}
}

// idleDirThreads is how many wait for the next start. A thread costs a fifth of a session's creation, and with its end what it has
// forked goes to the main one's list of children, which is to be short (Scope.MembersExcept).
const idleDirThreads = 8

// onDirThread runs f on a thread that is not the main one, and has a directory of its own where that can be had.
func (h *Host) onDirThread(f func() error) error {
	done := make(chan error, 1)
	job := func() { done <- f() }
	h.mu.Lock()
	if last := len(h.dirThreads) - 1; last >= 0 {
		h.dirThreads[last] <- job // has room
		h.dirThreads = h.dirThreads[:last]
	} else {
		go h.dirThread(job)
	}
	h.mu.Unlock()
	return <-done
}

// dirThread runs job, and then what onDirThread gives it. It ends where enough are idle, and with the Host.
func (h *Host) dirThread(job func()) {
	runtime.LockOSThread() // and takes its thread along
	if unix.Gettid() == h.pid {
		begun := make(chan struct{})
		go h.dirThread(func() { close(begun); job() }) // on another one, since this one is held here
		<-begun
		runtime.UnlockOSThread()
		return
	}
	own := unix.Unshare(unix.CLONE_FS) == nil
	jobs := make(chan func(), 1)
	for job != nil {
		job()
		if !own || unix.Chdir("/") != nil || !h.keepDirThread(jobs) { // where it is nobody's directory is busy
			return
		}
		job = <-jobs // nil once it is closed
	}
}

// keepDirThread has onDirThread find an idle directory thread; false: there are enough.
func (h *Host) keepDirThread(jobs chan func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.dirThreads) >= idleDirThreads {
		return false
	}
	h.dirThreads = append(h.dirThreads, jobs)
	return true
}

// endDirThreads ends those that are idle. No more will be, since the Host is closed.
func (h *Host) endDirThreads() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, jobs := range h.dirThreads {
		close(jobs)
	}
	h.dirThreads = nil
}

// openCached is openCached for a child of the session's. Another user's way to the directory is not ours to go.
func (g *Group) openCached(dir string) (fd int) {
	if g.confinement.user != nil {
		return -1
	}
	return descriptor.OpenCached(dir)
}

// Enterable says whether the session's user may enter a directory.
func (g *Group) Enterable(dir string) error {
	thread, ask := func(f func() error) error { return f() }, func() error { return confine.Enterable(dir) }
	if t := g.confinement; t.user != nil {
		thread, ask = confine.OnOwnThread, func() error { return t.user.CheckEnterable(t.uid, t.gid, dir) }
	}
	return g.enterDir(dir, thread, ask, func() error { return nil })
}

// chdir makes s.Dir the directory of this thread, which ends afterwards or leaves it, and with it of what it forks. Where that is
// refused (seccomp forbids unshare, and with it what a session would need to mount anything), it is left to the child.
func (t *confinement) chdir(s *spawnSpec) error {
	own := unix.Unshare(unix.CLONE_FS) == nil
	chdir := func() error {
		if !own {
			return confine.Enterable(s.Dir)
		}
		if err := unix.Chdir(s.Dir); err != nil {
			return &fs.PathError{Op: "chdir", Path: s.Dir, Err: err}
		}
		return nil
	}
	var err error
	switch {
	case t.user == nil:
		err = chdir()
	case own:
		err = t.user.AsUser(t.uid, t.gid, chdir)
	default:
		err = t.user.CheckEnterable(t.uid, t.gid, s.Dir)
	}
	if err == nil && own {
		s.Dir = ""
	}
	return err
}
