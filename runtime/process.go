package runtime

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
)

// ProcessSpec is a background command.
type ProcessSpec struct {
	Text      string
	Dir       string
	Env       map[string]*string
	OpenStdin bool
	Journal   *journal.Journal // closed when nobody holds the process's output any more
	Began     func(*Process)   // is told of it before it runs, so that it is written down by then; may be nil
}

// Process is a background command with a cell of its own, started by Shell.Start. One goroutine (watch) waits for its
// end; outlets follow its output. It ends by itself, by Kill, or with its session.
type Process struct {
	belongings
	b      *Base
	s      *Shell // whose it is
	cell   KeptCell
	swept  bool // guarded by mu
	pid    int
	in     *inlet // its stdin, nil when it has none
	lane   *lane
	out    *outlets
	exited chan struct{} // closed by watch, after the output is in the journal

	given  chan struct{} // one token: the inlet has more; nil without stdin
	fed    chan struct{} // closed when the feeder has ended; nil without stdin
	status Status        // set before exited is closed
	record ProcessRecord // set once in Start
}

// Start starts a background command from the session's present state: directory, variables, functions. A fresh bash or
// zsh reads a snapshot; a POSIX shell that may have functions, which it cannot list, makes a copy of itself, which
// ignores INT and QUIT, as POSIX has it for what is started with `&`.
func (s *Shell) Start(spec ProcessSpec) (*Process, error) {
	if spec.Dir != "" {
		if err := s.held().Enterable(spec.Dir); err != nil {
			return nil, err
		}
	}
	here := s.lookAround()
	sp, free, giveBack := s.borrow()
	defer giveBack()
	if sp == nil {
		return nil, ErrShellGone
	}
	s.mu.Lock()
	group, cfg := s.group, s.cfg
	s.mu.Unlock()
	cell, err := group.NewCell()
	if err != nil {
		return nil, err
	}
	p := &Process{b: s.b, s: s, belongings: belongings{of: "process", group: group}, cell: cell, out: newOutlets(spec.Journal, &s.outputs), exited: make(chan struct{})}
	spec.Journal.OnRoom(p.out.roomy)
	byCopy := free && !sp.kind.lists && s.funcs.Load() && !sp.dead()
	if err = p.pipes(&s.outputs, spec.OpenStdin, !byCopy); err == nil {
		var text int
		var own string
		if text, err = p.holdBack([]byte(sp.kind.file(spec.Text, ""))); err == nil {
			own, err = ownScript(sp.kind, spec.Env, spec.Dir, group.Dir(), p.hold)
		}
		if err == nil {
			if own != "" {
				own = "{ " + own + "} 2>/dev/null\n" // what the session traces is not the process's
			}
			script := own + sp.kind.run(group.Dir()+"/"+strconv.Itoa(text)) + "\n"
			if byCopy {
				err = p.copyOf(s, sp, script)
			} else {
				err = p.fresh(s, sp, cfg, script, spec.Dir, free, here)
			}
		}
	}
	if err != nil {
		if !cell.Remove() {
			_ = cell.Kill(0)
			cell.Remove()
		}
		p.out.start()
		p.out.close()
		p.closeFiles()
		p.Release()
		if p.lane != nil {
			p.lane.close()
		}
		if p.in != nil {
			p.in.close()
		}
		return nil, err
	}
	p.record.Pid, p.record.Cell, p.record.Lane, p.record.Span = p.pid, cell.Number(), p.lane.record(), spec.Journal.Span()
	p.record.Held, p.record.Gate = p.known, p.gate.NW
	p.out.start()
	if p.in != nil {
		go p.feed() // writes what Input gives; ends with the process; dispose waits for it
	}
	s.mu.Lock()
	s.procs[p] = struct{}{}
	s.mu.Unlock()
	if spec.Began != nil {
		spec.Began(p)
	}
	p.letGo()
	return p, nil
}

