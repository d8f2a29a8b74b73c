package stream

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/journal"
	"trl/runtime/own"
)

// Calls counts system calls that a session can block. One goroutine at a time makes them. The count is odd during a call.
type Calls struct{ n atomic.Uint64 }

func (c *Calls) Enter() { c.n.Add(1) }
func (c *Calls) Leave() { c.n.Add(1) }

// Count returns the count, which is odd during a call.
func (c *Calls) Count() uint64 { return c.n.Load() }

// chunk is how much is read from a pipe at once: the default capacity of a pipe.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// GetBuffer returns a buffer for Step and Exact. The caller gives it back to PutBuffer.
func GetBuffer() *[]byte { return chunks.Get().(*[]byte) }

// PutBuffer takes back what GetBuffer returned.
func PutBuffer(b *[]byte) { chunks.Put(b) }

// A Copier copies output into a journal: from the pipes of a command or a process, or from a terminal. It pauses while the
// journal has no room, and it closes the journal when the last source has ended.
//
// There are two ways to use it. The run loop of a command polls the pipes itself and calls Step and Exact, so a command
// needs no second goroutine. Start copies each source on a goroutine of its own; Stop ends these goroutines and waits for
// them. Processes and terminals use Start from their beginning, a command only at its end, if another process still holds
// its pipes.
type Copier struct {
	journal atomic.Pointer[journal.Journal] // nil after the end: an ended Process must not keep the output in memory
	sources [2]source                       // the first count are used; set before Start
	count   int                             // set before Start
	calls   *Calls                          // counts the calls of Step and Exact; nil if Start is used

	readSlots chan struct{} // limits the pipes that a session's Copiers read at once, see maxReadSlots; nil: no limit
	onEOF     func()        // called when the last source has ended; nil: nothing; set before Start

	AfterEOF func(*Copier) // called when the last source has ended, by a goroutine that Stop waits for; nil: nothing; set before Start
	Scope    own.KeptScope // holds the processes that an ended command left running; nil: unknown; set before Start

	room      chan struct{} // has an element after the journal may have got room
	stop      chan struct{} // closed by Stop
	done      chan struct{} // closed when the last source has ended and the journal is closed
	finishing atomic.Bool   // CatchUp is waiting
	once      sync.Once
	wg        sync.WaitGroup

	mu   sync.Mutex // held from a read until the journal has its bytes, so CatchUp sees all of it or nothing; a session can make it be held for a long time
	open int        // guarded by mu; sources that have not ended
}

// source is one pipe or one terminal.
type source struct {
	stream    journal.Stream
	fd        int  // the pipe that Step and Exact read; its owner closes it
	remaining int  // bytes that Exact has still to read
	eof       bool // Step has seen the end

	file  *os.File        // the pipe or terminal that Start reads
	raw   syscall.RawConn // of file
	pty   *PTY            // nil: a pipe
	ended bool            // guarded by Copier.mu
}

