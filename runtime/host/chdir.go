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

// A file system whose server is gone (NFS, FUSE) never answers when a process enters one of its directories. A session
// may have mounted such a file system itself. Where possible, we therefore enter a directory on a thread that nothing
// else needs. If the child entered it between fork and exec, the forking thread would wait for the child's exec, and
// only the KILL of watchFork could end that wait.

// chdirTimeout bounds the wait for a directory. A disk that has to spin up takes some seconds.
const chdirTimeout = 5 * time.Second

// maxChdirThreads is how many threads of a Host may wait for a directory at the same time. Each session may have one,
// unless too many other sessions have left hanging threads behind. Go ends a program that has 10,000 threads.
const maxChdirThreads = 512

// enterDir runs ask on the thread that the function thread provides and, when ask has succeeded, runs f on the same
// thread. It returns an error that says that dir did not answer when the caller has waited for longer than
// chdirTimeout, either for ask or for an earlier enterDir of the same group. In that case it does not call f.
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
	go func() { // ends with f, and enterDir waits for it; if dir did not answer in time, it ends when dir answers, and nothing waits for it
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
	case err := <-done: // thread failed without calling its function
		return err
	case <-late.C:
		close(given)
		g.host.Log.Error().Str("session", g.id).Msg("a directory does not answer")
		return unanswered
	}
}

// idleDirThreads is how many threads may wait for the next start. Making a thread takes a fifth of the time of creating
// a session. When a thread ends, its children move to the main thread's list of children, which should stay short (see
// Scope.MembersExcept).
const idleDirThreads = 8

// onDirThread runs f on a thread that is not the main thread. The thread has a working directory of its own where the
// kernel permits that.
func (h *Host) onDirThread(f func() error) error {
	done := make(chan error, 1)
	job := func() { done <- f() }
	h.mu.Lock()
	if last := len(h.dirThreads) - 1; last >= 0 {
		h.dirThreads[last] <- job // does not block: the channel of an idle thread has room for one job
		h.dirThreads = h.dirThreads[:last]
	} else {
		go h.dirThread(job)
	}
	h.mu.Unlock()
	return <-done
}

// dirThread runs job and then the jobs that onDirThread sends to it. It ends when enough threads are idle, and when the
// Host closes.
func (h *Host) dirThread(job func()) {
	runtime.LockOSThread() // Go ends the thread together with this goroutine
	if unix.Gettid() == h.pid {
		begun := make(chan struct{})
		go h.dirThread(func() { close(begun); job() }) // runs on another thread, because this goroutine holds the main one
		<-begun
		runtime.UnlockOSThread()
		return
	}
	own := unix.Unshare(unix.CLONE_FS) == nil
	jobs := make(chan func(), 1)
	for job != nil {
		job()
		// The thread returns to /, because a file system cannot be unmounted while a thread is in it.
		if !own || unix.Chdir("/") != nil || !h.keepDirThread(jobs) {
			return
		}
		job = <-jobs // nil after endDirThreads has closed the channel
	}
}

// keepDirThread adds a directory thread to those that onDirThread can use. It returns false when enough are idle or the
// Host is closed.
func (h *Host) keepDirThread(jobs chan func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.dirThreads) >= idleDirThreads {
		return false
	}
	h.dirThreads = append(h.dirThreads, jobs)
	return true
}

// endDirThreads ends the idle directory threads. Because the Host is closed, no other thread becomes idle afterwards.
func (h *Host) endDirThreads() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, jobs := range h.dirThreads {
		close(jobs)
	}
	h.dirThreads = nil
}

// openCached calls descriptor.OpenCached for a child of the session. It returns -1 if the session runs as another user,
// because our rights on the way to the directory are not that user's.
func (g *Group) openCached(dir string) (fd int) {
	if g.confinement.user != nil {
		return -1
	}
	return descriptor.OpenCached(dir)
}

// Enterable returns an error if the session's user may not enter a directory.
func (g *Group) Enterable(dir string) error {
	thread, ask := func(f func() error) error { return f() }, func() error { return confine.Enterable(dir) }
	if t := g.confinement; t.user != nil {
		thread, ask = confine.OnOwnThread, func() error { return t.user.CheckEnterable(t.uid, t.gid, dir) }
	}
	return g.enterDir(dir, thread, ask, func() error { return nil })
}

// chdir changes the working directory of this thread, and so of the processes that it forks, to s.Dir. Afterwards the
// thread ends or leaves the directory. If the kernel refuses unshare, chdir only checks that the user may enter s.Dir,
// and the child enters it. That is safe: a seccomp filter that forbids unshare also forbids what a session would need
// to mount a file system.
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
