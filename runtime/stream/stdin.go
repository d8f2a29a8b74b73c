package stream

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/own"
)

var (
	// ErrStdinClosed says that a stdin takes no more input.
	ErrStdinClosed = errors.New("stdin is closed")
	// ErrStdinFull says that too much input waits for a command, a process or a terminal that does not read.
	ErrStdinFull = errors.New("stdin buffer is full: the command does not read")
)

// MaxPending is how much input may wait for a program that does not read.
const MaxPending = 1 << 20

// Anywhere is the offset of a piece of input that comes after all input before it, however much that is.
const Anywhere = -1

// An OffsetError says that a piece of input does not begin where the input so far ends.
type OffsetError struct{ End int64 }

func (e *OffsetError) Error() string { return fmt.Sprintf("the input so far has %d bytes", e.End) }

// CheckOffset returns an OffsetError if a piece of input at offset at does not follow the input so far, which has end bytes.
func CheckOffset(at, end int64) error {
	if at != Anywhere && at != end {
		return &OffsetError{end}
	}
	return nil
}

// A Stdin is a stdin that survives the gateway. Input goes into a memfd, and from there into a pipe by splice, which moves the
// memfd's file position in the same system call. The keeper holds both, so the next gateway goes on with the next byte. The end of
// the input is a seal on the memfd, which the next gateway sees, too.
//
// A journal's log does the same for output.
type Stdin struct {
	group       own.KeptGroup
	heldNumbers []int      // the keeper's numbers for mem, r and w; -1 once dropped
	files       []HeldFile // the same numbers with their inodes; set once
	fileNumber  int        // name of the read end in the group's Dir, where the shell opens it

	// feedMu is held during calls on the pipe. A session can make such a call last: a process that splices from the pipe into a
	// full socket holds the pipe's lock all the time. feedMu is locked before mu.
	feedMu    sync.Mutex
	punchedTo int64  // guarded by feedMu; the memory of mem is freed up to here
	inPipe    int64  // guarded by feedMu; how many bytes a terminal's pipe has; -1: not known
	unwritten []byte // guarded by feedMu; see copyToTTYLocked

	mu sync.Mutex // two goroutines may call Add and Feed

	// hadReader says that the pipe has had a reader; it is changed with both mutexes held. Before that, a FIFO is not written to and
	// not closed: the reader's open waits for a writer, so the writer must still be there. For a FIFO we have no read end ourselves,
	// because then there would always be a reader.
	hadReader bool
	mem       int   // guarded by mu, for closing by both mutexes; -1 once closed
	r, w      int   // the pipe; guarded by mu, for closing by both mutexes; -1 once closed
	size      int64 // guarded by mu; bytes that were ever added
	fed       int64 // guarded by mu; bytes that were moved into the pipe: mem's file position
	eof       bool  // guarded by mu
}

// freeBatch is how much must have been read before punchLocked frees its memory.
const freeBatch = 1 << 20

// NewStdin makes a Stdin. The shell opens the pipe by its path; with inherited, a child is started with r instead.
func NewStdin(group own.KeptGroup, inherited bool) (*Stdin, error) {
	in := &Stdin{group: group, r: -1, w: -1}
	var err error
	if in.mem, err = newStdinFile(); err != nil {
		return nil, err
	}
	create := group.MakeChannels
	if inherited {
		create = func(kinds []own.ChannelKind, also ...int) ([]own.Channel, []int, error) {
			return own.MakeAnonymousChannels(group, kinds, also...)
		}
	}
	pipe, held, err := create([]own.ChannelKind{own.InPipe}, in.mem)
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("stdin pipe: %w", err)
	}
	in.r, in.w, in.fileNumber = pipe[0].R, pipe[0].W, pipe[0].FileNumber
	in.hadReader = in.r >= 0
	in.SetHeld([]int{held[0], pipe[0].HeldR, pipe[0].HeldW})
	return in, nil
}

// OpenStdin makes the Stdin of a terminal, which no process reads from. The caller has the keeper hold its Fds, and calls SetHeld.
func OpenStdin(group own.KeptGroup) (*Stdin, error) {
	in := &Stdin{group: group, r: -1, w: -1, hadReader: true}
	var err error
	if in.mem, err = newStdinFile(); err != nil {
		return nil, err
	}
	var fd [2]int
	if fd, err = descriptor.HalfPipe(1); err != nil {
		in.Close()
		return nil, fmt.Errorf("stdin pipe: %w", err)
	}
	in.r, in.w = fd[0], fd[1]
	return in, nil
}

func newStdinFile() (int, error) {
	fd, err := unix.MemfdCreate("trl-stdin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("memfd: %w", err)
	}
	return fd, nil
}

// Fds returns the descriptors that the keeper is to hold. The Stdin keeps its own.
func (in *Stdin) Fds() []int { return []int{in.mem, in.r, in.w} }

