package shell

import (
	"os"
	"sync"
	"syscall"
	"time"

	"trl/runtime/escalate"
	"trl/runtime/own"
	"trl/runtime/procfs"
	"trl/runtime/stream"
)

// A watchdog sends a command's signals and ends the command while Run cannot. A process of the session can block Run in a call on a
// pipe until that process ends (see splice in package journal). The watchdog is a goroutine of the command. It starts at a request to
// cancel or signal the command, or when a timeout is over. detachRun ends it and waits for it.
type watchdog struct {
	stop    chan struct{} // closed by detachRun
	stopped chan struct{} // closed when the goroutine has ended
}

// watched has a command's fields for its watchdog. The command's mu guards them.
type watched struct {
	pipeCalls        *stream.Calls // the shell's counter, set by attachRun
	began            time.Time     // when the command began, from which Timeout counts
	acting           sync.Mutex    // a watchdog has it while it acts on target; it is locked before the command's mu
	target           watchdogTarget
	watchdog         *watchdog   // nil: none runs
	watchdogTimer    *time.Timer // starts a watchdog when a timeout is over; nil: none
	timedOut         string      // the timeout that is over, which Run may not have seen yet
	killedByWatchdog bool
}

// watchdogInterval is the time between two checks of a watchdog. If Run is in the same call at both and the kernel says that a thread
// waits for a pipe, Run counts as blocked. The call alone proves nothing: it takes microseconds, but a busy machine can delay it.
const watchdogInterval = 500 * time.Millisecond

// watchdogTarget has the processes that a watchdog signals.
type watchdogTarget struct {
	shell *Shell
	p     *shellProc
	scope own.KeptScope // holds what the command started
}

// setTarget sets the target of the command's watchdog; a zero t lets it do nothing. Afterwards the watchdog sends no more signals to the
// old target. Run calls it before it starts another shell, which the watchdog would kill with the session's other processes.
func (c *Command) setTarget(t watchdogTarget) {
	c.acting.Lock()
	defer c.acting.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = t
}

// startWatchdogLocked starts a watchdog, unless one runs or the command does not have the shell's turn. c.mu is held.
func (c *Command) startWatchdogLocked() {
	if c.watchdog == nil && c.wake != nil && c.pipeCalls != nil {
		c.watchdog = &watchdog{stop: make(chan struct{}), stopped: make(chan struct{})}
		go c.watchdogLoop(c.watchdog)
	}
}

// watchdogFire is the function of watchdogTimer.
func (c *Command) watchdogFire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startWatchdogLocked()
}

// armWatchdogLocked sets the timer that starts a watchdog when the first of the command's timeouts is over. c.mu is held.
func (c *Command) armWatchdogLocked(now time.Time) {
	var at time.Time
	if c.Timeout > 0 {
		at = c.began.Add(c.Timeout)
	}
	if silent := now.Add(c.NoOutput); c.NoOutput > 0 && (at.IsZero() || silent.Before(at)) {
		at = silent
	}
	switch {
	case at.IsZero():
	case c.watchdogTimer == nil:
		c.watchdogTimer = time.AfterFunc(time.Until(at), c.watchdogFire)
	default:
		c.watchdogTimer.Reset(time.Until(at))
	}
}

// watchdogLoop is the body of a watchdog's goroutine.
func (c *Command) watchdogLoop(g *watchdog) {
	defer close(g.stopped)
	look := time.NewTicker(watchdogInterval)
	defer look.Stop()
	var (
		call  = c.pipeCalls.Count()
		since time.Time // about when the call began that is blocked; zero: none is
		e     = abort{signalled: escalate.Signalled{}}
	)
	for {
		select {
		case <-g.stop:
			return
		case <-look.C:
		}
		now := time.Now()
		was := call
		if call = c.pipeCalls.Count(); call != was || call%2 == 0 || !procfs.WaitsForPipe(os.Getpid()) {
			since = time.Time{}
		} else if since.IsZero() {
			since = now.Add(-watchdogInterval)
		}
		if c.watchdogIdle(g, now, since) {
			return
		}
		if !since.IsZero() {
			c.watchdogAct(&e, now, since)
		}
	}
}

// watchdogIdle returns true if the watchdog is no longer needed: there is no request, and no timeout is over. It then arms the timer
// for another watchdog.
func (c *Command) watchdogIdle(g *watchdog, now, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runEnded || c.cancel != nil || len(c.signals) > 0 || c.timedOutLocked(now, since) != "" {
		return false
	}
	if !since.IsZero() && c.NoOutput > 0 {
		return false // Run is blocked, so no output comes, but NoOutput is not over yet
	}
	c.watchdog = nil
	c.armWatchdogLocked(now)
	return true
}

// timedOutLocked returns the kind of the timeout that is over, "" if none is. c.mu is held.
func (c *Command) timedOutLocked(now, since time.Time) string {
	switch {
	case c.Timeout > 0 && now.Sub(c.began) >= c.Timeout:
		return "hard"
	case c.NoOutput > 0 && !since.IsZero() && now.Sub(since) >= c.NoOutput:
		return "no_output"
	}
	return ""
}

// watchdogAct does one step of what a blocked Run cannot do: it sends the requested signals and ends what the command started. Run does
// the rest when its call returns.
func (c *Command) watchdogAct(e *abort, now, since time.Time) {
	c.acting.Lock()
	defer c.acting.Unlock()
	c.mu.Lock()
	t, signals, grace := c.target, c.signals, c.Grace
	if t.p == nil { // the shell is being restored
		c.mu.Unlock()
		return
	}
	c.signals = nil
	e.sig = syscall.SIGTERM
	due := c.cancel != nil
	if due {
		e.sig, grace = c.cancel.sig, c.cancel.grace
	} else if kind := c.timedOutLocked(now, since); kind != "" {
		c.timedOut, due = kind, true
	}
	first := due && e.next.IsZero()
	if first {
		e.next = now
	}
	e.deadline = e.next.Add(grace)
	escalated := due && !e.kill && !now.Before(e.deadline)
	if escalated {
		c.killedByWatchdog, e.kill = true, true
	}
	c.mu.Unlock()

	shell := t.p.child.Pid()
	for _, q := range signals {
		q.result <- SignalResult{Processes: len(t.scope.MembersExcept(shell))}
		t.scope.Signal(q.sig, shell)
	}
	if !due {
		return
	}
	if first && !c.reported.Load() { // as in stepAbort, the shell gets its signal first
		_ = t.p.child.Signal(t.p.dialect.AbortSignal)
	}
	if escalated {
		t.shell.b.Metrics.KillEscalations.Inc()
	}
	if !e.kill {
		if due := e.signalled.Due(e.sig, t.scope.MembersExcept(shell)); len(due) > 0 {
			t.scope.SignalSome(e.sig, due...)
		}
		return
	}
	t.scope.Signal(syscall.SIGKILL, shell)
	if now.Sub(e.deadline) > abortTimeout { // another process of the session blocks the pipe, or the shell itself after `exec PROGRAM`
		_ = t.p.child.Signal(syscall.SIGKILL)
		t.shell.currentGroup().Signal(syscall.SIGKILL)
	}
}
