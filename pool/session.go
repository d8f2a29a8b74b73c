package pool

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"trl/pool/entry"
	"trl/pool/events"
	"trl/pool/memory"
	"trl/pool/queue"
	"trl/pool/retained"
	"trl/pool/spec"
	"trl/pool/timeouts"
	"trl/pool/token"
	"trl/pool/warm"
	"trl/protocol"
	"trl/runtime/sessionlog"
	"trl/runtime/shell"
	"trl/statemachine"
)

const stateTerminated = string(statemachine.Terminated)

// snapshotDelay is how long after a command the shell is asked for a snapshot, which costs as much as ten short commands. Clients that send one
// command after the other shall not cause snapshots between them, even if many clients compete for the processors.
const snapshotDelay = 50 * time.Millisecond

// Session is one persistent shell and its work. Session.run is the life of its runner, Session.finish is its end.
type Session struct {
	identity
	toRunner
	opening
	logged

	resetGate    sync.RWMutex                  // held by reset, and read-held while a process is started; taken before mu; it guards no data
	processTasks sync.WaitGroup                // the goroutines of processes; Add only while mu is held and ending is nil
	lastActive   atomic.Int64                  // when something last happened: a time.Duration since idleBase
	ended        chan struct{}                 // closed when TERMINATED
	boundConns   atomic.Int64                  // open connections; the session ends with the last of them
	settings     atomic.Pointer[spec.Settings] // written under mu
	away         atomic.Pointer[Move]          // the session is on another node, or not yet on this one; nil: it is here
	connLost     atomic.Bool                   // such a connection ended with an earlier gateway, and its client has not come back

	mu        sync.Mutex
	memory    memory.Use // guarded by mu
	lifecycle            // guarded by mu
	workTables

	name     string           // written under pool.mu and mu, read under either
	dir      string           // guarded by mu; the shell's working directory after the last command
	watchers *events.Watchers // set once in newSession; used with mu held
	shares   []*Share         // guarded by mu, and by pool.mu, which is taken before mu
}

// identity is set in newSession and register, and does not change.
type identity struct {
	id, tag, owner string
	created        time.Time
	spec           spec.Spec
	pool           *Pool
	log            zerolog.Logger
	key            entry.Key // request_key of the session.create
	earlier        []string  // marks of its work from other nodes, see ids.MarkOf
	arrived        *Move     // from another node; nil: it was made here
}

// toRunner has the channels to and from the runner.
type toRunner struct {
	turn            chan *Exec              // capacity 1: only an idle session sends, so a send never blocks
	resets          chan chan error         // the runner answers when the reset is done
	woken           chan struct{}           // one token: the shell no longer rests
	compactRequests chan struct{}           // one token: the session log has grown
	runnerDone      chan struct{}           // closed when the runner has left, or never started
	ctx             context.Context         // not a request's; the runner leaves when it is done
	cancel          context.CancelCauseFunc // ends ctx; its cause is the reason of the end
}

// opening is the shell, and what waits for it.
type opening struct {
	opened  chan struct{}   // closed when the shell answers, or will not
	shell   *shell.Shell    // set once, under mu, before opened is closed; nil if that failed; only the runner calls Run, Idle, Revive and Reset
	openErr *protocol.Error // guarded by mu; why there is no shell
}

// logged is the session log, and the last entry of the shell.
type logged struct {
	sessionLog *sessionlog.Log // set once, under mu, with the shell; nil: nothing can be written yet
	savedShell entry.Shell
	logFailure sync.Once // logs that the session log fails
}

// lifecycle is where a session is between its creation and its end. Guarded by mu.
type lifecycle struct {
	state     *statemachine.Machine
	resetting int                // resets that are not done: no command gets the turn
	revived   *entry.Revived     // the shell was replaced while no command ran, and no client was told yet; nil: no
	commands  int64              // that ever began
	last      *protocol.LastExec // the command that ended last; nil before the first
	warned    bool               // session.expiring was sent since the session was last active
	ending    *ending            // nil until it begins to end
	closed    bool               // TERMINATED
	final     finalState         // set before closed
}

// workTables has all work of a session. Guarded by mu.
type workTables struct {
	running       *Exec                 // the command that has the turn
	waiting       queue.Queue[*Exec]    // for the turn
	execs         map[string]*Exec      // waiting commands, and the running one
	endedExecs    map[string]*endedExec // commands that have ended, while they are retained
	processes     map[string]*Process
	terminals     map[string]*Terminal
	liveProcesses int               // processes that run or are being started
	openTerminals int               // the same for terminals
	retained      retained.Set      // ended work
	tombstones    []loggedTombstone // of dropped work whose request_key is still remembered
}

