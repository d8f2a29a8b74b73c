// Package shell runs the shell of one session: its commands, their output and exit codes, its state, its background processes and its
// terminals. It uses the owner of its processes only through the interfaces of package own.
package shell

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/metrics"
	"trl/protocol"
	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/saved"
	"trl/runtime/sessionlog"
	"trl/runtime/slowfs"
	"trl/runtime/snapshot"
	"trl/runtime/stream"
	"trl/runtime/terminal"
)

// ShellConfig configures a session's shell.
type ShellConfig struct {
	ID      string // the session's id, also in its TRL_SESSION_ID
	Path    string
	Dir     string
	Env     []string
	Restore bool // on_shell_exit: restore
	Limits  protocol.Limits
}

// Base has what all shells of a gateway share.
type Base struct {
	Keeper  own.Keeper
	Metrics *metrics.Metrics
	Log     zerolog.Logger

	MostReady int // how many idle shells need not rest; 0: as many as the limit of open files allows
	ready     readyShells
}

// Shell is a session's shell. It goes on when its process is replaced. One goroutine at a time may call Run, Idle, Setup,
// Revive and Reset; any goroutine may call the other methods. Close ends the shell, also during a Run.
type Shell struct {
	b     *Base
	state *snapshot.Files
	turn  chan struct{} // holds one element while nobody has the shell's turn

	streamLogs *stream.Logs // open until Forget
	restore    atomic.Bool
	closing    atomic.Bool

	mu     sync.Mutex
	cfg    ShellConfig            // guarded by mu: Setup and Reset change Dir and Env
	p      *shellProc             // guarded by mu; nil after Close, or if the shell could not be replaced
	group  own.KeptGroup          // guarded by mu: Reset makes a new one
	procs  map[*Process]struct{}  // guarded by mu
	terms  map[*Terminal]struct{} // guarded by mu
	closed *pendingClose          // guarded by mu; nil before the first Close, and after a Close that could not kill
	killAt time.Time              // guarded by mu; when that Close sends KILL

	// The holder of turn owns the fields below.
	seq       int
	poll      *stream.Poller // Run waits in it
	pipeCalls stream.Calls   // any goroutine may read it
	gauge     *own.Gauge     // of group; nil before its first command

	prepared
	leftovers
	saving
	knowledge
	resting

	restorePostponed bool // the shell is dead, and a resource is missing to start another, see restoreShell
	takesState       bool // TakeState has ended the shell
}

// prepared is what the shell has in advance.
type prepared struct {
	pipes        *stream.Pipes                 // for the next command; nil: that command makes them. The holder of the turn owns them
	warmTerminal atomic.Pointer[terminal.Warm] // for the first terminal; nil: there is none
}

// leftovers are the scopes and Copiers of processes that ended commands left running.
type leftovers struct {
	leftScopes      []own.KeptScope  // guarded by Shell.mu; scopes of processes that commands left running, until removeEmptyScopes
	leftScopesLimit int              // leaveScope calls removeEmptyScopes when leftScopes is longer; owned by the holder of turn
	copiers         []*stream.Copier // guarded by Shell.mu; they copy the output of these processes
}

// saving keeps the session log's entry for the shell current.
type saving struct {
	saveMu  sync.Mutex  // orders the calls of entries; locked before Shell.mu
	saved   saved.Shell // guarded by saveMu
	entries EntryWriter // set by SetEntryWriter, with the turn and saveMu held; nil: nobody writes entries
}

// knowledge has facts about the shell's state. The holder of the turn owns it.
type knowledge struct {
	snapshotTried    time.Time   // time of the last try to get a snapshot
	snapshotsPaid    time.Time   // no snapshot is due before it, see snapshotDelay
	mayTrapAbort     bool        // the shell may have a trap for the abort signal; then an abort kills the shell
	mayTrapLines     bool        // the shell may have traps that run for our lines: see dialect.HidesTraps
	mayHaveFunctions atomic.Bool // the shell may have functions, which a POSIX shell cannot list; any goroutine may read it
}

// OpenShell starts a session's shell and returns when the shell answers.
func (b *Base) OpenShell(ctx context.Context, c ShellConfig) (*Shell, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := b.newShell(c)
	s.restore.Store(c.Restore)
	if err := s.openGroup(); err != nil {
		s.dispose()
		s.Forget()
		return nil, err
	}
	s.turn <- struct{}{}
	return s, nil
}

func (b *Base) newShell(c ShellConfig) *Shell {
	return &Shell{
		b: b, cfg: c, turn: make(chan struct{}, 1), procs: map[*Process]struct{}{}, terms: map[*Terminal]struct{}{},
		streamLogs: stream.NewLogs(func(err error) {
			b.Log.Warn().Err(err).Str("session", c.ID).Msg("output log takes no more output: a crash of the gateway would lose the output from here on")
		}),
	}
}

