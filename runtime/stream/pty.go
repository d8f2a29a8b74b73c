package stream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/journal"
	"trl/runtime/own"
)

// A PTY is the part of a terminal that survives the gateway: the PTY, a pipe and the log of its output. The keeper holds them, too.
//
// splice(2) needs a pipe at one end, and a PTY is no pipe. So output takes two steps, each of them one system call: from the PTY into
// the pipe, and from the pipe into the log. If the gateway is killed between two calls, the next gateway first reads the pipe. So no
// output is lost and none comes twice.
//
// Our descriptor of the slave stays open as long as the terminal's first process lives. Otherwise a program that closes its terminal
// and opens it again would look like the terminal's end.
type PTY struct {
	group own.KeptGroup
	log   *Log
	files []HeldFile // set once; the files of SavedPTY

	master   *os.File        // set once; Go's netpoller watches it, so File.Fd must not be called: it would make the file blocking
	raw      syscall.RawConn // set once; the master's
	masterFD int             // set once; the master's descriptor, valid while master is open

	mu          sync.Mutex // held during both steps of a piece of output
	slave       int        // guarded by mu; -1 once closed
	r, w        int        // the pipe; guarded by mu for closing; -1 once closed
	inPipe      int        // guarded by mu; how many bytes the pipe has; -1: not known
	noSplice    bool       // guarded by mu; this kernel does not splice from terminals
	closed      bool       // guarded by mu
	heldNumbers []int      // guarded by mu; the keeper's numbers, in the order of files; -1 once dropped
}

// SavedPTY is what the next gateway must know to go on with a PTY.
type SavedPTY struct {
	Files []HeldFile `json:"files"` // master, slave, the pipe's ends
	Log   []HeldFile `json:"log"`
}

const heldSlave = 1 // index of the slave in heldNumbers

// ErrNoTerminal says that the kernel has no PTY left (kernel.pty.max), or the gateway no descriptor.
var ErrNoTerminal = errors.New("no terminal is available")

// OpenPTY makes a PTY with that size. The caller has the keeper hold its Fds, and calls SetHeld.
func OpenPTY(group own.KeptGroup, of *Logs, cols, rows int) (l *PTY, err error) {
	l = &PTY{group: group, slave: -1, r: -1, w: -1, masterFD: -1}
	defer func() {
		if err != nil {
			l.Close()
			l.Release()
			l = nil
		}
	}()
	if err = l.openPTY(cols, rows); err != nil {
		return l, fmt.Errorf("%w: %w", ErrNoTerminal, err)
	}
	var fd [2]int
	if err = unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return l, fmt.Errorf("output pipe: %w", err)
	}
	l.r, l.w = fd[0], fd[1]
	if l.log, err = of.newLog(group); err != nil {
		return l, err
	}
	return l, nil
}

// Fds returns the descriptors that the keeper is to hold. The PTY keeps its own.
func (l *PTY) Fds() []int {
	log := l.log.Fds()
	return append([]int{l.masterFD, l.slave, l.r, l.w}, log[:]...)
}

// SetHeld sets the keeper's numbers of Fds.
func (l *PTY) SetHeld(numbers []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fds := l.Fds()
	l.heldNumbers = numbers[:4:4]
	l.files, l.log.held = ToHeldFiles(l.heldNumbers, fds...), ToHeldFiles(numbers[4:], fds[4:]...)
}

// openPTY makes the PTY and sets its size before a program can ask for it. It does not open the slave by its path, because in a
// container the path may belong to another instance of devpts.
func (l *PTY) openPTY(cols, rows int) error {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("open /dev/ptmx", err)
	}
	if err := l.setMaster(master); err != nil {
		return err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return os.NewSyscallError("TIOCSPTLCK", err)
	}
	if err := setSize(master, cols, rows); err != nil {
		return err
	}
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return os.NewSyscallError("TIOCGPTPEER", errno)
	}
	l.slave = int(slave)
	if mode, err := unix.IoctlGetTermios(l.slave, unix.TCGETS); err == nil {
		mode.Iflag |= unix.IUTF8 // without it a backspace in a prompt of `read` removes only one byte of a character
		_ = unix.IoctlSetTermios(l.slave, unix.TCSETS, mode)
	}
	return nil
}

