package pool

import (
	"context"
	"slices"
	"sync"
	"time"

	"trl/pool/ids"
	"trl/pool/shells"
	"trl/runtime"
)

const (
	// refillQuiet is how long nobody must have asked before a shell is started ahead: a spawn takes a millisecond of a
	// core that a burst of requests needs itself. With none left it is started at once.
	refillQuiet = 20 * time.Millisecond
	// refillRetry is the pace when shells do not start: the next session.create says why.
	refillRetry = time.Second
)

// warmShell is a shell of the default kind that waits for its session. It has the session's id in its environment.
type warmShell struct {
	id    string
	path  string
	shell *runtime.Shell
	taken chan struct{} // closed when it has left the warm ones
}

// warmShells keeps shells ready. Its goroutine (run) starts them one at a time; one more for each shell waits for its death.
type warmShells struct {
	pool *Pool
	wake chan struct{} // one token: look again
	stop context.CancelFunc
	ctx  context.Context // done when close was called

	mu        sync.Mutex
	shells    []*warmShell // ready, oldest first
	opening   string       // the id of the one that is being started
	takenAt   time.Time    // when one was last asked for
	evictedAt time.Time    // when one last had to make room
	closed    bool
	watchers  sync.WaitGroup // Add only under mu while not closed
}

func newWarm(p *Pool) *warmShells {
	w := &warmShells{pool: p, wake: make(chan struct{}, 1)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// run keeps the number up until close.
func (w *warmShells) run() {
	defer w.pool.tasks.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		w.endSurplus()
		if wait := w.due(); wait < 0 {
			continue // full: take wakes us
		} else if wait > 0 {
			timer.Reset(wait)
			continue
		}
		if err := w.add(); err != nil {
			w.pool.log.Warn().Err(err).Msg("warm shell not started")
			timer.Reset(refillRetry)
			continue
		}
		timer.Reset(0)
	}
}

// due is how long to wait before the next start, negative when none is missing.
func (w *warmShells) due() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed || len(w.shells) >= w.pool.config.Load().WarmShells:
		return -1
	case time.Since(w.evictedAt) < refillRetry:
		return refillRetry - time.Since(w.evictedAt)
	case len(w.shells) == 0:
		return 0
	}
	return max(0, refillQuiet-time.Since(w.takenAt))
}

// endSurplus ends those that are too many, or no longer of the default kind, since the pool was configured anew.
func (w *warmShells) endSurplus() {
	r := w.pool.config.Load()
	path, err := r.shells.Default()
	if err != nil {
		return // add says so
	}
	var surplus []*warmShell
	w.mu.Lock()
	fit := 0
	w.shells = slices.DeleteFunc(w.shells, func(ws *warmShell) bool {
		if ws.path == path && fit < r.WarmShells {
			fit++
			return false
		}
		surplus = append(surplus, ws)
		close(ws.taken)
		return true
	})
	w.mu.Unlock()
	for _, ws := range surplus {
		_ = endUnused(ws.shell)
	}
}

// add starts one.
func (w *warmShells) add() error {
	p, r := w.pool, w.pool.config.Load()
	path, err := r.shells.Default()
	if err != nil {
		return err
	}
	id := ids.New("", 's', p.epoch, "", ids.RandomLen)
	w.mu.Lock()
	w.opening = id
	w.mu.Unlock()
	shell, err := p.openShell(w.ctx, id, sessionSpec{shell: path, dir: r.DefaultDir, restore: true})
	if err != nil {
		return err
	}
	shell.Prepare()
	ws := &warmShell{id: id, path: path, shell: shell, taken: make(chan struct{})}
	w.mu.Lock()
	w.opening = ""
	closed := w.closed
	if !closed {
		w.shells = append(w.shells, ws)
		w.watchers.Go(func() { w.watchShell(ws) })
	}
	w.mu.Unlock()
	if closed { // close did not see this one
		return endUnused(shell)
	}
	return nil
}

// endUnused ends a shell that never got a session.
func endUnused(shell *runtime.Shell) error {
	err := shell.Close(0)
	if err == nil {
		shell.Forget()
	}
	return err
}

