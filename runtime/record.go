package runtime

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
	"trl/runtime/ledger"
)

// What a gateway must write down so that the next one can go on where it was killed. The numbers of descriptors are the
// keeper's. Nothing here changes with a command's output, and only a CommandRecord is new for each command.

// ShellRecord is a shell between its commands.
type ShellRecord struct {
	Pid   int      `json:"pid,omitempty"` // 0: there is none
	Cell  int      `json:"cell,omitempty"`
	Left  []int    `json:"left,omitempty"`  // cells with what commands left running
	Held  []int    `json:"held,omitempty"`  // the shell's channels, see shellProc
	State []int    `json:"state,omitempty"` // the snapshots, see state
	Dir   string   `json:"dir"`             // what it was started with, as Env
	Env   []string `json:"env"`
	Seq   int      `json:"seq"`
	Trap  bool     `json:"int_trap,omitempty"`
	Funcs bool     `json:"funcs,omitempty"`

	After *Replaced `json:"after,omitempty"` // set in the first record of a shell that took another one's place
}

// Replaced says what ended with the shell before. It stands in the same record as the new shell: a gateway that is killed leaves
// both or neither, so the next one never takes the new shell for the one that the command was given to.
type Replaced struct {
	Seq       int      `json:"seq,omitempty"` // of the command that ended with the old shell; 0: none had begun
	Code      int      `json:"code,omitempty"`
	Cancelled bool     `json:"cancelled,omitempty"`
	Lost      []string `json:"lost,omitempty"` // of the state
}

// CommandRecord is a command that is being run.
type CommandRecord struct {
	Seq    int          `json:"seq"`
	Sent   int          `json:"sent"` // bytes of the script channel that are its line
	Cell   int          `json:"cell"` // what it started is in it
	Lane   LaneRecord   `json:"lane"`
	Span   journal.Span `json:"span"`
	Stdin  []HeldFile   `json:"stdin,omitempty"`
	Before []HeldFile   `json:"before,omitempty"` // what the shell reads before the text
	Used   *UsageRecord `json:"used,omitempty"`   // what its session had used by then, nil: not known

	Snapshot int  `json:"snapshot,omitempty"` // number of the last one that was asked for before it
	Current  bool `json:"current,omitempty"`  // no other command has ended in between

	Timeout   string `json:"timeout,omitempty"`   // it is being ended for that; a cancel is our owner's to write down
	Cancelled bool   `json:"cancelled,omitempty"` // with Code
	Code      *int   `json:"code,omitempty"`      // how it ended; what was its own is being put back

	Replaced *Replaced `json:"replaced,omitempty"` // it ended with its shell, whose successor is there already
}

// UsageRecord is the Usage of a group but for the peak, which begins anew with each command.
type UsageRecord struct {
	CPU      int64 `json:"cpu"` // nanoseconds
	OOMKills int64 `json:"oom,omitzero"`
	PIDHits  int64 `json:"pids,omitzero"`
}

// ProcessRecord is a background process.
type ProcessRecord struct {
	Pid    int          `json:"pid"`
	Cell   int          `json:"cell"`
	Copy   bool         `json:"copy,omitempty"` // of a POSIX shell: not a child of the keeper
	Start  uint64       `json:"start,omitempty"`
	Lane   LaneRecord   `json:"lane"`
	Span   journal.Span `json:"span"`
	Stdin  []HeldFile   `json:"stdin,omitempty"`
	Held   []HeldFile   `json:"held,omitempty"`
	Status int          `json:"status,omitempty"` // of a copy: where its status comes out
	Gate   int          `json:"gate"`             // a line that is written there lets it run
	Lost   []string     `json:"lost,omitempty"`   // what of the session's state it began without
}

// SetRecorder makes f learn of the shell's record now and whenever it changes, before anything depends on the change.
func (s *Shell) SetRecorder(f func(ShellRecord)) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	s.telling.Lock()
	s.recorder = f
	s.telling.Unlock()
	s.changed()
}

