package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
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
	"trl/runtime/ledger"
	"trl/runtime/quick"
)

// ShellConfig says what a session's shell is.
type ShellConfig struct {
	ID      string // the session's, also in its TRL_SESSION_ID
	Path    string
	Dir     string
	Env     []string
	Restore bool // on_shell_exit: restore
	Limits  protocol.Limits
}

// Base is what all shells of a gateway share.
type Base struct {
	Keeper  Keeper
	Metrics *metrics.Metrics
	Log     zerolog.Logger
}

// Shell is a session's shell as its user sees it: it goes on when the process behind it is replaced. Run, Rest, Setup,
// Revive and Reset are called by one goroutine at a time; the other methods by any. Close ends it, also below a Run.
type Shell struct {
	b    *Base
	st   *state
	turn chan struct{} // holds one element while nobody uses the shell's channel

	outputs outputs // until Forget
	restore atomic.Bool
	closing atomic.Bool

	mu     sync.Mutex
	cfg    ShellConfig            // guarded by mu: Setup and Reset change Dir and Env
	p      *shellProc             // guarded by mu; nil after Close, or when it could not be put back
	group  KeptGroup              // guarded by mu: Reset makes a new one
	left   []KeptCell             // guarded by mu: where commands left something running
	procs  map[*Process]struct{}  // guarded by mu
	terms  map[*Terminal]struct{} // guarded by mu
	late   []*outlets             // guarded by mu
	closed *closing               // guarded by mu; nil before the first Close, and after one that could not kill
	killAt time.Time              // guarded by mu; until when that Close waits

	// owned by the holder of turn
	seq      int
	poll     *poller           // where Run waits
	event    int               // eventfd that wakes Run
	gauge    *Gauge            // of group, nil before its first command
	lane     *lane             // for the next command; nil: to be made
	telling  sync.Mutex        // orders what the recorder is told; before mu
	told     ShellRecord       // guarded by telling
	recorder func(ShellRecord) // guarded by telling
	clean    time.Time
	stale    bool // there was no snapshot lately: the shell may not write so much
	trap     bool // it may have one for the abort signal, which defeats the abort
	funcs    bool // it may have functions, which it cannot list
}

// OpenShell starts a session's shell; it answers when it returns.
func (b *Base) OpenShell(ctx context.Context, c ShellConfig) (*Shell, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s := b.newShell(c)
	s.restore.Store(c.Restore)
	if err := s.establish(); err != nil {
		s.dispose()
		s.Forget()
		return nil, err
	}
	s.turn <- struct{}{}
	return s, nil
}

func (b *Base) newShell(c ShellConfig) *Shell {
	return &Shell{
		b: b, cfg: c, turn: make(chan struct{}, 1), event: -1, procs: map[*Process]struct{}{}, terms: map[*Terminal]struct{}{},
		outputs: outputs{broke: func(err error) {
			b.Log.Warn().Err(err).Str("session", c.ID).Msg("output log has broken off: a crash of the gateway would lose what follows")
		}},
	}
}

// establish founds the group: with its first shell process, and what the shell's state is kept in.
func (s *Shell) establish() (err error) {
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
	f, err := s.b.Keeper.Found(s.cfg.ID, Founding{
		Shell: spec, Limits: s.cfg.Limits, Meanwhile: func(g KeptGroup) error { return s.furnish(p, g) },
	})
	if err != nil {
		return err
	}
	s.group, p.cell, p.child = f.Group, f.Cell, f.Child
	if err = s.raise(p, s.group, nil); err == nil {
		s.p = p
	}
	return err
}

// furnish makes what the shell needs once it listens, and we beside it.
func (s *Shell) furnish(p *shellProc, g KeptGroup) (err error) {
	if s.st, err = newState(); err != nil {
		return err
	}
	made, numbers, err := g.Make(slices.Concat(stateFiles, channels), s.st.book.Fd(), p.script)
	if err != nil {
		return fmt.Errorf("control pipe: %w", err)
	}
	s.st.take(made[:len(stateFiles)], numbers[0])
	p.take(made[len(stateFiles):], numbers[1])
	return s.watch()
}

