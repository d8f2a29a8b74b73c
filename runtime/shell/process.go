package shell

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/escalate"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/saved"
	"trl/runtime/stream"
)

// ProcessSpec describes a background process.
type ProcessSpec struct {
	Text      string
	Dir       string
	Env       map[string]*string
	OpenStdin bool
	Journal   *journal.Journal // closed when no process holds the output pipes any more
}

// Process is a background process with its own scope. Shell.PrepareProcess makes it. One goroutine waits for its end
// (watchChild, watchCopy), and a Copier copies its output. It ends by itself, by Kill, or with its session.
type Process struct {
	files        stream.HeldFiles
	child        own.KeptChild // nil for a shell's copy; set once
	mu           sync.Mutex
	b            *Base
	s            *Shell // its session's shell
	scope        own.KeptScope
	scopeRemoved bool // guarded by mu
	pid          int
	stdin        *stream.Stdin // its stdin; nil if it has none
	pipes        *stream.Pipes
	copier       *stream.Copier
	exited       chan struct{} // closed by finish, after the output is in the journal

	inputToken chan struct{} // one token: the stdin buffer has more; nil without stdin
	feederDone chan struct{} // closed when the feeder has ended; nil without stdin
	status     own.Status    // set before exited is closed
	saved      saved.Process // set once in Start
}

// PrepareProcess makes a background process with the session's present state: directory, variables, functions. Its text does not run
// before Start, so that the caller can write an entry first.
//
// A fresh bash or zsh reads a snapshot. A POSIX shell cannot list its functions, so a shell that may have functions forks a copy of
// itself. The copy ignores INT and QUIT, as POSIX requires for a command that is started with `&`.
func (s *Shell) PrepareProcess(spec ProcessSpec) (*Process, error) {
	if spec.Dir != "" {
		if err := s.currentGroup().Enterable(spec.Dir); err != nil {
			return nil, err
		}
	}
	here := s.checkShellDir()
	sp, free, giveBack, err := s.tryTurn()
	if err != nil {
		return nil, err
	}
	defer giveBack()
	s.mu.Lock()
	group, cfg := s.group, s.cfg
	s.mu.Unlock()
	scope, err := group.NewScope()
	if err != nil {
		return nil, err
	}
	p := &Process{b: s.b, s: s, files: stream.HeldFiles{Owner: "process", Group: group}, scope: scope, copier: stream.NewCopier(spec.Journal), exited: make(chan struct{})}
	spec.Journal.OnRoom(p.copier.OnRoom)
	byCopy := free && !sp.dialect.ListsFunctions && s.mayHaveFunctions.Load() && !sp.dead()
	if err = p.makePipes(s.streamLogs, spec.Journal, spec.OpenStdin, !byCopy); err == nil {
		var text int
		var before string
		if text, err = p.files.HoldAtGate([]byte(sp.dialect.FileText(spec.Text, ""))); err == nil {
			before, err = envAndDirScript(sp.dialect, spec.Env, spec.Dir, group.Dir(), p.files.HoldText)
		}
		if err == nil {
			if before != "" {
				before = "{ " + before + "} 2>/dev/null\n" // keeps the trace of these lines (set -x) out of the process's output
			}
			script := before + sp.dialect.RunLine(group.Dir()+"/"+strconv.Itoa(text)) + "\n"
			if byCopy {
				err = p.startCopy(s, sp, script)
			} else {
				err = p.startFresh(s, sp, cfg, script, spec.Dir, free, here)
			}
		}
	}
	if err != nil {
		if !scope.Remove() {
			_ = scope.Kill(0)
			scope.Remove()
		}
		p.copier.Start()
		p.copier.Stop()
		p.files.CloseFiles()
		p.Release()
		if p.pipes != nil {
			p.pipes.Close()
		}
		if p.stdin != nil {
			p.stdin.Close()
		}
		return nil, err
	}
	p.saved.Pid, p.saved.Scope, p.saved.Pipes, p.saved.Span = p.pid, scope.Number(), p.pipes.Saved(), spec.Journal.Span()
	p.saved.Held = p.files.Files()
	_, p.saved.Gate = p.files.GateNumbers()
	p.copier.Start()
	if p.stdin != nil {
		go p.feed() // writes what Input gives; ends with the process; dispose waits for it
	}
	s.mu.Lock()
	s.procs[p] = struct{}{}
	s.mu.Unlock()
	return p, nil
}

// Start lets the process run.
func (p *Process) Start() { p.files.OpenGate() }