// changed tells the recorder. The caller has the turn.
func (s *Shell) changed() { s.tell(nil) }

// tell is changed for a shell that has taken another one's place.
func (s *Shell) tell(after *Replaced) {
	s.telling.Lock()
	defer s.telling.Unlock()
	if s.recorder == nil {
		return
	}
	s.mu.Lock()
	r := ShellRecord{Dir: s.cfg.Dir, Env: s.cfg.Env, Seq: s.seq, Trap: s.trap, Funcs: s.funcs.Load(), State: s.st.held, Left: s.leftLocked()}
	if p := s.p; p != nil {
		r.Pid, r.Cell, r.Held = p.child.Pid(), p.cell.Number(), p.held
	}
	s.mu.Unlock()
	s.told = r
	r.After = after
	s.recorder(r)
}

// sweep gives up the cell of a process or a terminal, unless somebody is left in it: then that is the session's, as what
// commands leave running, and is written down. False: it has to be called again, should the cell be emptied.
func (s *Shell) sweep(c KeptCell) bool {
	empty := len(c.Others(0)) == 0 && (c.Remove() || len(c.Others(0)) == 0)
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	at := slices.Index(s.left, c)
	switch {
	case empty && at >= 0:
		s.left = slices.Delete(s.left, at, at+1)
	case !empty && at < 0:
		s.left = append(s.left, c)
	}
	s.told.Left = s.leftLocked()
	s.mu.Unlock()
	if s.recorder != nil && empty == (at >= 0) {
		s.recorder(s.told)
	}
	return empty
}

func (s *Shell) leftLocked() (numbers []int) {
	for _, c := range s.left {
		numbers = append(numbers, c.Number())
	}
	return numbers
}

// An Adoption brings a session back from what its keeper has and its last gateway wrote down: Want for every journal,
// then Shell (Vacant, Remains), then Bring, Follow and Process for what belongs to it, and Finish.
type Adoption struct {
	b      *Base
	from   Inherited // less what was taken
	shell  *Shell
	book   *ledger.Ledger
	number int                  // what the keeper calls the file of book
	wanted map[HeldFile]*wanted // by the first file of a log
	packed map[ledger.Key]*ledger.Kept
	cells  map[int]bool // that are known
}

// Adopt begins an adoption.
func (b *Base) Adopt(from Inherited) *Adoption {
	return &Adoption{b: b, from: from, wanted: map[HeldFile]*wanted{}, cells: map[int]bool{}}
}

// Ledger reads what the last gateway wrote down about the session: nothing of one that was never given to anybody.
func (a *Adoption) Ledger(read func(entry []byte) error) error {
	for number, fd := range a.from.Held {
		book, err := ledger.Open(fd, read)
		if errors.Is(err, ledger.ErrNone) {
			continue
		}
		if err != nil {
			return err
		}
		a.take(number)
		a.book, a.number, a.packed = book, number, map[ledger.Key]*ledger.Kept{}
		for _, k := range book.Kept() {
			a.packed[k.Key] = k
		}
		return nil
	}
	return nil
}

// takeFile is take, unless the number means another file by now.
func (a *Adoption) takeFile(f HeldFile) int {
	if fd, ok := a.from.Held[f.Number]; !ok || inode(fd) != f.Inode {
		return -1
	}
	return a.take(f.Number)
}

// take gives our descriptor of a held one away, -1 when there is none.
func (a *Adoption) take(number int) int {
	fd, ok := a.from.Held[number]
	if !ok {
		return -1
	}
	delete(a.from.Held, number)
	return fd
}