// watch makes what Run waits with.
func (s *Shell) watch() (err error) {
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	s.poll, err = newPoller()
	return err
}

// spawn starts a process for the shell in a cell of its own.
func (s *Shell) spawn(script []byte) (*shellProc, error) {
	s.mu.Lock()
	group, c := s.group, s.cfg
	s.mu.Unlock()
	if script != nil { // it goes to where the state says; where it was made may be gone by now
		c.Dir = "/"
	}
	p, err := newShellProc(c.Path)
	if err != nil {
		return nil, err
	}
	if err = p.start(c, group); err == nil {
		err = s.raise(p, group, script)
	}
	if err != nil {
		p.abandon(group)
		return nil, err
	}
	return p, nil
}

// What a shell is put back with may all be in use, by the session's own user first of all: it comes back soon, as a rule,
// and the session is worth the wait.
const (
	scarcePatience = 5 * time.Second
	scarcePause    = 50 * time.Millisecond
)

// Scarce: err says that there are not enough processes, descriptors or memory at the moment.
func Scarce(err error) bool {
	return slices.ContainsFunc([]error{unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOMEM}, func(e error) bool { return errors.Is(err, e) })
}

// spawnPatiently is spawn for a session that has something to lose.
func (s *Shell) spawnPatiently(script []byte) (p *shellProc, err error) {
	for begin := time.Now(); ; time.Sleep(scarcePause) {
		p, err = s.spawn(script)
		if err == nil || !Scarce(err) || s.closing.Load() || time.Since(begin) > scarcePatience {
			return p, err
		}
	}
}

// Name is the shell's kind: bash, dash, ash or zsh.
func (s *Shell) Name() string {
	k, _, err := kindOf(s.cfg.Path)
	if err != nil {
		return ""
	}
	return k.name
}

// Pid is that of the present process, 0 when there is none.
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

// Exited is closed when the present process has exited.
func (s *Shell) Exited() <-chan struct{} {
	if p := s.proc(); p != nil {
		return p.child.Exited()
	}
	c := make(chan struct{})
	close(c)
	return c
}

// Dir is the shell's working directory, "" when it cannot be known.
func (s *Shell) Dir() string {
	pid := s.Pid()
	if pid == 0 {
		return ""
	}
	return s.held().Cwd(pid)
}

// EnvCount is how many variables the session was given.
func (s *Shell) EnvCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.cfg.Env)
}

// SetRestore decides what a shell that ends means: put it back, or leave that to the session's end.
func (s *Shell) SetRestore(on bool) { s.restore.Store(on) }

// Prepare makes ahead what the first command needs. What cannot be made, that command tries again, and says why.
func (s *Shell) Prepare() {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	group := s.held()
	s.lane, _ = newLane(group, &s.outputs)
	s.gauge = group.Gauge()
}

// Setup makes a warm shell the session's: its directory and variables.
func (s *Shell) Setup(dir string, env map[string]*string) error {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil {
		return ErrShellGone
	}
	text := ""
	if dir != "" && dir != s.cfg.Dir {
		if err := s.held().Enterable(dir); err != nil {
			return err
		}
		text = enter(p.kind, dir) + "\n"
	}
	if text == "" && len(env) == 0 {
		return nil
	}
	s.seq++
	status, ok := p.ask(s.held(), strconv.Itoa(s.seq), envScript(p.kind, env)+text, bootTimeout)
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
	s.cfg.Env = merge(s.cfg.Env, env)
	return nil
}

func envScript(k *kind, env map[string]*string) string {
	var b strings.Builder
	for n, v := range env {
		if v == nil {
			fmt.Fprintf(&b, "%s -v %s\n", k.call("unset"), n)
		} else {
			fmt.Fprintf(&b, "%s %s=%s\n", k.call("export"), n, quote(*v))
		}
	}
	return b.String()
}