// SetHeld sets the keeper's numbers of Fds. It is called once, before other goroutines use the Stdin.
func (in *Stdin) SetHeld(numbers []int) {
	in.heldNumbers, in.files = numbers, ToHeldFiles(numbers, in.Fds()...)
}

// probeReader tells whether the pipe has had a reader. It opens the write end once more, which fails without a reader. feedMu is
// held.
func (in *Stdin) probeReader() bool {
	if in.hadReader {
		return true
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(in.w), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.hadReader = err != unix.ENXIO // any other error says nothing about readers; then the next write shows it
	return in.hadReader
}

// NoReaderYet tells whether the pipe has not had a reader yet. The kernel has no event for the first reader, so Feed must be called
// again and again.
func (in *Stdin) NoReaderYet() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.hadReader && in.w >= 0
}

// Add adds a piece to the input, which must begin at offset at, and returns where the input ends then. It never waits. The end of the
// input may be added again at its offset.
func (in *Stdin) Add(at int64, p []byte, eof bool) (end int64, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mem < 0 {
		return 0, ErrStdinClosed
	}
	if err := CheckOffset(at, in.size); err != nil {
		return 0, err
	}
	if in.eof && eof && len(p) == 0 && at == in.size {
		return in.size, nil
	}
	switch {
	case in.w < 0 || in.eof:
		return 0, ErrStdinClosed
	case in.size-in.fed+int64(len(p)) > MaxPending:
		return 0, ErrStdinFull
	}
	err = in.appendLocked(p, eof)
	return in.size, err
}

// AddFirst adds the first input, however much it is.
func (in *Stdin) AddFirst(p []byte, eof bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.appendLocked(p, eof)
}

// appendLocked writes into the memfd, all of p or nothing. mu is held.
func (in *Stdin) appendLocked(p []byte, eof bool) error {
	end := in.size
	for len(p) > 0 {
		n, err := unix.Pwrite(in.mem, p, end)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			_ = unix.Ftruncate(in.mem, in.size)
			return fmt.Errorf("stdin: %w", err)
		}
		end += int64(n)
		p = p[n:]
	}
	in.size = end
	if eof {
		in.eof = true
		_, _ = unix.FcntlInt(uintptr(in.mem), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	}
	return nil
}

// End returns how many bytes were ever added.
func (in *Stdin) End() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.size
}

// Pending returns how many bytes were added and are not in the pipe yet.
func (in *Stdin) Pending() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.size - in.fed
}

// Feed moves input into the pipe until the pipe is full or the input is empty. It returns true if there is more input; the caller
// then polls for room. At the end of the input it closes the pipe.
func (in *Stdin) Feed() (more bool) {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	return in.feedLocked()
}

// Files returns what the next gateway needs to restore the buffer.
func (in *Stdin) Files() []HeldFile { return in.files }

// ReadEnd returns our read end, with which a child is started; -1 if the shell opens the pipe by its path.
func (in *Stdin) ReadEnd() int { return in.r }

// FileNumber returns the name of the read end in the group's Dir, where the shell opens it.
func (in *Stdin) FileNumber() int { return in.fileNumber }

// Complete tells whether no more input will be added.
func (in *Stdin) Complete() bool {
	_, eof := in.remaining()
	return eof
}

// remaining returns how many bytes were added and not fed, and whether no more will be added.
func (in *Stdin) remaining() (n int64, eof bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.size - in.fed, in.eof
}

// feedLocked is Feed with feedMu held.
func (in *Stdin) feedLocked() (more bool) {
	for in.w >= 0 {
		left, eof := in.remaining()
		if (left > 0 || eof) && !in.probeReader() {
			return true
		}
		if left == 0 {
			in.punchLocked()
			if eof {
				in.closeWriterLocked()
			}
			return false
		}
		n, err := unix.Splice(in.mem, nil, in.w, nil, int(min(left, 1<<20)), unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return true
		case err == unix.EINVAL, err == unix.ENOSYS, err == unix.EPERM:
			if n, err = in.copyLocked(left); err == unix.EAGAIN {
				return true
			}
		}
		if n <= 0 || err != nil { // whatever the error is, nobody will read this pipe any more (EPIPE cannot occur while we hold a read end)
			in.closeWriterLocked()
			return false
		}
		if in.inPipe >= 0 {
			in.inPipe += n
		}
		in.mu.Lock()
		in.fed += n
		in.mu.Unlock()
	}
	return false
}

// punchLocked frees memory of input that was read. Input that is still in the pipe stays, because splice does not copy: the pipe
// points to the memfd's pages.
func (in *Stdin) punchLocked() {
	if in.fed-in.punchedTo < freeBatch {
		return
	}
	unread, err := unix.IoctlGetInt(in.w, unix.TIOCINQ)
	if err != nil {
		return
	}
	const page = 4 << 10
	if to := (in.fed - int64(unread)) / page * page; to-in.punchedTo >= freeBatch {
		_ = unix.Fallocate(in.mem, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, in.punchedTo, to-in.punchedTo)
		in.punchedTo = to
	}
}

