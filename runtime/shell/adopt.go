package shell

import (
	"context"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/snapshot"
	"trl/runtime/stream"
)

// An EntryWriter writes entries to the session log for the next gateway. It writes each entry before anything depends on it. Its
// methods do not call the shell.
type EntryWriter interface {
	// Shell is called when the shell has changed.
	Shell(saved.Shell)
	// Begun is called by Run before the shell gets the command, and again when the saved.Command changes.
	Begun(*Command, saved.Command)
	// Compact is called by Run soon after Command.WakeRun. No other call by the session's runner goes on meanwhile.
	Compact()
}

// SetEntryWriter sets the writer of the session's entries and writes an entry with the present shell.
func (s *Shell) SetEntryWriter(r EntryWriter) {
	<-s.turn
	defer s.giveTurn()
	s.saveMu.Lock()
	s.entries = r
	s.saveMu.Unlock()
	s.save()
	s.used = true
}

// save writes an entry with the shell. The caller has the turn.
func (s *Shell) save() { s.saveReplaced(nil) }

// saveReplaced is save for a shell that has replaced another.
func (s *Shell) saveReplaced(after *saved.Replaced) {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	if s.entries == nil {
		return
	}
	s.mu.Lock()
	r := saved.Shell{Dir: s.cfg.Dir, Env: s.cfg.Env, Seq: s.seq, Trap: s.mayTrapAbort, Funcs: s.mayHaveFunctions.Load(), State: s.state.Held(), LeftScopes: s.leftScopesLocked()}
	if p := s.p; p != nil {
		r.Pid, r.Scope, r.Held = p.child.Pid(), p.scope.Number(), p.held
	}
	s.mu.Unlock()
	s.saved = r
	r.After = after
	s.entries.Shell(r)
}

// removeScope removes the scope of a process or a terminal. If a process is left in the scope, the scope joins s.leftScopes, like
// the scopes of processes that commands left running, and an entry says so. removeScope then returns false, and it must be called
// again when the scope may be empty.
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

// An Adoption restores a session from the keeper's descriptors and the last gateway's session log. Its methods are called in this
// order: ReadSessionLog; Reserve for every journal; then Shell, OpenForReset or OpenEnded; then Replay, ReadOn, Process and Terminal;
// then KillUnrecorded.
type Adoption struct {
	*stream.Restorer
	b           *Base
	from        own.HeldSession // without the children that were taken
	shell       *Shell
	knownScopes map[int]bool // numbers of the scopes that entries name
}

// Adopt returns an Adoption of the session from.
func (b *Base) Adopt(from own.HeldSession) *Adoption {
	log := b.Log.With().Str("session", from.ID).Logger()
	return &Adoption{Restorer: stream.NewRestorer(from.Group, from.Held, log), b: b, from: from, knownScopes: map[int]bool{}}
}

// OpenEnded returns a Shell for a session that has ended. Its output can be restored, and it can be forgotten.
func (a *Adoption) OpenEnded(c ShellConfig) *Shell {
	a.shell = a.b.newShell(c)
	a.UseLogs(a.shell.streamLogs)
	a.shell.group = a.from.Group
	a.shell.closing.Store(true)
	a.shell.state = snapshot.OnlyLog(a.SessionLog)
	a.shell.turn <- struct{}{}
	return a.shell
}

// IsComplete tells whether the keeper holds everything that Shell needs. It does not if the last gateway was closing the session
// and had already ended the shell.
func (a *Adoption) IsComplete(r saved.Shell) bool {
	if len(r.State) != 4 || len(r.Held) != 4 || len(a.from.Scopes) == 0 || a.from.Children[r.Pid] == nil {
		return false
	}
	for i, n := range r.Held {
		if !a.Holds(n) && (i != heldText || n != 0) {
			return false
		}
	}
	return true
}

// OpenForReset restores a Shell without its process, which Reset was replacing. The caller must call Reset next.
func (a *Adoption) OpenForReset(c ShellConfig, r saved.Shell) (*Shell, error) {
	c.Dir, c.Env = r.Dir, r.Env
	s := a.OpenEnded(c)
	s.closing.Store(false)
	s.restore.Store(c.Restore)
	s.seq, s.mayTrapAbort = r.Seq+1_000_000, r.Trap // greater than any number that was given since the entry
	s.mayHaveFunctions.Store(r.Funcs)
	s.mayTrapLines = true // unknown, so we assume it
	if err := s.makePoller(); err != nil {
		return nil, err
	}
	if len(r.State) != 4 {
		return nil, ErrShellGone
	}
	s.state = snapshot.Restore(r.State, a.Take(r.State[0]), a.Take(r.State[1]), a.Take(r.State[2]), a.SessionLog, a.TakePacked)
	return s, nil
}

