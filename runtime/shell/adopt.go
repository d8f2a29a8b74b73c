package shell

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/sessionlog"
)

// What a gateway must write down so that the next one can go on where it was killed. The numbers of descriptors are the
// keeper's. Nothing here changes with a command's output, and only a SavedCommand is new for each command.

// SavedShell is a shell between its commands.
type SavedShell struct {
	Pid        int      `json:"pid,omitempty"` // 0: there is none
	Scope      int      `json:"cell,omitempty"`
	LeftScopes []int    `json:"left,omitempty"`  // scopes with what commands left running
	Held       []int    `json:"held,omitempty"`  // the shell's channels, see shellProc
	State      []int    `json:"state,omitempty"` // the snapshots, see state
	Dir        string   `json:"dir"`             // what it was started with, as Env
	Env        []string `json:"env"`
	Seq        int      `json:"seq"`
	Trap       bool     `json:"int_trap,omitempty"`
	Funcs      bool     `json:"funcs,omitempty"`

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

// SavedCommand is a command that is being run.
type SavedCommand struct {
	Seq        int          `json:"seq"`
	Sent       int          `json:"sent"` // bytes of the script channel that are its line
	Scope      int          `json:"cell"` // what it started is in it
	Pipes      SavedPipes   `json:"lane"`
	Span       journal.Span `json:"span"`
	Stdin      []HeldFile   `json:"stdin,omitempty"`
	Before     []HeldFile   `json:"before,omitempty"` // what the shell reads before the text
	UsedBefore *SavedUsage  `json:"used,omitempty"`   // what its session had used by then, nil: not known

	Snapshot int  `json:"snapshot,omitempty"` // number of the last one that was asked for before it
	Current  bool `json:"current,omitempty"`  // no other command has ended in between

	Timeout   string `json:"timeout,omitempty"`   // it is being ended for that; a cancel is our owner's to write down
	Cancelled bool   `json:"cancelled,omitempty"` // with Code
	Code      *int   `json:"code,omitempty"`      // how it ended; what was its own is being put back

	Replaced *Replaced `json:"replaced,omitempty"` // it ended with its shell, whose successor is there already
}

// SavedUsage is the Usage of a group but for the peak, which begins anew with each command.
type SavedUsage struct {
	CPU      int64 `json:"cpu"` // nanoseconds
	OOMKills int64 `json:"oom,omitzero"`
	PIDHits  int64 `json:"pids,omitzero"`
}

// SavedProcess is a background process.
type SavedProcess struct {
	Pid    int          `json:"pid"`
	Scope  int          `json:"cell"`
	Copy   bool         `json:"copy,omitempty"` // of a POSIX shell: not a child of the keeper
	Start  uint64       `json:"start,omitempty"`
	Pipes  SavedPipes   `json:"lane"`
	Span   journal.Span `json:"span"`
	Stdin  []HeldFile   `json:"stdin,omitempty"`
	Held   []HeldFile   `json:"held,omitempty"`
	Status int          `json:"status,omitempty"` // of a copy: where its status comes out
	Gate   int          `json:"gate"`             // a line that is written there lets it run
	Lost   []string     `json:"lost,omitempty"`   // what of the session's state it began without
}

// An EntryWriter writes what the next gateway must know of a session into its log, each thing before anything depends on it. Its methods
// do not call the shell.
type EntryWriter interface {
	// Shell is called when the shell has changed.
	Shell(SavedShell)
	// Begun is called by Run before the shell is told of the command, and again when what must be known of it changes.
	Begun(*Command, SavedCommand)
	// Compact is called by Run soon after Command.WakeRun: no other call is under way on the session's runner.
	Compact()
}

// SetEntryWriter has the session written down from now on, and its shell as it is.
func (s *Shell) SetEntryWriter(r EntryWriter) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	s.saveMu.Lock()
	s.entries = r
	s.saveMu.Unlock()
	s.save()
}

// save has the shell written down. The caller has the turn.
func (s *Shell) save() { s.saveReplaced(nil) }

// saveReplaced is changed for a shell that has taken another one's place.
func (s *Shell) saveReplaced(after *Replaced) {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	if s.entries == nil {
		return
	}
	s.mu.Lock()
	r := SavedShell{Dir: s.cfg.Dir, Env: s.cfg.Env, Seq: s.seq, Trap: s.mayTrapAbort, Funcs: s.mayHaveFunctions.Load(), State: s.state.held, LeftScopes: s.leftScopesLocked()}
	if p := s.p; p != nil {
		r.Pid, r.Scope, r.Held = p.child.Pid(), p.scope.Number(), p.held
	}
	s.mu.Unlock()
	s.saved = r
	r.After = after
	s.entries.Shell(r)
}