func (a *Adoption) lane(r LaneRecord) (*lane, error) {
	if len(r.Pipes) != 4 {
		return nil, errors.New("lane: not held")
	}
	l := &lane{group: a.from.Group, held: make([]int, 4), files: r.Pipes}
	for i, f := range r.Pipes {
		fd := a.takeFile(f)
		if l.held[i] = f.Number; fd < 0 {
			l.held[i] = -1
		}
		if i < 2 {
			l.r[i] = fd
		} else {
			l.w[i-2] = fd
		}
	}
	out, err := a.output(r.Log)
	if err != nil {
		l.close()
		return nil, err
	}
	shut(&l.w[0]) // who is started with them has them
	shut(&l.w[1])
	out.mu.Lock()
	out.done = false
	packed := out.closed
	out.mu.Unlock()
	l.log = out
	if packed { // nothing came out of the pipes any more; the keeper had not been told yet to drop them
		for i := range l.r {
			shut(&l.r[i])
		}
	}
	return l, nil
}

func (a *Adoption) inlet(files []HeldFile) *inlet {
	if len(files) != 3 {
		return nil
	}
	in := &inlet{group: a.from.Group, files: files, port: files[1].Number, mem: a.takeFile(files[0]), r: a.takeFile(files[1]), w: a.takeFile(files[2])}
	for i, fd := range []int{in.mem, in.r, in.w} {
		if in.held = append(in.held, files[i].Number); fd < 0 {
			in.held[i] = -1
		}
	}
	if in.met = in.r >= 0; !in.met { // whether the shell has come to it, the pipe tells
		in.port = files[2].Number
	}
	if in.mem >= 0 {
		in.fed, _ = unix.Seek(in.mem, 0, 1)
		var st unix.Stat_t
		if unix.Fstat(in.mem, &st) == nil {
			in.size = st.Size
		}
		seals, err := unix.FcntlInt(uintptr(in.mem), unix.F_GET_SEALS, 0)
		in.eof = err == nil && seals&unix.F_SEAL_GROW != 0
	}
	return in
}

// Remains stands for the shell of a session that has ended: its output can be brought back, and it can be forgotten.
func (a *Adoption) Remains(c ShellConfig) *Shell {
	a.shell = a.b.newShell(c)
	a.shell.outputs.archive, a.shell.outputs.number = a.book, a.number
	a.shell.group = a.from.Group
	a.shell.closing.Store(true)
	a.shell.st = &state{fd: [2]int{-1, -1}, exit: -1, book: a.book}
	a.shell.turn <- struct{}{}
	return a.shell
}

// Whole: all is there that Shell needs. It is not where the session's end has begun and come as far as its shell.
func (a *Adoption) Whole(r ShellRecord) bool {
	if len(r.State) != 4 || len(r.Held) != 4 || len(a.from.Cells) == 0 || a.from.Children[r.Pid] == nil {
		return false
	}
	for _, n := range r.Held {
		if _, held := a.from.Held[n]; !held {
			return false
		}
	}
	return true
}

// Vacant brings a shell back whose process was about to be replaced by Reset, which must follow.
func (a *Adoption) Vacant(c ShellConfig, r ShellRecord) (*Shell, error) {
	c.Dir, c.Env = r.Dir, r.Env
	s := a.Remains(c)
	s.closing.Store(false)
	s.restore.Store(c.Restore)
	s.seq, s.trap = r.Seq+1_000_000, r.Trap // beyond whatever was given out since
	s.funcs.Store(r.Funcs)
	s.traps = true // it is not known
	if err := s.watch(); err != nil {
		return nil, err
	}
	if len(r.State) != 4 {
		return nil, ErrShellGone
	}
	s.st = adoptState(r.State, a.take(r.State[0]), a.take(r.State[1]), a.take(r.State[2]), a.book)
	return s, nil
}