func newSession(p *Pool, id, owner, name string, t spec.Spec) *Session {
	ctx, cancel := context.WithCancelCause(context.Background())
	s := &Session{
		identity: identity{id: id, owner: owner, created: time.Now(), spec: t, pool: p, log: p.log.With().Str("session", id).Logger()},
		toRunner: toRunner{
			turn: make(chan *Exec, 1), resets: make(chan chan error), compactRequests: make(chan struct{}, 1), woken: make(chan struct{}, 1), runnerDone: make(chan struct{}), ctx: ctx, cancel: cancel,
		},
		opening:    opening{opened: make(chan struct{})},
		lifecycle:  lifecycle{state: statemachine.New(statemachine.Creating)},
		workTables: workTables{execs: map[string]*Exec{}, endedExecs: map[string]*endedExec{}, processes: map[string]*Process{}, terminals: map[string]*Terminal{}},
		name:       name, dir: t.Dir, ended: make(chan struct{}),
	}
	s.watchers = events.New(&s.mu)
	s.settings.Store(&s.spec.Settings)
	s.retained = retained.New(func(more int64) { p.retainedBytes.Add(owner, more) })
	s.lastActive.Store(int64(s.created.Sub(idleBase)))
	return s
}

// run is the session's runner: it gets the shell, and serves until the end begins. See finish for the end.
func (s *Session) run() {
	if s.open(nil) {
		s.loop(nil, false)
	}
}

// open is the first part of run. It reports whether the session has its shell.
func (s *Session) open(ws *warm.Shell) bool {
	err := s.openShell(ws)
	if err != nil {
		s.openFailed(err)
		close(s.runnerDone)
		s.pool.tasks.Done()
	}
	return err == nil
}

// loop is the second part of run. A restored session goes on with the command that was running (nil: none), and with the reset that was under
// way.
func (s *Session) loop(running *Exec, resetting bool) {
	defer s.pool.tasks.Done()
	defer close(s.runnerDone)
	s.runExecs(running) // before serve, because Shell.Run replaces the shell of a running command
	if resetting {
		_ = s.reset() // its client is gone; if it fails, it ends the session
	}
	s.serve()
}

// serve runs commands and resets until the session ends.
func (s *Session) serve() {
	s.shell.OnWake(func() { token.Put(s.woken) })
	rest := time.NewTimer(snapshotDelay) // an earlier gateway may not have asked the shell
	defer rest.Stop()
	busy := time.Now() // when the shell last did something
	quiet := func() {
		busy = time.Now()
		rest.Reset(snapshotDelay)
	}
	var again <-chan time.Time // when to try again to replace a dead shell; nil: wait for its exit
	for {
		exited := s.shell.Exited()
		if again != nil {
			exited = nil
		}
		select {
		case e := <-s.turn:
			s.runExecs(e)
			quiet()
		case <-rest.C:
			if again := s.shell.Idle(time.Since(busy)); again > 0 {
				rest.Reset(again)
			}
		case <-exited:
			again = s.reviveShell()
			quiet()
		case <-again:
			again = nil
		case done := <-s.resets:
			done <- s.reset()
		case <-s.woken: // by a process or a terminal
			quiet()
		case <-s.compactRequests:
			s.mu.Lock()
			s.compactLocked()
			s.mu.Unlock()
		case <-s.ctx.Done():
			select {
			case e := <-s.turn: // it got the turn at the same moment
				s.finishExec(e, shell.Outcome{Err: shell.ErrShellGone, Code: -1, Died: true})
			default:
			}
			return
		}
	}
}

// runExecs runs e, and then each command that gets the turn, until none waits. e may be nil.
func (s *Session) runExecs(e *Exec) {
	for e != nil {
		e = s.finishExec(e, s.shell.Run(e.command)) // e.command: only finishExec clears it
	}
}