// makePipes makes the process's pipes. With inherited, a child is started with their ends; otherwise the process opens them.
func (p *Process) makePipes(of *stream.Logs, j *journal.Journal, stdin, inherited bool) (err error) {
	if p.pipes, err = stream.NewPipes(p.files.Group, of, inherited); err != nil {
		return err
	}
	p.pipes.Log().AttachJournal(j, 0, 0)
	if err := p.copier.TakePipes(p.pipes); err != nil {
		return fmt.Errorf("output pipes: %w", err)
	}
	if !stdin {
		return nil
	}
	if p.stdin, err = stream.NewStdin(p.files.Group, inherited); err != nil {
		return err
	}
	p.inputToken, p.feederDone = make(chan struct{}, 1), make(chan struct{})
	p.saved.Stdin = p.stdin.Files()
	return nil
}

// startFresh starts a new shell that reads the state and then script. ownDir is the directory that script changes to, "" for none.
func (p *Process) startFresh(s *Shell, sp *shellProc, cfg ShellConfig, script, ownDir string, free bool, here checkedDir) error {
	state, lost, err := s.stateScript(sp, free, p.files.HoldText)
	if err != nil {
		return err
	}
	if !sp.dialect.ListsFunctions && s.mayHaveFunctions.Load() {
		lost = Union(lost, []string{"functions"})
	}
	p.saved.Lost = lost
	dir, gone, err := s.enterableDir(sp, cfg, state, here)
	if err != nil {
		return err
	}
	if ownDir == "" && s.changesDir(sp, state, gone, free, lost) {
		script = dialect.CdBack(sp.dialect, dir) + script
	}
	argv, err := dialect.ScriptArgs(cfg.Path, gateLine(sp.dialect, &p.files)+state+script)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{null, null, null}
	stdin := -1
	if p.stdin != nil {
		stdin = p.stdin.ReadEnd()
	}
	w := p.pipes.WriteEnds()
	for i, fd := range []int{stdin, w[0], w[1]} {
		if fd < 0 {
			continue
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		files[i] = os.NewFile(uintptr(dup), "stdio")
		defer files[i].Close()
	}
	child, err := p.scope.Spawn(own.Spec{Path: cfg.Path, Argv: argv, Env: cfg.Env, Dir: dir, Files: files})
	if err != nil {
		return err
	}
	p.pid = child.Pid()
	p.pipes.CloseWriters()
	p.watchChild(child)
	return nil
}

func (p *Process) watchChild(child own.KeptChild) {
	p.child = child
	go func() { // ends with the child; the session's end waits for exited
		<-child.Exited()
		p.status = child.Status()
		p.finish()
	}()
}

// startCopy makes the shell fork a copy of itself. The copy waits at the gate until it is in its own scope.
func (p *Process) startCopy(s *Shell, sp *shellProc, script string) error {
	made, err := p.files.MakeChannels(own.MemFile, own.MemFile)
	if err != nil {
		return err
	}
	text, status := made[0], made[1]
	if err := descriptor.WriteMemfd(text.W, []byte(script)); err != nil {
		return err
	}
	in := os.DevNull
	if p.stdin != nil {
		in = p.files.Group.Dir() + "/" + strconv.Itoa(p.stdin.FileNumber())
	}
	gate, _ := p.files.GateNumbers()
	s.seq++
	tag := strconv.Itoa(s.seq)
	end := time.Now().Add(bootTimeout)
	sp.sendBy(end, fmt.Sprintf("\\__trl_j %s %d %d %d %d %d %s\n", in, p.pipes.WriteEnd(0), p.pipes.WriteEnd(1), text.FileNumber, status.FileNumber, gate, tag))
	r, ok := sp.awaitVerb('j', tag, end)
	if !ok {
		return fmt.Errorf("shell did not start a copy: %w", ErrShellGone)
	}
	start, ok := procfs.Read(r.Val)
	if !ok || start.Ppid != sp.child.Pid() {
		return fmt.Errorf("copy of the shell: %w", unix.ESRCH)
	}
	if err := p.scope.AddForkedCopy(r.Val); err != nil {
		return err
	}
	p.pid = r.Val
	p.saved.Copy, p.saved.Start, p.saved.Status = true, start.Start, status.HeldW
	return p.watchCopy(status.W, start.Start)
}

// watchCopy waits for the end of a copy of the shell. The copy is not the keeper's child, so its status comes from the file status.
func (p *Process) watchCopy(status int, start uint64) error {
	pidfd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("copy of the shell: %w", err)
	}
	var f *os.File
	if err == nil {
		f = os.NewFile(uintptr(pidfd), "pidfd")
		if now, ok := procfs.Read(p.pid); !ok || now.Start != start { // the copy has ended, and another process has its pid
			f.Close()
			f = nil
		}
	}
	go func() { // ends when the copy has exited; the session's end waits for exited
		if f != nil {
			descriptor.WaitPidfd(f)
			f.Close()
		}
		p.status = own.SignalStatus(syscall.SIGKILL)
		var b [64]byte
		if n, _ := unix.Pread(status, b[:], 0); n > 2 {
			code, _ := strconv.Atoi(strings.TrimSpace(string(b[2:n])))
			p.status = own.Status{Code: code, Signal: protocol.ExitCodeSignal(code)}
		}
		p.finish()
	}()
	return nil
}

