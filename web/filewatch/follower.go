// Package filewatch reads files again when they change.
package filewatch

import (
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"
)

const (
	// settleDelay is how long a file must not change before it is read again: editors and certificate tools write more than once.
	settleDelay = 100 * time.Millisecond
	// maxSettleDelay is how long writes in the same directory, perhaps to another file, may delay the reading.
	maxSettleDelay = 500 * time.Millisecond
)

// Follower reads files again when they change. It watches their directories, because a file that is replaced by rename, as editors and Kubernetes do
// it, takes a watch on itself along. If a name is a symbolic link, the Follower also watches the directory of its target.
type Follower struct {
	w      *fsnotify.Watcher
	files  []string
	dirs   map[string]bool // directories that are watched; owned by run once it runs
	closed chan struct{}   // closed when the goroutine has ended
}

// Follow calls reload, in one goroutine, after every change in the directories of the files, until the Follower is closed. It logs an error of
// reload; the caller keeps what it read before.
func Follow(log zerolog.Logger, reload func() error, files ...string) (*Follower, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	r := &Follower{w: w, files: files, dirs: map[string]bool{}, closed: make(chan struct{})}
	for _, f := range files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			w.Close()
			return nil, err
		}
		r.dirs[filepath.Dir(f)] = true
	}
	r.watchAll()
	go r.run(log, reload) // waits for changes; ends with the watcher; Close waits for it
	return r, nil
}

// watchAll watches the present targets of the names. A target that does not exist cannot be watched; an event in the nearest existing directory above
// it will announce it.
func (r *Follower) watchAll() {
	wanted := map[string]bool{}
	for _, f := range r.files {
		wanted[filepath.Dir(f)] = true
		if meant, err := filepath.EvalSymlinks(f); err == nil {
			wanted[filepath.Dir(meant)] = true
		}
	}
	for dir := range r.dirs {
		if !wanted[dir] {
			_ = r.w.Remove(dir) // it may have been removed before
		}
	}
	r.dirs = map[string]bool{}
	for dir := range wanted { // also directories that are watched: the path may be another directory by now
		r.dirs[r.watch(dir)] = true
	}
}

// watch watches dir, or the nearest existing directory above it, and returns which.
func (r *Follower) watch(dir string) string {
	for last := ""; ; {
		at := dir
		for r.w.Add(at) != nil && at != filepath.Dir(at) {
			at = filepath.Dir(at)
		}
		if at == dir || at == last { // else the directory below may have appeared before the watch
			return at
		}
		last = at
	}
}

func (r *Follower) run(log zerolog.Logger, reload func() error) {
	defer close(r.closed)
	quiet := time.NewTimer(0)
	quiet.Stop()
	defer quiet.Stop()
	var since time.Time // when the first change came that has not been handled; zero: none
	wait := func() {
		if since.IsZero() {
			since = time.Now()
		}
		quiet.Reset(quietFor(since, time.Now()))
	}
	for {
		select {
		case _, ok := <-r.w.Events:
			if !ok {
				return
			}
			wait()
		case _, ok := <-r.w.Errors: // events were lost, so read the files in any case
			if !ok {
				return
			}
			wait()
		case <-quiet.C:
			since = time.Time{}
			r.watchAll() // before reading, so that later changes make events
			if err := reload(); err != nil {
				log.Error().Err(err).Msg("reload refused; the old content stays in force")
			}
		}
	}
}

// quietFor returns how long nothing must change from now on before the files are read; since is when the first change came.
func quietFor(since, now time.Time) time.Duration {
	return max(0, min(settleDelay, maxSettleDelay-now.Sub(since)))
}

// Close is idempotent. It returns when the goroutine has ended.
func (r *Follower) Close() error {
	err := r.w.Close()
	<-r.closed
	return err
}
