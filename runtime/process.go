package runtime

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

	"trl/runtime/journal"
)

// ProcessSpec is a background command.
type ProcessSpec struct {
	Text      string
	Dir       string
	Env       map[string]*string
	OpenStdin bool
	Journal   *journal.Journal // closed when nobody holds the process's output any more
}

// Process is a background command with a cell of its own, started by Shell.Start. One goroutine (watch) waits for its
// end; outlets follow its output. It ends by itself, by Kill, or with its session.
type Process struct {
	h      *Host
	cell   *Cell
	pid    int
	out    *outlets
	exited chan struct{} // closed by watch, after the output is in the journal
	files  []int         // descriptors that live as long as the process; closed by watch

	mu     sync.Mutex
	stdin  *os.File      // guarded by mu; nil when closed
	input  chan []byte   // to the feeder; closed with stdin
	fed    chan struct{} // closed when the feeder has ended
	queued int           // guarded by mu; bytes in input
	status Status        // set before exited is closed
}

// busyWait is how long a process waits for the present state of a shell that is at work; then it gets the last snapshot.
const busyWait = 100 * time.Millisecond

// Start starts a background command from the session's present state: directory, variables, functions. A fresh bash or
// zsh reads a snapshot; a POSIX shell that may have functions, which it cannot list, makes a copy of itself, which
// ignores INT and QUIT, as POSIX has it for what is started with `&`.
func (s *Shell) Start(spec ProcessSpec) (*Process, error) {
	if spec.Dir != "" {
		if err := enterable(spec.Dir); err != nil {
			return nil, err
		}
	}
	free := false
	select {
	case <-s.turn:
		free = true
	case <-time.After(busyWait):
	}
	if free {
		defer func() { s.turn <- struct{}{} }()
	}
	sp := s.proc()
	if sp == nil || s.closing.Load() {
		return nil, ErrShellGone
	}
	s.mu.Lock()
	group, cfg := s.group, s.cfg
	s.mu.Unlock()
	cell, err := group.NewCell()
	if err != nil {
		return nil, err
	}
	p := &Process{h: s.h, cell: cell, out: newOutlets(spec.Journal), exited: make(chan struct{})}
	spec.Journal.OnRoom(p.out.roomy)
	var ends [3]int // the child's stdin, stdout, stderr
	for i := range ends {
		ends[i] = -1
	}
	defer func() {
		for _, fd := range ends {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}()
	if err = p.pipes(&ends, spec.OpenStdin); err == nil {
		var text int
		if text, err = p.hold([]byte(spec.Text)); err == nil {
			script := envScript(spec.Env)
			if spec.Dir != "" {
				script += strings.TrimSuffix(dirScript(sp.kind, spec.Dir), "\n") + " || exit 1\n"
			}
			script += fmt.Sprintf("%s %s/%d\n", sp.kind.dot, self(), text)
			if free && !sp.kind.lists && s.funcs && !sp.dead() {
				err = p.copyOf(s, sp, &ends, script)
			} else {
				err = p.fresh(s, sp, cfg, &ends, script, free)
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
		return nil, err
	}
	p.out.start()
	s.mu.Lock()
	s.procs[p] = struct{}{}
	s.mu.Unlock()
	return p, nil
}

func (p *Process) pipes(ends *[3]int, stdin bool) error {
	for i := 1; i <= 2; i++ {
		fd, err := halfPipe(0)
		if err != nil {
			return fmt.Errorf("output pipe: %w", err)
		}
		ends[i] = fd[1]
		if err := p.out.add(fd[0], journal.Stream(i)); err != nil {
			return err
		}
	}
	if !stdin {
		return nil
	}
	fd, err := halfPipe(1)
	if err != nil {
		return fmt.Errorf("stdin pipe: %w", err)
	}
	ends[0] = fd[0]
	p.stdin = os.NewFile(uintptr(fd[1]), "stdin")
	p.input, p.fed = make(chan []byte, 1024), make(chan struct{})
	go p.feed(p.stdin)
	return nil
}

// halfPipe makes a pipe whose one end, ours, does not block: the other one is inherited, and programs expect it to.
func halfPipe(ours int) (fd [2]int, err error) {
	if err = unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return fd, err
	}
	return fd, unix.SetNonblock(fd[ours], true)
}

// hold puts b into a memfd that lives as long as the process.
func (p *Process) hold(b []byte) (int, error) {
	fd, err := memfd("process")
	if err != nil {
		return -1, err
	}
	p.files = append(p.files, fd)
	return fd, fill(fd, b)
}

// fresh starts a new shell that reads the state, then the text.
func (p *Process) fresh(s *Shell, sp *shellProc, cfg ShellConfig, ends *[3]int, script string, free bool) error {
	if free && !sp.dead() {
		if s.st.dirty {
			s.snapshot(sp)
		}
		if s.st.pending() { // it is done when the shell answers
			s.seq++
			sp.send(sp.kind.quit + " " + strconv.Itoa(s.seq) + "\n")
			sp.await(strconv.Itoa(s.seq), time.Now().Add(bootTimeout))
		}
	}
	if state := s.st.script(sp.kind, false); state != nil {
		fd, err := p.hold(state)
		if err != nil {
			return err
		}
		traps := "EXIT DEBUG ERR RETURN 40"
		switch sp.kind.name {
		case "zsh":
			traps = "EXIT DEBUG ZERR"
		case "dash", "ash":
			traps = "EXIT"
		}
		script = fmt.Sprintf("%s %s/%d 2>/dev/null\ntrap - %s\n", sp.kind.dot, self(), fd, traps) + script
	}
	_, argv, err := kindOf(cfg.Path)
	if err != nil {
		return err
	}
	name := argv[0]
	switch sp.kind.name {
	case "bash":
		argv = append(argv, "--norc", "--noprofile")
	case "zsh":
		argv = append(argv, "-f")
	}
	argv = append(argv, "-c", script, name)
	files := make([]*os.File, 3)
	for i, fd := range ends {
		if fd < 0 {
			fd = s.null
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		files[i] = os.NewFile(uintptr(dup), "stdio")
		defer files[i].Close()
	}
	dir := cfg.Dir
	if enterable(dir) != nil {
		dir = "/"
	}
	child, err := s.h.Spawn(Spec{Path: cfg.Path, Argv: argv, Env: cfg.Env, Dir: dir, Files: files, Cell: p.cell})
	if err != nil {
		return err
	}
	p.pid = child.Pid()
	go func() { // ends with the child; the session's end waits for exited
		<-child.Exited()
		p.status = child.Status()
		child.Close()
		p.finish()
	}()
	return nil
}

// copyOf lets the shell fork itself. The copy waits at a gate until it is in its own cell.
func (p *Process) copyOf(s *Shell, sp *shellProc, ends *[3]int, script string) error {
	text, err := p.hold([]byte(script))
	if err != nil {
		return err
	}
	var status, gate [2]int
	if err := unix.Pipe2(status[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	p.files = append(p.files, status[0], status[1])
	if err := unix.Pipe2(gate[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return err
	}
	p.files = append(p.files, gate[0], gate[1])
	in := ends[0]
	if in < 0 {
		in = s.null
	}
	s.seq++
	tag := strconv.Itoa(s.seq)
	sp.send(fmt.Sprintf("\\__trl_j %d %d %d %d %d %d %s\n", in, ends[1], ends[2], text, status[1], gate[0], tag))
	r, ok := sp.awaitVerb('j', tag, time.Now().Add(bootTimeout))
	if !ok {
		return fmt.Errorf("shell did not start a copy: %w", ErrShellGone)
	}
	pidfd, err := unix.PidfdOpen(r.val, unix.PIDFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("copy of the shell: %w", err)
	}
	f := os.NewFile(uintptr(pidfd), "pidfd")
	if err := p.cell.adoptCopy(r.val); err != nil {
		f.Close()
		return err
	}
	p.pid = r.val
	if _, err := unix.Write(gate[1], []byte("\n")); err != nil {
		f.Close()
		return err
	}
	// The copy opens its pipes by path only after the gate: keep our ends open until it is done with that. Its exit, or
	// its own descriptors, tell; until then the ends stay with the process.
	for i, fd := range ends {
		if fd >= 0 {
			p.files = append(p.files, fd)
			ends[i] = -1
		}
	}
	go func() { // ends when the copy has exited; the session's end waits for exited
		waitPidfd(f)
		f.Close()
		p.status = Status{Code: 128 + int(syscall.SIGKILL), Signal: syscall.SIGKILL}
		var b [64]byte
		if n, _ := unix.Read(status[0], b[:]); n > 2 {
			code, _ := strconv.Atoi(strings.TrimSpace(string(b[2:n])))
			p.status = Status{Code: code}
			if code > 128 && code <= 128+31 {
				p.status.Signal = syscall.Signal(code - 128)
			}
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
	p.out.catchUp(catchUpBound)
	p.mu.Lock()
	p.closeStdinLocked()
	p.mu.Unlock()
	close(p.exited)
}

// catchUpBound is how long the end of a process waits for readers that hold its last output up.
const catchUpBound = time.Minute

func (p *Process) closeFiles() {
	for _, fd := range p.files {
		unix.Close(fd)
	}
	p.files = nil
}

// Pid is that of the process; of a POSIX shell's copy it is the one that waits for the copy.
func (p *Process) Pid() int { return p.pid }

// Exited is closed when the process has ended and what it wrote is in the journal.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Status is how it ended; after Exited.
func (p *Process) Status() Status { return p.status }

// Input adds to the process's stdin. It never waits.
func (p *Process) Input(b []byte, eof bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin == nil {
		return ErrStdinClosed
	}
	if len(b) > 0 {
		if p.queued+len(b) > maxPendingInput || len(p.input) == cap(p.input) {
			return ErrStdinFull
		}
		p.queued += len(b)
		p.input <- append([]byte(nil), b...)
	}
	if eof {
		close(p.input)
		p.stdin = nil // the feeder has it
	}
	return nil
}

// closeStdinLocked ends the feeder; p.mu is held.
func (p *Process) closeStdinLocked() {
	if p.stdin != nil {
		_ = p.stdin.SetWriteDeadline(time.Now())
		close(p.input)
		p.stdin = nil
	}
}

// feed writes what Input gives, until that is closed; it then closes the pipe.
func (p *Process) feed(f *os.File) {
	defer close(p.fed)
	defer f.Close()
	for b := range p.input {
		_, _ = f.Write(b) // a process that is gone does not read; the rest is drained
		p.mu.Lock()
		p.queued -= len(b)
		p.mu.Unlock()
	}
}

// Signal sends sig to the process and all that it started.
func (p *Process) Signal(sig syscall.Signal) error {
	select {
	case <-p.exited:
		return os.ErrProcessDone
	default:
	}
	p.cell.Signal(sig, 0)
	return nil
}

// Kill ends the process and all that it started: TERM, grace, KILL. It returns when nothing of it is left.
func (p *Process) Kill(ctx context.Context, grace time.Duration) error {
	p.cell.Signal(syscall.SIGTERM, 0)
	end := time.Now().Add(grace)
	for wait := time.Millisecond; len(p.cell.Others(0)) > 0 && time.Now().Before(end) && ctx.Err() == nil; wait = min(2*wait, 20*time.Millisecond) {
		time.Sleep(wait)
	}
	if len(p.cell.Others(0)) > 0 {
		p.h.metrics.KillEscalations.Inc()
		if err := p.cell.Kill(0); err != nil {
			return err
		}
	}
	<-p.exited
	p.cell.Remove()
	return nil
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

// adoptCopy is Adopt for what the shell forked: not our child, so its number is only good while the gate holds it.
func (c *Cell) adoptCopy(pid int) error {
	err := setMark(pid, c.mark)
	if c.dir != "" {
		err = c.move(pid)
	}
	return err
}
