package shell

import (
	"slices"
	"syscall"
	"time"

	"trl/runtime/escalate"
	"trl/runtime/procfs"
	"trl/runtime/snapshot"
)

const (
	abortTick = 5 * time.Millisecond // between two steps of an abort
	// abortTimeout is how long a shell may take to report after everything it waited for is dead. A shell that takes longer
	// is killed: a builtin such as `read </dev/zero` never reaches the end of a command. On a busy machine a second was
	// too short: a shell was killed that had only waited for a processor.
	abortTimeout = 2 * time.Second
)

// abort is the state of a run after cancel or timeout. The run sends sig to each process once, and KILL after deadline.
type abort struct {
	sig          syscall.Signal
	deadline     time.Time
	unreadUntil  time.Time // the shell may take until then to read the command's line
	hasAbortTrap bool      // the shell may have a trap for the abort signal
	signalled    escalate.Signalled
	next         time.Time
	kill         bool
	steps        int
}

// timeOut starts the abort of a command whose time limit is over.
func (r *run) timeOut(kind string, now time.Time) {
	r.timeout, r.saved.Timeout = kind, kind
	r.writeEntry()
	r.startAbort(syscall.SIGTERM, r.c.Grace, now)
}

// applyCancel starts the abort that a client asked for. If the abort runs already, applyCancel can shorten its grace.
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

// startAbort starts the abort: the scope's processes get sig, and the shell gets the abort signal.
func (r *run) startAbort(sig syscall.Signal, grace time.Duration, now time.Time) {
	r.abort = &abort{sig: sig, deadline: now.Add(grace), unreadUntil: now.Add(max(grace, abortTimeout)), signalled: escalate.Signalled{}, next: now, hasAbortTrap: r.hasAbortTrap()}
	if !r.resendAt.IsZero() {
		r.resend()
	}
}

// mayHaveEnded tells whether a resumed command may have ended although the shell has not said so: only the shell is left in
// its scope, and the shell still has time to answer our question. The previous gateway started the abort. The grace may have
// passed before this gateway started, and a command that ended within it must not count as killed.
func (r *run) mayHaveEnded(now time.Time) bool {
	return r.question != "" && now.Before(r.answerBy) && len(r.membersExceptShell()) == 0
}

// hasAbortTrap tells whether the shell ignores the abort signal or may have a trap for it. A current snapshot decides, because
// it shows that a trap was removed again. An older snapshot counts only if it has a trap; else the text of earlier commands decides.
func (r *run) hasAbortTrap() bool {
	k := r.p.dialect
	if procfs.Ignores(r.p.child.Pid(), k.AbortSignal) || k.SetsTrap.MatchString(r.c.Text) {
		return true
	}
	if k.SnapshotHasTrap == nil {
		return r.s.mayTrapAbort
	}
	script, current := r.s.state.Script(k, snapshot.Alive)
	return k.SnapshotHasTrap.Match(script) || r.s.mayTrapAbort && !current
}

// abortShell sends the abort signal to the shell. A shell with a trap for that signal would run the trap and go on with its
// command list, so it gets KILL and is restored.
func (r *run) abortShell() {
	sig := r.p.dialect.AbortSignal
	if r.abort.hasAbortTrap {
		sig = syscall.SIGKILL
	}
	_ = r.p.child.Signal(sig)
}

// stepAbort does one step of the abort.
func (r *run) stepAbort(now time.Time) {
	e := r.abort
	e.next = now.Add(abortTick)
	e.steps++
	busy := !r.reported && !r.died
	if busy && !e.kill && now.Before(e.unreadUntil) && r.unread() {
		// On a busy machine the shell may not have read the line yet. An abort signal now would stop nothing, and the line
		// would run after it.
		e.steps, e.next = 0, now.Add(abortTick/5)
		return
	}
	if !e.kill && !now.Before(e.deadline) && !(busy && r.mayHaveEnded(now)) {
		if busy && e.steps == 1 { // without grace, too, the shell gets its signal first
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
	fresh := slices.ContainsFunc(others, func(pid int) bool { return !e.signalled.Got(pid) })
	// The shell gets its signal first. Otherwise it would go on with its command list as soon as the process that it waits
	// for is dead.
	if busy && (e.steps == 1 || fresh || e.steps%20 == 0 && (e.kill || len(others) == 0)) { // repeated, because a signal may have had no effect
		r.abortShell()
	}
	switch {
	case !e.kill:
		if due := e.signalled.Due(e.sig, others); len(due) > 0 {
			r.scope.SignalSome(e.sig, due...)
		}
	case len(others) > 0:
		r.scope.Signal(syscall.SIGKILL, r.p.child.Pid())
	}
	if !busy {
		return
	}
	if e.steps%20 == 10 && r.p.unread() == 0 { // the abort may have removed the line that reports
		r.p.send(r.p.report(r.p.dialect.ResendCall, r.seq))
	}
	if e.kill && now.After(e.deadline) {
		_ = r.p.child.Signal(syscall.SIGKILL)
		if now.Sub(e.deadline) > abortTimeout && procfs.WaitsForPipe(r.p.child.Pid()) { // another process of the session holds that pipe's lock
			r.s.currentGroup().Signal(syscall.SIGKILL)
		}
	}
}

// killScope moves the shell to a new scope and kills every process that is left in the command's scope.
func (r *run) killScope() {
	old := r.scope
	parted := old != r.p.scope // an earlier gateway moved the shell; the command's scope is in s.leftScopes
	if !parted {
		fresh, err := r.s.group.NewScope()
		if err == nil {
			err = fresh.AddChild(r.p.child.Pid())
		}
		if err != nil && !r.died { // the shell cannot be moved: it is killed, too, and restored
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
