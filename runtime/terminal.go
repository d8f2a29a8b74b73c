package runtime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
)

// TerminalSpec says what to open.
type TerminalSpec struct {
	Text       string // "": the session's shell, interactive
	Dir        string
	Env        map[string]*string
	Cols, Rows int
	Nonce      string           // what our marks bear, see terminalScript
	Journal    *journal.Journal // closed when the terminal has ended
	Began      func(*Terminal)  // is told of it before its command runs, so that it is written down by then; may be nil
}

// Terminal is a PTY and what runs in it, in a cell of its own, opened by Shell.Open. Its process leads a process session
// that the PTY controls. Two goroutines: one copies its output (line.drain), one waits for its end (watch). It ends with
// its first process: by itself, by Close, or with its session.
type Terminal struct {
	belongings
	b       *Base
	cell    KeptCell
	pid     int
	line    *line
	journal *journal.Journal
	in      *inlet
	keys    chan struct{} // one token: the inlet has more than the PTY took
	room    chan struct{} // one token: the journal may have room
	stop    chan struct{} // closed by watch: drain and type end
	drained chan struct{} // closed when drain has ended, and with it the journal
	typed   chan struct{} // closed when type has ended
	exited  chan struct{} // closed by watch, after all of the output is in the journal
	scratch string        // a directory to remove at the end; "" for none
	status  Status        // set before exited is closed
	record  TerminalRecord
}

// TerminalRecord is what of a terminal must be known to go on with it.
type TerminalRecord struct {
	Pid     int          `json:"pid"`
	Cell    int          `json:"cell"`
	Line    LineRecord   `json:"line"`
	Span    journal.Span `json:"span"`
	Stdin   []HeldFile   `json:"stdin"`
	Held    []HeldFile   `json:"held,omitempty"`
	Gate    int          `json:"gate,omitempty"` // a line that is written there lets the command run; 0: none waits
	Scratch string       `json:"scratch,omitempty"`
	Lost    []string     `json:"lost,omitempty"` // what of the session's state it began without
}

// Open opens a terminal in the session's present directory, with its exported variables; a command, in place of the
// shell, has its functions as well, as far as Start's has.
func (s *Shell) Open(spec TerminalSpec) (*Terminal, error) {
	if spec.Dir != "" {
		if err := s.held().Enterable(spec.Dir); err != nil {
			return nil, err
		}
	}
	named, err := s.findShell(spec.Text)
	if err != nil {
		return nil, err
	}
	here := s.lookAround()
	sp, free, done := s.borrow()
	defer done()
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
	t := newTerminal(s.b, group, cell, spec.Journal)
	if t.line, err = newLine(group, &s.outputs, spec.Cols, spec.Rows); err == nil {
		t.line.log.carry(t.journal, 0, 0)
		if t.in, err = newInlet(group, true); err == nil {
			var child KeptChild
			if child, err = t.spawn(s, sp, cfg, spec, free, named, here); err == nil {
				t.record = TerminalRecord{
					Pid: t.pid, Cell: cell.Number(), Line: t.line.record(), Span: t.journal.Span(), Stdin: t.in.files,
					Held: t.known, Gate: t.gate.NW, Scratch: t.scratch, Lost: t.record.Lost,
				}
				s.begin(t, child)
				if spec.Began != nil {
					spec.Began(t)
				}
				t.letGo()
				return t, nil
			}
		}
	}
	if !cell.Remove() {
		_ = cell.Kill(0)
		cell.Remove()
	}
	t.journal.Close()
	t.close()
	t.Release()
	return nil, err
}

func newTerminal(b *Base, group KeptGroup, cell KeptCell, j *journal.Journal) *Terminal {
	t := &Terminal{
		b: b, belongings: belongings{of: "terminal", group: group}, cell: cell, journal: j, keys: make(chan struct{}, 1), room: make(chan struct{}, 1), stop: make(chan struct{}),
		drained: make(chan struct{}), typed: make(chan struct{}), exited: make(chan struct{}),
	}
	j.OnRoom(func() { token(t.room) })
	return t
}

