package runtime

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// A guard stands by while a command is to end, and does Run's part where that cannot: Run may be in a call on a pipe which a
// process of the session holds up (see journal's splice), and come back only when that process has ended. It is a goroutine of
// the command's, begun when somebody wants something of it or its time is over; detach ends it, and waits for it.
type guard struct {
	over chan struct{} // closed by detach
	gone chan struct{} // closed when it has ended
}

// patience is between a guard's looks: what is still in the same call by the next one is held up, if the kernel says so, too;
// a call takes microseconds, but a busy machine can make it look so.
const patience = 500 * time.Millisecond

// calls counts the calls that a session can hold up, of the holder of its shell's turn: odd while it is in one.
type calls struct{ n atomic.Uint64 }

func (c *calls) begin() { c.n.Add(1) }
func (c *calls) end()   { c.n.Add(1) }

// target is whom a guard sends signals.
type target struct {
	shell *Shell
	p     *shellProc
	cell  KeptCell // of what the command started
}

// aim says whom this is about from now on.
func (c *Command) aim(t target) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target = t
}

// guardLocked sees to it that there is a guard, once the command has the shell's turn. c.mu is held.
func (c *Command) guardLocked() {
	if c.guard == nil && c.wake != nil && c.calls != nil {
		c.guard = &guard{over: make(chan struct{}), gone: make(chan struct{})}
		go c.stand(c.guard)
	}
}

// ring is what the alarm calls.
func (c *Command) ring() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.guardLocked()
}

// setAlarmLocked has a guard look after the command when it should have ended. c.mu is held.
func (c *Command) setAlarmLocked(now time.Time) {
	var at time.Time
	if c.Timeout > 0 {
		at = c.began.Add(c.Timeout)
	}
	if silent := now.Add(c.NoOutput); c.NoOutput > 0 && (at.IsZero() || silent.Before(at)) {
		at = silent
	}
	switch {
	case at.IsZero():
	case c.alarm == nil:
		c.alarm = time.AfterFunc(time.Until(at), c.ring)
	default:
		c.alarm.Reset(time.Until(at))
	}
}

// stand is a guard's whole life.
func (c *Command) stand(g *guard) {
	defer close(g.gone)
	look := time.NewTicker(patience)
	defer look.Stop()
	var (
		call  = c.calls.n.Load()
		since time.Time // of a call that is held up: about when it began
		e     = ending{told: map[int]bool{}}
	)
	for {
		select {
		case <-g.over:
			return
		case <-look.C:
		}
		now := time.Now()
		was := call
		if call = c.calls.n.Load(); call != was || call%2 == 0 || !waitsForPipe(os.Getpid()) {
			since = time.Time{}
		} else if since.IsZero() {
			since = now.Add(-patience)
		}
		if c.standDown(g, now, since) {
			return
		}
		if !since.IsZero() {
			c.standIn(&e, now, since)
		}
	}
}

// waitsForPipe tells whether one of a process's threads waits for a pipe's lock: by what it is in (/proc/PID/wchan), where we
// may know.
func waitsForPipe(pid int) bool {
	tasks := procPath(pid, "/task")
	dir, err := os.ReadDir(tasks)
	if err != nil {
		return false
	}
	for _, task := range dir {
		path := tasks + "/" + task.Name()
		stat, _ := os.ReadFile(path + "/stat")
		if p, ok := parseStat(stat); !ok || p.state != 'D' {
			continue
		}
		text, _ := os.ReadFile(path + "/wchan")
		if in := string(text); in == "" || in == "0" || strings.Contains(in, "pipe") || strings.Contains(in, "splice") || strings.Contains(in, "fifo") {
			return true
		}
	}
	return false
}

// standDown is true when the guard is not needed any more: nobody wants anything, and no time is over.
func (c *Command) standDown(g *guard, now, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over || c.cancel != nil || len(c.signals) > 0 || c.dueLocked(now, since) != "" {
		return false
	}
	if !since.IsZero() && c.NoOutput > 0 {
		return false // held up, and so without output, but not for long enough yet
	}
	c.guard = nil
	c.setAlarmLocked(now)
	return true
}

// dueLocked says which of the command's times is over, "" if none is. c.mu is held.
func (c *Command) dueLocked(now, since time.Time) string {
	switch {
	case c.Timeout > 0 && now.Sub(c.began) >= c.Timeout:
		return "hard"
	case c.NoOutput > 0 && !since.IsZero() && now.Sub(since) >= c.NoOutput:
		return "no_output"
	}
	return ""
}

// standIn does once what a Run that is held up cannot: send signals, and end what the command started. Run finds the rest to
// be done when it is back.
func (c *Command) standIn(e *ending, now, since time.Time) {
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
	} else if kind := c.dueLocked(now, since); kind != "" {
		c.expired, due = kind, true
	}
	first := due && e.next.IsZero()
	if first {
		e.next = now
	}
	e.deadline = e.next.Add(grace)
	escalated := due && !e.kill && !now.Before(e.deadline)
	if escalated {
		c.killed, e.kill = true, true
	}
	c.mu.Unlock()

	shell := t.p.child.Pid()
	for _, q := range signals {
		q.told <- Signalled{Processes: len(t.cell.Others(shell))}
		t.cell.Signal(q.sig, shell)
	}
	if !due {
		return
	}
	if first && !c.reported.Load() { // as in Run's ending: the shell first
		_ = t.p.child.Signal(t.p.kind.abort)
	}
	if escalated {
		t.shell.b.Metrics.KillEscalations.Inc()
	}
	if !e.kill {
		var untold []int
		for _, pid := range t.cell.Others(shell) {
			if !e.told[pid] {
				e.told[pid] = !ignores(pid, e.sig)
				untold = append(untold, pid)
			}
		}
		if len(untold) > 0 {
			t.cell.SignalSome(e.sig, untold...)
		}
		return
	}
	t.cell.Signal(syscall.SIGKILL, shell)
	if now.Sub(e.deadline) > stubborn { // somebody else of the session, or the shell itself, by `exec PROGRAM`
		_ = t.p.child.Signal(syscall.SIGKILL)
		t.shell.held().Signal(syscall.SIGKILL)
	}
}
