// Package pool is the live sessions: create within bounds, find, queue, attach, end.
//
// Ownership: a Pool owns the table of its sessions and the warm shells. Each Session has one goroutine, its runner, which alone opens, runs,
// revives and resets the shell. Other goroutines reach the runner through the session's state, which a mutex guards, and two channels. An Exec
// or Process belongs to its session, and stays readable for the retention time after its end.
//
// Lock order: Pool.mu, Session.mu, then the leaves (those of requestkey.Table, events.Watcher and warm.Shells, the state machine's, a journal's).
// No lock is held while a shell is asked to do anything, or while a cluster's directory is asked.
package pool

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool/budget"
	"trl/pool/claims"
	"trl/pool/entry"
	"trl/pool/faults"
	"trl/pool/gone"
	"trl/pool/ids"
	"trl/pool/places"
	"trl/pool/recording"
	"trl/pool/requestkey"
	"trl/pool/restoring"
	"trl/pool/screenstate"
	"trl/pool/settings"
	"trl/pool/share"
	"trl/pool/shells"
	"trl/pool/spec"
	"trl/pool/timeouts"
	"trl/pool/warm"
	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/shell"
)

const defaultSession = "default" // the session of a request that names none

// Pool has all sessions of one server.
type Pool struct {
	config        atomic.Pointer[settings.Effective]
	base          *shell.Base
	metrics       *metrics.Metrics
	execSeries    map[string]metrics.ExecSeries // by outcome
	log           zerolog.Logger
	epoch         string
	started       time.Time
	warm          *warm.Shells
	requestKeys   requestkey.Table
	claims        *claims.Table // names and request keys in a cluster; nil: there is one node
	gone          gone.Sessions // of which the keeper still has something
	retainedBytes budget.Budget // bytes of ended work that are retained
	trimming      sync.Mutex    // held by the goroutine that drops retained work beyond that budget

	maxRetained int // ended sessions; set once

	recovery atomic.Pointer[restoring.Sessions] // nil: all sessions are restored

	recordings   *recording.Store
	emulators    *screenstate.Emulators
	isExempt     func(who string) bool // set once in ExemptFromReserve; nil: nobody is exempt
	outputBudget budget.Budget         // bytes of output that are kept for the answers of exec.run

	commands atomic.Int64   // ever begun
	tasks    sync.WaitGroup // runners and the warmer; Add only while mu is held and closing is false

	mu sync.RWMutex
	sessionTables
}

// sessionTables has the sessions. Guarded by Pool.mu.
type sessionTables struct {
	closing  bool
	sessions map[string]*Session  // by id, live and retained
	tags     map[string]*Session  // the same, by the marks of their work's ids, see ids.MarkOf
	names    map[nameRef]*Session // the latest session with that name; it may have ended
	live     places.Places
	retained []*Session            // TERMINATED, by end, oldest first
	shares   map[share.Hash]*Share // of all sessions
}

type nameRef struct{ owner, name string }

// New makes a pool of no sessions; Start starts it.
func New(c Config, k own.Keeper, m *metrics.Metrics, log zerolog.Logger) *Pool {
	c.KeptOutput = cmp.Or(c.KeptOutput, settings.MaxKeptOutput)
	c.MaxRetained = cmp.Or(c.MaxRetained, maxRetained)
	c.MaxRetainedBytesOfPrincipal = cmp.Or(c.MaxRetainedBytesOfPrincipal, maxRetainedOf)
	c.MaxRetainedBytes = cmp.Or(c.MaxRetainedBytes, maxRetainedBytes)
	p := &Pool{
		base: &shell.Base{Keeper: k, Metrics: m, Log: log}, metrics: m, log: log,
		execSeries: m.ExecSeries(),
		epoch:      ids.EpochMark(c.Epoch),
		started:    time.Now(),
		sessionTables: sessionTables{
			sessions: map[string]*Session{}, tags: map[string]*Session{}, names: map[nameRef]*Session{}, shares: map[share.Hash]*Share{},
		},
		outputBudget:  budget.Budget{PrincipalLimit: c.KeptOutput, TotalLimit: 2 * c.KeptOutput},
		retainedBytes: budget.Budget{PrincipalLimit: c.MaxRetainedBytesOfPrincipal, TotalLimit: c.MaxRetainedBytes},
		maxRetained:   c.MaxRetained,
	}
	metrics.AtZero(m.SessionsCreated, "ok")
	metrics.AtZero(m.SessionsCreated, protocol.CodesOf("session.create")...)
	metrics.AtZero(m.SessionsEnded, protocol.Reasons...)
	metrics.AtZero(m.ShellRestores, shell.RestoreCauses...)
	p.config.Store(settings.NewEffective(c))
	p.requestKeys.SetMaxOfAll(c.MaxKeysOfAll)
	p.requestKeys.SetMax(p.config.Load().MaxKeys)
	p.claims = claims.New(c.Directory, p.isOpen)
	p.warm = p.newWarmShells()
	p.recordings = recording.New(c.Record, m, log)
	p.emulators = screenstate.NewEmulators(&p.tasks)
	return p
}