// token puts one in, unless one is there.
func token(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// spawn starts the terminal's first process.
func (t *Terminal) spawn(s *Shell, sp *shellProc, cfg ShellConfig, spec TerminalSpec, free bool, named namedShell, here place) (KeptChild, error) {
	script, lost, err := s.stateScript(sp, free, t.hold)
	if err != nil {
		return nil, err
	}
	dir, gone, err := s.enterableDir(sp, cfg, script, here)
	if err != nil {
		return nil, err
	}
	if gone && t.group.Enterable(dir) != nil { // who opens a terminal sees where it is
		dir = "/"
	}
	back := ""
	if spec.Dir == "" && s.leadsAway(sp, script, gone, free, lost) {
		back = backTo(sp.kind, dir)
	}
	rest, interactive, err := t.script(sp, cfg, spec, named, back)
	if err != nil {
		return nil, err
	}
	if !interactive && !sp.kind.lists && s.funcs.Load() {
		lost = Union(lost, []string{"functions"})
	}
	t.record.Lost = lost
	argv, err := scriptArgs(cfg.Path, script+rest)
	if err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(t.line.slave), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	tty := os.NewFile(uintptr(dup), "tty")
	defer tty.Close()
	child, err := t.cell.Spawn(Spec{Path: cfg.Path, Argv: argv, Env: cfg.Env, Dir: dir, Files: []*os.File{tty, tty, tty}, TTY: true})
	if err != nil {
		return nil, err
	}
	t.pid = child.Pid()
	return child, nil
}

// begin starts the goroutines and makes the terminal the session's.
func (s *Shell) begin(t *Terminal, child KeptChild) {
	go func() { // ends with the terminal's end, or stop; watch waits for it
		defer close(t.drained)
		t.line.drain(t.journal, t.room, t.stop)
	}()
	go func() { // as drain
		defer close(t.typed)
		t.typeOn()
	}()
	s.mu.Lock()
	s.terms[t] = struct{}{}
	s.mu.Unlock()
	t.child = child
	go t.watch(s) // ends with the child; the session's end waits for exited
}

// watch waits for the end of the first process. With it the kernel takes the terminal from all that run in it; what still
// has it open is a daemon that did not mean to. So the terminal ends, after its last byte.
func (t *Terminal) watch(s *Shell) {
	<-t.child.Exited()
	t.status = t.child.Status()
	t.line.closeSlave()
	t.line.catchUp(t.journal, catchUpBound, t.stop)
	t.close()
	s.sweep(t.cell)
	s.mu.Lock()
	delete(s.terms, t)
	s.mu.Unlock()
	close(t.exited)
}

// close ends the goroutines and closes our descriptors. Called once.
func (t *Terminal) close() {
	close(t.stop)
	if t.line != nil {
		t.line.close()
	}
	if t.pid != 0 { // else they were never started
		<-t.drained
		<-t.typed
	}
	if t.in != nil {
		t.in.close()
	}
	t.closeFiles()
	t.clear()
}

func (t *Terminal) clear() {
	if t.scratch != "" {
		_ = os.RemoveAll(t.scratch)
	}
}

// Release gives back what the keeper has of a terminal whose end is written down.
func (t *Terminal) Release() {
	t.release()
	if t.line != nil {
		t.line.release()
	}
}

// Pid is that of the first process.
func (t *Terminal) Pid() int { return t.pid }

// Record is what a successor must know of it.
func (t *Terminal) Record() TerminalRecord { return t.record }

// Exited is closed when the terminal has ended and its output is in the journal, which is closed.
func (t *Terminal) Exited() <-chan struct{} { return t.exited }

// Status is how its first process ended; after Exited.
func (t *Terminal) Status() Status { return t.status }

// Resize gives the terminal another size.
func (t *Terminal) Resize(cols, rows int) error { return t.line.resize(cols, rows) }

// Size is the terminal's.
func (t *Terminal) Size() (cols, rows int) { return t.line.size() }

// maxLine is what the kernel holds of a line in line mode (N_TTY_BUF_SIZE less one); it drops the rest without a word.
const maxLine = 4095

// ErrLongLine refuses a line that would not arrive whole.
var ErrLongLine = errors.New("line is longer than the terminal's line mode holds")

// longest is the length of p's longest piece between the ends of lines.
func longest(p []byte, ends string) (most int) {
	for len(p) > 0 {
		n := bytes.IndexAny(p, ends)
		if n < 0 {
			return max(most, len(p))
		}
		most = max(most, n)
		p = p[n+1:]
	}
	return most
}

// Input types. It never waits: what the terminal does not take now waits in the inlet, and so outlives us.
func (t *Terminal) Input(p []byte) error {
	if len(p) > maxLine {
		if on, ends := t.line.lineMode(); on && longest(p, ends) > maxLine {
			return ErrLongLine
		}
	}
	if t.in.pending()+int64(len(p)) > maxPendingInput {
		return ErrStdinFull
	}
	if err := t.in.give(p, false); err != nil {
		return err
	}
	if t.push() {
		token(t.keys)
	}
	return nil
}

// push moves input on to the PTY, by splice all the way; more: the PTY takes no more now, or somebody else is at it.
func (t *Terminal) push() (more bool) {
	more = true
	_ = t.line.raw.Control(func(fd uintptr) { more = t.in.tryPass(int(fd)) })
	return more
}

// typeOn passes on what Input could not. It is a goroutine's whole life.
func (t *Terminal) typeOn() {
	for {
		select {
		case <-t.keys:
		case <-t.stop:
			return
		}
		if t.line.raw.Write(func(fd uintptr) bool { return !t.in.pass(int(fd)) }) != nil {
			return // closed
		}
	}
}

// Busy tells whether something runs in the terminal besides its first process. It asks the operating system.
func (t *Terminal) Busy() bool { return len(t.cell.Others(t.pid)) > 0 }

// Signal sends sig to all that runs in the terminal.
func (t *Terminal) Signal(sig syscall.Signal) { t.cell.Signal(sig, 0) }

// hangUpTime is what programs have between HUP and TERM, if that is less than half of the grace: shells and editors end
// at HUP, in milliseconds, and what ignores it shall have the rest of the grace for TERM.
const hangUpTime = 500 * time.Millisecond

// Close ends the terminal and all that was started in it: HUP, TERM, grace, KILL. It returns when nothing of it is left.
func (t *Terminal) Close(ctx context.Context, grace time.Duration) error {
	begun := time.Now()
	for _, step := range []struct {
		sig   syscall.Signal
		until time.Duration
	}{{syscall.SIGHUP, min(hangUpTime, grace/2)}, {syscall.SIGTERM, grace}} {
		if grace <= 0 {
			break
		}
		t.cell.Signal(step.sig, 0)
		t.cell.Signal(syscall.SIGCONT, 0) // what is stopped (Ctrl-Z) takes no signal else
		for wait := time.Millisecond; len(t.cell.Others(0)) > 0 && time.Since(begun) < step.until && ctx.Err() == nil; wait = min(2*wait, 20*time.Millisecond) {
			time.Sleep(wait)
		}
		if len(t.cell.Others(0)) == 0 {
			break
		}
	}
	if len(t.cell.Others(0)) > 0 {
		if grace > 0 {
			t.b.Metrics.KillEscalations.Inc()
		}
		if err := t.cell.Kill(0); err != nil {
			return err
		}
	}
	if t.child != nil {
		_ = t.child.Signal(syscall.SIGKILL) // root's may have left the cell
	}
	<-t.exited
	return nil
}

// dispose is called when the session's processes are all dead.
func (t *Terminal) dispose() {
	select {
	case <-t.exited:
	case <-time.After(time.Second): // somebody does not read its last output; the session does not wait for that
		t.line.close()
	}
	<-t.exited
}

// Terminal brings a terminal back, whose process may have ended meanwhile. Its journal has been brought back, too.
func (a *Adoption) Terminal(r TerminalRecord, j *journal.Journal) (*Terminal, error) {
	child := a.from.Children[r.Pid]
	if child == nil {
		j.Close()
		return nil, ErrShellGone
	}
	delete(a.from.Children, r.Pid)
	t := newTerminal(a.b, a.from.Group, a.cell(r.Cell), j)
	t.pid, t.record, t.scratch = r.Pid, r, r.Scratch
	var err error
	if t.line, err = a.line(r.Line); err != nil {
		j.Close()
		return nil, err
	}
	if t.in = a.inlet(r.Stdin); t.in == nil {
		t.line.close()
		t.line.release()
		j.Close()
		return nil, ErrShellGone
	}
	t.takeOver(a, r.Held, r.Gate)
	token(t.keys)
	a.shell.begin(t, child)
	return t, nil
}

// GoneTerminal stands for a terminal that had ended; what it started may live on.
func (a *Adoption) GoneTerminal(r TerminalRecord, status Status) *Terminal {
	t := &Terminal{b: a.b, belongings: belongings{group: a.from.Group}, cell: a.cell(r.Cell), pid: r.Pid, exited: make(chan struct{}), status: status, record: r, scratch: r.Scratch}
	t.clear() // perhaps it had not come to that
	a.shell.sweep(t.cell)
	close(t.exited)
	return t
}

func (a *Adoption) line(r LineRecord) (*line, error) {
	if len(r.Files) != 4 {
		return nil, errors.New("line: not held")
	}
	l := &line{group: a.from.Group, files: r.Files, held: make([]int, 4)}
	var fds [4]int
	for i, f := range r.Files {
		fds[i] = a.takeFile(f)
		if l.held[i] = f.Number; fds[i] < 0 {
			l.held[i] = -1
		}
	}
	l.slave, l.r, l.w = fds[1], fds[2], fds[3]
	out, err := a.output(r.Log)
	if err == nil {
		l.log = out
		err = l.adoptMaster(fds[0])
	}
	if err == nil && (l.r < 0 || l.w < 0) {
		err = errors.New("line: pipe not held")
	}
	if err != nil {
		l.close()
		l.release()
		return nil, err
	}
	out.mu.Lock()
	out.done = false
	out.mu.Unlock()
	return l, nil
}