// openGroup creates the group with its first shell process and the files of the shell's state.
func (s *Shell) openGroup() (err error) {
	p, err := newShellProc(s.cfg.Path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			p.abandon(s.group)
		}
	}()
	spec, done, err := p.spec(s.cfg)
	if err != nil {
		return err
	}
	defer done()
	f, err := s.b.Keeper.StartSession(s.cfg.ID, own.StartRequest{
		Shell: spec, Limits: s.cfg.Limits, Parallel: func(g own.KeptGroup) error { return s.makeChannels(p, g) },
	})
	if err != nil {
		return err
	}
	s.group, p.scope, p.child = f.Group, f.Scope, f.Child
	if err = s.boot(p, s.group, nil); err == nil {
		s.p = p
	}
	return err
}

// makeChannels makes what the shell and the gateway need before boot. It runs while the keeper starts the shell.
func (s *Shell) makeChannels(p *shellProc, g own.KeptGroup) (err error) {
	if s.state, err = snapshot.New(); err != nil {
		return err
	}
	made, numbers, err := g.MakeChannels(slices.Concat(snapshot.Kinds, channels), s.state.SessionLog().Fd(), p.script)
	if err != nil {
		return fmt.Errorf("control pipe: %w", err)
	}
	s.state.SetFiles(made[:len(snapshot.Kinds)], numbers[0])
	s.streamLogs.SetSessionLog(s.state.SessionLog(), numbers[0])
	p.setChannels(g, made[len(snapshot.Kinds):], numbers[1])
	return s.makePoller()
}

// makePoller makes the poller and the eventfd with which Run waits.
func (s *Shell) makePoller() (err error) {
	s.poll, err = stream.NewPoller()
	return err
}

// spawn starts a process for the shell in a scope of its own.
func (s *Shell) spawn(script []byte) (*shellProc, error) {
	s.mu.Lock()
	group, c := s.group, s.cfg
	s.mu.Unlock()
	if script != nil { // the state's script changes the directory; the session's first directory may be gone
		c.Dir = "/"
	}
	p, err := newShellProc(c.Path)
	if err != nil {
		return nil, err
	}
	if err = p.start(c, group); err == nil {
		err = s.boot(p, group, script)
	}
	if err != nil {
		p.abandon(group)
		return nil, err
	}
	return p, nil
}

// openDir opens the working directory of a process. It returns 0 if it cannot. The open asks the server of some network file
// systems (NFS, 9p).
func (s *Shell) openDir(pid int) int {
	path := procfs.Path(pid, "/cwd")
	fd, err := slowfs.Ask(slowfs.Question{Who: s.cfg.ID, Op: "open", Path: path}, func() (openFD, error) {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return openFD(fd), err
	})
	if err != nil {
		return 0
	}
	return int(fd)
}

// An openFD is a descriptor that Ask closes if nobody waits for it any more.
type openFD int

func (fd openFD) Close() error { return unix.Close(int(fd)) }

// Name returns the shell's kind: bash, dash, ash or zsh.
func (s *Shell) Name() string {
	k, _, err := dialect.Of(s.cfg.Path)
	if err != nil {
		return ""
	}
	return k.Name
}

// Pid returns the pid of the present process, 0 if there is none.
func (s *Shell) Pid() int {
	if p := s.proc(); p != nil {
		return p.child.Pid()
	}
	return 0
}

func (s *Shell) proc() *shellProc {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.p
}

// Exited returns a channel that is closed when the present process has exited.
func (s *Shell) Exited() <-chan struct{} {
	if p := s.proc(); p != nil {
		return p.child.Exited()
	}
	c := make(chan struct{})
	close(c)
	return c
}

// Dir returns the shell's working directory, "" if it is unknown.
func (s *Shell) Dir() string {
	pid := s.Pid()
	if pid == 0 {
		return ""
	}
	return s.currentGroup().Cwd(pid)
}

// EnvCount returns how many variables the shell started with.
func (s *Shell) EnvCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cfg.Env)
}

// SetRestore sets whether a shell that ends is restored. If not, the session ends with it.
func (s *Shell) SetRestore(on bool) { s.restore.Store(on) }

// Prepare makes in advance what the first command needs. If that fails, the first command tries again and returns the error.
func (s *Shell) Prepare() {
	<-s.turn
	defer s.giveTurn()
	group := s.currentGroup()
	s.pipes, _ = stream.NewPipes(group, s.streamLogs, false)
	s.gauge = group.Gauge()
}