// Shell brings the shell back, dead or alive: a dead one is revived like any other that died while nobody looked.
func (a *Adoption) Shell(c ShellConfig, r ShellRecord) (*Shell, error) {
	k, _, err := kindOf(c.Path)
	if err != nil {
		return nil, err
	}
	s, err := a.Vacant(c, r)
	if err != nil {
		return nil, err
	}
	if len(r.Held) != 4 {
		return nil, ErrShellGone
	}
	child := a.from.Children[r.Pid]
	delete(a.from.Children, r.Pid)
	if child == nil {
		return nil, ErrShellGone
	}
	cell := a.from.Cells[r.Cell]
	for n, c := range a.from.Cells { // it may have been moved the moment before
		for _, pid := range c.Others(0) {
			if pid == r.Pid {
				cell = a.from.Cells[n]
			}
		}
	}
	if cell == nil {
		return nil, ErrShellGone
	}
	a.cells[cell.Number()] = true
	for _, n := range append(r.Left, r.Cell) {
		if c := a.from.Cells[n]; c != nil && !a.cells[n] {
			a.cells[n] = true
			s.left = append(s.left, c)
		}
	}
	s.p = &shellProc{
		kind: k, child: child, cell: cell, held: r.Held, reader: -1, script: a.take(r.Held[heldScript]), ctlR: a.take(r.Held[heldCtlR]),
		ctlW: a.take(r.Held[heldCtlW]), text: a.take(r.Held[heldText]), given: math.MaxInt, poll: s.poll, calls: &s.calls,
	}
	if s.p.script < 0 || s.p.ctlR < 0 || s.p.ctlW < 0 || s.p.text < 0 {
		return nil, ErrShellGone
	}
	if elsewhere(s.group) {
		shut(&s.p.ctlW)
	}
	return s, nil
}

// Finish ends what the last gateway had begun to make and had not written down yet, and packs what it had not come to pack.
func (a *Adoption) Finish() {
	for _, w := range a.wanted {
		for _, k := range w.packed {
			delete(a.packed, k.Key)
		}
		if w.out != nil {
			w.out.look()
		}
	}
	for _, k := range a.packed {
		k.Release()
	}
	a.packed = nil
	for pid, child := range a.from.Children {
		_ = child.Signal(unix.SIGKILL)
		delete(a.from.Children, pid)
		go func() { <-child.Exited(); child.Close() }() // ends with the child, which has been killed
	}
	for n, c := range a.from.Cells {
		if !a.cells[n] {
			if err := c.Kill(0); err == nil {
				c.Remove()
			}
		}
	}
	var numbers []int
	for n, fd := range a.from.Held {
		unix.Close(fd)
		numbers = append(numbers, n)
	}
	a.from.Held = nil
	if len(numbers) > 0 {
		a.from.Group.Drop(numbers...)
	}
}

// Discard ends a session that cannot be brought back.
func (a *Adoption) Discard(ctx context.Context) error {
	err := a.from.Group.Close(ctx)
	for _, fd := range a.from.Held {
		unix.Close(fd)
	}
	a.from.Held = nil
	for _, child := range a.from.Children {
		child.Close()
	}
	if a.book != nil {
		a.book.Close()
	}
	if a.shell != nil {
		a.shell.outputs.close()
	}
	a.from.Group.DropAll()
	return err
}

// Resuming makes a command, which was running, ready for Run, which goes on with it. Its Journal has been brought back.
func (a *Adoption) Resuming(c *Command, r CommandRecord, began time.Time) error {
	l, err := a.lane(r.Lane)
	if err != nil {
		return err
	}
	cell := a.cell(r.Cell)
	if p := a.shell.p; r.Cell == 0 && p != nil { // written by a version that did not know
		cell = p.cell
	}
	c.resumed, c.in = &resumed{CommandRecord: r, cell: cell, lane: l, before: -1, began: began}, a.inlet(r.Stdin)
	if len(r.Before) == 1 {
		c.resumed.before = a.takeFile(r.Before[0])
	}
	c.eof = c.in != nil && c.in.eof
	if r.Replaced != nil {
		a.shell.st.after(r)
	} else {
		a.shell.st.before(r)
	}
	return nil
}

// LastEnded tells of the last command that has ended. It is for a shell that runs none.
func (a *Adoption) LastEnded(r CommandRecord) { a.shell.st.after(r) }