// enter goes to a directory.
func enter(k *kind, dir string) string { return k.call("cd") + " -- " + quote(dir) + " >/dev/null" }

func merge(base []string, env map[string]*string) []string {
	out := slices.DeleteFunc(slices.Clone(base), func(kv string) bool {
		n, _, _ := strings.Cut(kv, "=")
		_, set := env[n]
		return set
	})
	for n, v := range env {
		if v != nil {
			out = append(out, n+"="+*v)
		}
	}
	return out
}

// snapshotAge is how old the last snapshot may get while commands follow each other without a rest.
const snapshotAge = 250 * time.Millisecond

// mayDefine says whether text may define a function, itself or by what it reads.
func mayDefine(text string) bool {
	for _, sign := range []string{". ", ".\t", ".\\", "eval"} {
		if strings.Contains(text, sign) {
			return true
		}
	}
	for found := true; found; {
		if _, text, found = strings.Cut(text, "("); found && strings.HasPrefix(strings.TrimLeft(text, " \t"), ")") {
			return true
		}
	}
	return false
}

// Run runs one command and returns when it has ended, its output is in the journal, and the shell is ready for the
// next one; a shell that died with it has been put back where the session wants that.
func (s *Shell) Run(c *Command) Outcome {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	if c.Dir != "" && c.resumed == nil {
		if err := s.held().Enterable(c.Dir); err != nil {
			c.Journal.Close()
			return Outcome{Err: err, Code: -1, Dir: s.Dir()}
		}
	}
	c.Journal.OnRoom(c.roomy)
	c.attach(s.wake)
	defer c.detach()
	p := s.proc()
	if p != nil {
		trap := s.trap || (strings.Contains(c.Text, "trap") || strings.Contains(c.Text, "TRAP")) && p.kind.traps.MatchString(c.Text)
		funcs := s.funcs || !p.kind.lists && mayDefine(c.Text)
		if trap != s.trap || funcs != s.funcs {
			s.trap, s.funcs = trap, funcs
			s.changed()
		}
	}
	var again *lane
	var lost []string
	restored := false
	for try := range 3 { // a shell that dies unasked three times in a row is not going to run this
		if p = s.proc(); p == nil || s.closing.Load() {
			break
		}
		// What may be the shell's end has one before it, whatever it costs; the shell takes it first, even if it has not
		// taken yet what came before.
		if s.st.dirty && c.resumed == nil && (strings.Contains(c.Text, "kill") || strings.Contains(c.Text, "exec") || time.Since(s.clean) > snapshotAge && p.unread() == 0) {
			s.snapshot(p)
		}
		var o Outcome
		if o, again = s.attempt(c, again); again == nil {
			o.Restored, o.Lost = o.Restored || restored, Union(lost, o.Lost)
			return o
		}
		if !p.dead() { // a resumed one that had not begun
			continue
		}
		if try > 0 { // it may be its state that ends it
			s.st.forget()
		}
		more, err := s.putBack(p)
		if err != nil {
			break
		}
		restored, lost = true, Union(lost, more)
		again.empty()
	}
	c.Journal.Close()
	if again != nil {
		again.close()
	}
	return Outcome{Err: ErrShellGone, Code: -1, Died: true}
}

// Union is what is in either.
func Union(a, b []string) []string {
	return append(slices.Clone(a), slices.DeleteFunc(slices.Clone(b), func(x string) bool { return slices.Contains(a, x) })...)
}

func (s *Shell) wake() {
	one := [8]byte{1}
	_, _ = quick.Write(s.event, one[:])
}

