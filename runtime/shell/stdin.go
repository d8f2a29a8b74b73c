package shell

import (
	"fmt"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/own"
)

// A stdinBuffer is a stdin that loses nothing: what is given goes into a memfd, and from there into the pipe by splice, which
// moves the memfd's own position as it does. Both are held by the keeper, so that whoever comes after us goes on with the
// next byte. The end of the input is a seal on the memfd, which outlives us as well.
//
// A journal's log is the same thing the other way round.
type stdinBuffer struct {
	group       own.KeptGroup
	heldNumbers []int      // what the keeper calls mem, r and w; -1 once dropped
	files       []HeldFile // the same with what they are; set once
	fileNumber  int        // where the shell finds the end to read from: a number in the group's Dir

	// Held across what is done with the pipe, which can take as long as a session likes: a process that splices out of it into
	// a full socket has its lock for as long. Before mu.
	feedMu    sync.Mutex
	punchedTo int64  // guarded by feeding; up to where mem was punched out
	unwritten []byte // guarded by feeding; see copyToTTYLocked

	mu sync.Mutex // give and feed may come from two goroutines

	// hadReader: changed under both; the pipe has had a reader. A FIFO without one is not written to, and not closed: its opening waits
	// until there is a writer, so that must not be gone by then. We have no end to read from ourselves where that matters,
	// else there would always be a reader.
	hadReader bool
	mem       int   // guarded by mu, for closing by both; -1 afterwards
	r, w      int   // the pipe; guarded by mu, for closing by both; -1 once closed
	size      int64 // guarded by mu; bytes ever given
	fed       int64 // guarded by mu; bytes that are in the pipe, or read: mem's position
	eof       bool  // guarded by mu
}

// freeBatch is how much must have been read before its memory is given back.
const freeBatch = 1 << 20

// newStdinBuffer makes one whose pipe is opened by its path; with inherited, one whose r is given to a child.
func newStdinBuffer(group own.KeptGroup, inherited bool) (*stdinBuffer, error) {
	in := &stdinBuffer{group: group, r: -1, w: -1}
	var err error
	if in.mem, err = unix.MemfdCreate("trl-stdin", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	create := group.MakeChannels
	if inherited {
		create = func(kinds []own.ChannelKind, also ...int) ([]own.Channel, []int, error) {
			return own.MakeAnonymousChannels(group, kinds, also...)
		}
	}
	pipe, held, err := create([]own.ChannelKind{own.InPipe}, in.mem)
	if err != nil {
		in.close()
		return nil, fmt.Errorf("stdin pipe: %w", err)
	}
	in.r, in.w, in.fileNumber = pipe[0].R, pipe[0].W, pipe[0].FileNumber
	in.hadReader = in.r >= 0
	in.heldNumbers = []int{held[0], pipe[0].HeldR, pipe[0].HeldW}
	in.files = heldFiles(in.heldNumbers, in.mem, in.r, in.w)
	return in, nil
}

// probeReader says whether the pipe has had a reader. Asked by opening what we have anew: that needs one. feeding is held.
func (in *stdinBuffer) probeReader() bool {
	if in.hadReader {
		return true
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(in.w), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.hadReader = err != unix.ENXIO // with any other error nothing is known, and the pipe will tell
	return in.hadReader
}

// noReaderYet: the pipe has no reader yet. There is no event to wait for: feed has to be called again.
func (in *stdinBuffer) noReaderYet() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return !in.hadReader && in.w >= 0
}

// add adds to the input. It never waits.
func (in *stdinBuffer) add(p []byte, eof bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mem < 0 || in.w < 0 || in.eof {
		return ErrStdinClosed
	}
	for len(p) > 0 {
		n, err := unix.Pwrite(in.mem, p, in.size)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("stdin: %w", err)
		}
		in.size += int64(n)
		p = p[n:]
	}
	if eof {
		in.eof = true
		_, _ = unix.FcntlInt(uintptr(in.mem), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	}
	return nil
}

// pending is how much has been given and not taken.
func (in *stdinBuffer) pending() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.size - in.fed
}

// feed moves into the pipe what it takes now. more: it is full, ask poll for room. At the end of the input it closes the
// pipe.
func (in *stdinBuffer) feed() (more bool) {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	return in.feedLocked()
}

