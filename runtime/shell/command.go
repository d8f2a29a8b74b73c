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
	"trl/runtime/stream"
)

// Command is one foreground command. NewCommand makes it, the caller sets its fields, and Shell.Run runs it once. Any goroutine
// may call the methods at any time, also before Run and after it.
type Command struct {
	Text      string
	Env       map[string]*string // for this command only; nil unsets
	Dir       string             // for this command only
	Stdin     []byte
	OpenStdin bool // more stdin comes through Input
	Timeout   time.Duration
	NoOutput  time.Duration
	Grace     time.Duration
	Journal   *journal.Journal // closed when nobody holds the command's output any more
	Head      int64            // how much of each stream's beginning the log keeps for the next gateway,
	Tail      int64            // and how much of its end, if the journal's ring keeps less
	resumed   *resumed         // set if an earlier gateway ran it or was about to

	mu       sync.Mutex
	wake     func()          // guarded by mu; nil while no Run waits
	stdin    *stream.Stdin   // guarded by mu; the command's stdin; nil before makeStdin
	pending  []byte          // guarded by mu; input that came before makeStdin
	eof      bool            // guarded by mu; no more input will come
	runEnded bool            // guarded by mu; Run has ended
	cancel   *cancelRequest  // guarded by mu; the first request; a later one can only shorten its grace
	signals  []signalRequest // guarded by mu; signals to send
	woken    bool            // guarded by mu
	copier   *stream.Copier  // guarded by mu; copies from the pipes after Run if jobs still hold them

	watched // guarded by mu

	reported atomic.Bool // the shell has reported the command's end
}

type cancelRequest struct {
	sig   syscall.Signal
	grace time.Duration
}

// NewCommand makes a command with the default grace between TERM and KILL.
func NewCommand(text string) *Command { return &Command{Text: text, Grace: DefaultGrace} }

// DefaultGrace is the time between TERM and KILL. Container runtimes and init systems give programs 10 s to clean up; trl
// gives less, because a person waits.
const DefaultGrace = 5 * time.Second

// Cancel aborts the command: it sends sig to every process that the command started, and KILL after grace. Run returns when
// they have ended.
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

// Signal sends only sig, as in the section "Signals" of PROTOCOL.md. The channel gets one result, at the latest when
// Run returns.
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

// Input adds a piece that begins at offset at to the command's stdin, and returns where the input ends then. It never waits. c is nil if
// the command has ended.
func (c *Command) Input(at int64, p []byte, eof bool) (end int64, err error) {
	if c == nil {
		return 0, stream.ErrStdinClosed
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	end = int64(len(c.pending))
	waiting := end
	if c.stdin != nil {
		end, waiting = c.stdin.End(), c.stdin.Pending()
	}
	switch err := stream.CheckOffset(at, end); {
	case !c.OpenStdin || c.runEnded:
		return 0, stream.ErrStdinClosed
	case err != nil:
		return 0, err
	case c.eof && eof && len(p) == 0 && at == end:
		return end, nil
	case c.eof:
		return 0, stream.ErrStdinClosed
	case waiting+int64(len(p)) > stream.MaxPending:
		return 0, stream.ErrStdinFull
	}
	if c.stdin == nil {
		c.pending = append(c.pending, p...)
		end += int64(len(p))
	} else if end, err = c.stdin.Add(at, p, eof); err != nil {
		return 0, err
	}
	c.eof = eof
	c.wakeLocked()
	return end, nil
}

// makeStdin makes the command's stdin, unless the command has it already or needs none.
func (c *Command) makeStdin(group own.KeptGroup) (*stream.Stdin, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stdin != nil || !c.OpenStdin && len(c.Stdin) == 0 {
		return c.stdin, nil
	}
	in, err := stream.NewStdin(group, false)
	if err != nil {
		return nil, err
	}
	given, eof := c.pending, c.eof
	if !c.OpenStdin {
		given, eof = c.Stdin, true
	}
	if err := in.AddFirst(given, eof); err != nil {
		in.Close()
		return nil, err
	}
	c.stdin, c.Stdin, c.pending = in, nil, nil
	return in, nil
}

// errCancelled says that the command was cancelled before it began.
var errCancelled = errors.New("command was cancelled before it began")

// checkDir returns an error if the command's directory cannot be entered. The file system may not answer, so checkDir is called
// before the shell's turn is taken, and a cancel ends the wait.
func (c *Command) checkDir(group own.KeptGroup) error {
	woken := make(chan struct{}, 1)
	c.mu.Lock()
	c.wake = func() { putToken(woken) }
	c.mu.Unlock()
	answered := make(chan error, 1)
	go func() { answered <- group.Enterable(c.Dir) }() // ends with the answer or after Enterable's bounded wait
	for c.cancelled() == nil {
		select {
		case err := <-answered:
			return err
		case <-woken:
		}
	}
	return errCancelled
}

// MakeStdin makes the stdin of a command that waits for its turn, so that the next gateway has it, too. It returns the files that
// the keeper holds for it, nil if the command has no stdin.
func (s *Shell) MakeStdin(c *Command) ([]stream.HeldFile, error) {
	in, err := c.makeStdin(s.currentGroup())
	if in == nil || err != nil {
		return nil, err
	}
	return in.Files(), nil
}

// Discard closes the stdin of a command that will not run.
func (c *Command) Discard() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runEnded = true
	if c.stdin != nil {
		c.stdin.Close()
	}
}