// after brings the shell back to its channel once a command was aborted, and puts another in its place when it is dead.
func (s *Shell) after(r *run, o *Outcome) {
	if !r.died {
		if r.p.barrier(r.seq, stubborn) {
			return
		}
		_ = r.p.child.Signal(syscall.SIGKILL)
		<-r.p.child.Exited()
		o.Died = true
		r.died = true
	}
	if s.closing.Load() || !s.restore.Load() {
		return
	}
	lost, err := s.putBack(r.p)
	if err != nil {
		o.Err = errors.Join(o.Err, ErrShellGone, err)
		return
	}
	o.Restored, o.Lost = true, lost
}

// allState is all that a state has.
var allState = []string{"variables", "functions", "aliases", "options", "working_dir"}

// onecmd is how a snapshot of bash says `set -t`.
const onecmd = "\nset -o onecmd\n"

// state is the script that makes a fresh shell what the last snapshot says, nil when there is none.
func (s *Shell) state(k *kind, exited bool) []byte {
	script := s.st.script(k, exited)
	if script == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(freed(k, s.cfg.Env), script...)
}

// putBack replaces dead by a new process with its last state.
func (s *Shell) putBack(dead *shellProc) (lost []string, err error) {
	<-dead.child.Exited()
	s.dropLane() // it may have complained into them when it died
	for {
		if _, ok := dead.next(); !ok { // the exit report may still be in the pipe
			break
		}
	}
	script := s.state(dead.kind, true)
	cause := "killed"
	if dead.exit != nil {
		cause = "exited"
		if *dead.exit != 0 { // what ended it must not end the next one
			for _, opt := range []string{"errexit", "nounset"} {
				if strings.Contains(string(script), "set -o "+opt+"\n") {
					lost = append(lost, opt)
				}
			}
			if len(lost) > 0 {
				script = append(script, "\n"+dead.kind.call("set")+" +e +u\n"...)
			}
		}
	}
	if at := bytes.LastIndex(script, []byte(onecmd)); at >= 0 { // a shell with it would end after its first line
		script[at+len("\nset ")] = '+'
		lost = append(lost, "onecmd")
	}
	if s.stale && dead.exit == nil {
		lost = slices.Clone(allState)
	} else if !dead.kind.lists && s.funcs {
		lost = append(lost, "functions")
	}
	p, err := s.spawnPatiently(script)
	if err != nil && script != nil {
		s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("state could not be put back")
		lost, script = slices.Clone(allState), nil
		p, err = s.spawn(nil)
		s.st.forget()
	}
	switch {
	case err != nil || script == nil:
	case p.state == nil && p.kind.lists: // there is a function that does not read back
		lost = Union(lost, []string{"functions", "options"})
	case p.state == nil:
		lost = Union(lost, []string{"aliases", "options"})
	case *p.state != 0:
		lost = Union(lost, []string{"working_dir"})
	}
	s.mu.Lock()
	s.p = p
	if !slices.Contains(s.left, dead.cell) {
		s.left = append(s.left, dead.cell)
	}
	s.mu.Unlock()
	s.changed()
	if dead.cell.Remove() { // not before: a gateway that took over in between would look for the dead shell in it
		s.mu.Lock()
		s.left = slices.DeleteFunc(s.left, func(c KeptCell) bool { return c == dead.cell })
		s.mu.Unlock()
	}
	dead.release()
	s.held().Drop(dead.held...)
	s.st.restored()
	s.trap, s.stale = false, false
	s.b.Metrics.ShellRestores.WithLabelValues(cause).Inc()
	if p != nil {
		s.snapshot(p)
	}
	return lost, err
}

// dropLane closes the pipes kept for the next command.
func (s *Shell) dropLane() {
	if s.lane != nil {
		s.poll.part(slotLane)
		s.lane.close()
		s.lane = nil
	}
}