// Config has the operator's settings.
type (
	Config          = settings.Config
	RetentionBounds = settings.RetentionBounds
)

// Configure puts c in force for later requests. Sessions, streams and commands keep what they were made with. A bound that is exceeded now ends
// nothing; the new retention time is in force at once. BaseEnv, Epoch, Directory, MaxOfPrincipal, KeptOutput,
// OnEnd and Record do not change.
func (p *Pool) Configure(c Config) {
	before := p.config.Load()
	c.BaseEnv, c.Epoch, c.MaxOfPrincipal, c.OnEnd, c.Record = before.BaseEnv, before.Epoch, before.MaxOfPrincipal, before.OnEnd, before.Record
	p.config.Store(settings.NewEffective(c))
	p.requestKeys.SetMax(c.MaxKeys)
	p.warm.Reset()
}

// ExemptFromReserve sets which principals may have all sessions of the server, if MaxPerPrincipal is 0. It is called before Start. f is called
// without a lock.
func (p *Pool) ExemptFromReserve(f func(who string) bool) { p.isExempt = f }

// Start publishes the pool's gauges. When all sessions are restored it ends the recordings that no session goes on with, and begins to keep
// warm shells.
func (p *Pool) Start() {
	p.metrics.Observe(p.metricsSnapshot)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return
	}
	p.tasks.Add(1) // keeps warm shells ready; ended by warm.Close; Close waits for it
	recovering := p.recovery.Load() != nil
	if !recovering {
		p.claims.Rebuild(p.ownedLocked)
		p.recordings.FinishAbandoned()
	}
	go func() {
		defer p.tasks.Done()
		if recovering {
			p.Recovered()
			p.recordings.FinishAbandoned()
		}
		p.warm.Run()
	}()
}

// Epoch names the lifetime of the sessions.
func (p *Pool) Epoch() string { return p.epoch }

// Shells returns the paths of the allowed shells that exist.
func (p *Pool) Shells() []string { return p.config.Load().Allowed.Present() }

// Close ends all sessions at once, and returns when nothing of them is left or ctx is done. Afterwards the pool answers SHUTTING_DOWN, or tells
// of what has ended. Idempotent.
func (p *Pool) Close(ctx context.Context) error {
	select {
	case <-p.recovery.Load().All(): // the sessions that are being restored shall end, too
	case <-ctx.Done():
		return fmt.Errorf("end of all sessions: %w", ctx.Err())
	}
	p.mu.Lock()
	p.closing = true
	p.mu.Unlock()
	all := p.all()

	grace := timeouts.GraceWithin(ctx)
	for _, s := range all {
		if m := s.away.Load(); m != nil {
			m.Drop()
		}
		s.end(protocol.ReasonShutdown, grace)
	}
	gone := make(chan struct{})
	go func() { // ends with the last task; a process in state D may delay that beyond ctx
		p.warm.Close()
		p.tasks.Wait()
		close(gone)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
		return fmt.Errorf("end of all sessions: %w", ctx.Err())
	}
	for _, s := range all {
		s.mu.Lock()
		shell := s.shell
		s.sessionLog = nil // Forget closes the session log, and the session may drop retained work later
		s.mu.Unlock()
		if shell != nil {
			shell.Forget()
		}
	}
	return p.recordings.Wait(ctx)
}