// removeScope gives up the scope of a process or a terminal, unless somebody is left in it: then that is the session's, as what
// commands leave running, and is written down. False: it has to be called again, should the scope be emptied.
func (s *Shell) removeScope(c own.KeptScope) bool {
	empty := len(c.MembersExcept(0)) == 0 && (c.Remove() || len(c.MembersExcept(0)) == 0)
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	s.mu.Lock()
	at := slices.Index(s.leftScopes, c)
	switch {
	case empty && at >= 0:
		s.leftScopes = slices.Delete(s.leftScopes, at, at+1)
	case !empty && at < 0:
		s.leftScopes = append(s.leftScopes, c)
	}
	s.saved.LeftScopes = s.leftScopesLocked()
	s.mu.Unlock()
	if s.entries != nil && empty == (at >= 0) {
		s.entries.Shell(s.saved)
	}
	return empty
}

func (s *Shell) leftScopesLocked() (numbers []int) {
	for _, c := range s.leftScopes {
		numbers = append(numbers, c.Number())
	}
	return numbers
}

// An Adoption brings a session back from what its keeper has and its last gateway wrote down: Want for every journal,
// then Shell (Vacant, Remains), then Bring, Follow and Process for what belongs to it, and Finish.
type Adoption struct {
	b                *Base
	from             own.HeldSession // less what was taken
	shell            *Shell
	sessionLog       *sessionlog.Log
	sessionLogNumber int                       // what the keeper calls the file of book
	reservedLogs     map[HeldFile]*reservedLog // by the first file of a log
	packed           map[sessionlog.Key]*sessionlog.Archived
	knownScopes      map[int]bool // that are known
}

// Adopt begins an adoption.
func (b *Base) Adopt(from own.HeldSession) *Adoption {
	return &Adoption{b: b, from: from, reservedLogs: map[HeldFile]*reservedLog{}, knownScopes: map[int]bool{}}
}

