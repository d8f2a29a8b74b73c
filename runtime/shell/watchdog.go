package shell

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"trl/runtime/own"
	"trl/runtime/procfs"
)

// A watchdog stands by while a command is to end, and does Run's part where that cannot: Run may be in a call on a pipe which a
// process of the session holds up (see journal's splice), and come back only when that process has ended. It is a goroutine of
// the command's, begun when somebody wants something of it or its time is over; detach ends it, and waits for it.
type watchdog struct {
	stop    chan struct{} // closed by detach
	stopped chan struct{} // closed when it has ended
}

// watched is what a command has for its watchdog. The command's mu guards all of it.
type watched struct {
	pipeCalls        *pipeCalls // the shell's, set by attachRun
	began            time.Time  // when Timeout begins
	target           watchdogTarget
	watchdog         *watchdog   // nil: none runs
	watchdogTimer    *time.Timer // starts a watchdog when a timeout is over; nil: none
	timedOut         string      // the timeout that is over, which Run may not have seen yet
	killedByWatchdog bool
}

// watchdogInterval is between a watchdog's looks: what is still in the same call by the next one is held up, if the kernel says so, too;
// a call takes microseconds, but a busy machine can make it look so.
const watchdogInterval = 500 * time.Millisecond

// pipeCalls counts the calls that a session can hold up, of the holder of its shell's turn: odd while it is in one.
type pipeCalls struct{ n atomic.Uint64 }

func (c *pipeCalls) enter() { c.n.Add(1) }
func (c *pipeCalls) leave() { c.n.Add(1) }

// watchdogTarget is whom a watchdog sends signals.
type watchdogTarget struct {
	shell *Shell
	p     *shellProc
	scope own.KeptScope // of what the command started
}

// setTarget says whom this is about from now on.
func (c *Command) setTarget(t watchdogTarget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = t
}

// startWatchdogLocked sees to it that there is a watchdog, once the command has the shell's turn. c.mu is held.
func (c *Command) startWatchdogLocked() {
	if c.watchdog == nil && c.wake != nil && c.pipeCalls != nil {
		c.watchdog = &watchdog{stop: make(chan struct{}), stopped: make(chan struct{})}
		go c.watchdogLoop(c.watchdog)
	}
}

// watchdogFire is what the alarm calls.
func (c *Command) watchdogFire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startWatchdogLocked()
}

// armWatchdogLocked has a watchdog look after the command when it should have ended. c.mu is held.
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

// watchdogLoop is a watchdog's whole life.
func (c *Command) watchdogLoop(g *watchdog) {
	defer close(g.stopped)
	look := time.NewTicker(watchdogInterval)
	defer look.Stop()
	var (
		call  = c.pipeCalls.n.Load()
		since time.Time // of a call that is held up: about when it began
		e     = abort{signalled: map[int]bool{}}
	)
	for {
		select {
		case <-g.stop:
			return
		case <-look.C:
		}
		now := time.Now()
		was := call
		if call = c.pipeCalls.n.Load(); call != was || call%2 == 0 || !waitsForPipe(os.Getpid()) {
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

// waitsForPipe tells whether one of a process's threads waits for a pipe's lock: by what it is in (/proc/PID/wchan), where we
// may know.
func waitsForPipe(pid int) bool {
	tasks := procfs.Path(pid, "/task")
	dir, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	for _, task := range dir {
		path := tasks + "/" + task.Name()
		stat, _ := os.ReadFile(path + "/stat")
		if p, ok := procfs.ParseStat(stat); !ok || p.State != 'D' {
			continue
		}
		text, _ := os.ReadFile(path + "/wchan")
		if in := string(text); in == "" || in == "0" || strings.Contains(in, "pipe") || strings.Contains(in, "splice") || strings.Contains(in, "fifo") {
			return true
		}
	}
	return false
}

// watchdogIdle is true when the watchdog is not needed any more: nobody wants anything, and no time is over.
func (c *Command) watchdogIdle(g *watchdog, now, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runEnded || c.cancel != nil || len(c.signals) > 0 || c.timedOutLocked(now, since) != "" {
		return false
	}
	if !since.IsZero() && c.NoOutput > 0 {
		return false // held up, and so without output, but not for long enough yet
	}
	c.watchdog = nil
	c.armWatchdogLocked(now)
	return true
}

// timedOutLocked says which of the command's times is over, "" if none is. c.mu is held.
func (c *Command) timedOutLocked(now, since time.Time) string {
	switch {
	case c.Timeout > 0 && now.Sub(c.began) >= c.Timeout:
		return "hard"
	case c.NoOutput > 0 && !since.IsZero() && now.Sub(since) >= c.NoOutput:
		return "no_output"
	}
	return ""
}

// watchdogAct does once what a Run that is held up cannot: send signals, and end what the command started. Run finds the rest to
// be done when it is back.
func (c *Command) watchdogAct(e *abort, now, since time.Time) {
	c.mu.Lock()
	t, signals, grace := c.target, c.signals, c.Grace
	if t.p == nil { // the shell is being put back
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
	if first && !c.reported.Load() { // as in Run's ending: the shell first
		_ = t.p.child.Signal(t.p.dialect.AbortSignal)
	}
	if escalated {
		t.shell.b.Metrics.KillEscalations.Inc()
	}
	if !e.kill {
		var untold []int
		for _, pid := range t.scope.MembersExcept(shell) {
			if !e.signalled[pid] {
				e.signalled[pid] = !procfs.Ignores(pid, e.sig)
				untold = append(untold, pid)
			}
		}
		if len(untold) > 0 {
			t.scope.SignalSome(e.sig, untold...)
		}
		return
	}
	t.scope.Signal(syscall.SIGKILL, shell)
	if now.Sub(e.deadline) > abortTimeout { // somebody else of the session, or the shell itself, by `exec PROGRAM`
		_ = t.p.child.Signal(syscall.SIGKILL)
		t.shell.currentGroup().Signal(syscall.SIGKILL)
	}
}