// NewCopier returns a Copier for Start.
func NewCopier(j *journal.Journal) *Copier {
	c := &Copier{room: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	c.journal.Store(j)
	return c
}

// add adds a source.
func (c *Copier) add(s source) {
	c.sources[c.count] = s
	c.count++
}

// PollFD returns the poll entry of pipe i. After the pipe's end the entry is empty.
func (c *Copier) PollFD(i int) unix.PollFd {
	if s := &c.sources[i]; !s.eof {
		return unix.PollFd{Fd: int32(s.fd), Events: unix.POLLIN}
	}
	return unix.PollFd{Fd: -1}
}

// Step copies once from pipe i, at most len(buf) bytes, and returns how many bytes came.
func (c *Copier) Step(i int, buf []byte) int {
	s := &c.sources[i]
	c.calls.Enter()
	n, err := c.journal.Load().Fill(s.stream, s.fd, len(buf), buf)
	c.calls.Leave()
	s.eof = s.eof || n == 0 && err == nil
	return n
}

// Exact copies exactly the bytes that the pipes hold now. It counts them first (FIONREAD), so the number stays the same
// while a background job writes to the same pipe. While the journal has no room it calls wait, and it returns when wait
// returns false.
func (c *Copier) Exact(buf []byte, wait func() bool) {
	fds := [2]unix.PollFd{c.PollFD(0), c.PollFD(1)}
	descriptor.Poll(fds[:]) // poll takes no pipe's lock. We do not touch an empty pipe, so a session cannot block us with it
	for i := range c.sources {
		if s := &c.sources[i]; fds[i].Revents&unix.POLLIN != 0 {
			c.calls.Enter()
			s.remaining, _ = unix.IoctlGetInt(s.fd, unix.TIOCINQ)
			c.calls.Leave()
		}
	}
	for c.sources[0].remaining > 0 || c.sources[1].remaining > 0 {
		if !c.journal.Load().Room() {
			if !wait() {
				return
			}
			continue
		}
		for i := range c.sources {
			s := &c.sources[i]
			if s.remaining <= 0 {
				continue
			}
			if n := c.Step(i, buf[:min(len(buf), s.remaining)]); n > 0 {
				s.remaining -= n
			} else {
				s.remaining = 0
			}
		}
	}
}

// PollPipes makes the Copier ready for Step and Exact, which copy from the pipes into j. calls counts their system calls.
func (c *Copier) PollPipes(j *journal.Journal, l *Pipes, calls *Calls) {
	c.journal.Store(j)
	c.calls = calls
	for i, fd := range l.r {
		c.add(source{stream: journal.Stdout + journal.Stream(i), fd: fd, eof: fd < 0})
	}
}

// CloseEnded closes those read ends of the pipes, which the Copier polls, whose pipe has ended.
func (c *Copier) CloseEnded(l *Pipes) {
	fds := []unix.PollFd{c.PollFD(0), c.PollFD(1)}
	descriptor.Poll(fds)
	for i, fd := range fds {
		if fd.Fd < 0 || fd.Revents&(unix.POLLHUP|unix.POLLIN) == unix.POLLHUP {
			descriptor.Close(&l.r[i])
		}
	}
}

// TakePipes takes over the read ends that a pair of output pipes still has. It closes the pair when they have ended.
func (c *Copier) TakePipes(l *Pipes) error {
	c.onEOF, c.readSlots = l.Close, l.log.set.readSlots
	for i := range l.r {
		if l.r[i] < 0 {
			continue
		}
		stream := journal.Stdout + journal.Stream(i)
		f := os.NewFile(uintptr(l.takeReadEnd(i)), stream.String())
		raw, err := f.SyscallConn()
		if err != nil {
			f.Close()
			return err
		}
		c.add(source{stream: stream, file: f, raw: raw})
	}
	return nil
}

// UsePTY makes a terminal the source. The terminal's owner closes it, after Stop.
func (c *Copier) UsePTY(l *PTY) {
	c.add(source{stream: journal.TTY, file: l.master, raw: l.raw, pty: l})
}

// OnRoom must be called when the journal may have got room.
func (c *Copier) OnRoom() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

// HasEnded tells whether the last source has ended.
func (c *Copier) HasEnded() bool { return c.journal.Load() == nil }

// Start copies each source on a goroutine of its own until the source ends, or until Stop.
func (c *Copier) Start() {
	if c.open = c.count; c.open == 0 {
		c.finish()
	}
	for i := range c.count {
		c.wg.Add(1)
		go c.copyAll(&c.sources[i]) // ends with the source or at Stop, which waits for it
	}
}

// copyAll is the body of a source's goroutine.
func (c *Copier) copyAll(s *source) {
	defer c.wg.Done()
	buf := GetBuffer()
	defer PutBuffer(buf)
	for c.waitForRoom() && c.copyOnce(s, *buf) {
	}
	if s.pty == nil {
		s.file.Close()
	}
	c.mu.Lock()
	s.ended = true
	c.open--
	last := c.open == 0
	if last {
		c.finish()
	}
	c.mu.Unlock()
	if last && c.AfterEOF != nil {
		c.AfterEOF(c)
	}
}

// finish closes the journal. No source writes to it any more.
func (c *Copier) finish() {
	c.journal.Load().Close()
	c.journal.Store(nil)
	close(c.done)
	if c.onEOF != nil {
		c.onEOF()
	}
}

// waitForRoom returns true when the journal has room, and false after Stop.
func (c *Copier) waitForRoom() bool {
	for {
		select {
		case <-c.stop:
			return false
		default:
		}
		j := c.journal.Load()
		if j.Room() || c.finishing.Load() && j.Fits() {
			c.OnRoom() // the other source may wait for it, too
			return true
		}
		select {
		case <-c.room:
		case <-c.stop:
			return false
		}
	}
}

// copyOnce waits for output and copies it once. It returns false at the end of the source.
func (c *Copier) copyOnce(s *source, buf []byte) bool {
	more := false
	err := s.raw.Read(func(fd uintptr) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.readSlots != nil {
			c.readSlots <- struct{}{}
			defer func() { <-c.readSlots }()
		}
		j := c.journal.Load()
		var n int
		var err error
		if s.pty != nil {
			n, err = s.pty.copyOnce(j, int(fd), buf)
		} else {
			n, err = j.Fill(s.stream, int(fd), len(buf), buf)
		}
		more = n > 0
		return err != unix.EAGAIN || more && !j.Room()
	})
	return err == nil && more
}