// pipes makes what the process is connected with; inherited: a child will be given its ends, not open them.
func (p *Process) pipes(of *outputs, stdin, inherited bool) (err error) {
	if p.lane, err = newLane(p.group, of, inherited); err != nil {
		return err
	}
	p.lane.log.carry(p.out.j, 0, 0)
	p.out.ended = p.lane.close
	for i := range p.lane.r {
		if err := p.out.add(p.lane.take(i), journal.Stdout+journal.Stream(i)); err != nil {
			return err
		}
	}
	if !stdin {
		return nil
	}
	if p.in, err = newInlet(p.group, inherited); err != nil {
		return err
	}
	p.given, p.fed = make(chan struct{}, 1), make(chan struct{})
	p.record.Stdin = p.in.files
	return nil
}

// fresh starts a new shell that reads the state, then the text, which goes to a directory of its own unless that is "".
func (p *Process) fresh(s *Shell, sp *shellProc, cfg ShellConfig, script, own string, free bool, here place) error {
	state, lost, err := s.stateScript(sp, free, p.hold)
	if err != nil {
		return err
	}
	if !sp.kind.lists && s.funcs.Load() {
		lost = Union(lost, []string{"functions"})
	}
	p.record.Lost = lost
	dir, gone, err := s.enterableDir(sp, cfg, state, here)
	if err != nil {
		return err
	}
	if own == "" && s.leadsAway(sp, state, gone, free, lost) {
		script = backTo(sp.kind, dir) + script
	}
	argv, err := scriptArgs(cfg.Path, p.gateLine(sp.kind)+state+script)
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
	if p.in != nil {
		stdin = p.in.r
	}
	for i, fd := range []int{stdin, p.lane.w[0], p.lane.w[1]} {
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
	child, err := p.cell.Spawn(Spec{Path: cfg.Path, Argv: argv, Env: cfg.Env, Dir: dir, Files: files})
	if err != nil {
		return err
	}
	p.pid = child.Pid()
	p.lane.closeWriters()
	p.watchChild(child)
	return nil
}

func (p *Process) watchChild(child KeptChild) {
	p.child = child
	go func() { // ends with the child; the session's end waits for exited
		<-child.Exited()
		p.status = child.Status()
		p.finish()
	}()
}

// copyOf lets the shell fork itself. The copy waits at a gate until it is in its own cell.
func (p *Process) copyOf(s *Shell, sp *shellProc, script string) error {
	made, err := p.make(MemFile, MemFile)
	if err != nil {
		return err
	}
	text, status := made[0], made[1]
	if err := fill(text.W, []byte(script)); err != nil {
		return err
	}
	in := os.DevNull
	if p.in != nil {
		in = p.group.Dir() + "/" + strconv.Itoa(p.in.port)
	}
	s.seq++
	tag := strconv.Itoa(s.seq)
	end := time.Now().Add(bootTimeout)
	sp.sendBy(end, fmt.Sprintf("\\__trl_j %s %d %d %d %d %d %s\n", in, p.lane.end(0), p.lane.end(1), text.Port, status.Port, p.gate.Port, tag))
	r, ok := sp.awaitVerb('j', tag, end)
	if !ok {
		return fmt.Errorf("shell did not start a copy: %w", ErrShellGone)
	}
	r.val = outerPid(sp.child.Pid(), r.val)
	start, ok := readProc(r.val)
	if !ok || start.ppid != sp.child.Pid() {
		return fmt.Errorf("copy of the shell: %w", unix.ESRCH)
	}
	if err := p.cell.AdoptCopy(r.val); err != nil {
		return err
	}
	p.pid = r.val
	p.record.Copy, p.record.Start, p.record.Status = true, start.start, status.NW
	return p.watchCopy(status.W, start.start)
}

// watchCopy waits for a copy of the shell, which is not the keeper's child; it writes its status where we find it.
func (p *Process) watchCopy(status int, start uint64) error {
	pidfd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK)
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("copy of the shell: %w", err)
	}
	var f *os.File
	if err == nil {
		f = os.NewFile(uintptr(pidfd), "pidfd")
		if now, ok := readProc(p.pid); !ok || now.start != start { // it has ended, and its number is somebody else's
			f.Close()
			f = nil
		}
	}
	go func() { // ends when the copy has exited; the session's end waits for exited
		if f != nil {
			waitPidfd(f)
			f.Close()
		}
		p.status = signalStatus(syscall.SIGKILL)
		var b [64]byte
		if n, _ := unix.Pread(status, b[:], 0); n > 2 {
			code, _ := strconv.Atoi(strings.TrimSpace(string(b[2:n])))
			p.status = Status{Code: code, Signal: codeSignal(code)}
		}
		p.finish()
	}()
	return nil
}