// partWith leaves what a command started in its cell and moves the shell on.
func (s *Shell) partWith(r *run) {
	old := r.p.cell
	if r.died || r.cell != old {
		return // putBack has seen to it, or there is no shell to part from, or a gateway before us has parted them
	}
	fresh, err := s.group.NewCell()
	if err == nil {
		err = fresh.Adopt(r.p.child.Pid())
	}
	if err != nil {
		s.b.Log.Error().Err(err).Str("session", s.cfg.ID).Msg("cell")
		return
	}
	s.mu.Lock()
	r.p.cell = fresh
	s.left = append(s.left, old)
	s.mu.Unlock()
	s.changed()
}

// held is who holds what must outlive us.
func (s *Shell) held() KeptGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.group
}

// keep remembers who follows the pipes of an ended command, and forgets those that are done.
func (s *Shell) keep(o *outlets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = slices.DeleteFunc(s.late, func(o *outlets) bool { return o.over.Load() })
	s.late = append(s.late, o)
}

// Background lists what earlier commands left running.
func (s *Shell) Background() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pids []int
	s.left = slices.DeleteFunc(s.left, func(c KeptCell) bool {
		m := c.Others(0)
		pids = append(pids, m...)
		return len(m) == 0 && c.Remove()
	})
	return pids
}

// Rest takes a snapshot when one is due. It returns at once, with the time after which to call it again, 0 for none.
func (s *Shell) Rest() time.Duration {
	select {
	case <-s.turn:
	default:
		return 0
	}
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil || s.closing.Load() || !s.st.dirty {
		return 0
	}
	// 0.3 ms for a normal session, but 5 ms for 500 functions and 0.2 s for a 50 MB variable: large ones rest longer.
	if wait := time.Duration(s.st.size()/(64<<10)) * 20 * time.Millisecond; time.Since(s.clean) < wait {
		return wait
	}
	if p.unread() > 0 { // it has not come to it yet that its last command is over
		return min(max(time.Since(s.clean)/4, time.Millisecond), time.Minute) // on a busy machine that takes moments; one that is stopped is not asked often
	}
	s.snapshot(p)
	return 0
}

// snapshot asks for one, unless its file would be larger than the shell may write: that would end it (`ulimit -f`).
func (s *Shell) snapshot(p *shellProc) {
	var most unix.Rlimit
	err := unix.Prlimit(p.child.Pid(), unix.RLIMIT_FSIZE, nil, &most)
	if s.clean = time.Now(); err == nil && most.Cur < uint64(max(2*s.st.size(), leastSnapshot)) {
		s.stale = true
		s.st.dirty = false
		return
	}
	s.stale = false
	s.st.ask(p)
}

// leastSnapshot is more than what a plain shell has to say.
const leastSnapshot = 32 << 10

// Revive replaces a shell that died while no command ran.
func (s *Shell) Revive() (lost []string, err error) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil || s.closing.Load() {
		return nil, ErrShellGone
	}
	if !p.dead() {
		return nil, nil
	}
	return s.putBack(p)
}

// Reset gives the session a fresh shell, everything of the old one killed. No Run may be going on.
func (s *Shell) Reset(ctx context.Context, dir string, env []string) error {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	if s.closing.Load() {
		return ErrShellGone
	}
	if err := s.end(ctx); err != nil {
		return err
	}
	s.st.forget()
	s.trap, s.funcs, s.stale = false, false, false
	group, err := s.b.Keeper.Group(s.cfg.ID)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.group, s.cfg.Dir, s.cfg.Env = group, dir, env
	limits := s.cfg.Limits
	s.mu.Unlock()
	s.dropGauge()
	if err := group.Limit(limits); err != nil {
		return err
	}
	p, err := s.spawn(nil)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.p = p
	s.mu.Unlock()
	s.changed()
	return nil
}