// CreateOrFind makes a session, or finds the one that if_exists asks for, and returns when its shell answers and q's terminal is open; otherwise the
// session that it made ends. It goes on after ctx is done. made is also true if an earlier request with the same request_key made the session.
func (p *Pool) CreateOrFind(ctx context.Context, who string, q *protocol.SessionCreate) (s *Session, t *Terminal, made bool, err error) {
	if q.RequestKey == "" {
		return p.create(ctx, who, q)
	}
	ref := requestkey.Ref{Owner: who, Key: q.RequestKey}
	s, err = once(ctx, p, ref, requestkey.FingerprintOf("session.create", q), func() (*Session, error) {
		s, _, _, err := p.create(context.WithoutCancel(ctx), who, q) // a retry that waits must not fail because the first client has gone
		return s, err
	})
	if err == nil {
		p.requestKeys.Complete(ref, time.Now())
		made, err = s.key.Key == q.RequestKey, s.elsewhere()
	}
	if err == nil && q.Terminal != nil { // it is open; its key, which is the session's, finds it
		t, err = s.OpenTerminal(ctx, q.Terminal.Open(s.id, q.RequestKey))
	}
	return s, t, made, err
}

func (p *Pool) create(ctx context.Context, who string, q *protocol.SessionCreate) (s *Session, t *Terminal, made bool, err error) {
	if s, made, err = p.reserve(who, q, true); err == nil {
		err = s.elsewhere()
	}
	if err != nil {
		return nil, nil, false, err
	}
	err = s.awaitShell(ctx)
	if err == nil && q.Terminal != nil {
		if t, err = s.OpenTerminal(ctx, q.Terminal.Open(s.id, q.RequestKey)); err != nil && made {
			s.endForgotten()
		}
	}
	return s, t, made, err
}

// reserve makes a session, or finds the one that if_exists asks for. Without wait its shell may still be starting; the session takes commands
// at once, and they wait.
func (p *Pool) reserve(who string, q *protocol.SessionCreate, wait bool) (s *Session, made bool, err error) {
	if s := p.findNamed(who, q.Name); s != nil && q.IfExists == "return" {
		return s, false, nil
	}
	s, start, err := p.register(who, q)
	if err != nil {
		p.metrics.SessionsCreated.WithLabelValues(string(protocol.AsError(err).Code)).Inc()
		return nil, false, err
	}
	if start == nil { // another request was first
		return s, false, nil
	}
	start(wait)
	return s, true, nil
}

// register adds a session to the tables. start starts it, and returns when it has a shell if a warm one is ready, or if wait is set. start is
// nil for a session that if_exists found. In a cluster register waits for the directory if there is a name or a request key.
func (p *Pool) register(who string, q *protocol.SessionCreate) (s *Session, start func(wait bool), err error) {
	if err := p.awaitRecovered(""); err != nil { // any of the sessions that are being restored may have the name, and all of them count
		return nil, nil, err
	}
	if err := shells.CheckEnv(q.Env, p.config.Load().AllowEnv); err != nil {
		return nil, nil, err
	}
	if err := p.recordings.CheckPossible(recording.ParseSet(q.Record) != 0); err != nil {
		return nil, nil, err
	}
	t, err := spec.New(who, q, p.config.Load(), p.base.Keeper.Unenforceable())
	if err != nil {
		return nil, nil, err
	}
	bounds := places.BoundsFor(who, p.config.Load(), p.isExempt, p.claims)
	ws, id := p.warm.Take(warm.KindOf(&t, q.Terminal)), ""
	if ws != nil {
		id = ws.ID
	} else {
		id = p.newSessionID()
	}
	claim, err := p.claims.Take(claims.Wanted{Principal: who, Name: q.Name, Key: q.RequestKey, Session: id})
	if err != nil {
		s, err = p.foundTaken(who, q, err)
	} else if s, err = p.add(who, q, newSession(p, id, who, q.Name, t), bounds); err == nil && s.id == id {
		start = func(wait bool) {
			switch {
			case ws == nil && !wait:
				go s.run()
			case s.open(ws): // here, because another goroutine would have to be woken, and the answer waits for this
				go s.loop(nil, false)
			}
		}
	}
	claim.Settle(start != nil)
	p.warm.Settle(ws, start != nil)
	return s, start, err
}