// setMaster takes over a non-blocking master.
func (l *PTY) setMaster(fd int) (err error) {
	l.masterFD, l.master = fd, os.NewFile(uintptr(fd), "ptmx")
	l.raw, err = l.master.SyscallConn()
	return err
}

func setSize(fd, cols, rows int) error {
	err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(rows), Col: uint16(cols)})
	return os.NewSyscallError("TIOCSWINSZ", err)
}

// Resize sets the PTY's size. The kernel tells the programs if the size has changed.
func (l *PTY) Resize(cols, rows int) (err error) {
	if e := l.raw.Control(func(fd uintptr) { err = setSize(int(fd), cols, rows) }); e != nil {
		return e
	}
	return err
}

// Size returns the PTY's size.
func (l *PTY) Size() (cols, rows int) {
	_ = l.raw.Control(func(fd uintptr) {
		if w, err := unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ); err == nil {
			cols, rows = int(w.Col), int(w.Row)
		}
	})
	return cols, rows
}

// Saved returns what the next gateway needs.
func (l *PTY) Saved() SavedPTY {
	l.mu.Lock()
	defer l.mu.Unlock()
	return SavedPTY{Files: renumbered(l.files, l.heldNumbers), Log: l.log.held}
}

// ttyPiece is how much one splice takes from a PTY: the capacity of its line discipline (N_TTY_BUF_SIZE). With a larger size the
// kernel would allocate unused pages each time.
const ttyPiece = 4 << 10

// copyOnce moves the terminal's output into the journal, at most the capacity of the pipe, which is no more than MaxWrite. It returns
// EAGAIN if there is no output now, or no more than what it has moved, and io.EOF if no more will come.
func (l *PTY) copyOnce(j *journal.Journal, master int, buf []byte) (total int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, io.EOF
	}
	before, pieces := l.inPipe, 0
	for err == nil { // until the PTY is empty or the pipe is full
		var n int
		if n, err = l.fillPipeLocked(master, buf); n > 0 {
			pieces++
			if l.inPipe >= 0 {
				l.inPipe += n
			}
		}
	}
	total = l.emptyPipeLocked(j, buf)
	switch {
	case total > 0 && (err != unix.EAGAIN || pieces > 1 || before != 0): // the pipe may have been full
		return total, nil
	case err == unix.EAGAIN:
		return total, err
	}
	return total, io.EOF // err is mostly EIO: no process has the slave open any more
}

// emptyPipeLocked moves what the pipe has into the journal.
func (l *PTY) emptyPipeLocked(j *journal.Journal, buf []byte) (total int) {
	for l.inPipe != 0 {
		most := len(buf)
		if l.inPipe > 0 {
			most = min(most, l.inPipe)
		}
		n, err := j.Fill(journal.TTY, l.r, most, buf)
		if n <= 0 || err != nil {
			if err == unix.EAGAIN {
				l.inPipe = 0
			}
			break
		}
		total += n
		if l.inPipe > 0 {
			l.inPipe -= n
		}
	}
	return total
}