// copyLocked replaces splice on a kernel that cannot splice here. If the gateway is killed between write and seek, these bytes are
// fed twice.
func (in *Stdin) copyLocked(left int64) (int64, error) {
	var buf [4 << 10]byte
	n, err := unix.Pread(in.mem, buf[:min(int64(len(buf)), left)], in.fed)
	if err != nil {
		return 0, err
	}
	if n, err = unix.Write(in.w, buf[:n]); err != nil {
		return 0, err
	}
	_, err = unix.Seek(in.mem, in.fed+int64(n), 0)
	return int64(n), err
}

// feedTTY is Feed for a terminal: it also splices from the pipe into the terminal. It returns true if the terminal takes no more
// now. Any other error means that nobody will read the input.
func (in *Stdin) feedTTY(master int) (more bool) {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	return in.feedTTYLocked(master)
}

// tryFeedTTY is feedTTY, but returns true at once if another goroutine holds feedMu.
func (in *Stdin) tryFeedTTY(master int) (more bool) {
	if !in.feedMu.TryLock() {
		return true
	}
	defer in.feedMu.Unlock()
	return in.feedTTYLocked(master)
}

// feedTTYLocked is feedTTY with feedMu held.
func (in *Stdin) feedTTYLocked(master int) (more bool) {
	for {
		full := in.feedLocked()
		if in.r < 0 {
			return false
		}
		if in.inPipe < 0 {
			held, _ := unix.IoctlGetInt(in.r, unix.TIOCINQ)
			in.inPipe = int64(held)
		}
		if in.inPipe == 0 && len(in.unwritten) == 0 {
			return full
		}
		n, err := unix.Splice(in.r, nil, master, nil, 1<<16, unix.SPLICE_F_NONBLOCK)
		if err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM {
			n, err = in.copyToTTYLocked(master)
		} else if n > 0 {
			in.inPipe -= n
		}
		switch {
		case err == unix.EINTR || n > 0:
		case err == unix.EAGAIN:
			in.inPipe = -1 // it has all these bytes still, unless a session that runs as our user has read from it
			return true
		default:
			return false
		}
	}
}

// copyToTTYLocked replaces splice on a kernel that cannot splice into terminals. If the gateway is killed, the bytes that were read
// and not written are lost.
func (in *Stdin) copyToTTYLocked(master int) (int64, error) {
	if len(in.unwritten) == 0 {
		buf := make([]byte, ttyPiece)
		n, err := readPipe(in.r, buf)
		if err != nil {
			return 0, err
		}
		in.unwritten = buf[:n]
		in.inPipe -= int64(n)
	}
	n, err := unix.Write(master, in.unwritten)
	if n > 0 {
		in.unwritten = in.unwritten[n:]
	}
	return int64(n), err
}

// WriteEnd returns the pipe's write end, to poll for room; -1 once it is closed.
func (in *Stdin) WriteEnd() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.w
}

// roomPollInterval is the first interval at which AwaitRoom polls a full pipe. A process that reads slowly gets its input in steps
// of up to 64 KiB, a pipe's capacity.
const roomPollInterval = 2 * time.Millisecond

// AwaitRoom returns true when the full pipe may take more, and false when done is closed.
func (in *Stdin) AwaitRoom(done <-chan struct{}) bool {
	pace := time.NewTimer(roomPollInterval)
	defer pace.Stop()
	for wait := roomPollInterval; ; wait = min(2*wait, 50*roomPollInterval) {
		select {
		case <-pace.C:
		case <-done:
			return false
		}
		fds := []unix.PollFd{{Fd: int32(in.WriteEnd()), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(fds, 0); n > 0 || fds[0].Fd < 0 {
			return true
		}
		pace.Reset(wait)
	}
}

// closeWriterLocked closes the pipe's write end. feedMu is held.
func (in *Stdin) closeWriterLocked() {
	if in.w < 0 {
		return
	}
	in.closeEnd(&in.w)
	dropHeld(in.group, in.heldNumbers, 2, 3)
}

// closeEnd closes a descriptor. feedMu is held, and mu is not: the close of a pipe waits for the pipe's lock, and Add must not.
func (in *Stdin) closeEnd(fd *int) {
	in.mu.Lock()
	end := *fd
	*fd = -1
	in.mu.Unlock()
	descriptor.Close(&end)
}

// Close closes the buffer and its pipe, here and at the keeper.
func (in *Stdin) Close() {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	in.closeWriterLocked()
	in.closeEnd(&in.r)
	in.closeEnd(&in.mem)
	dropHeld(in.group, in.heldNumbers, 0, 2)
}