// add adds a new session to the tables, or returns the one that if_exists finds.
func (p *Pool) add(who string, q *protocol.SessionCreate, s *Session, bounds places.Bounds) (*Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return nil, faults.Shutdown()
	}
	if other := p.findNamedLocked(who, q.Name); other != nil {
		if q.IfExists == "return" {
			return other, nil
		}
		return nil, faults.Exists(q.Name, other.id)
	}
	if err := p.live.Check(who, bounds); err != nil {
		return nil, err
	}
	if q.RequestKey != "" {
		params := requestkey.FingerprintOf("session.create", q)
		s.key = entry.Key{Key: q.RequestKey, Params: params[:]}
	}
	p.addLocked(s)
	if q.Name != "" {
		p.names[nameRef{who, q.Name}] = s
	}
	p.countLocked(who, 1)
	p.tasks.Add(1) // the runner, which uses the shell; ended by Session.end; Close waits for it
	return s, nil
}

// addLocked adds a session to the tables of ids, with a tag that no other session has. p.mu is held.
func (p *Pool) addLocked(s *Session) {
	for s.tag = ids.Random(ids.TagLen); p.tags[p.epoch+s.tag] != nil; {
		s.tag = ids.Random(ids.TagLen)
	}
	p.addIDsLocked(s)
}

func (p *Pool) addIDsLocked(s *Session) {
	p.sessions[s.id] = s
	for _, mark := range s.marks() {
		p.tags[mark] = s
	}
}

// retireLocked stops counting a session that is TERMINATED, and keeps it for the retention time. p.mu is held.
func (p *Pool) retireLocked(s *Session, keep bool) {
	p.countLocked(s.owner, -1)
	if m := s.away.Load(); m != nil && !m.IsTold() { // the other node may have to ask for it; Told comes here
		return
	}
	p.retainSessionLocked(s, keep)
}

func (p *Pool) retainSessionLocked(s *Session, keep bool) {
	if !keep || p.config.Load().Retention <= 0 {
		p.unregisterLocked(s)
		return
	}
	p.retained = append(p.retained, s)
	for len(p.retained) > p.maxRetained {
		p.discardSessionLocked(0)
	}
}

func (p *Pool) discardSessionLocked(i int) {
	s := p.retained[i]
	p.retained = slices.Delete(p.retained, i, i+1)
	p.unregisterLocked(s)
}

// unregisterLocked makes a session's ids unknown. Code that holds the session may use it further. p.mu is held.
func (p *Pool) unregisterLocked(s *Session) {
	if p.sessions[s.id] == s {
		delete(p.sessions, s.id)
	}
	for _, mark := range s.marks() {
		if p.tags[mark] == s {
			delete(p.tags, mark)
		}
	}
	if ref := (nameRef{s.owner, s.name}); p.names[ref] == s {
		delete(p.names, ref)
	}
	s.discardRetained()
	if s.shell != nil && !p.closing { // else Close calls Forget
		p.tasks.Add(1) // calls the keeper, which no code does under a lock; bounded; Close waits for it
		done := p.gone.Begin(s.id)
		go func() { defer p.tasks.Done(); defer done(); s.shell.Forget() }()
	}
}

// Drain makes the pool refuse new sessions; live ones go on. empty is closed when the last one has ended. A second call returns the same channel.
func (p *Pool) Drain() (empty <-chan struct{}) {
	_ = p.awaitRecovered("") // restored sessions count
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics.Draining.Set(1)
	return p.live.Drain()
}

// Undrain makes the pool accept new sessions again.
func (p *Pool) Undrain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live.Undrain()
	p.metrics.Draining.Set(0)
}

// LiveCount returns how many sessions are not TERMINATED.
func (p *Pool) LiveCount() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.live.Live
}