// Setup gives a warm shell the directory and the variables of its session.
func (s *Shell) Setup(dir string, env map[string]*string) error {
	moves := dir != "" && dir != s.cfg.Dir
	if moves {
		if err := s.currentGroup().Enterable(dir); err != nil {
			return err
		}
	}
	if err := s.takeTurn(); err != nil {
		return err
	}
	defer s.giveTurn()
	p := s.proc()
	if p == nil {
		return ErrShellGone
	}
	text := ""
	if moves {
		text = dialect.CdLine(p.dialect, dir) + "\n"
	}
	if text == "" && len(env) == 0 {
		return nil
	}
	s.seq++
	status, ok := p.ask(s.currentGroup(), strconv.Itoa(s.seq), dialect.EnvScript(p.dialect, env)+text, bootTimeout)
	if !ok {
		return ErrShellGone
	}
	if status != 0 && text != "" {
		return &fs.PathError{Op: "chdir", Path: dir, Err: syscall.EACCES}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if dir != "" {
		s.cfg.Dir = dir
	}
	s.cfg.Env = dialect.MergeEnv(s.cfg.Env, env)
	return nil
}

// Run runs one command. It returns when the command has ended, its output is in the journal, and the shell is ready for the next
// command. A shell that died with the command has been restored by then if the session wants that.
func (s *Shell) Run(c *Command) Outcome {
	if c.Dir != "" && c.resumed == nil {
		if err := c.checkDir(s.currentGroup()); err != nil {
			c.Journal.Close()
			return Outcome{Err: err, Code: -1, Cancelled: errors.Is(err, errCancelled), Dir: s.Dir()}
		}
	}
	if err := s.takeTurn(); err != nil {
		c.Journal.Close()
		return Outcome{Err: err, Code: -1}
	}
	defer s.giveTurn()
	c.Journal.OnRoom(c.onRoom)
	c.attachRun(s.wake, &s.pipeCalls)
	defer c.detachRun()
	p := s.proc()
	if p != nil {
		trap := s.mayTrapAbort || (strings.Contains(c.Text, "trap") || strings.Contains(c.Text, "TRAP")) && p.dialect.SetsTrap.MatchString(c.Text)
		s.mayTrapLines = s.mayTrapLines || p.dialect.HidesTraps && dialect.MayTrap(c.Text)
		p.traps = s.mayTrapLines
		funcs := s.mayHaveFunctions.Load() || !p.dialect.ListsFunctions && dialect.MayDefine(c.Text)
		if trap != s.mayTrapAbort || funcs != s.mayHaveFunctions.Load() {
			s.mayTrapAbort = trap
			s.mayHaveFunctions.Store(funcs)
			s.save()
		}
	}
	var again *stream.Pipes
	var lost []string
	restored, gone := false, ErrShellGone
	if s.restorePostponed && !s.closing.Load() {
		var after saved.Replaced
		err := s.restoreShell(p, &after, scarceTimeout)
		if s.restorePostponed {
			c.Journal.Close()
			return Outcome{Err: err, Code: -1}
		}
		if err == nil {
			restored, lost = true, after.Lost
		}
	}
	for try := range 3 { // after three shells that died before they read the line, Run gives up
		if p = s.proc(); p == nil || s.closing.Load() {
			break
		}
		if c.resumed == nil && s.state.Wanted() && s.snapshotFirst(c.Text) {
			s.snapshot(p) // the shell writes it before the command, because lines keep their order
		}
		var o Outcome
		if o, again = s.attempt(c, again); again == nil {
			o.Restored, o.Lost = o.Restored || restored, Union(lost, o.Lost)
			return o
		}
		c.setTarget(watchdogTarget{})
		if !p.dead() { // a resumed command that had not begun
			continue
		}
		if try > 0 { // the restored state may be what ends the shell
			s.state.Forget()
			lost = Union(lost, allState)
		}
		var after saved.Replaced
		err := s.restoreShell(p, &after, scarceTimeout)
		if s.restorePostponed {
			again.Close()
			c.Journal.Close()
			return Outcome{Err: err, Code: -1}
		}
		if err != nil {
			gone = errors.Join(ErrShellGone, err)
			break
		}
		restored, lost = true, Union(lost, after.Lost)
		again.Discard()
	}
	c.Journal.Close()
	if again != nil {
		again.Close()
	}
	return Outcome{Err: gone, Code: -1, Died: true}
}

// Union returns the elements of a and those of b that are not in a.
func Union(a, b []string) []string {
	return append(slices.Clone(a), slices.DeleteFunc(slices.Clone(b), func(x string) bool { return slices.Contains(a, x) })...)
}

func (s *Shell) wake() {
	s.poll.Wake()
}

// closePipes closes the pipes kept for the next command.
func (s *Shell) closePipes() {
	if s.pipes != nil {
		s.poll.Unwatch(stream.SlotPipes)
		s.pipes.Close()
		s.pipes = nil
	}
}

// leaveScope leaves the command's processes in their scope and moves the shell to a new one. It returns the old scope, nil if the
// shell was not moved.
func (s *Shell) leaveScope(r *run) own.KeptScope {
	old := r.p.scope
	if r.died || r.scope != old {
		return nil // a restored shell has a new scope; a dead one needs none; or an earlier gateway has moved the shell
	}
	fresh, err := s.group.NewScope()
	if err == nil {
		err = fresh.AddChild(r.p.child.Pid())
	}
	if err != nil {
		s.b.Log.Error().Err(err).Str("session", s.cfg.ID).Msg("shell could not be moved out of the scope of its last command")
		return nil
	}
	s.mu.Lock()
	r.p.scope = fresh
	s.leftScopes = append(s.leftScopes, old)
	many := len(s.leftScopes) > s.leftScopesLimit
	s.mu.Unlock()
	if many { // the limit grows with the number of scopes, so that not every command checks all of them
		s.leftScopesLimit = 2*s.removeEmptyScopes() + maxLeftScopes
	}
	s.save()
	return old
}

// maxLeftScopes is how long leftScopes may get, in addition to twice the number of scopes that were not empty at the last check,
// before leaveScope checks again.
const maxLeftScopes = 8

// removeEmptyScopes removes the scopes in leftScopes that are empty by now, and returns how many are left. It does not check a scope
// whose output pipes have not ended, because a process still holds them. The caller has the turn.
func (s *Shell) removeEmptyScopes() (still int) {
	s.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(s.leftScopes), func(c own.KeptScope) bool {
		return slices.ContainsFunc(s.copiers, func(late *stream.Copier) bool { return late.Scope == c && !late.HasEnded() })
	})
	s.mu.Unlock()
	return s.removeScopes(left...)
}