// Quiet waits until no output has come for the time quiet and the sources are empty, at most for the time limit. It
// returns how long that took. It is called after Start and never waits for a pipe's lock, so no session can hold it up.
func (c *Copier) Quiet(quiet, limit time.Duration) time.Duration {
	begin := time.Now()
	for j := c.journal.Load(); j != nil; {
		since := begin
		if last := j.LastWrite(); last.After(begin) {
			since = last
		}
		left := min(quiet-time.Since(since), limit-time.Since(begin))
		if left <= 0 {
			if time.Since(begin) >= limit || !j.Room() || c.isDrained(0) && c.isDrained(1) {
				break
			}
			left = time.Millisecond // the goroutine has not yet read what is there
		}
		select {
		case <-c.done:
			return time.Since(begin)
		case <-time.After(left):
		}
	}
	return time.Since(begin)
}

// CatchUp returns when the goroutines have copied what the sources hold. After the exit of the only writer that is all of
// its output. A reader that keeps the journal full delays CatchUp, but not for longer than limit, and not after Stop. A
// reader's bound on how far the output may be ahead of it (Reader.SetAhead) does not apply meanwhile: what is left to copy
// is no more than the kernel holds.
func (c *Copier) CatchUp(limit time.Duration) {
	c.finishing.Store(true)
	defer c.finishing.Store(false)
	end := time.Now().Add(limit)
	for i := range c.count {
		for !c.isDrained(i) && time.Now().Before(end) {
			c.OnRoom()
			select {
			case <-c.stop:
				return
			case <-c.done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}
}

// isDrained tells whether source i is empty and the journal has everything that was in it. It does not wait for a pipe's
// lock. The poll of a PTY waits until the kernel has passed on what programs wrote (tty_buffer_flush_work).
func (c *Copier) isDrained(i int) bool {
	if !c.mu.TryLock() {
		return false
	}
	defer c.mu.Unlock()
	if i >= c.count || c.sources[i].ended {
		return true
	}
	fds := []unix.PollFd{{Fd: -1, Events: unix.POLLIN}}
	_ = c.sources[i].raw.Control(func(fd uintptr) { // fails where the file is closed
		fds[0].Fd = int32(fd)
		descriptor.Poll(fds)
	})
	return fds[0].Revents&unix.POLLIN == 0
}

// Stopped returns a channel that Stop closes.
func (c *Copier) Stopped() <-chan struct{} { return c.stop }

// Stop ends the copying, also while other processes hold the sources, and waits for the goroutines.
func (c *Copier) Stop() {
	c.once.Do(func() {
		close(c.stop)
		for i := range c.count {
			_ = c.sources[i].file.SetReadDeadline(time.Now())
		}
	})
	c.wg.Wait()
}
