package shell

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/procfs"
)

// A shell process that has died is replaced by one with the state of its newest whole snapshot. Snapshots are taken between
// commands: when none has come for a while, and before one that may be the shell's end or may last. If the newest one is older
// than the last command that has ended, the client is told that everything may be lost.

// Why a shell was replaced and put back: the label of trl_shell_restores_total.
const (
	causeExited = "exited" // it said so: exit, set -e
	causeKilled = "killed" // it ended without a word
)

// RestoreCauses is the whole list.
var RestoreCauses = []string{causeExited, causeKilled}

// snapshotAge is how old the last snapshot may get while commands that take no time follow each other without a rest.
const snapshotAge = 250 * time.Millisecond

const (
	// Snapshots may take one part in snapshotShare of a session's time. A session that needs fewer saves time up for a burst,
	// snapshotBurst at most: that is 50 small snapshots of bash, which take 0.4 ms each.
	snapshotShare = 25
	snapshotBurst = 500 * time.Millisecond
	// costPerByte is for what a snapshot of a large variable costs, measured with 50 MB in bash. Many small functions
	// cost more per byte.
	costPerByte = 12 * time.Nanosecond
)

// snapshotDelay is the time until another snapshot keeps to the share of snapshots; 0: it does now.
func (s *Shell) snapshotDelay() time.Duration { return max(0, time.Until(s.snapshotsPaid)) }

// countSnapshot counts a snapshot.
func (s *Shell) countSnapshot(k *dialect.Dialect) {
	saved := s.snapshotTried.Add(-snapshotBurst)
	if s.snapshotsPaid.Before(saved) {
		s.snapshotsPaid = saved
	}
	s.snapshotsPaid = s.snapshotsPaid.Add(snapshotShare * (k.SnapshotCost + time.Duration(s.state.size())*costPerByte))
}

// snapshotFirst says whether to take a snapshot before a command, since the shell may not live to take another one, or a process may be
// started while the command runs.
func (s *Shell) snapshotFirst(text string) bool {
	for _, word := range []string{"kill", "exec", "exit"} {
		if strings.Contains(text, word) {
			return true
		}
	}
	if !s.mayTrapAbort && isBrief(text) { // a trap makes every abort cost the shell
		return time.Since(s.snapshotTried) > snapshotAge
	}
	return s.snapshotDelay() == 0
}

// briefWords are builtins that take no time and end no shell.
var briefWords = map[string]bool{
	":": true, "true": true, "false": true, "echo": true, "printf": true, "test": true, "[": true, "pwd": true, "cd": true,
	"export": true, "unset": true, "readonly": true, "declare": true, "typeset": true, "alias": true, "unalias": true,
	"shopt": true, "setopt": true, "unsetopt": true, "umask": true,
}

// maxBrief bounds the text that brief reads.
const maxBrief = 256

// isBrief says whether text is nothing but assignments and briefWords. Whoever redefines these words gets fewer snapshots.
func isBrief(text string) bool {
	if len(text) > maxBrief || strings.ContainsAny(text, "`()<>") {
		return false
	}
	for part := range strings.FieldsFuncSeq(text, func(c rune) bool { return strings.ContainsRune(";&|\n", c) }) {
		for word := range strings.FieldsSeq(part) {
			if name, _, assigns := strings.Cut(word, "="); assigns && !strings.ContainsAny(name, "'\"$\\") {
				continue
			}
			if !briefWords[word] {
				return false
			}
			break
		}
	}
	return true
}

// SnapshotIfDue takes a snapshot when one is due. It returns at once, with the time after which to call it again, 0 for none.
func (s *Shell) SnapshotIfDue() time.Duration {
	select {
	case <-s.turn:
	default:
		return 0
	}
	defer func() { s.turn <- struct{}{} }()
	s.removeEmptyScopes()
	s.state.forgetLast()
	p := s.proc()
	if p == nil || s.restorePostponed || s.closing.Load() || !s.state.wanted() {
		return 0
	}
	if wait := s.snapshotDelay(); wait > 0 {
		return wait
	}
	if p.unread() > 0 { // it has not come to it yet that its last command is over
		return min(max(time.Since(s.snapshotTried)/4, time.Millisecond), time.Minute) // on a busy machine that takes moments; one that is stopped is not asked often
	}
	s.snapshot(p)
	return 0
}