// remaining is what has been given and not fed, and whether that is all there will be.
func (in *stdinBuffer) remaining() (n int64, eof bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.size - in.fed, in.eof
}

// feedLocked is feed with feeding held.
func (in *stdinBuffer) feedLocked() (more bool) {
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
		if n <= 0 || err != nil { // EPIPE cannot be while we hold a reader; whatever it is, nobody reads this any more
			in.closeWriterLocked()
			return false
		}
		in.mu.Lock()
		in.fed += n
		in.mu.Unlock()
	}
	return false
}

// punchLocked gives memory back, but of nothing that the pipe may still point into: splice does not copy.
func (in *stdinBuffer) punchLocked() {
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

// copyLocked is splice where there is none: a kill between the two calls gives these bytes twice.
func (in *stdinBuffer) copyLocked(left int64) (int64, error) {
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

// feedTTY is feed for a terminal, into which the pipe is spliced in turn. more: the terminal takes no more now. What is wrong
// otherwise means that nobody will read it.
func (in *stdinBuffer) feedTTY(master int) (more bool) {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	return in.feedTTYLocked(master)
}

// tryFeedTTY is pass where nobody else is at it; else there is more for whoever is.
func (in *stdinBuffer) tryFeedTTY(master int) (more bool) {
	if !in.feedMu.TryLock() {
		return true
	}
	defer in.feedMu.Unlock()
	return in.feedTTYLocked(master)
}

// feedTTYLocked is pass with feeding held.
func (in *stdinBuffer) feedTTYLocked(master int) (more bool) {
	for {
		full := in.feedLocked()
		if in.r < 0 {
			return false
		}
		n, err := unix.Splice(in.r, nil, master, nil, 1<<16, unix.SPLICE_F_NONBLOCK)
		if err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM {
			n, err = in.copyToTTYLocked(master)
		}
		held, _ := unix.IoctlGetInt(in.r, unix.TIOCINQ)
		held += len(in.unwritten)
		switch {
		case err == unix.EINTR || n > 0:
		case held == 0 && !full:
			return false
		case err == unix.EAGAIN:
			return true
		default:
			return false
		}
	}
}

// copyToTTYLocked is for a kernel that does not splice into terminals. A kill loses what was read and not written.
func (in *stdinBuffer) copyToTTYLocked(master int) (int64, error) {
	if len(in.unwritten) == 0 {
		buf := make([]byte, ttyPiece)
		n, err := readPipe(in.r, buf)
		if err != nil {
			return 0, err
		}
		in.unwritten = buf[:n]
	}
	n, err := unix.Write(master, in.unwritten)
	if n > 0 {
		in.unwritten = in.unwritten[n:]
	}
	return int64(n), err
}

// writer is what poll asks for room, -1 when the input is over.
func (in *stdinBuffer) writer() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.w
}

// roomPollInterval is how often a full pipe is looked at: a process that reads little gets its input in steps of a pipe's 64 KiB.
const roomPollInterval = 2 * time.Millisecond

// awaitRoom returns when the full pipe may take more, false when done closes.
func (in *stdinBuffer) awaitRoom(done <-chan struct{}) bool {
	pace := time.NewTimer(roomPollInterval)
	defer pace.Stop()
	for wait := roomPollInterval; ; wait = min(2*wait, 50*roomPollInterval) {
		select {
		case <-pace.C:
		case <-done:
			return false
		}
		fds := []unix.PollFd{{Fd: int32(in.writer()), Events: unix.POLLOUT}}
		if n, _ := unix.Poll(fds, 0); n > 0 || fds[0].Fd < 0 {
			return true
		}
		pace.Reset(wait)
	}
}

// closeWriterLocked closes the pipe: feeding is held.
func (in *stdinBuffer) closeWriterLocked() {
	if in.w < 0 {
		return
	}
	in.mu.Lock()
	descriptor.Close(&in.w)
	in.mu.Unlock()
	dropHeld(in.group, in.heldNumbers, 2, 3)
}

func (in *stdinBuffer) close() {
	in.feedMu.Lock()
	defer in.feedMu.Unlock()
	in.closeWriterLocked()
	in.mu.Lock()
	descriptor.Close(&in.r)
	descriptor.Close(&in.mem)
	in.mu.Unlock()
	dropHeld(in.group, in.heldNumbers, 0, 2)
}