// fillPipeLocked moves one piece from the PTY into the pipe.
func (l *PTY) fillPipeLocked(master int, buf []byte) (int, error) {
	for !l.noSplice {
		n, err := unix.Splice(master, nil, l.w, nil, ttyPiece, unix.SPLICE_F_NONBLOCK)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EINVAL, err == unix.ENOSYS, err == unix.EPERM:
			l.noSplice = true
			continue
		case err == nil && n == 0:
			return 0, io.EOF
		}
		return int(n), err
	}
	// The kernel cannot splice, or does not allow it. If the gateway is killed between read and write, these bytes are lost. We read
	// only if the pipe has room.
	fds := []unix.PollFd{{Fd: int32(l.w), Events: unix.POLLOUT}}
	if n, _ := unix.Poll(fds, 0); n <= 0 {
		return 0, unix.EAGAIN
	}
	n, err := readPipe(master, buf[:ttyPiece])
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil {
		_, err = unix.Write(l.w, buf[:n]) // a pipe that is writable has room for a page
	}
	return n, err
}

func readPipe(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// Log returns the log through which the output goes.
func (l *PTY) Log() *Log { return l.log }

// Slave returns our descriptor of the slave, with which the terminal's first process is started.
func (l *PTY) Slave() int { return l.slave }

// TryFeed moves input to the PTY by splice. It returns true if the PTY takes no more now or another goroutine is feeding it.
func (l *PTY) TryFeed(in *Stdin) (more bool) {
	more = true
	_ = l.raw.Control(func(fd uintptr) { more = in.tryFeedTTY(int(fd)) })
	return more
}

// Feed waits until the PTY has taken all of the input. It returns an error if the PTY is closed.
func (l *PTY) Feed(in *Stdin) error {
	return l.raw.Write(func(fd uintptr) bool { return !in.feedTTY(int(fd)) })
}

// maxLine is the longest line that the kernel keeps in line mode (N_TTY_BUF_SIZE less one). It drops the rest without an error.
const maxLine = 4095

// ErrLongLine says that a line is longer than maxLine and would not arrive whole.
var ErrLongLine = errors.New("line is longer than the terminal accepts in line mode")

// longestLine returns the length of p's longest line. Each character of ends ends a line.
func longestLine(p []byte, ends string) (most int) {
	for len(p) > 0 {
		n := bytes.IndexAny(p, ends)
		if n < 0 {
			return max(most, len(p))
		}
		most = max(most, n)
		p = p[n+1:]
	}
	return most
}

// CheckLines returns ErrLongLine if p has a line that the terminal, in line mode, would not take whole.
func (l *PTY) CheckLines(p []byte) error {
	if len(p) > maxLine {
		if on, ends := l.canonicalMode(); on && longestLine(p, ends) > maxLine {
			return ErrLongLine
		}
	}
	return nil
}

// canonicalMode tells whether the terminal is in line mode (ICANON), and returns the characters that end a line.
func (l *PTY) canonicalMode() (on bool, ends string) {
	_ = l.raw.Control(func(fd uintptr) {
		if mode, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
			on = mode.Lflag&unix.ICANON != 0
			ends = "\n" + string([]byte{mode.Cc[unix.VEOF], mode.Cc[unix.VEOL]})
			if mode.Iflag&unix.ICRNL != 0 {
				ends += "\r"
			}
		}
	})
	return on, ends
}

// CloseSlave closes our and the keeper's slave, so that the terminal ends when no other process has it open.
func (l *PTY) CloseSlave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	descriptor.Close(&l.slave)
	if len(l.heldNumbers) > 0 {
		dropHeld(l.group, l.heldNumbers, heldSlave, heldSlave+1)
	}
}

// Close closes our descriptors and wakes readers and writers of the master. The keeper's descriptors stay open until Release.
func (l *PTY) Close() {
	if l.master != nil {
		l.master.Close() // first, and without mu: it wakes a reader that holds mu
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	descriptor.Close(&l.slave)
	descriptor.Close(&l.r)
	descriptor.Close(&l.w)
}

// Release makes the keeper close its descriptors, after Close. Programs that still have the terminal open lose it. It is called after
// the end was written to the session log: a dropped number soon means another file, and all masters have the same inode.
func (l *PTY) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	dropHeld(l.group, l.heldNumbers, 0, len(l.heldNumbers))
	if l.log != nil {
		l.log.finish()
	}
}
