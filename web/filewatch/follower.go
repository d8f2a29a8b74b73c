// Package filewatch reads files again when they change.
package filewatch

import (
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"
)

const (
	// settleDelay is how long a file must be left alone before it is read again: editors and certificate tools write more than once.
	settleDelay = 100 * time.Millisecond
	// maxSettleDelay is how long somebody may go on writing in the same directory, perhaps to another file, before we look all the same.
	maxSettleDelay = 500 * time.Millisecond
)

// Follower reads files again when they change. It watches their directories: a file that is replaced by rename, as editors and
// Kubernetes do it, takes the watch on itself along. Where a name is a symbolic link, the directory of what it means is watched, too.
type Follower struct {
	w      *fsnotify.Watcher
	files  []string
	dirs   map[string]bool // watched; owned by run once that runs
	closed chan struct{}   // closed when the goroutine has ended
}

// Follow calls reload, on one goroutine, after any change in the directories of the files, until the Follower is closed. An error of reload is
// logged; what was read before stays in force.
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

// watchAll watches what the names mean now. What is not there cannot be watched, and comes by an event in the directory above that is.
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
			_ = r.w.Remove(dir) // it may have gone before
		}
	}
	r.dirs = map[string]bool{}
	for dir := range wanted { // also what is watched: it may be another directory by now
		r.dirs[r.watch(dir)] = true
	}
}

// watch watches dir, or the nearest above it that is there, and says which.
func (r *Follower) watch(dir string) string {
	for last := ""; ; {
		at := dir
		for r.w.Add(at) != nil && at != filepath.Dir(at) {
			at = filepath.Dir(at)
		}
		if at == dir || at == last { // else what is below may have come before we watched
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
	var since time.Time // of the first change that has not been looked at; zero: there is none
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
		case _, ok := <-r.w.Errors: // events were lost: look, just in case
			if !ok {
				return
			}
			wait()
		case <-quiet.C:
			since = time.Time{}
			r.watchAll() // before reading: what changes after is told
			if err := reload(); err != nil {
				log.Error().Err(err).Msg("reload refused; the old content stays in force")
			}
		}
	}
}

// quietFor is how long nothing more must change before the files are read, given when the first change was.
func quietFor(since, now time.Time) time.Duration {
	return max(0, min(settleDelay, maxSettleDelay-now.Sub(since)))
}

// Close is idempotent and returns when the goroutine has ended.
func (r *Follower) Close() error {
	err := r.w.Close()
	<-r.closed
	return err
}