// waitPidfd returns when the process of f has exited.
func waitPidfd(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(fds, 0)
		return n > 0
	})
}

// finish is the end of a process: its last output first, then the news.
func (p *Process) finish() {
	p.closeFiles()
	p.lane.closeWriters()
	p.out.catchUp(catchUpBound)
	p.sweep()
	close(p.exited)
}

// sweep gives up the cell, once.
func (p *Process) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swept = p.swept || p.s.sweep(p.cell)
}

// catchUpBound is how long the end of a process waits for readers that hold its last output up.
const catchUpBound = time.Minute

// Release gives back what the keeper has of a process whose end is written down: until then our successor may need it.
func (p *Process) Release() { p.release() }

// Record is what a successor must know of it.
func (p *Process) Record() ProcessRecord { return p.record }

// Pid is that of the process; of a POSIX shell's copy it is the one that waits for the copy.
func (p *Process) Pid() int { return p.pid }

// Exited is closed when the process has ended and what it wrote is in the journal.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status is how it ended; after Exited.
func (p *Process) Status() Status { return p.status }

// Input adds to the process's stdin. It never waits.
func (p *Process) Input(b []byte, eof bool) error {
	if p.in == nil || p.hasExited() {
		return ErrStdinClosed
	}
	if p.in.pending()+int64(len(b)) > maxPendingInput {
		return ErrStdinFull
	}
	if err := p.in.give(b, eof); err != nil {
		return err
	}
	select {
	case p.given <- struct{}{}:
	default:
	}
	return nil
}

// feed fills the pipe whenever there is something to fill it with, and room. It closes the inlet, since it may be held up in
// it, and the end of the process shall not be.
func (p *Process) feed() {
	defer close(p.fed)
	defer p.in.close()
	for {
		for p.in.feed() {
			if !p.in.awaitRoom(p.exited) {
				return
			}
		}
		select {
		case <-p.given:
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

// Signal sends sig to the process and all that it started.
func (p *Process) Signal(sig syscall.Signal) error {
	if p.hasExited() {
		return os.ErrProcessDone
	}
	p.cell.Signal(sig, 0)
	return nil
}

// Kill ends the process and all that it started: TERM, grace, KILL. It returns when nothing of it is left.
func (p *Process) Kill(ctx context.Context, grace time.Duration) error {
	p.cell.Signal(syscall.SIGTERM, 0)
	end := time.Now().Add(grace)
	for wait := time.Millisecond; !p.over() && time.Now().Before(end) && ctx.Err() == nil; wait = min(2*wait, 20*time.Millisecond) {
		time.Sleep(wait)
	}
	if !p.over() {
		p.b.Metrics.KillEscalations.Inc()
		if p.child != nil {
			_ = p.child.Signal(syscall.SIGKILL) // root's may have left the cell
		}
		if err := p.cell.Kill(0); err != nil {
			return err
		}
	}
	<-p.exited
	p.sweep()
	return nil
}

// over: the process has exited, and nothing of it is left.
func (p *Process) over() bool {
	exited := (<-chan struct{})(p.exited)
	if p.child != nil {
		exited = p.child.Exited() // what it wrote may take longer
	}
	select {
	case <-exited:
		return len(p.cell.Others(0)) == 0
	default:
		return false
	}
}

// dispose is called when the session's processes are all dead.
func (p *Process) dispose() {
	select {
	case <-p.exited:
	case <-time.After(time.Second): // somebody does not read its last output; the session does not wait for that
	}
	p.out.close()
	<-p.exited
	if p.fed != nil {
		<-p.fed
	}
}
