package shell

import (
	"context"
	"os"
	"syscall"
	"time"

	"trl/runtime/dialect"
	"trl/runtime/escalate"
	"trl/runtime/journal"
	"trl/runtime/namedshell"
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/stream"
	"trl/runtime/terminal"
)

// TerminalSpec describes a terminal.
type TerminalSpec struct {
	Text       string // "": the session's shell, interactive
	Dir        string
	Env        map[string]*string
	Cols, Rows int
	Nonce      string           // nonce of our marks, see termshell.go
	Journal    *journal.Journal // closed when the terminal has ended
}

// Terminal is a PTY and the processes in it, in their own scope. Shell.PrepareTerminal makes it. Its first process leads a process
// session that the PTY controls. A Copier copies its output, and one goroutine (watch) waits for its end. The terminal ends with its
// first process, which ends by itself, by Close, or with the trl session.
type Terminal struct {
	files      stream.HeldFiles
	child      own.KeptChild // set once
	b          *Base
	scope      own.KeptScope
	pid        int
	pty        *stream.PTY
	journal    *journal.Journal
	stdin      *stream.Stdin
	inputToken chan struct{}  // one token: the stdin buffer has more than the PTY took
	copier     *stream.Copier // copies the output, and closes the journal at its end
	stop       chan struct{}  // closed by close; it ends feedInput
	inputDone  chan struct{}  // closed when feedInput has ended
	exited     chan struct{}  // closed by watch, after all of the output is in the journal
	startup    string         // text of the startup file that the first process inherits; "": none. Only begin uses it
	scratch    string         // directory to remove at the end; "" for none
	status     own.Status     // set before exited is closed
	saved      saved.Terminal
}

// PrepareTerminal opens a terminal in the session's present directory, with the session's exported variables. If it runs a command
// instead of a shell, the command has the session's functions, too, as far as a Process has them. The command does not run before
// Start, so that the caller can write an entry first.
func (s *Shell) PrepareTerminal(spec TerminalSpec) (*Terminal, error) {
	if spec.Dir != "" {
		if err := s.currentGroup().Enterable(spec.Dir); err != nil {
			return nil, err
		}
	}
	named, err := namedshell.Find(s.cfg.ID, spec.Text) // before the turn is taken, because the file system may not answer
	if err != nil {
		return nil, err
	}
	here := s.checkShellDir()
	sp, free, done, err := s.tryTurn()
	if err != nil {
		return nil, err
	}
	defer done()
	s.mu.Lock()
	group, cfg := s.group, s.cfg
	s.mu.Unlock()
	t := newTerminal(s.b, group, nil, spec.Journal)
	child, err := t.begin(s, sp, cfg, spec, free, named, here)
	if err == nil {
		_, gate := t.files.GateNumbers()
		t.saved = saved.Terminal{
			Pid: t.pid, Scope: t.scope.Number(), PTY: t.pty.Saved(), Span: t.journal.Span(), Stdin: t.stdin.Files(),
			Held: t.files.Files(), Gate: gate, Scratch: t.scratch, Lost: t.saved.Lost,
		}
		s.addTerminal(t, child)
		return t, nil
	}
	t.journal.Close()
	t.close()
	t.Release()
	return nil, err
}

// Start lets the terminal's command run.
func (t *Terminal) Start() { t.files.OpenGate() }

func newTerminal(b *Base, group own.KeptGroup, scope own.KeptScope, j *journal.Journal) *Terminal {
	t := &Terminal{
		b: b, files: stream.HeldFiles{Owner: "terminal", Group: group}, scope: scope, journal: j, inputToken: make(chan struct{}, 1), copier: stream.NewCopier(j), stop: make(chan struct{}),
		inputDone: make(chan struct{}), exited: make(chan struct{}),
	}
	j.OnRoom(t.copier.OnRoom)
	return t
}