// WakeRun makes Run call EntryWriter.Compact, unless the command ends before.
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

// attachRun connects the command to the Run that begins. Run's first call of requests returns what was requested before.
func (c *Command) attachRun(wake func(), calls *stream.Calls) {
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
		c.copier.OnRoom()
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
		in.Close()
	}
	if watchdog != nil {
		<-watchdog.stopped
	}
}

// requests is what callers have requested since the last look, and what a watchdog has done.
type requests struct {
	cancel   *cancelRequest // whenever it was requested
	signals  []signalRequest
	woken    bool
	timedOut string
	killed   bool
}

// requests returns the new requests and clears them.
func (c *Command) requests() requests {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := requests{c.cancel, c.signals, c.woken, c.timedOut, c.killedByWatchdog}
	c.signals, c.woken = nil, false
	return q
}

// cancelled returns the request to cancel the command, nil if there is none.
func (c *Command) cancelled() *cancelRequest {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cancel
}

// Outcome says how a command ended.
type Outcome struct {
	Code       int
	Signal     string // name without SIG of the signal that ended the command; "" if none did
	Timeout    string // "", "hard" or "no_output"
	Cancelled  bool
	Duration   time.Duration
	Linger     time.Duration // how long Run waited for output after the end
	Died       bool          // the shell ended with the command
	Restored   bool          // after Died, another shell was started with its state
	Postponed  bool          // after Died, the restore waits until processes, descriptors or memory are free
	Lost       []string      // parts of the shell's state that could not be restored
	Background []int         // pids of the processes that the command left running
	Dir        string        // the shell's cwd afterwards
	HasUsage   bool          // CPU is known
	CPU        time.Duration
	MaxRSS     int64
	MemoryPeak int64  // of the whole session, with its file cache; 0: unknown
	OOMKilled  bool   // the kernel killed a process of the session because of the memory limit
	LimitHit   string // name of the limit that the session's processes reached; "" if none
	KillFailed bool   // a process survived KILL
	Err        error  // the command could not run, or its end is unknown
}

// ErrShellGone says that the session's shell ended and that no other shell could replace it.
var ErrShellGone = errors.New("shell could not be restored")

// ErrUnknownEnd says that the command's end was not seen, so its exit code is unknown.
var ErrUnknownEnd = errors.New("end of the command is unknown")

func (o Outcome) String() string {
	return fmt.Sprintf("code %d signal %q timeout %q cancelled %v died %v err %v", o.Code, o.Signal, o.Timeout, o.Cancelled, o.Died, o.Err)
}