// removeScopes removes those of the scopes that are empty, and returns how many s.leftScopes has then.
func (s *Shell) removeScopes(scopes ...own.KeptScope) (still int) {
	gone := slices.DeleteFunc(scopes, func(c own.KeptScope) bool { return len(c.MembersExcept(0)) > 0 || !c.Remove() })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftScopes = slices.DeleteFunc(s.leftScopes, func(c own.KeptScope) bool { return slices.Contains(gone, c) })
	return len(s.leftScopes)
}

// outputReleased is called when the outputs of a command that left processes running have ended. These processes are then often
// about to exit, so the Copier's goroutine tries for a moment to remove their scope. If they live on, a later command checks them.
func (s *Shell) outputReleased(late *stream.Copier) {
	for pause := time.Millisecond; pause < 100*time.Millisecond; pause *= 4 {
		s.mu.Lock()
		there := slices.Contains(s.leftScopes, late.Scope)
		s.mu.Unlock()
		if !there {
			return
		}
		s.removeScopes(late.Scope)
		select {
		case <-time.After(pause):
		case <-late.Stopped():
			return
		}
	}
}

// currentGroup returns the session's present group, which Reset may replace.
func (s *Shell) currentGroup() own.KeptGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group
}

// addCopier adds the Copier of an ended command's pipes, and removes the Copiers that have ended.
func (s *Shell) addCopier(late *stream.Copier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copiers = slices.DeleteFunc(s.copiers, func(c *stream.Copier) bool { return c.HasEnded() })
	s.copiers = append(s.copiers, late)
}

// Background returns the pids of the processes that earlier commands left running.
func (s *Shell) Background() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []int
	s.leftScopes = slices.DeleteFunc(s.leftScopes, func(c own.KeptScope) bool {
		m := c.MembersExcept(0)
		pids = append(pids, m...)
		return len(m) == 0 && c.Remove()
	})
	return pids
}

// Memory returns the anonymous memory of the session's processes in bytes, without shared files and libraries.
func (s *Shell) Memory() int64 {
	group := s.currentGroup()
	if group == nil {
		return 0
	}
	return procfs.AnonymousMemory(group.Members())
}

// CloseLogs closes the gateway's session log file of a session that has ended, after its end was written down. From then on only
// the keeper has that file open.
func (s *Shell) CloseLogs() { s.streamLogs.CloseSessionLog(s.currentGroup()) }

// SessionLog returns the log in which the session's owner writes entries for the next gateway.
func (s *Shell) SessionLog() *sessionlog.Log { return s.state.SessionLog() }

func signalName(s syscall.Signal) string { return protocol.SignalName(s) }