// ReadSessionLog reads what the last gateway wrote down about the session: nothing of one that was never given to anybody.
func (a *Adoption) ReadSessionLog(read func(entry []byte) error) error {
	for number, fd := range a.from.Held {
		book, err := sessionlog.Open(fd, read)
		if errors.Is(err, sessionlog.ErrNotSessionLog) {
			continue
		}
		if err != nil {
			return err
		}
		a.takeFD(number)
		a.sessionLog, a.sessionLogNumber, a.packed = book, number, map[sessionlog.Key]*sessionlog.Archived{}
		for _, k := range book.Archived() {
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
	return a.takeFD(f.Number)
}

// takeFD gives our descriptor of a held one away, -1 when there is none.
func (a *Adoption) takeFD(number int) int {
	fd, ok := a.from.Held[number]
	if !ok {
		return -1
	}
	delete(a.from.Held, number)
	return fd
}

func (a *Adoption) pipes(r SavedPipes) (*outputPipes, error) {
	if len(r.Pipes) != 4 {
		return nil, errors.New("output pipes: not held")
	}
	l := &outputPipes{group: a.from.Group, heldNumbers: make([]int, 4), files: r.Pipes}
	for i, f := range r.Pipes {
		fd := a.takeFile(f)
		if l.heldNumbers[i] = f.Number; fd < 0 {
			l.heldNumbers[i] = -1
		}
		if i < 2 {
			l.r[i] = fd
		} else {
			l.w[i-2] = fd
		}
	}
	out, err := a.openLog(r.Log)
	if err != nil {
		l.close()
		return nil, err
	}
	descriptor.Close(&l.w[0]) // who is started with them has them
	descriptor.Close(&l.w[1])
	out.mu.Lock()
	out.done = false
	packed := out.closed
	out.mu.Unlock()
	l.log = out
	if packed { // nothing came out of the pipes any more; the keeper had not been told yet to drop them
		for i := range l.r {
			descriptor.Close(&l.r[i])
		}
	}
	return l, nil
}

func (a *Adoption) stdin(files []HeldFile) *stdinBuffer {
	if len(files) != 3 {
		return nil
	}
	in := &stdinBuffer{group: a.from.Group, files: files, fileNumber: files[1].Number, mem: a.takeFile(files[0]), r: a.takeFile(files[1]), w: a.takeFile(files[2])}
	for i, fd := range []int{in.mem, in.r, in.w} {
		if in.heldNumbers = append(in.heldNumbers, files[i].Number); fd < 0 {
			in.heldNumbers[i] = -1
		}
	}
	if in.hadReader = in.r >= 0; !in.hadReader { // whether the shell has come to it, the pipe tells
		in.fileNumber = files[2].Number
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

// OpenEnded stands for the shell of a session that has ended: its output can be brought back, and it can be forgotten.
func (a *Adoption) OpenEnded(c ShellConfig) *Shell {
	a.shell = a.b.newShell(c)
	a.shell.streamLogs.sessionLog, a.shell.streamLogs.sessionLogNumber = a.sessionLog, a.sessionLogNumber
	a.shell.group = a.from.Group
	a.shell.closing.Store(true)
	a.shell.state = &state{fd: [2]int{-1, -1}, exit: -1, sessionLog: a.sessionLog}
	a.shell.turn <- struct{}{}
	return a.shell
}

// IsComplete: all is there that Shell needs. It is not where the session's end has begun and come as far as its shell.
func (a *Adoption) IsComplete(r SavedShell) bool {
	if len(r.State) != 4 || len(r.Held) != 4 || len(a.from.Scopes) == 0 || a.from.Children[r.Pid] == nil {
		return false
	}
	for _, n := range r.Held {
		if _, held := a.from.Held[n]; !held {
			return false
		}
	}
	return true
}

// OpenForReset brings a shell back whose process was about to be replaced by Reset, which must follow.
func (a *Adoption) OpenForReset(c ShellConfig, r SavedShell) (*Shell, error) {
	c.Dir, c.Env = r.Dir, r.Env
	s := a.OpenEnded(c)
	s.closing.Store(false)
	s.restore.Store(c.Restore)
	s.seq, s.mayTrapAbort = r.Seq+1_000_000, r.Trap // beyond whatever was given out since
	s.mayHaveFunctions.Store(r.Funcs)
	s.mayTrapLines = true // it is not known
	if err := s.makePoller(); err != nil {
		return nil, err
	}
	if len(r.State) != 4 {
		return nil, ErrShellGone
	}
	s.state = restoreState(r.State, a.takeFD(r.State[0]), a.takeFD(r.State[1]), a.takeFD(r.State[2]), a.sessionLog)
	return s, nil
}

// Shell brings the shell back, dead or alive: a dead one is revived like any other that died while nobody looked.
func (a *Adoption) Shell(c ShellConfig, r SavedShell) (*Shell, error) {
	k, _, err := dialect.Of(c.Path)
	if err != nil {
		return nil, err
	}
	s, err := a.OpenForReset(c, r)
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
	scope := a.from.Scopes[r.Scope]
	for n, c := range a.from.Scopes { // it may have been moved the moment before
		for _, pid := range c.MembersExcept(0) {
			if pid == r.Pid {
				scope = a.from.Scopes[n]
			}
		}
	}
	if scope == nil {
		return nil, ErrShellGone
	}
	a.knownScopes[scope.Number()] = true
	for _, n := range append(r.LeftScopes, r.Scope) {
		if c := a.from.Scopes[n]; c != nil && !a.knownScopes[n] {
			a.knownScopes[n] = true
			s.leftScopes = append(s.leftScopes, c)
		}
	}
	s.p = &shellProc{
		dialect: k, child: child, scope: scope, held: r.Held, scriptReader: -1, script: a.takeFD(r.Held[heldScript]), ctlR: a.takeFD(r.Held[heldCtlR]),
		ctlW: a.takeFD(r.Held[heldCtlW]), text: a.takeFD(r.Held[heldText]), textSize: math.MaxInt, poll: s.poll, pipeCalls: &s.pipeCalls,
	}
	if s.p.script < 0 || s.p.ctlR < 0 || s.p.ctlW < 0 || s.p.text < 0 {
		return nil, ErrShellGone
	}
	if s.group.HeldElsewhere() {
		descriptor.Close(&s.p.ctlW)
	}
	return s, nil
}

// KillUnrecorded ends what the last gateway had begun to make and had not written down yet, and packs what it had not come to pack.
func (a *Adoption) KillUnrecorded() {
	for _, w := range a.reservedLogs {
		for _, k := range w.packed {
			delete(a.packed, k.Key)
		}
		if w.log != nil {
			w.log.closeIfUnused()
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
	for n, c := range a.from.Scopes {
		if !a.knownScopes[n] {
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
	if a.sessionLog != nil {
		a.sessionLog.Close()
	}
	if a.shell != nil {
		a.shell.streamLogs.close()
	}
	a.from.Group.DropAll()
	return err
}

// Resume makes a command, which was running, ready for Run, which goes on with it. Its Journal has been brought back.
func (a *Adoption) Resume(c *Command, r SavedCommand, began time.Time) error {
	l, err := a.pipes(r.Pipes)
	if err != nil {
		return err
	}
	scope := a.scope(r.Scope)
	if p := a.shell.p; r.Scope == 0 && p != nil { // written by a version that did not know
		scope = p.scope
	}
	c.resumed, c.stdin = &resumed{SavedCommand: r, scope: scope, pipes: l, beforeFD: -1, began: began}, a.stdin(r.Stdin)
	if len(r.Before) == 1 {
		c.resumed.beforeFD = a.takeFile(r.Before[0])
	}
	c.eof = c.stdin != nil && c.stdin.eof
	if r.Replaced != nil {
		a.shell.state.restoreEnded(r)
	} else {
		a.shell.state.restoreRunning(r)
	}
	return nil
}

// LastEnded tells of the last command that has ended. It is for a shell that runs none.
func (a *Adoption) LastEnded(r SavedCommand) { a.shell.state.restoreEnded(r) }

// RestoreStdin gives a command that waits the stdin it had been given.
func (a *Adoption) RestoreStdin(c *Command, stdin []HeldFile) {
	c.stdin = a.stdin(stdin)
	c.eof = c.stdin != nil && c.stdin.eof
}

// resumed is what a command that is run again, or on, begins with.
type resumed struct {
	SavedCommand
	scope    own.KeptScope
	pipes    *outputPipes
	beforeFD int // descriptor of what Before holds, -1: none
	began    time.Time
}

// ReadOn goes on reading what jobs of an ended command write, and closes j when nobody can any more.
func (a *Adoption) ReadOn(j *journal.Journal, r *SavedPipes) {
	var l *outputPipes
	var err error
	if r != nil {
		l, err = a.pipes(*r)
	}
	if l == nil || err != nil {
		j.Close()
		return
	}
	l.closeWriters()
	late := newCopier(j)
	j.OnRoom(late.onRoom)
	_ = late.takePipes(l)
	late.Start()
	a.shell.addCopier(late)
}

// Process brings a background process back, ended or not. spec.Journal has been brought back, too.
func (a *Adoption) Process(r SavedProcess, j *journal.Journal) (*Process, error) {
	child := a.from.Children[r.Pid]
	if child == nil && !r.Copy {
		j.Close()
		return nil, ErrShellGone
	}
	l, err := a.pipes(r.Pipes)
	if err != nil {
		j.Close()
		return nil, err
	}
	delete(a.from.Children, r.Pid)
	p := &Process{b: a.b, s: a.shell, heldResources: heldResources{group: a.from.Group}, scope: a.scope(r.Scope), pid: r.Pid, pipes: l, copier: newCopier(j), exited: make(chan struct{}), saved: r}
	j.OnRoom(p.copier.onRoom)
	_ = p.copier.takePipes(l)
	if !r.Copy {
		l.closeWriters()
	}
	p.restore(a, r.Held, r.Gate)
	status := -1
	if i := slices.Index(p.heldNumbers, r.Status); i >= 0 {
		status = p.files[i]
	}
	if p.stdin = a.stdin(r.Stdin); p.stdin != nil {
		p.inputToken, p.feederDone = make(chan struct{}, 1), make(chan struct{})
		p.inputToken <- struct{}{}
	}
	if r.Copy {
		err = p.watchCopy(status, r.Start)
	} else {
		p.watchChild(child)
	}
	if err != nil {
		return nil, err
	}
	p.copier.Start()
	if p.stdin != nil {
		go p.feed() // as in Start
	}
	a.shell.mu.Lock()
	a.shell.procs[p] = struct{}{}
	a.shell.mu.Unlock()
	return p, nil
}

// EndedProcess stands for a process that had ended; what it started may live on.
func (a *Adoption) EndedProcess(r SavedProcess, status own.Status) *Process {
	p := &Process{b: a.b, s: a.shell, heldResources: heldResources{group: a.from.Group}, scope: a.scope(r.Scope), pid: r.Pid, copier: newCopier(nil), exited: make(chan struct{}), status: status, saved: r}
	p.removeScope()
	close(p.exited)
	return p
}

// scope is where something that we bring back is, or was.
func (a *Adoption) scope(number int) own.KeptScope {
	a.knownScopes[number] = true
	if c, ok := a.from.Scopes[number]; ok {
		return c
	}
	return goneScope(number)
}

// goneScope stands for a scope that was removed: nothing is in it.
type goneScope int

func (c goneScope) Number() int                         { return int(c) }
func (goneScope) Spawn(own.Spec) (own.KeptChild, error) { return nil, os.ErrNotExist }
func (goneScope) AddChild(int) error                    { return os.ErrNotExist }
func (goneScope) AddForkedCopy(int) error               { return os.ErrNotExist }
func (goneScope) MembersExcept(int) []int               { return nil }
func (goneScope) Signal(syscall.Signal, int)            {}
func (goneScope) SignalSome(syscall.Signal, ...int)     {}
func (goneScope) Kill(int) error                        { return nil }
func (goneScope) Remove() bool                          { return true }
