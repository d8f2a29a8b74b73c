package shell

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/saved"
)

// A shell process that has died is replaced by one with the state of its newest whole snapshot. Snapshots are taken between
// commands: when no command has come for a while, and before a command that may end the shell or may last. If a command has ended
// after the newest snapshot, the client is told that everything may be lost.

// Causes for which a shell was restored. They are the label values of trl_shell_restores_total.
const (
	causeExited = "exited" // its EXIT trap reported: exit, set -e
	causeKilled = "killed" // it ended without a report
	causeMoved  = "moved"  // TakeState ended it, to start one with the state of another shell
)

// RestoreCauses has all causes.
var RestoreCauses = []string{causeExited, causeKilled, causeMoved}

// snapshotAge is how old the last snapshot may get while brief commands follow each other without a pause.
const snapshotAge = 250 * time.Millisecond

const (
	// Snapshots may take 1/snapshotShare of a session's time. A session that takes fewer saves up time for a burst, at most
	// snapshotBurst. That is enough for 50 small snapshots of bash, which take 0.4 ms each.
	snapshotShare = 25
	snapshotBurst = 500 * time.Millisecond
	// costPerByte is the time that a snapshot takes per byte of a large variable, measured with 50 MB in bash. Many small
	// functions take more time per byte.
	costPerByte = 12 * time.Nanosecond
)

// snapshotDelay returns the time until another snapshot stays within snapshotShare, 0 if it does now.
func (s *Shell) snapshotDelay() time.Duration { return max(0, time.Until(s.snapshotsPaid)) }

// countSnapshot adds the expected time of a snapshot to the time that snapshots have taken.
func (s *Shell) countSnapshot(k *dialect.Dialect) {
	saved := s.snapshotTried.Add(-snapshotBurst)
	if s.snapshotsPaid.Before(saved) {
		s.snapshotsPaid = saved
	}
	s.snapshotsPaid = s.snapshotsPaid.Add(snapshotShare * (k.SnapshotCost + time.Duration(s.state.Size())*costPerByte))
}

// snapshotFirst tells whether to take a snapshot before a command, because the command may end the shell, or because a process may
// start while the command runs.
func (s *Shell) snapshotFirst(text string) bool {
	for _, word := range []string{"kill", "exec", "exit"} {
		if strings.Contains(text, word) {
			return true
		}
	}
	if !s.mayTrapAbort && dialect.IsBrief(text) { // with a trap for the abort signal, every abort kills the shell
		return time.Since(s.snapshotTried) > snapshotAge
	}
	return s.snapshotDelay() == 0
}

// SnapshotIfDue requests a snapshot if one is due. It returns at once, with the time after which to call it again, 0 for not at all.
func (s *Shell) SnapshotIfDue() time.Duration {
	select {
	case <-s.turn:
	default:
		return 0
	}
	defer s.giveTurn()
	s.removeEmptyScopes()
	s.state.ForgetLast()
	p := s.proc()
	if p == nil || s.rests || s.restorePostponed || s.closing.Load() || !s.state.Wanted() {
		return 0
	}
	if wait := s.snapshotDelay(); wait > 0 {
		return wait
	}
	if p.unread() > 0 { // the shell has not read the lines after its last command yet
		return min(max(time.Since(s.snapshotTried)/4, time.Millisecond), time.Minute) // short on a busy machine, long for a shell that is stopped
	}
	if s.state.Missing() > 0 && s.wakeUp() != nil { // an earlier gateway made the shell rest
		return hurryPause
	}
	s.snapshot(p)
	return 0
}

// snapshot requests a snapshot, unless the file may become larger than the shell's `ulimit -f`, which would end the shell.
func (s *Shell) snapshot(p *shellProc) {
	most, known := procfs.SoftLimit(p.child.Pid(), unix.RLIMIT_FSIZE, "Max file size")
	if s.snapshotTried = time.Now(); known && most < uint64(max(2*s.state.Size(), minSnapshotRoom)) {
		s.state.Skip()
		return
	}
	s.countSnapshot(p.dialect)
	s.state.Ask(p.dialect, func(line string) bool { return p.sendBy(time.Now().Add(abortTimeout), line) })
}

// awaitSnapshot waits until the shell has written the snapshot that was requested last. It is whole when the shell reports after it.
func (s *Shell) awaitSnapshot(p *shellProc) {
	if s.state.Pending() {
		s.seq++
		end := time.Now().Add(bootTimeout)
		p.sendBy(end, p.report(p.dialect.ReportCall, strconv.Itoa(s.seq)))
		p.awaitVerb('e', strconv.Itoa(s.seq), end)
	}
}

// minSnapshotRoom is more than the size of a plain shell's snapshot.
const minSnapshotRoom = 32 << 10

// allState names all parts of a state. "options" includes traps and the umask.
var allState = []string{"variables", "functions", "aliases", "options", "working_dir"}

// onecmd is the line for `set -t` in a snapshot of bash.
const onecmd = "\nset -o onecmd\n"

