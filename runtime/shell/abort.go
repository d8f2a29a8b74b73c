package shell

import (
	"slices"
	"syscall"
	"time"

	"trl/runtime/procfs"
)

const (
	abortTick = 5 * time.Millisecond // between looks at a tree that is ending
	// abortTimeout is how long a shell may take to come back once everything it waited for is dead: a builtin that never
	// reaches a command's boundary (`read </dev/zero`) costs the shell process.
	abortTimeout = time.Second
)

// abort is the part of a run after cancel or timeout: sig to what has not had it, until deadline, then KILL.
type abort struct {
	sig          syscall.Signal
	deadline     time.Time
	unreadUntil  time.Time // until when the shell may take to read the line
	hasAbortTrap bool      // the shell has a trap of its user's for the abort
	signalled    map[int]bool
	next         time.Time
	kill         bool
	steps        int
}

// timeOut ends the command because a time is over.
func (r *run) timeOut(kind string, now time.Time) {
	r.timeout, r.saved.Timeout = kind, kind
	r.writeEntry()
	r.startAbort(syscall.SIGTERM, r.c.Grace, now)
}

// applyCancel ends the command because a client wants it, or gives it less time to end in.
func (r *run) applyCancel(c *cancelRequest, now time.Time) {
	if r.cancel == nil {
		r.startAbort(c.sig, c.grace, now)
	} else if r.abort != nil {
		if d := now.Add(c.grace); d.Before(r.abort.deadline) {
			r.abort.deadline = d
		}
	}
	r.cancel = c
}

// startAbort starts the ending: sig to all but the shell, and the shell's own work aborted.
func (r *run) startAbort(sig syscall.Signal, grace time.Duration, now time.Time) {
	r.abort = &abort{sig: sig, deadline: now.Add(grace), unreadUntil: now.Add(max(grace, abortTimeout)), signalled: map[int]bool{}, next: now, hasAbortTrap: r.hasAbortTrap()}
	if !r.resendAt.IsZero() {
		r.resend()
	}
}

// mayHaveEnded: the gateway before us told the command to end, nothing of it is left but the shell, and that has not had the time to
// answer us. The grace may have passed between the two gateways, and a command that ended within it was not killed.
func (r *run) mayHaveEnded(now time.Time) bool {
	return r.question != "" && now.Before(r.answerBy) && len(r.membersExceptShell()) == 0
}

// hasAbortTrap: the shell has a trap of its user's for the abort, or ignores it. A snapshot that is behind the last command knows of a trap
// that was taken away again, which the text of commands before does not.
func (r *run) hasAbortTrap() bool {
	k := r.p.dialect
	if procfs.Ignores(r.p.child.Pid(), k.AbortSignal) || k.SetsTrap.MatchString(r.c.Text) {
		return true
	}
	if k.SnapshotHasTrap == nil {
		return r.s.mayTrapAbort
	}
	script, current := r.s.state.script(k, nil)
	return k.SnapshotHasTrap.Match(script) || r.s.mayTrapAbort && !current
}

// abortShell ends the shell's own work. A deaf one would run its trap and go on with its list: the only cure is another shell.
func (r *run) abortShell() {
	sig := r.p.dialect.AbortSignal
	if r.abort.hasAbortTrap {
		sig = syscall.SIGKILL
	}
	_ = r.p.child.Signal(sig)
}

// stepAbort is one step of the ending.
func (r *run) stepAbort(now time.Time) {
	e := r.abort
	e.next = now.Add(abortTick)
	e.steps++
	busy := !r.reported && !r.died
	if busy && !e.kill && now.Before(e.unreadUntil) && r.unread() {
		// A busy machine: the shell has not even read the line. An abort now would hit nothing, and the line run after it.
		e.steps, e.next = 0, now.Add(abortTick/5)
		return
	}
	if !e.kill && !now.Before(e.deadline) && !(busy && r.mayHaveEnded(now)) {
		if busy && e.steps == 1 { // no grace: the shell first, as below
			r.abortShell()
		}
		e.kill = true
		r.killed = true
		r.s.b.Metrics.KillEscalations.Inc()
		r.killScope()
		e.deadline = time.Now().Add(abortTimeout)
		e.steps = 1
	}
	others := r.membersExceptShell()
	fresh := slices.ContainsFunc(others, func(pid int) bool { return !e.signalled[pid] })
	// The shell first: once what it waits for is dead, it would go on with its list.
	switch {
	case busy && (e.steps == 1 || fresh || e.steps%20 == 0 && (e.kill || len(others) == 0)): // again where one was lost
		r.abortShell()
	}
	var untold []int
	for _, pid := range others {
		if !e.signalled[pid] {
			// What was forked but has not reached its exec ignores TERM still, as its interactive shell does: it is told again.
			e.signalled[pid] = !procfs.Ignores(pid, e.sig)
			untold = append(untold, pid)
		}
	}
	switch {
	case e.kill && len(others) > 0:
		r.scope.Signal(syscall.SIGKILL, r.p.child.Pid())
	case !e.kill && len(untold) > 0:
		r.scope.SignalSome(e.sig, untold...)
	}
	if !busy {
		return
	}
	if e.steps%20 == 10 && r.p.unread() == 0 { // the abort may have taken the line with the report
		r.p.send(r.p.report(r.p.dialect.ResendCall, r.seq))
	}
	if e.kill && now.After(e.deadline) {
		_ = r.p.child.Signal(syscall.SIGKILL)
		if now.Sub(e.deadline) > abortTimeout && waitsForPipe(r.p.child.Pid()) { // somebody else of the session has that
			r.s.currentGroup().Signal(syscall.SIGKILL)
		}
	}
}

// killScope ends for certain what the command started: the shell moves out, the scope dies as a whole.
func (r *run) killScope() {
	old := r.scope
	parted := old != r.p.scope // by a gateway before us; then it is among what commands left
	if !parted {
		fresh, err := r.s.group.NewScope()
		if err == nil {
			err = fresh.AddChild(r.p.child.Pid())
		}
		if err != nil && !r.died { // no way to part them: the shell goes too, and is restored
			_ = r.p.child.Signal(syscall.SIGKILL)
		}
		if fresh != nil {
			r.p.scope = fresh
			r.s.save()
		}
	}
	r.scope = r.p.scope
	r.c.setTarget(watchdogTarget{r.s, r.p, r.scope})
	if err := old.Kill(0); err != nil {
		r.survivors = true
	}
	if !parted {
		old.Remove()
	}
}