// end kills everything of the session and lets go of the shell process.
func (s *Shell) end(ctx context.Context) error {
	s.mu.Lock()
	group := s.group
	s.mu.Unlock()
	if err := group.Close(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	late, procs, terms, p := s.late, s.procs, maps.Clone(s.terms), s.p // a terminal takes itself out
	s.late, s.procs, s.p, s.left = nil, map[*Process]struct{}{}, nil, nil
	s.mu.Unlock()
	for pr := range procs {
		pr.dispose()
	}
	for t := range terms {
		t.dispose()
	}
	for _, o := range late {
		o.close()
	}
	if p != nil {
		p.release()
		group.Drop(p.held...)
	}
	return nil
}

// A closing is a Close at work, which others wait for.
type closing struct {
	done chan struct{} // closed when it has returned
	err  error         // what it returned; once done
}

// killBound is how long a KILL may take: what is in an uninterruptible sleep after that is reported, not waited for.
const killBound = 30 * time.Second

// Close ends the session: HUP to the shell and TERM to all else, grace, KILL. Nothing of it is left when it returns nil.
// A Run that is going on returns. Called again meanwhile, it waits for the same end, with the smaller grace.
func (s *Shell) Close(grace time.Duration) (err error) {
	until := time.Now().Add(grace)
	s.mu.Lock()
	if s.closed != nil {
		if until.Before(s.killAt) {
			s.killAt = until
		}
		first := s.closed
		s.mu.Unlock()
		<-first.done
		return first.err
	}
	c := &closing{done: make(chan struct{})}
	s.closed, s.killAt = c, until
	s.closing.Store(true)
	group, p := s.group, s.p
	terms := slices.Collect(maps.Keys(s.terms))
	s.mu.Unlock()
	defer func() { c.err = err; close(c.done) }()
	if group != nil && grace > 0 {
		for _, t := range terms { // interactive shells ignore TERM; a stopped program takes no signal else
			t.Signal(syscall.SIGHUP)
			t.Signal(syscall.SIGCONT)
		}
		shell := 0
		if p != nil {
			shell = p.child.Pid()
			_ = p.child.Signal(syscall.SIGHUP) // an interactive shell ignores TERM; at HUP it runs its EXIT trap
		}
		group.Signal(syscall.SIGTERM, shell)
		for wait := 500 * time.Microsecond; len(group.Members()) > 0 && time.Now().Before(s.deadline()); wait = min(2*wait, 20*time.Millisecond) {
			time.Sleep(wait)
		}
		if len(group.Members()) > 0 {
			s.b.Metrics.KillEscalations.Inc()
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), killBound)
	defer cancel()
	if group != nil {
		if err := group.Close(ctx); err != nil {
			s.mu.Lock()
			s.closed = nil // it can be tried again
			s.mu.Unlock()
			return err
		}
	}
	s.wake()
	<-s.turn // a Run sees the death of its shell
	err = s.end(ctx)
	s.dispose()
	s.turn <- struct{}{} // who comes late finds no shell
	return err
}

func (s *Shell) deadline() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killAt
}

// dispose closes what is left when no process is.
func (s *Shell) dispose() {
	if s.group != nil && s.p == nil {
		_ = s.group.Close(context.Background())
	}
	if s.st != nil {
		s.st.close()
		if s.group != nil && len(s.st.held) > heldBook {
			s.group.Drop(s.st.held[:heldBook]...)
		}
	}
	s.dropLane()
	s.dropGauge()
	shut(&s.event)
	s.poll.close()
	if s.group != nil {
		s.group.Vacate()
	}
}

// Ledger is where the session's owner writes down what a successor needs.
func (s *Shell) Ledger() *ledger.Ledger { return s.st.book }

// Forget gives back what is held for a session that was closed: the output of its commands above all.
func (s *Shell) Forget() {
	s.outputs.close()
	if s.st != nil {
		s.st.book.Close()
	}
	if group := s.held(); group != nil {
		group.DropAll()
	}
}

func signalName(s syscall.Signal) string { return protocol.SignalName(s) }

// ignores says whether a signal would be lost on pid right now.
func ignores(pid int, sig syscall.Signal) bool {
	text, err := slurp(procPath(pid, "/status"), make([]byte, 4<<10))
	return err == nil && statusMask(text, "SigIgn:")>>(sig-1)&1 == 1
}