// watchShell replaces a warm shell that dies. It ends when the shell is taken or dead; close waits for it.
func (w *warmShells) watchShell(ws *warmShell) {
	select {
	case <-ws.taken:
		return
	case <-ws.shell.Exited():
	}
	w.mu.Lock()
	i := slices.Index(w.shells, ws)
	if i >= 0 {
		w.shells = slices.Delete(w.shells, i, i+1)
	}
	w.mu.Unlock()
	if i >= 0 { // else somebody has just taken it, and finds out
		_ = endUnused(ws.shell)
		w.wakeRun()
	}
}

// take gives a warm shell for a session of these terms, nil when there is none.
func (w *warmShells) take(t sessionSpec) *warmShell {
	defer w.wakeRun()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takenAt = time.Now()
	if len(w.shells) == 0 || w.shells[0].path != t.shell {
		return nil
	}
	ws := w.shells[0]
	w.shells = slices.Delete(w.shells, 0, 1)
	close(ws.taken)
	return ws
}

// evict ends the oldest one, and puts the next start off; false: there is none.
func (w *warmShells) evict() bool {
	w.mu.Lock()
	if len(w.shells) == 0 {
		w.mu.Unlock()
		return false
	}
	ws := w.shells[0]
	w.shells = slices.Delete(w.shells, 0, 1)
	w.evictedAt = time.Now()
	close(ws.taken)
	w.mu.Unlock()
	_ = endUnused(ws.shell)
	w.wakeRun()
	return true
}

func (w *warmShells) wakeRun() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *warmShells) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.shells)
}

// contains: the id is that of a shell that waits, or will.
func (w *warmShells) contains(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return id == w.opening || slices.ContainsFunc(w.shells, func(ws *warmShell) bool { return ws.id == id })
}

// close ends the warm shells, all at once. Idempotent.
func (w *warmShells) close() {
	w.mu.Lock()
	w.closed = true
	shells := w.shells
	w.shells = nil
	w.mu.Unlock()
	w.stop()
	var ends sync.WaitGroup
	for _, ws := range shells {
		close(ws.taken)
		ends.Go(func() { _ = endUnused(ws.shell) })
	}
	ends.Wait()
	w.watchers.Wait()
}

// getShell gets a session its shell: the warm one, set up, or a new one.
func (p *Pool) getShell(ctx context.Context, id string, t sessionSpec, ws *warmShell) (*runtime.Shell, error) {
	if ws == nil {
		return p.openShellMakingRoom(ctx, id, t)
	}
	ws.shell.SetRestore(t.restore)
	err := ws.shell.Limit(t.limits)
	if err == nil {
		err = ws.shell.Setup(t.dir, shells.WithoutID(t.env))
	}
	if err == nil {
		return ws.shell, nil
	}
	if err := endUnused(ws.shell); err != nil { // its id cannot be used again while something of it lives
		return nil, err
	}
	if shells.IsDirFault(err) {
		return nil, err
	}
	return p.openShellMakingRoom(ctx, id, t) // it died in its sleep
}

// openShellMakingRoom is openShell for a session: warm shells make room for it.
func (p *Pool) openShellMakingRoom(ctx context.Context, id string, t sessionSpec) (*runtime.Shell, error) {
	for {
		shell, err := p.openShell(ctx, id, t)
		if !runtime.Scarce(err) || !p.warm.evict() {
			return shell, err
		}
	}
}

func (p *Pool) openShell(ctx context.Context, id string, t sessionSpec) (*runtime.Shell, error) {
	return p.base.OpenShell(ctx, runtime.ShellConfig{
		ID: id, Path: t.shell, Dir: t.dir, Env: p.environ(id, t), Restore: t.restore, Limits: t.limits,
	})
}

func (p *Pool) environ(id string, t sessionSpec) []string {
	return shells.Environ(p.config.Load().BaseEnv, id, t.shell, t.env)
}

// identity is the id for the session that gets this shell, which may be none.
func (ws *warmShell) identity(epoch string) string {
	if ws != nil {
		return ws.id
	}
	return ids.New("", 's', epoch, "", ids.RandomLen)
}
