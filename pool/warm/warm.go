// Package warm keeps shells that are started in advance and belong to no session yet. Their kinds are those of the last sessions that were asked for: of n
// shells, each is of the kind of one of the last n sessions, and of the default kind while there have been fewer.
package warm

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/pool/shells"
	"trl/pool/spec"
	"trl/pool/token"
	"trl/protocol"
	"trl/runtime/shell"
)

const (
	// refillQuiet is how long nobody must have asked for a shell before another one is started. Starting one takes a millisecond of a processor,
	// which a burst of requests needs itself. If none is left, the next one is started at once.
	refillQuiet = 20 * time.Millisecond
	// refillRetry is the pause after a shell that did not start. The next session.create tells the client why.
	refillRetry = time.Second
)

// Kind is what a session can be given in advance.
type Kind struct {
	Path     string // of the shell
	Terminal bool   // also a terminal with a shell of that kind, which is warm, too
}

// KindOf returns the kind that suits a session that begins with this terminal (nil: with none). A warm terminal has no variables and no limits of its own.
func KindOf(t *spec.Spec, first *protocol.FirstTerminal) Kind {
	plain := len(t.Env) == 0 && t.Limits == (protocol.Limits{})
	return Kind{t.Shell, plain && first != nil && first.Command == "" && first.WorkingDir == "" && len(first.Env) == 0}
}

// Shell is a shell that waits for its session. It has the session's id in its environment.
type Shell struct {
	*shell.Shell
	Kind
	ID    string
	taken chan struct{} // closed when it has left Shells
}

// End ends a shell that never got a session.
func (ws *Shell) End() error {
	err := ws.Close(0)
	if err == nil {
		ws.Forget()
	}
	return err
}

// SetUp gives the shell what its session was created with. alive is false if the shell had died: the session needs another one.
func (ws *Shell) SetUp(t *spec.Spec) (alive bool, err error) {
	ws.SetRestore(t.Restore)
	if err = ws.Limit(t.Limits); err == nil {
		err = ws.Setup(t.Dir, shells.WithoutID(t.Env))
	}
	if err == nil {
		return true, nil
	}
	if err := ws.End(); err != nil { // the session's id cannot be used again while something of the shell lives
		return false, err
	}
	if shells.IsDirFault(err) {
		return false, err
	}
	return false, nil
}

// Config is what warm shells are made with.
type Config struct {
	Want  func() (n int, path string, err error) // how many there shall be now, and the path of the usual shell
	NewID func() string                          // makes a session's id
	Open  func(ctx context.Context, id, path string) (*shell.Shell, error)
	Log   zerolog.Logger
}

// Shells keeps shells ready. Run starts them one at a time. One more goroutine for each shell waits for the shell's death.
type Shells struct {
	Config
	wake chan struct{} // one token: something has changed
	stop context.CancelFunc
	ctx  context.Context // done when Close was called

	mu        sync.Mutex
	shells    []*Shell  // ready, oldest first
	opening   string    // the id of the shell that is being started
	taken     []*Shell  // given out by Take, and not settled yet
	asked     []Kind    // the kinds of the last sessions, the newest first; as many as there shall be shells
	size      int       // how many shells there shall be, as Want said last
	takenAt   time.Time // when a shell was last asked for
	evictedAt time.Time // when a shell last had to make room
	closed    bool
	watchers  sync.WaitGroup // Add only while mu is held and closed is false
}

// New makes an empty set; Run fills it.
func New(c Config) *Shells {
	w := &Shells{Config: c, wake: make(chan struct{}, 1)}
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// Run keeps as many shells ready as Want says, until Close.
func (w *Shells) Run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		n, path, err := w.Want()
		usual := Kind{Path: path}
		next, wait := w.due(n, usual)
		if wait <= 0 && err == nil {
			w.endSurplus(n, usual)
		}
		if wait < 0 {
			continue // there are enough: Take wakes us
		}
		if wait == 0 {
			if err == nil {
				err = w.add(next)
			}
			if err != nil {
				w.Log.Warn().Err(err).Msg("warm shell not started")
				w.forget(next.Path)
				wait = refillRetry
			}
		}
		timer.Reset(wait)
	}
}

// due returns of which kind the next shell shall be, and how long to wait before it is started; the time is negative if there are enough.
func (w *Shells) due(n int, usual Kind) (next Kind, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.size = n
	w.asked = w.asked[:min(n, len(w.asked))]
	missing, _ := w.compareLocked(n, usual)
	if w.closed || len(missing) == 0 {
		return Kind{}, -1
	}
	next = missing[0]
	switch {
	case time.Since(w.evictedAt) < refillRetry:
		return next, refillRetry - time.Since(w.evictedAt)
	case !slices.ContainsFunc(w.shells, func(ws *Shell) bool { return ws.Kind == next }):
		return next, 0
	}
	return next, max(0, refillQuiet-time.Since(w.takenAt))
}

// compareLocked compares the shells with those that there shall be: n, of the kinds that were asked for last, the newest first, and then of the usual one.
// It returns the kinds that are missing, in that order, and the shells that are too many. mu is held.
func (w *Shells) compareLocked(n int, usual Kind) (missing []Kind, surplus []*Shell) {
	missing = slices.Clone(w.asked[:min(n, len(w.asked))])
	missing = append(missing, slices.Repeat([]Kind{usual}, n-len(missing))...)
	for _, ws := range w.shells {
		if i := slices.Index(missing, ws.Kind); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else {
			surplus = append(surplus, ws)
		}
	}
	return missing, surplus
}

// forget no longer counts shells at path among the kinds that were asked for, since they do not start.
func (w *Shells) forget(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = slices.DeleteFunc(w.asked, func(asked Kind) bool { return asked.Path == path })
}

