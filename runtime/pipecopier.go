package runtime

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
)

// chunk is how much is read of a pipe at once: all that a pipe holds by default.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk); return &b }}

// pipeCopier copies what is written to a set of pipes into a journal, and closes the journal once nobody can write any
// more. One goroutine for each pipe (drain), which ends at the pipe's EOF or at stop; the owner waits with wait.
// It serves processes for their whole life, and a command's pipes from its end on, when background jobs still hold them.
type pipeCopier struct {
	j             *journal.Journal // nil after its end: a process is known for as long as its session, and shall not hold what it printed
	journalClosed atomic.Bool      // it has ended
	room          chan struct{}    // has an element after Room may have become true
	stop          chan struct{}    // closed by close
	readSlots     chan struct{}    // its session's, see maxReadSlots
	once          sync.Once
	mu            sync.Mutex // held across a read and the write of what it read, so that catchUp sees all or nothing
	files         []*os.File // set once in newPipeCopier
	raw           []syscall.RawConn
	kinds         []journal.Stream
	open          int               // guarded by mu; pipes that are open
	onEOF         func()            // set once before start: called when the last pipe is closed; nil: nothing
	afterEOF      func(*pipeCopier) // the same, but behind that, and may take a moment, which close waits for
	scope         KeptScope         // of what an ended command left running; set once before start, nil where that is not known
	wg            sync.WaitGroup
}

// newPipeCopier takes over the read ends. The journal's OnRoom must end in roomy.
func newPipeCopier(j *journal.Journal, of *streamLogs) *pipeCopier {
	return &pipeCopier{j: j, readSlots: of.readSlots, room: make(chan struct{}, 1), stop: make(chan struct{})}
}

func (o *pipeCopier) onRoom() {
	select {
	case o.room <- struct{}{}:
	default:
	}
}

// add takes over fd, a non-blocking read end. Before start.
func (o *pipeCopier) add(fd int, s journal.Stream) error {
	f := os.NewFile(uintptr(fd), s.String())
	rc, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return err
	}
	o.files, o.raw, o.kinds = append(o.files, f), append(o.raw, rc), append(o.kinds, s)
	return nil
}

// takePipes takes over the read ends that a pair of output pipes still has, and ends the output pipes when they are at their end. Before start.
func (o *pipeCopier) takePipes(l *outputPipes) {
	o.onEOF = l.close
	for i := range l.r {
		if l.r[i] >= 0 {
			_ = o.add(l.takeReadEnd(i), journal.Stdout+journal.Stream(i)) // it closes what it does not take
		}
	}
}

func (o *pipeCopier) start() {
	o.open = len(o.files)
	if o.open == 0 {
		o.closeJournal()
	}
	for i := range o.files {
		o.wg.Add(1)
		go o.drain(i)
	}
}

// drain copies pipe i until its EOF or stop, and the last one of the set closes the journal.
func (o *pipeCopier) drain(i int) {
	defer o.wg.Done()
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for o.waitForRoom() {
		if !o.copyOnce(i, *buf) {
			break
		}
	}
	o.files[i].Close()
	o.mu.Lock()
	o.open--
	last := o.open == 0
	if last {
		o.closeJournal()
		if o.onEOF != nil {
			o.onEOF()
		}
	}
	o.mu.Unlock()
	if last && o.afterEOF != nil {
		o.afterEOF(o)
	}
}

// closeJournal closes the journal, when nobody reads or writes o.j any more.
func (o *pipeCopier) closeJournal() {
	o.j.Close()
	o.j = nil
	o.journalClosed.Store(true)
}

// waitForRoom returns when the journal has room, false when it is to stop.
func (o *pipeCopier) waitForRoom() bool {
	for {
		select {
		case <-o.stop:
			return false
		default:
		}
		if o.j.Room() {
			o.onRoom() // the other pipe may wait for the same
			return true
		}
		select {
		case <-o.room:
		case <-o.stop:
			return false
		}
	}
}

// copyOnce copies once, false at the end.
func (o *pipeCopier) copyOnce(i int, buf []byte) bool {
	more := false
	err := o.raw[i].Read(func(fd uintptr) bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.readSlots <- struct{}{}
		defer func() { <-o.readSlots }()
		n, err := o.j.Fill(o.kinds[i], int(fd), len(buf), buf)
		more = n > 0
		return err != unix.EAGAIN
	})
	return err == nil && more
}

// catchUp copies what the pipes hold right now: after the writer's exit that is all its output. A reader that holds
// the journal up is waited for, at most until the bound, or until close.
func (o *pipeCopier) catchUp(bound time.Duration) {
	end := time.Now().Add(bound)
	for i := range o.files {
		for !o.isDrained(i) && time.Now().Before(end) {
			select {
			case <-o.stop:
				return
			case <-time.After(time.Millisecond): // the drain goroutine is on it
			}
		}
	}
}

// isDrained: pipe i is empty, and what was in it is in the journal. It does not wait, be the pipe held up or not.
func (o *pipeCopier) isDrained(i int) bool {
	if !o.mu.TryLock() {
		return false
	}
	defer o.mu.Unlock()
	fds := []unix.PollFd{{Events: unix.POLLIN}}
	_ = o.raw[i].Control(func(fd uintptr) { // fails where it is closed, at its end
		fds[0].Fd = int32(fd)
		poll(fds)
	})
	return fds[0].Revents&unix.POLLIN == 0
}

// close ends the copying now, whoever still holds the pipes, and waits for the goroutines.
func (o *pipeCopier) close() {
	o.once.Do(func() {
		close(o.stop)
		for _, f := range o.files {
			_ = f.SetReadDeadline(time.Now())
		}
	})
	o.wg.Wait()
}