// Furnished gives a command that waits the stdin it had been given.
func (a *Adoption) Furnished(c *Command, stdin []HeldFile) {
	c.in = a.inlet(stdin)
	c.eof = c.in != nil && c.in.eof
}

// resumed is what a command that is run again, or on, begins with.
type resumed struct {
	CommandRecord
	cell   KeptCell
	lane   *lane
	before int // descriptor of what Before holds, -1: none
	began  time.Time
}

// Follow goes on reading what jobs of an ended command write, and closes j when nobody can any more.
func (a *Adoption) Follow(j *journal.Journal, r *LaneRecord) {
	var l *lane
	var err error
	if r != nil {
		l, err = a.lane(*r)
	}
	if l == nil || err != nil {
		j.Close()
		return
	}
	l.closeWriters()
	late := newOutlets(j, &a.shell.outputs)
	j.OnRoom(late.roomy)
	late.follow(l)
	if len(late.files) == 0 {
		j.Close()
		l.close()
		return
	}
	late.start()
	a.shell.keep(late)
}

// Process brings a background process back, ended or not. spec.Journal has been brought back, too.
func (a *Adoption) Process(r ProcessRecord, j *journal.Journal) (*Process, error) {
	child := a.from.Children[r.Pid]
	if child == nil && !r.Copy {
		j.Close()
		return nil, ErrShellGone
	}
	l, err := a.lane(r.Lane)
	if err != nil {
		j.Close()
		return nil, err
	}
	delete(a.from.Children, r.Pid)
	p := &Process{b: a.b, s: a.shell, belongings: belongings{group: a.from.Group}, cell: a.cell(r.Cell), pid: r.Pid, lane: l, out: newOutlets(j, &a.shell.outputs), exited: make(chan struct{}), record: r}
	j.OnRoom(p.out.roomy)
	p.out.follow(l)
	if !r.Copy {
		l.closeWriters()
	}
	p.takeOver(a, r.Held, r.Gate)
	status := -1
	if i := slices.Index(p.held, r.Status); i >= 0 {
		status = p.files[i]
	}
	if p.in = a.inlet(r.Stdin); p.in != nil {
		p.given, p.fed = make(chan struct{}, 1), make(chan struct{})
		p.given <- struct{}{}
	}
	if r.Copy {
		err = p.watchCopy(status, r.Start)
	} else {
		p.watchChild(child)
	}
	if err != nil {
		return nil, err
	}
	p.out.start()
	if p.in != nil {
		go p.feed() // as in Start
	}
	a.shell.mu.Lock()
	a.shell.procs[p] = struct{}{}
	a.shell.mu.Unlock()
	return p, nil
}

// Ended stands for a process that had ended; what it started may live on.
func (a *Adoption) Ended(r ProcessRecord, status Status) *Process {
	p := &Process{b: a.b, s: a.shell, belongings: belongings{group: a.from.Group}, cell: a.cell(r.Cell), pid: r.Pid, out: newOutlets(nil, &a.shell.outputs), exited: make(chan struct{}), status: status, record: r}
	p.sweep()
	close(p.exited)
	return p
}

// cell is where something that we bring back is, or was.
func (a *Adoption) cell(number int) KeptCell {
	a.cells[number] = true
	if c, ok := a.from.Cells[number]; ok {
		return c
	}
	return goneCell(number)
}

// goneCell stands for a cell that was removed: nothing is in it.
type goneCell int

func (c goneCell) Number() int                     { return int(c) }
func (goneCell) Spawn(Spec) (KeptChild, error)     { return nil, os.ErrNotExist }
func (goneCell) Adopt(int) error                   { return os.ErrNotExist }
func (goneCell) AdoptCopy(int) error               { return os.ErrNotExist }
func (goneCell) Others(int) []int                  { return nil }
func (goneCell) Signal(syscall.Signal, int)        {}
func (goneCell) SignalSome(syscall.Signal, ...int) {}
func (goneCell) Kill(int) error                    { return nil }
func (goneCell) Remove() bool                      { return true }