// finish ends a process: it waits for the last output and then closes exited.
func (p *Process) finish() {
	p.files.CloseFiles()
	p.pipes.CloseWriters()
	p.copier.CatchUp(catchUpBound)
	p.removeScope()
	close(p.exited)
}

// removeScope removes the scope, unless that is done.
func (p *Process) removeScope() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scopeRemoved = p.scopeRemoved || p.s.removeScope(p.scope)
}

// catchUpBound is how long the end of a process waits for readers that keep its journal full.
const catchUpBound = time.Minute

// Release drops what the keeper holds for a process. It is called after the end was written to the session log, because until then
// the next gateway may need it.
func (p *Process) Release() {
	if p.child != nil {
		p.child.Close()
	}
	p.files.Release()
}

// Saved returns what the next gateway must know of the process.
func (p *Process) Saved() saved.Process { return p.saved }

// Pid returns the pid of the process. For a copy of a POSIX shell it is the pid of the process that waits for the copy.
func (p *Process) Pid() int { return p.pid }

// Exited returns a channel that is closed when the process has ended and its output is in the journal.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status returns how the process ended. It is valid after Exited.
func (p *Process) Status() own.Status { return p.status }

// Ports returns the TCP ports on which the process, or a process that it started, accepts connections. It returns none if we may not
// look.
func (p *Process) Ports() []int {
	if p.scope == nil { // it ended under an earlier gateway
		return nil
	}
	return procfs.Ports(p.scope.MembersExcept(0))
}

// Input adds a piece that begins at offset at to the process's stdin, and returns where the input ends then. It never waits.
func (p *Process) Input(at int64, b []byte, eof bool) (end int64, err error) {
	if p.stdin == nil || p.hasExited() {
		return 0, stream.ErrStdinClosed
	}
	if end, err = p.stdin.Add(at, b, eof); err != nil {
		return 0, err
	}
	putToken(p.inputToken)
	return end, nil
}

// feed writes input into the pipe whenever there is input and room. A session can block it in a call on the pipe. So feed closes the
// stdin buffer itself, and the end of the process need not wait for it.
func (p *Process) feed() {
	defer close(p.feederDone)
	defer p.stdin.Close()
	for {
		for p.stdin.Feed() {
			if !p.stdin.AwaitRoom(p.exited) {
				return
			}
		}
		select {
		case <-p.inputToken:
		case <-p.exited:
			return
		}
	}
}

func (p *Process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// Signal sends sig to the process and to all processes that it started.
func (p *Process) Signal(sig syscall.Signal) error {
	if p.hasExited() {
		return os.ErrProcessDone
	}
	p.scope.Signal(sig, 0)
	return nil
}

// Kill ends the process and all processes that it started: it sends TERM, and KILL after grace. It returns when none is left.
func (p *Process) Kill(ctx context.Context, grace time.Duration) error {
	terminate := escalate.Step{Signal: func() { p.scope.Signal(syscall.SIGTERM, 0) }, Until: escalate.At(time.Now().Add(grace))}
	if !escalate.Run(ctx, p.b.Metrics.KillEscalations.Inc, p.isOver, terminate) {
		if p.child != nil {
			_ = p.child.Signal(syscall.SIGKILL) // a process of root may have left the scope
		}
		if err := p.scope.Kill(0); err != nil {
			return err
		}
	}
	<-p.exited
	p.removeScope()
	return nil
}

// isOver tells whether the process has exited and its scope is empty.
func (p *Process) isOver() bool {
	exited := (<-chan struct{})(p.exited)
	if p.child != nil {
		exited = p.child.Exited() // not p.exited, because the last output may take longer
	}
	select {
	case <-exited:
		return len(p.scope.MembersExcept(0)) == 0
	default:
		return false
	}
}

// dispose is called when the session's processes are all dead.
func (p *Process) dispose() {
	select {
	case <-p.exited:
	case <-time.After(time.Second): // a client does not read the last output; the session does not wait for it
	}
	p.copier.Stop()
	<-p.exited
	if p.feederDone != nil {
		<-p.feederDone
	}
}