// savedState returns the script that gives a fresh shell the state of the last snapshot, nil if there is none. current tells whether
// the snapshot has the effects of every command that has ended.
func (s *Shell) savedState(k *dialect.Dialect, dead int) (script []byte, current bool) {
	script, current = s.state.Script(k, dead)
	if script == nil {
		return nil, current
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(dialect.UnsetSpawnEnv(k, s.cfg.Env), script...), current
}

// restoreScript returns the script that gives the next process the state of dead, and the names of what is lost. It turns off options
// that would end the next process, too.
func (s *Shell) restoreScript(dead *shellProc) (script []byte, lost []string) {
	script, current := s.savedState(dead.dialect, dead.held[heldCtlW])
	if dead.control.Exit != nil && *dead.control.Exit != 0 {
		for _, opt := range []string{"errexit", "nounset"} {
			if strings.Contains(string(script), "set -o "+opt+"\n") {
				lost = append(lost, opt)
			}
		}
		if len(lost) > 0 {
			script = append(script, "\n"+dead.dialect.Call("set")+" +e +u\n"...)
		}
	}
	if at := bytes.LastIndex(script, []byte(onecmd)); at >= 0 { // with this option the shell would exit after its first line
		script[at+len("\nset ")] = '+'
		lost = append(lost, "onecmd")
	}
	if !current || dead.control.ExitIsWhole && !s.state.Exited(dead.held[heldCtlW]) {
		lost = Union(lost, allState)
	} else if !dead.dialect.ListsFunctions && s.mayHaveFunctions.Load() {
		lost = append(lost, "functions")
	}
	return script, lost
}

// restoreShell replaces dead by a new process with its last state, and sets after.Lost. If a resource is missing for longer than
// timeout, the error is Scarce and dead stays in its place with its state. The next command or Revive then tries again.
func (s *Shell) restoreShell(dead *shellProc, after *saved.Replaced, timeout time.Duration) (err error) {
	if dead == nil { // Reset could not start a shell
		return s.startEmptyShell(timeout)
	}
	<-dead.child.Exited()
	s.closePipes() // the shell may have written errors into them when it died
	for {
		if _, ok := dead.next(); !ok { // the exit report may still be in the pipe
			break
		}
	}
	cause := causeKilled
	switch {
	case s.takesState:
		cause = causeMoved
	case dead.control.Exit != nil:
		cause = causeExited
	}
	script, lost := s.restoreScript(dead)
	tried := s.restorePostponed
	p, err := s.spawnRetrying(script, timeout)
	if s.restorePostponed = own.Scarce(err) && !s.closing.Load(); s.restorePostponed {
		if !tried {
			s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("shell cannot be restored now; trl keeps its state and tries again")
		}
		return err
	}
	if err != nil && script != nil {
		s.b.Log.Warn().Err(err).Str("session", s.cfg.ID).Msg("state of the shell could not be restored")
		if p, err = s.spawn(nil); own.Scarce(err) && !s.closing.Load() {
			s.restorePostponed = true
			return err
		}
		lost, script = slices.Clone(allState), nil
		s.state.Forget()
	}
	switch {
	case err != nil || script == nil:
	case p.control.StateStatus == nil && p.dialect.ListsFunctions: // the shell could not parse a function of the snapshot
		lost = Union(lost, []string{"functions", "options"})
	case p.control.StateStatus == nil:
		lost = Union(lost, []string{"aliases", "options"})
	case *p.control.StateStatus != 0:
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
	if dead.scope.Remove() { // not before saveReplaced: a gateway that took over in between would look for the dead shell in this scope
		s.mu.Lock()
		s.leftScopes = slices.DeleteFunc(s.leftScopes, func(c own.KeptScope) bool { return c == dead.scope })
		s.mu.Unlock()
	}
	dead.release()
	s.currentGroup().Drop(dead.held...)
	s.state.Restored()
	s.mayTrapAbort = false
	s.b.Metrics.ShellRestores.WithLabelValues(cause).Inc()
	if p != nil {
		s.snapshot(p)
	}
	return err
}

// The processes, descriptors or memory for another shell may all be in use, most likely by the session itself. They are usually free
// again soon, so a restore waits scarceTimeout for them and tries every scarcePause.
const (
	scarceTimeout = 5 * time.Second
	scarcePause   = 50 * time.Millisecond
)

// spawnRetrying is spawn, but tries again until timeout if the error is Scarce.
func (s *Shell) spawnRetrying(script []byte, timeout time.Duration) (p *shellProc, err error) {
	for begin := time.Now(); ; time.Sleep(scarcePause) {
		p, err = s.spawn(script)
		if err == nil || !own.Scarce(err) || s.closing.Load() || time.Since(begin) >= timeout {
			return p, err
		}
	}
}

// startEmptyShell starts a shell without a state for a session that has no shell. After a Scarce error it is tried again, as
// restoreShell is.
func (s *Shell) startEmptyShell(timeout time.Duration) error {
	p, err := s.spawnRetrying(nil, timeout)
	if s.restorePostponed = own.Scarce(err) && !s.closing.Load(); err != nil {
		return err
	}
	s.mu.Lock()
	s.p = p
	s.mu.Unlock()
	s.save()
	return nil
}

// Revive replaces a shell that died while no command ran. After a Scarce error the caller waits and calls it again; Revive itself
// then does not wait.
func (s *Shell) Revive() (lost []string, err error) {
	if err := s.takeTurn(); err != nil {
		return nil, err
	}
	defer s.giveTurn()
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
	var after saved.Replaced
	err = s.restoreShell(p, &after, timeout)
	return after.Lost, err
}

// makeReady waits until the shell answers again after an abort. It restores a shell that is dead or does not answer.
func (s *Shell) makeReady(r *run, o *Outcome) {
	r.c.setTarget(watchdogTarget{})
	defer func() {
		if p := s.proc(); p != nil { // the pipes are still to be closed, which may be held up
			r.c.setTarget(watchdogTarget{s, p, p.scope})
		}
	}()
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
	after := saved.Replaced{Seq: r.number, Code: o.Code, Cancelled: o.Cancelled}
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
