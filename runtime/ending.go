package runtime

import (
	"slices"
	"syscall"
	"time"
)

const (
	tick = 5 * time.Millisecond // between looks at a tree that is ending
	// stubborn is how long a shell may take to come back once everything it waited for is dead: a builtin that never
	// reaches a command's boundary (`read </dev/zero`) costs the shell process.
	stubborn = time.Second
)

// ending is the part of a run after cancel or timeout: sig to what has not had it, until deadline, then KILL.
type ending struct {
	sig      syscall.Signal
	deadline time.Time
	unheard  time.Time // until when the shell may take to read the line
	deaf     bool      // the shell has a trap of its user's for the abort
	told     map[int]bool
	next     time.Time
	kill     bool
	looks    int
}

// expire ends the command because a time is over.
func (r *run) expire(kind string, now time.Time) {
	r.timeout, r.record.Timeout = kind, kind
	if r.c.Began != nil {
		r.c.Began(r.record)
	}
	r.begin(syscall.SIGTERM, r.c.Grace, now)
}

// stop ends the command because a client wants it, or gives it less time to end in.
func (r *run) stop(c *cancellation, now time.Time) {
	if r.cancel == nil {
		r.begin(c.sig, c.grace, now)
	} else if r.end != nil {
		if d := now.Add(c.grace); d.Before(r.end.deadline) {
			r.end.deadline = d
		}
	}
	r.cancel = c
}

// begin starts the ending: sig to all but the shell, and the shell's own work aborted.
func (r *run) begin(sig syscall.Signal, grace time.Duration, now time.Time) {
	r.end = &ending{sig: sig, deadline: now.Add(grace), unheard: now.Add(max(grace, stubborn)), told: map[int]bool{}, next: now, deaf: r.deaf()}
	if !r.repeatAt.IsZero() {
		r.repeat()
	}
}

// mayHaveEnded: the gateway before us told the command to end, nothing of it is left but the shell, and that has not had the time to
// answer us. The grace may have passed between the two gateways, and a command that ended within it was not killed.
func (r *run) mayHaveEnded(now time.Time) bool {
	return r.asked != "" && now.Before(r.answerBy) && len(r.others()) == 0
}

// deaf: the shell has a trap of its user's for the abort, or ignores it. A snapshot that is behind the last command knows of a trap
// that was taken away again, which the text of commands before does not.
func (r *run) deaf() bool {
	k := r.p.kind
	if ignores(r.p.child.Pid(), k.abort) || k.traps.MatchString(r.c.Text) {
		return true
	}
	if k.trapped == nil {
		return r.s.trap
	}
	script, current := r.s.st.script(k, nil)
	return k.trapped.Match(script) || r.s.trap && !current
}

// abort ends the shell's own work. A deaf one would run its trap and go on with its list: the only cure is another shell.
func (r *run) abort() {
	sig := r.p.kind.abort
	if r.end.deaf {
		sig = syscall.SIGKILL
	}
	_ = r.p.child.Signal(sig)
}

// press is one step of the ending.
func (r *run) press(now time.Time) {
	e := r.end
	e.next = now.Add(tick)
	e.looks++
	busy := !r.reported && !r.died
	if busy && !e.kill && now.Before(e.unheard) && r.unread() {
		// A busy machine: the shell has not even read the line. An abort now would hit nothing, and the line run after it.
		e.looks, e.next = 0, now.Add(tick/5)
		return
	}
	if !e.kill && !now.Before(e.deadline) && !(busy && r.mayHaveEnded(now)) {
		if busy && e.looks == 1 { // no grace: the shell first, as below
			r.abort()
		}
		e.kill = true
		r.killed = true
		r.s.b.Metrics.KillEscalations.Inc()
		r.killRest()
		e.deadline = time.Now().Add(stubborn)
		e.looks = 1
	}
	others := r.others()
	fresh := slices.ContainsFunc(others, func(pid int) bool { return !e.told[pid] })
	// The shell first: once what it waits for is dead, it would go on with its list.
	switch {
	case busy && (e.looks == 1 || fresh || e.looks%20 == 0 && (e.kill || len(others) == 0)): // again where one was lost
		r.abort()
	}
	var untold []int
	for _, pid := range others {
		if !e.told[pid] {
			// What was forked but has not reached its exec ignores TERM still, as its interactive shell does: it is told again.
			e.told[pid] = !ignores(pid, e.sig)
			untold = append(untold, pid)
		}
	}
	switch {
	case e.kill && len(others) > 0:
		r.cell.Signal(syscall.SIGKILL, r.p.child.Pid())
	case !e.kill && len(untold) > 0:
		r.cell.SignalSome(e.sig, untold...)
	}
	if !busy {
		return
	}
	if e.looks%20 == 10 && r.p.unread() == 0 { // the abort may have taken the line with the report
		r.p.send(r.p.report(r.p.kind.again, r.seq))
	}
	if e.kill && now.After(e.deadline) {
		_ = r.p.child.Signal(syscall.SIGKILL)
		if now.Sub(e.deadline) > stubborn && waitsForPipe(r.p.child.Pid()) { // somebody else of the session has that
			r.s.held().Signal(syscall.SIGKILL)
		}
	}
}

// killRest ends for certain what the command started: the shell moves out, the cell dies as a whole.
func (r *run) killRest() {
	old := r.cell
	parted := old != r.p.cell // by a gateway before us; then it is among what commands left
	if !parted {
		fresh, err := r.s.group.NewCell()
		if err == nil {
			err = fresh.Adopt(r.p.child.Pid())
		}
		if err != nil && !r.died { // no way to part them: the shell goes too, and is restored
			_ = r.p.child.Signal(syscall.SIGKILL)
		}
		if fresh != nil {
			r.p.cell = fresh
			r.s.changed()
		}
	}
	r.cell = r.p.cell
	r.c.aim(target{r.s, r.p, r.cell})
	if err := old.Kill(0); err != nil {
		r.survivors = true
	}
	if !parted {
		old.Remove()
	}
}