// snapshot asks for one, unless its file would be larger than the shell may write: that would end it (`ulimit -f`).
func (s *Shell) snapshot(p *shellProc) {
	most, known := procfs.SoftLimit(p.child.Pid(), unix.RLIMIT_FSIZE, "Max file size")
	if s.snapshotTried = time.Now(); known && most < uint64(max(2*s.state.size(), minSnapshotRoom)) {
		s.state.skipSnapshot()
		return
	}
	s.countSnapshot(p.dialect)
	s.state.ask(p)
}

// minSnapshotRoom is more than what a plain shell has to say.
const minSnapshotRoom = 32 << 10

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

// allState is all that a state has; its options include traps and the umask.
var allState = []string{"variables", "functions", "aliases", "options", "working_dir"}

// onecmd is how a snapshot of bash says `set -t`.
const onecmd = "\nset -o onecmd\n"

// savedState is the script that makes a fresh shell what the last snapshot says, nil when there is none. current: the snapshot has
// the effects of every command that has ended.
func (s *Shell) savedState(k *dialect.Dialect, dead *shellProc) (script []byte, current bool) {
	script, current = s.state.script(k, dead)
	if script == nil {
		return nil, current
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(dialect.UnsetSpawnEnv(k, s.cfg.Env), script...), current
}

// restoreScript is the script that makes the next process what dead was, without what would end that one, too; and what is lost.
func (s *Shell) restoreScript(dead *shellProc) (script []byte, lost []string) {
	script, current := s.savedState(dead.dialect, dead)
	if dead.exit != nil && *dead.exit != 0 {
		for _, opt := range []string{"errexit", "nounset"} {
			if strings.Contains(string(script), "set -o "+opt+"\n") {
				lost = append(lost, opt)
			}
		}
		if len(lost) > 0 {
			script = append(script, "\n"+dead.dialect.Call("set")+" +e +u\n"...)
		}
	}
	if at := bytes.LastIndex(script, []byte(onecmd)); at >= 0 { // a shell with it would end after its first line
		script[at+len("\nset ")] = '+'
		lost = append(lost, "onecmd")
	}
	if !current || dead.exitIsWhole && !s.state.exited(dead) {
		lost = Union(lost, allState)
	} else if !dead.dialect.ListsFunctions && s.mayHaveFunctions.Load() {
		lost = append(lost, "functions")
	}
	return script, lost
}

// restoreShell replaces dead by a new process with its last state, and adds to after what that lost. Where something is short for longer
// than patience, the error is Scarce, dead stays in its place with all that is known of its state, and the next command or Revive
// tries again.
func (s *Shell) restoreShell(dead *shellProc, after *Replaced, timeout time.Duration) (err error) {
	if dead == nil { // Reset could not make it
		return s.startEmptyShell(timeout)
	}
	<-dead.child.Exited()
	s.closePipes() // it may have complained into them when it died
	for {
		if _, ok := dead.next(); !ok { // the exit report may still be in the pipe
			break
		}
	}
	cause := causeKilled
	if dead.exit != nil {
		cause = causeExited
	}
	script, lost := s.restoreScript(dead)
	tried := s.restorePostponed
	p, err := s.spawnRetrying(script, timeout)
	if s.restorePostponed = Scarce(err) && !s.closing.Load(); s.restorePostponed {
		if !tried {
			s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("shell cannot be put back now; its state is kept, and it is tried again")
		}
		return err
	}
	if err != nil && script != nil {
		s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("state could not be put back")
		if p, err = s.spawn(nil); Scarce(err) && !s.closing.Load() {
			s.restorePostponed = true
			return err
		}
		lost, script = slices.Clone(allState), nil
		s.state.forget()
	}
	switch {
	case err != nil || script == nil:
	case p.stateStatus == nil && p.dialect.ListsFunctions: // there is a function that does not read back
		lost = Union(lost, []string{"functions", "options"})
	case p.stateStatus == nil:
		lost = Union(lost, []string{"aliases", "options"})
	case *p.stateStatus != 0:
		lost = Union(lost, []string{"working_dir"})
	}
	s.mu.Lock()
	s.p = p
	if !slices.Contains(s.leftScopes, dead.scope) {
		s.leftScopes = append(s.leftScopes, dead.scope)
	}
	s.mu.Unlock()
	after.Lost = lost
	s.saveReplaced(after)
	if dead.scope.Remove() { // not before: a gateway that took over in between would look for the dead shell in it
		s.mu.Lock()
		s.leftScopes = slices.DeleteFunc(s.leftScopes, func(c own.KeptScope) bool { return c == dead.scope })
		s.mu.Unlock()
	}
	dead.release()
	s.currentGroup().Drop(dead.held...)
	s.state.restored()
	s.mayTrapAbort = false
	s.b.Metrics.ShellRestores.WithLabelValues(cause).Inc()
	if p != nil {
		s.snapshot(p)
	}
	return err
}

// What a shell is put back with may all be in use, by the session's own user first of all: it comes back soon, as a rule,
// and the session is worth the wait.
const (
	scarceTimeout = 5 * time.Second
	scarcePause   = 50 * time.Millisecond
)

// Scarce: err says that there are not enough processes, descriptors or memory, or no room in a file system of memory, at the moment.
func Scarce(err error) bool {
	short := []error{unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EDQUOT}
	return slices.ContainsFunc(short, func(e error) bool { return errors.Is(err, e) })
}

// spawnRetrying is spawn for a session that has something to lose.
func (s *Shell) spawnRetrying(script []byte, timeout time.Duration) (p *shellProc, err error) {
	for begin := time.Now(); ; time.Sleep(scarcePause) {
		p, err = s.spawn(script)
		if err == nil || !Scarce(err) || s.closing.Load() || time.Since(begin) >= timeout {
			return p, err
		}
	}
}

// startEmptyShell gives a session that has no shell one without a state. Where something is short, that is tried again as restoreShell is.
func (s *Shell) startEmptyShell(timeout time.Duration) error {
	p, err := s.spawnRetrying(nil, timeout)
	if s.restorePostponed = Scarce(err) && !s.closing.Load(); err != nil {
		return err
	}
	s.mu.Lock()
	s.p = p
	s.mu.Unlock()
	s.save()
	return nil
}

// Revive replaces a shell that died while no command ran. An error that is Scarce leaves it to be tried again: then it does not
// wait, as its caller does.
func (s *Shell) Revive() (lost []string, err error) {
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	p := s.proc()
	if p == nil && !s.restorePostponed || s.closing.Load() {
		return nil, ErrShellGone
	}
	if p != nil && !p.dead() {
		return nil, nil
	}
	timeout := scarceTimeout
	if s.restorePostponed {
		timeout = 0
	}
	var after Replaced
	err = s.restoreShell(p, &after, timeout)
	return after.Lost, err
}

// makeReady brings the shell back to its channel once a command was aborted, and puts another in its place when it is dead.
func (s *Shell) makeReady(r *run, o *Outcome) {
	if !r.died {
		if r.p.barrier(r.seq, abortTimeout) {
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
	after := Replaced{Seq: r.number, Code: o.Code, Cancelled: o.Cancelled}
	err := s.restoreShell(r.p, &after, scarceTimeout)
	if s.restorePostponed {
		o.Postponed = true
		return
	}
	if err != nil {
		o.Err = errors.Join(o.Err, ErrShellGone, err)
		return
	}
	r.saved.Replaced = &after
	o.Restored, o.Lost = true, after.Lost
}