// Shell restores the shell, dead or alive. A dead one is later revived like any shell that died between commands.
func (a *Adoption) Shell(c ShellConfig, r saved.Shell) (*Shell, error) {
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
	for n, c := range a.from.Scopes { // the last gateway may have moved the shell after it wrote the entry
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
		dialect: k, child: child, scope: scope, held: r.Held, scriptReader: -1, script: a.Take(r.Held[heldScript]), ctlR: a.Take(r.Held[heldCtlR]),
		ctlW: -1, text: a.Take(r.Held[heldText]), textSize: math.MaxInt, poll: s.poll, pipeCalls: &s.pipeCalls,
	}
	both := r.Held[heldCtlR] == r.Held[heldCtlW]
	if !both {
		s.p.ctlW = a.Take(r.Held[heldCtlW])
	}
	if s.p.script < 0 || s.p.ctlR < 0 || s.p.ctlW < 0 && !both || s.p.text < 0 && r.Held[heldText] != 0 {
		return nil, ErrShellGone
	}
	if s.group.HeldElsewhere() {
		descriptor.Close(&s.p.ctlW)
	}
	return s, nil
}

// KillUnrecorded kills the processes that the last gateway started but did not write down, and ends the restoring.
func (a *Adoption) KillUnrecorded() {
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
	a.CloseRest()
}

// Discard ends a session that cannot be restored.
func (a *Adoption) Discard(ctx context.Context) error {
	err := a.from.Group.Close(ctx)
	for _, child := range a.from.Children {
		child.Close()
	}
	a.Restorer.Discard()
	a.from.Group.DropAll()
	return err
}

// Resume prepares a command that was running, so that Run goes on with it. The command's Journal has been restored before.
func (a *Adoption) Resume(c *Command, r saved.Command, began time.Time) error {
	l, err := a.Pipes(r.Pipes)
	if err != nil {
		return err
	}
	scope := a.scope(r.Scope)
	if p := a.shell.p; r.Scope == 0 && p != nil { // an older version wrote no scope
		scope = p.scope
	}
	c.resumed, c.stdin = &resumed{Command: r, scope: scope, pipes: l, beforeFD: -1, began: began}, a.Stdin(r.Stdin)
	if len(r.Before) == 1 {
		c.resumed.beforeFD = a.TakeFile(r.Before[0])
	}
	c.eof = c.stdin != nil && c.stdin.Complete()
	if r.Replaced != nil {
		a.shell.state.RestoreEnded(r)
	} else {
		a.shell.state.RestoreRunning(r)
	}
	return nil
}

// LastEnded restores what the entry of the last ended command says about the snapshots. It is for a shell that runs no command.
func (a *Adoption) LastEnded(r saved.Command) { a.shell.state.RestoreEnded(r) }

// RestoreStdin restores the stdin of a command that waits for its turn.
func (a *Adoption) RestoreStdin(c *Command, stdin []stream.HeldFile) {
	c.stdin = a.Stdin(stdin)
	c.eof = c.stdin != nil && c.stdin.Complete()
}

// resumed is what a command needs that goes on under this gateway.
type resumed struct {
	saved.Command
	scope    own.KeptScope
	pipes    *stream.Pipes
	beforeFD int // our descriptor of the file Before; -1: none
	began    time.Time
}

// ReadOn goes on copying the output of jobs that an ended command left running. It closes j when the output ends.
func (a *Adoption) ReadOn(j *journal.Journal, r *stream.SavedPipes) {
	var l *stream.Pipes
	var err error
	if r != nil {
		l, err = a.Pipes(*r)
	}
	if l == nil || err != nil {
		j.Close()
		return
	}
	l.CloseWriters()
	late := stream.NewCopier(j)
	j.OnRoom(late.OnRoom)
	_ = late.TakePipes(l)
	late.Start()
	a.shell.addCopier(late)
}

// Process restores a background process, ended or not. Its journal j has been restored before.
func (a *Adoption) Process(r saved.Process, j *journal.Journal) (*Process, error) {
	child := a.from.Children[r.Pid]
	if child == nil && !r.Copy {
		j.Close()
		return nil, ErrShellGone
	}
	l, err := a.Pipes(r.Pipes)
	if err != nil {
		j.Close()
		return nil, err
	}
	delete(a.from.Children, r.Pid)
	p := &Process{b: a.b, s: a.shell, files: stream.HeldFiles{Group: a.from.Group}, scope: a.scope(r.Scope), pid: r.Pid, pipes: l, copier: stream.NewCopier(j), exited: make(chan struct{}), saved: r}
	j.OnRoom(p.copier.OnRoom)
	_ = p.copier.TakePipes(l)
	if !r.Copy {
		l.CloseWriters()
	}
	p.files.Restore(a.Restorer, r.Held, r.Gate)
	status := p.files.File(r.Status)
	if p.stdin = a.Stdin(r.Stdin); p.stdin != nil {
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
		go p.feed() // ends as in Start
	}
	a.shell.mu.Lock()
	a.shell.procs[p] = struct{}{}
	a.shell.mu.Unlock()
	return p, nil
}

// EndedProcess returns a Process for one that had ended. Processes that it started may still run.
func (a *Adoption) EndedProcess(r saved.Process, status own.Status) *Process {
	p := &Process{b: a.b, s: a.shell, files: stream.HeldFiles{Group: a.from.Group}, scope: a.scope(r.Scope), pid: r.Pid, copier: stream.NewCopier(nil), exited: make(chan struct{}), status: status, saved: r}
	p.removeScope()
	close(p.exited)
	return p
}

// scope returns the scope with that number, or a GoneScope, and marks the number as known.
func (a *Adoption) scope(number int) own.KeptScope {
	a.knownScopes[number] = true
	if c, ok := a.from.Scopes[number]; ok {
		return c
	}
	return own.GoneScope(number)
}