// finishExec ends e, which has run. It gives the turn to the next command and returns it.
func (s *Session) finishExec(e *Exec, out shell.Outcome) (next *Exec) {
	now := time.Now()
	s.mu.Lock()
	e.setOutcome(out, now, s.ending != nil)
	e.command.Discard() // closes its stdin, if the shell did not get that far
	s.running, e.command, e.begun = nil, nil, nil
	if out.Dir != "" && out.Dir != s.dir { // one string for all commands that end there
		s.dir = out.Dir
	}
	s.last = protocol.NewLastExec(e.text, &e.exit, e.endedAt)
	if !e.accepted { // it never began
		s.logAccepted(e, nil)
	}
	s.appendLog(entry.Entry{Done: e.doneEntry()})
	s.retainExecLocked(e)
	s.compactLocked()
	s.watchers.Publish("exec.exit", func() any { return e.exit })
	switch {
	case out.Postponed: // something is short, which does not end the session: reviveShell tries again
	case out.Died && !out.Restored && out.Err != nil: // the shell could not be replaced
		s.endLocked(protocol.ReasonShellFailed, timeouts.DefaultGrace)
	case out.Died && !out.Restored:
		s.endLocked(protocol.ReasonShellExited, timeouts.DefaultGrace)
	case out.KillFailed: // a process survived KILL: the session must not be IDLE, and is TERMINATED when the process has gone
		s.endLocked(protocol.ReasonShellFailed, timeouts.DefaultGrace)
	}
	if s.ending == nil { // else it stays RUNNING until TERMINATED
		s.fireLocked(statemachine.Finished, "")
		next = s.beginNextLocked()
	}
	s.touchLocked(now)
	s.mu.Unlock()
	e.recorder.Finish(e.endOffset, e.exit.ExitCode)
	e.countEnd()
	e.wakeWaiters()
	if s.pool.retainedBytes.Exceeds(s.owner) {
		s.pool.trim()
	}
	return next
}

// beginNextLocked gives the turn to the oldest waiting command and returns it, or nil. s.mu is held, the state is IDLE.
func (s *Session) beginNextLocked() *Exec {
	if s.ending != nil || s.resetting > 0 {
		return nil
	}
	e, ok := s.waiting.Pop()
	if ok {
		s.beginLocked(e, time.Now())
	}
	return e
}

// beginLocked gives e the turn. s.mu is held, the state is IDLE.
func (s *Session) beginLocked(e *Exec, now time.Time) {
	s.running, e.startedAt, e.beganAt = e, now, now
	e.record(e.recordingSource)
	s.commands++
	s.pool.commands.Add(1)
	s.fireLocked(statemachine.Began, "")
	s.watchers.Publish("exec.started", func() any {
		return protocol.ExecStarted{SessionID: s.id, ExecID: e.ID(), StreamID: e.stream, Command: protocol.TruncateText(e.text), At: now}
	})
}

// fireLocked moves the state machine and tells the watchers. s.mu is held. An illegal move is a bug in this package.
func (s *Session) fireLocked(ev statemachine.Event, reason protocol.Reason) {
	from, to, err := s.state.Fire(ev)
	if err != nil {
		s.log.Error().Err(err).Msg("wrong move")
		return
	}
	s.watchers.Publish("session.state", func() any {
		return protocol.SessionState{SessionID: s.id, From: string(from), To: string(to), At: time.Now(), Reason: reason}
	})
}

// IsOpen reports whether the session accepts commands. Its shell may still be starting.
func (s *Session) IsOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending == nil || s.ending.move != nil // a session that moves keeps its name
}

// ID returns the session's id.
func (s *Session) ID() string { return s.id }

// Owner returns the principal to whom the session belongs.
func (s *Session) Owner() string { return s.owner }

// Ended is closed when the session is TERMINATED: no process of it is left.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// BindConn counts a connection that created the session, or found it by its request_key. It reports whether UnbindConn shall be called when that
// connection ends.
func (s *Session) BindConn() bool {
	if s.spec.EndsWithConn {
		s.boundConns.Add(1)
		s.connLost.Store(false)
	}
	return s.spec.EndsWithConn
}

// UnbindConn ends the session if it was the last such connection. It returns at once.
func (s *Session) UnbindConn() {
	if s.boundConns.Add(-1) == 0 {
		s.end(protocol.ReasonDisconnect, timeouts.DefaultGrace)
	}
}

// Update changes the session's settings. Commands that have been requested keep their timeout.
func (s *Session) Update(q *protocol.SessionUpdate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending != nil {
		return s.errEndedLocked()
	}
	now, e := s.settings.Load().Updated(q, s.pool.config.Load())
	s.settings.Store(now)
	s.appendLog(e)
	s.touchLocked(time.Now())
	return nil
}
