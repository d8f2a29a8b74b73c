package shell

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/own"
)

// What Command.Input refuses.
var (
	ErrStdinClosed = errors.New("stdin is closed")
	ErrStdinFull   = errors.New("stdin buffer is full: the command does not read")
)

// maxPendingInput bounds what waits for a command that does not read its stdin.
const maxPendingInput = 1 << 20

// Command is one foreground command: made by NewCommand, filled in, given to Shell.Run once. The methods may be called
// from any goroutine at any time, also before Run and after it.
type Command struct {
	Text      string
	Env       map[string]*string // for this command only; nil unsets
	Dir       string             // for this command only
	Stdin     []byte
	OpenStdin bool // Input comes later
	Timeout   time.Duration
	NoOutput  time.Duration
	Grace     time.Duration
	Journal   *journal.Journal // closed when nobody holds the command's output any more
	Head      int64            // how much of each stream's beginning a successor of ours shall find,
	Tail      int64            // and how much of its end, if that is more than the ring
	resumed   *resumed         // it runs, or was about to, since before our time

	mu       sync.Mutex
	wake     func()          // guarded by mu; nil while Run is not on it
	stdin    *stdinBuffer    // guarded by mu; the command's stdin, once it has one: see makeStdin
	pending  []byte          // guarded by mu; input from before that
	eof      bool            // guarded by mu; no more input will come
	runEnded bool            // guarded by mu; Run has ended
	cancel   *cancelRequest  // guarded by mu; the first one stays, a later one can only shorten its grace
	signals  []signalRequest // guarded by mu; to send
	woken    bool            // guarded by mu
	copier   *Copier         // guarded by mu; follows the pipes after Run where jobs still hold them

	watched // guarded by mu

	reported atomic.Bool // the shell has said that it has ended
}

type cancelRequest struct {
	sig   syscall.Signal
	grace time.Duration
}

// NewCommand makes a command with the default grace between TERM and KILL.
func NewCommand(text string) *Command { return &Command{Text: text, Grace: DefaultGrace} }

// DefaultGrace is the time between TERM and KILL: what container runtimes and init systems have taught programs to
// clean up within (theirs is 10 s; ours is a person waiting).
const DefaultGrace = 5 * time.Second

// Cancel ends the command: sig to everything it started, grace, KILL. Run returns when that is done.
func (c *Command) Cancel(sig syscall.Signal, grace time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cancel == nil:
		c.cancel = &cancelRequest{sig, grace}
	case grace < c.cancel.grace:
		c.cancel = &cancelRequest{c.cancel.sig, grace}
	}
	c.wakeLocked()
	c.startWatchdogLocked()
}

// Signal sends just sig: PROTOCOL.md says to whom. What came of it can be read once, soon, and at the latest when Run returns.
func (c *Command) Signal(sig syscall.Signal) <-chan SignalResult {
	q := signalRequest{sig, make(chan SignalResult, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runEnded {
		q.result <- SignalResult{Why: protocol.SignalEnded}
		return q.result
	}
	c.signals = append(c.signals, q)
	c.wakeLocked()
	c.startWatchdogLocked()
	return q.result
}

// Input adds to the command's stdin. It never waits.
func (c *Command) Input(p []byte, eof bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.OpenStdin || c.eof || c.runEnded {
		return ErrStdinClosed
	}
	waiting := int64(len(c.pending))
	if c.stdin != nil {
		waiting = c.stdin.pending()
	}
	if waiting+int64(len(p)) > maxPendingInput {
		return ErrStdinFull
	}
	if c.stdin == nil {
		c.pending = append(c.pending, p...)
	} else if err := c.stdin.add(p, eof); err != nil {
		return err
	}
	c.eof = eof
	c.wakeLocked()
	return nil
}

// makeStdin gives the command its stdin, unless it is to have none or has it already.
func (c *Command) makeStdin(group own.KeptGroup) (*stdinBuffer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin != nil || !c.OpenStdin && len(c.Stdin) == 0 {
		return c.stdin, nil
	}
	in, err := newStdinBuffer(group, false)
	if err != nil {
		return nil, err
	}
	given, eof := c.pending, c.eof
	if !c.OpenStdin {
		given, eof = c.Stdin, true
	}
	if err := in.add(given, eof); err != nil {
		in.close()
		return nil, err
	}
	c.stdin, c.Stdin, c.pending = in, nil, nil
	return in, nil
}

// errCancelled: the command was cancelled before it began.
var errCancelled = errors.New("cancelled before it began")

// checkDir says whether the command's directory can be entered. It is called before the shell's turn is taken, and a cancel ends
// the wait: the file system may not answer.
func (c *Command) checkDir(group own.KeptGroup) error {
	woken := make(chan struct{}, 1)
	c.mu.Lock()
	c.wake = func() { putToken(woken) }
	c.mu.Unlock()
	answered := make(chan error, 1)
	go func() { answered <- group.Enterable(c.Dir) }() // ends with the answer, or the wait for it, which is bounded
	for c.cancelled() == nil {
		select {
		case err := <-answered:
			return err
		case <-woken:
		}
	}
	return errCancelled
}

// MakeStdin makes the command's stdin, so that a successor of ours has it though the command waits for its turn, and returns
// what is held of it, nil where there is none.
func (s *Shell) MakeStdin(c *Command) ([]HeldFile, error) {
	in, err := c.makeStdin(s.currentGroup())
	if in == nil || err != nil {
		return nil, err
	}
	return in.files, nil
}

// Discard gives back what was made for a command that will not be run.
func (c *Command) Discard() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runEnded = true
	if c.stdin != nil {
		c.stdin.close()
	}
}

// WakeRun has Run call EntryWriter.Compact, unless the command ends before.
func (c *Command) WakeRun() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.woken = true
	c.wakeLocked()
}