// putToken puts a token into c, unless c has one.
func putToken(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// prepare returns how to start the terminal's first process, without its files.
func (t *Terminal) prepare(s *Shell, sp *shellProc, cfg ShellConfig, spec TerminalSpec, free bool, named namedshell.Shell, here checkedDir) (own.Spec, error) {
	script, lost, err := s.stateScript(sp, free, t.files.HoldText)
	if err != nil {
		return own.Spec{}, err
	}
	dir, gone, err := s.enterableDir(sp, cfg, script, here)
	if err != nil {
		return own.Spec{}, err
	}
	if gone && t.files.Group.Enterable(dir) != nil { // the prompt shows the user the directory
		dir = "/"
	}
	argv, env, err := t.direct(sp, cfg, spec, named, script, gone, lost)
	if err != nil {
		return own.Spec{}, err
	}
	path := cfg.Path
	if argv != nil {
		path = argv[0]
	} else if argv, lost, err = t.byScript(s, sp, cfg, spec, named, script, dir, gone, free, lost); err != nil {
		return own.Spec{}, err
	}
	t.saved.Lost = lost
	return own.Spec{Path: path, Argv: argv, Env: env, Dir: dir, TTY: true}, nil
}

// begin starts the terminal's first process, or lets a bash go on that has been started before.
func (t *Terminal) begin(s *Shell, sp *shellProc, cfg ShellConfig, spec TerminalSpec, free bool, named namedshell.Shell, here checkedDir) (own.KeptChild, error) {
	first, err := t.prepare(s, sp, cfg, spec, free, named, here)
	if err != nil {
		return nil, err
	}
	f, ok := s.warmTerminal.Swap(nil).Use(first, t.startup, spec.Cols, spec.Rows)
	if !ok {
		startup, err := t.startupFile()
		if err != nil {
			return nil, err
		}
		defer startup.Close() // does nothing to nil
		if f, err = terminal.Start(t.files.Group, s.streamLogs, first, startup, spec.Cols, spec.Rows); err != nil {
			return nil, err
		}
	}
	t.pty, t.stdin, t.scope, t.pid = f.PTY, f.Stdin, f.Scope, f.Child.Pid()
	t.pty.Log().AttachJournal(t.journal, 0, 0)
	return f.Child, nil
}

// byScript returns the arguments of a shell that reads the session's state, and then becomes an interactive shell or runs the command.
func (t *Terminal) byScript(s *Shell, sp *shellProc, cfg ShellConfig, spec TerminalSpec, named namedshell.Shell, script, dir string, gone, free bool, lost []string) (argv, nowLost []string, err error) {
	back := ""
	if spec.Dir == "" && s.changesDir(sp, script, gone, free, lost) {
		back = dialect.CdBack(sp.dialect, dir)
	}
	rest, interactive, err := t.script(sp, cfg, spec, named, back)
	if err != nil {
		return nil, nil, err
	}
	if !interactive && !sp.dialect.ListsFunctions && s.mayHaveFunctions.Load() {
		lost = Union(lost, []string{"functions"})
	}
	argv, err = dialect.ScriptArgs(cfg.Path, script+rest)
	return argv, lost, err
}

// addTerminal starts the terminal's goroutines and adds it to the session.
func (s *Shell) addTerminal(t *Terminal, child own.KeptChild) {
	t.copier.UsePTY(t.pty)
	t.copier.Start()
	go func() { // ends when stop is closed; close waits for it
		defer close(t.inputDone)
		t.feedInput()
	}()
	s.mu.Lock()
	s.terms[t] = struct{}{}
	s.mu.Unlock()
	t.child = child
	go t.watch(s) // ends with the child; the session's end waits for exited
}

// watch waits for the end of the first process and then ends the terminal, after its last output. The kernel takes the terminal from
// all processes when the first one ends, so only a daemon that forgot to close it still has it open.
func (t *Terminal) watch(s *Shell) {
	<-t.child.Exited()
	t.status = t.child.Status()
	t.pty.CloseSlave()
	t.copier.CatchUp(catchUpBound)
	t.close()
	s.removeScope(t.scope)
	s.mu.Lock()
	delete(s.terms, t)
	s.mu.Unlock()
	close(t.exited)
}

// close ends the goroutines and closes our descriptors. It is called once.
func (t *Terminal) close() {
	close(t.stop)
	t.copier.Stop()
	if t.pty != nil {
		t.pty.Close()
	}
	if t.pid != 0 { // otherwise feedInput was never started
		<-t.inputDone
	}
	if t.stdin != nil {
		t.stdin.Close()
	}
	t.files.CloseFiles()
	t.clear()
}

func (t *Terminal) clear() {
	if t.scratch != "" {
		_ = os.RemoveAll(t.scratch)
	}
}

// Release drops what the keeper holds for a terminal. It is called after the end was written to the session log.
func (t *Terminal) Release() {
	if t.child != nil {
		t.child.Close()
	}
	t.files.Release()
	if t.pty != nil {
		t.pty.Release()
	}
}

// Pid returns the pid of the first process.
func (t *Terminal) Pid() int { return t.pid }

// Saved returns what the next gateway must know of the terminal.
func (t *Terminal) Saved() saved.Terminal { return t.saved }

// Exited returns a channel that is closed when the terminal has ended and its output is in the journal, which is closed by then.
func (t *Terminal) Exited() <-chan struct{} { return t.exited }

// Status returns how the first process ended. It is valid after Exited.
func (t *Terminal) Status() own.Status { return t.status }

// Resize sets the terminal's size.
func (t *Terminal) Resize(cols, rows int) error { return t.pty.Resize(cols, rows) }

// Size returns the terminal's size.
func (t *Terminal) Size() (cols, rows int) { return t.pty.Size() }

// Input adds a piece that begins at offset at to the terminal's input, and returns where the input ends then. It never waits. Input
// that the terminal does not take now stays in the stdin buffer, which survives the gateway.
func (t *Terminal) Input(at int64, p []byte) (end int64, err error) {
	if err := stream.CheckOffset(at, t.stdin.End()); err != nil { // first: input that is there already may have been taken in another mode
		return 0, err
	}
	if err := t.pty.CheckLines(p); err != nil {
		return 0, err
	}
	if end, err = t.stdin.Add(at, p, false); err != nil {
		return 0, err
	}
	if t.pty.TryFeed(t.stdin) {
		putToken(t.inputToken)
	}
	return end, nil
}

// feedInput moves the input that Input could not move. It is the body of a goroutine.
func (t *Terminal) feedInput() {
	for {
		select {
		case <-t.inputToken:
		case <-t.stop:
			return
		}
		if t.pty.Feed(t.stdin) != nil {
			return // closed
		}
	}
}

// Busy tells whether a process other than the first one runs in the terminal. It asks the operating system.
func (t *Terminal) Busy() bool { return len(t.scope.MembersExcept(t.pid)) > 0 }

// Signal sends sig to all processes in the terminal.
func (t *Terminal) Signal(sig syscall.Signal) { t.scope.Signal(sig, 0) }

// hangUpTime is the time between HUP and TERM, unless half of the grace is less. Shells and editors end within milliseconds of HUP.
// Programs that ignore HUP have the rest of the grace after TERM.
const hangUpTime = 500 * time.Millisecond

// Close ends the terminal and all processes in it: it sends HUP, then TERM, and KILL after grace. It returns when none is left.
func (t *Terminal) Close(ctx context.Context, grace time.Duration) error {
	begun := time.Now()
	step := func(sig syscall.Signal, time time.Duration) escalate.Step {
		return escalate.Step{Signal: func() {
			t.scope.Signal(sig, 0)
			t.scope.Signal(syscall.SIGCONT, 0) // a stopped program (Ctrl-Z) handles no other signal before CONT
		}, Until: escalate.At(begun.Add(time))}
	}
	var steps []escalate.Step
	if grace > 0 {
		steps = []escalate.Step{step(syscall.SIGHUP, min(hangUpTime, grace/2)), step(syscall.SIGTERM, grace)}
	}
	if !escalate.Run(ctx, t.b.Metrics.KillEscalations.Inc, func() bool { return len(t.scope.MembersExcept(0)) == 0 }, steps...) {
		if err := t.scope.Kill(0); err != nil {
			return err
		}
	}
	if t.child != nil {
		_ = t.child.Signal(syscall.SIGKILL) // a process of root may have left the scope
	}
	<-t.exited
	return nil
}

// dispose is called when the session's processes are all dead.
func (t *Terminal) dispose() {
	select {
	case <-t.exited:
	case <-time.After(time.Second): // a client does not read the last output; the session does not wait for it
		t.copier.Stop()
	}
	<-t.exited
}

// Terminal restores a terminal. Its first process may have ended meanwhile. Its journal j has been restored before.
func (a *Adoption) Terminal(r saved.Terminal, j *journal.Journal) (*Terminal, error) {
	child := a.from.Children[r.Pid]
	if child == nil {
		j.Close()
		return nil, ErrShellGone
	}
	delete(a.from.Children, r.Pid)
	t := newTerminal(a.b, a.from.Group, a.scope(r.Scope), j)
	t.pid, t.saved, t.scratch = r.Pid, r, r.Scratch
	var err error
	if t.pty, err = a.PTY(r.PTY); err != nil {
		j.Close()
		return nil, err
	}
	if t.stdin = a.Stdin(r.Stdin); t.stdin == nil {
		t.pty.Close()
		t.pty.Release()
		j.Close()
		return nil, ErrShellGone
	}
	t.files.Restore(a.Restorer, r.Held, r.Gate)
	putToken(t.inputToken)
	a.shell.addTerminal(t, child)
	return t, nil
}

// EndedTerminal returns a Terminal for one that had ended. Processes that it started may still run.
func (a *Adoption) EndedTerminal(r saved.Terminal, status own.Status) *Terminal {
	t := &Terminal{b: a.b, files: stream.HeldFiles{Group: a.from.Group}, scope: a.scope(r.Scope), pid: r.Pid, exited: make(chan struct{}), status: status, saved: r, scratch: r.Scratch}
	t.clear() // the last gateway may have been killed before it did
	a.shell.removeScope(t.scope)
	close(t.exited)
	return t
}
