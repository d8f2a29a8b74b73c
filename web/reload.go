package web

import (
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/rs/zerolog"
)

// settle is how long a file must be left alone before it is read again: editors and certificate tools write more than once.
const settle = 100 * time.Millisecond

// reloader reads files again when they change. It watches their directories: a file that is replaced by rename, as editors and
// Kubernetes do it, takes the watch on itself along.
type reloader struct {
	w      *fsnotify.Watcher
	closed chan struct{} // closed when the goroutine has ended
}

// watchFiles calls reload, on one goroutine, after any change in the directories of the files. An error of reload is logged; what was
// read before stays in force.
func watchFiles(log zerolog.Logger, reload func() error, files ...string) (*reloader, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			w.Close()
			return nil, err
		}
	}
	r := &reloader{w: w, closed: make(chan struct{})}
	go r.run(log, reload) // waits for changes; ends with the watcher; Close waits for it
	return r, nil
}

func (r *reloader) run(log zerolog.Logger, reload func() error) {
	defer close(r.closed)
	quiet := time.NewTimer(0)
	quiet.Stop()
	defer quiet.Stop()
	for {
		select {
		case _, ok := <-r.w.Events:
			if !ok {
				return
			}
			quiet.Reset(settle)
		case _, ok := <-r.w.Errors: // events were lost: look, just in case
			if !ok {
				return
			}
			quiet.Reset(settle)
		case <-quiet.C:
			if err := reload(); err != nil {
				log.Error().Err(err).Msg("reload refused; the old content stays in force")
			}
		}
	}
}

// Close is idempotent and returns when the goroutine has ended.
func (r *reloader) Close() error {
	err := r.w.Close()
	<-r.closed
	return err
}