// wakeLocked wakes Run; c.mu is held.
func (c *Command) wakeLocked() {
	if c.wake != nil {
		c.wake()
	}
}

// attachRun begins Run's part: what was asked before is found by the first look.
func (c *Command) attachRun(wake func(), calls *pipeCalls) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake, c.pipeCalls, c.began = wake, calls, time.Now()
	if c.resumed != nil {
		c.began = c.resumed.began
	}
	c.armWatchdogLocked(c.began)
	if c.cancel != nil || len(c.signals) > 0 {
		c.startWatchdogLocked()
	}
}

// onRoom is the journal's OnRoom.
func (c *Command) onRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
	if c.copier != nil {
		c.copier.onRoom()
	}
}

func (c *Command) detachRun() {
	c.mu.Lock()
	c.wake, c.runEnded, c.pending, c.target = nil, true, nil, watchdogTarget{}
	if c.watchdogTimer != nil {
		c.watchdogTimer.Stop()
	}
	if c.watchdog != nil {
		close(c.watchdog.stop)
	}
	in, watchdog := c.stdin, c.watchdog
	for _, q := range c.signals {
		q.result <- SignalResult{Why: protocol.SignalEnded}
	}
	c.signals = nil
	c.mu.Unlock()
	if in != nil {
		in.close()
	}
	if watchdog != nil {
		<-watchdog.stopped
	}
}

// requests is what has been asked since the last look, and what a watchdog has done.
type requests struct {
	cancel   *cancelRequest // whenever it was
	signals  []signalRequest
	woken    bool
	timedOut string
	killed   bool
}

// requests takes them.
func (c *Command) requests() requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := requests{c.cancel, c.signals, c.woken, c.timedOut, c.killedByWatchdog}
	c.signals, c.woken = nil, false
	return q
}

// cancelled is what has been asked for of that kind, nil if nothing.
func (c *Command) cancelled() *cancelRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancel
}

// Outcome is how a command ended.
type Outcome struct {
	Code       int
	Signal     string // name without SIG; "" when none ended it
	Timeout    string // "", "hard" or "no_output"
	Cancelled  bool
	Duration   time.Duration
	Linger     time.Duration // how long output was waited for after the end
	Died       bool          // the shell ended with the command
	Restored   bool          // and was put back
	Postponed  bool          // or will be, as soon as there is what it takes
	Lost       []string      // what could not be
	Background []int         // what the command left running
	Dir        string        // the shell's cwd afterwards
	HasUsage   bool          // CPU is known
	CPU        time.Duration
	MaxRSS     int64
	MemoryPeak int64  // of the whole session, file cache included; 0: not known
	OOMKilled  bool   // the kernel killed something of the session for the memory limit
	LimitHit   string // name of the limit that something came up against, "" when nothing did
	KillFailed bool   // something survived KILL
	Err        error  // the command could not be run, or its end is not known
}

// ErrShellGone: the session's shell ended and another one could not be put in its place.
var ErrShellGone = errors.New("shell could not be put back")

// ErrUnknownEnd: the command's output or end could not be followed, so that no exit code may be told.
var ErrUnknownEnd = errors.New("end of the command is unknown")

func (o Outcome) String() string {
	return fmt.Sprintf("code %d signal %q timeout %q cancelled %v died %v err %v", o.Code, o.Signal, o.Timeout, o.Cancelled, o.Died, o.Err)
}