// endSurplus ends the shells that are not wanted any more.
func (w *Shells) endSurplus(n int, usual Kind) {
	w.mu.Lock()
	_, surplus := w.compareLocked(n, usual)
	w.shells = slices.DeleteFunc(w.shells, func(ws *Shell) bool { return slices.Contains(surplus, ws) })
	for _, ws := range surplus {
		close(ws.taken)
	}
	w.mu.Unlock()
	for _, ws := range surplus {
		_ = ws.End()
	}
}

// add starts a shell.
func (w *Shells) add(kind Kind) error {
	ws := &Shell{ID: w.NewID(), Kind: kind, taken: make(chan struct{})}
	w.mu.Lock()
	w.opening = ws.ID
	w.mu.Unlock()
	var err error
	if ws.Shell, err = w.Open(w.ctx, ws.ID, kind.Path); err != nil {
		return err
	}
	ws.Prepare()
	if kind.Terminal {
		if err := ws.StartWarmTerminal(); err != nil { // the session's terminal is started when it is asked for
			w.Log.Warn().Err(err).Msg("warm terminal not started")
		}
	}
	w.mu.Lock()
	w.opening = ""
	closed := w.closed
	if !closed {
		w.shells = append(w.shells, ws)
		w.watchLocked(ws)
	}
	w.mu.Unlock()
	if closed { // Close did not see this one
		return ws.End()
	}
	return nil
}

// watchLocked starts the goroutine that watches a shell. mu is held.
func (w *Shells) watchLocked(ws *Shell) {
	taken := ws.taken
	w.watchers.Go(func() { w.watch(ws, taken) })
}

// watch replaces a shell that dies. It ends when the shell is taken or dead; Close waits for it.
func (w *Shells) watch(ws *Shell, taken <-chan struct{}) {
	select {
	case <-taken:
		return
	case <-ws.Exited():
	}
	w.mu.Lock()
	i := slices.Index(w.shells, ws)
	if i >= 0 {
		w.shells = slices.Delete(w.shells, i, i+1)
	}
	w.mu.Unlock()
	if i >= 0 { // else a session has just taken it, and will notice
		_ = ws.End()
		w.Wake()
	}
}

// Take returns the oldest shell of this kind, or one that differs from it in the terminal only, or nil if there is none. The caller owns it, and calls
// Settle when its session is in the pool's tables, or was not made. Contains knows the shell until then.
func (w *Shells) Take(kind Kind) *Shell {
	ws := w.take(kind)
	if ws != nil && ws.Terminal && !kind.Terminal {
		ws.Terminal = false
		ws.EndWarmTerminal()
	}
	return ws
}

// take is Take without the end of a terminal that the session does not begin with.
func (w *Shells) take(kind Kind) *Shell {
	defer w.Wake()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takenAt = time.Now()
	w.asked = slices.Insert(w.asked, 0, kind)
	w.asked = w.asked[:min(w.size, len(w.asked))]
	i := slices.IndexFunc(w.shells, func(ws *Shell) bool { return ws.Kind == kind })
	if i < 0 {
		i = slices.IndexFunc(w.shells, func(ws *Shell) bool { return ws.Path == kind.Path })
	}
	if i < 0 {
		return nil
	}
	w.taken = append(w.taken, w.shells[i])
	return w.removeLocked(i)
}

// Settle is called after Take; ws may be nil. A shell that was not used waits for the next session.
func (w *Shells) Settle(ws *Shell, used bool) {
	if ws == nil {
		return
	}
	w.mu.Lock()
	w.taken = slices.DeleteFunc(w.taken, func(other *Shell) bool { return other == ws })
	back := !used && !w.closed
	if back {
		ws.taken = make(chan struct{})
		w.shells = slices.Insert(w.shells, 0, ws)
		w.watchLocked(ws)
	}
	w.mu.Unlock()
	if !used && !back {
		_ = ws.End()
	}
}

func (w *Shells) removeLocked(i int) *Shell {
	ws := w.shells[i]
	w.shells = slices.Delete(w.shells, i, i+1)
	close(ws.taken)
	return ws
}

// Evict ends the oldest shell and delays the next start. It returns false if there is no shell.
func (w *Shells) Evict() bool {
	w.mu.Lock()
	if len(w.shells) == 0 {
		w.mu.Unlock()
		return false
	}
	ws := w.removeLocked(0)
	w.evictedAt = time.Now()
	w.mu.Unlock()
	_ = ws.End()
	w.Wake()
	return true
}

// Reset makes Run look at Want again, since the settings have changed, and begins anew to learn which kinds are asked for.
func (w *Shells) Reset() {
	w.mu.Lock()
	w.asked = nil
	w.mu.Unlock()
	w.Wake()
}

// Wake makes Run look at Want again.
func (w *Shells) Wake() { token.Put(w.wake) }

// Ready returns the shells that are ready, oldest first.
func (w *Shells) Ready() []*Shell {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.shells)
}

// Contains reports whether an id is that of a shell that is ready or is being started.
func (w *Shells) Contains(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	has := func(ws *Shell) bool { return ws.ID == id }
	return id == w.opening || slices.ContainsFunc(w.shells, has) || slices.ContainsFunc(w.taken, has)
}

// Close ends all shells, at once. Idempotent.
func (w *Shells) Close() {
	w.mu.Lock()
	w.closed = true
	shells := w.shells
	w.shells = nil
	w.mu.Unlock()
	w.stop()
	var ends sync.WaitGroup
	for _, ws := range shells { // nobody else has them any more
		close(ws.taken)
		ends.Go(func() { _ = ws.End() })
	}
	ends.Wait()
	w.watchers.Wait()
}
