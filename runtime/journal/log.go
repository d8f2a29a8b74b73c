package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Log keeps the bytes of journals in the kernel, so that a killed gateway loses none of them.
//
// It consists of three memfds, and the keeper holds them, too. stdout and stderr have one each. The file position, which is part of the open file
// description and therefore survives us, says how much was ever written: the offset of a byte in the file is its offset in the stream. splice(2) takes
// bytes out of a pipe, puts them into the file and moves that position in one system call; a kill -9 comes before it or after it. The third memfd, the
// index, has the order of the two: one word for each run of one stream, written before the first byte of the run. A crash may leave a run without
// bytes, which the next one replaces, but never bytes with an unknown place. So there is nothing to repair.
//
// One log serves many journals, one after the other. Each has a Span of it. Code that may need a span after a crash keeps it elsewhere, until Drop.
// Bytes that no span needs, or that a long span no longer needs, are punched out of the files. The owner of the log calls Close; the memory is free
// when the keeper has closed its descriptors, too.
type Log struct {
	onBreak func(error)                         // set once before use
	batch   int64                               // trimBatch; tests lower it
	splice  func(from, to, n int) (int, error)  // splice; tests make it fail
	write   func(fd int, p []byte) (int, error) // unix.Write; tests make it fail

	// Held while bytes go from a pipe into the log and the journal, so that both have the same order. A session can make this take arbitrarily long,
	// see splice. Before mu.
	fillMu sync.Mutex

	// Held across system calls, none of which waits, and across the journal's own lock, which is taken after it.
	mu        sync.Mutex
	fds       [3]int          // stdout, stderr, index; -1 after Close
	pos       [2]int64        // the positions of the first two
	run       int64           // the index of the newest run
	runStream Stream          // the newest run's stream; 0: its word is not written yet
	start     int64           // where it begins, in the order of both streams
	writer    *span           // the span that is being written; nil: none
	spans     map[int64]*span // all live spans, by Begin.Run
	root      span            // the ring of live spans, in order; its trimmed says up to where everything is punched out
	exact     bool            // splice has worked
	copies    bool            // splice is not available: read and write, with a moment in between
	broken    error           // why the log accepts no more bytes
	retired   bool            // no journal will be attached to it any more
	packed    *packed         // the source of reads while a packed span is replayed; nil: the descriptors
	word      [8]byte         // a word of the index; a field, because on the stack it would escape
}

const (
	logStdout, logStderr, logIndex = 0, 1, 2

	// logFlags allow sealing: a seal tells the next gateway that the log is broken.
	logFlags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
)

// ErrBroken says that a log is incomplete from some point on, because the kernel had no more memory for it.
var ErrBroken = errors.New("output log is incomplete")

// NewLog makes an empty log.
func NewLog() (*Log, error) {
	fds := [3]int{-1, -1, -1}
	for i, name := range []string{"trl-stdout", "trl-stderr", "trl-index"} {
		fd, err := unix.MemfdCreate(name, logFlags)
		if err != nil {
			makeLog(fds).Close()
			return nil, fmt.Errorf("memfd: %w", err)
		}
		fds[i] = fd
	}
	return makeLog(fds), nil
}

// OpenLog takes over the descriptors of a log that another process wrote, even if it fails. live has every span that is still needed. The memory of
// all others is freed at once, because the crash may have prevented their Drop.
func OpenLog(fds [3]int, live []Span) (*Log, error) {
	l := makeLog(fds)
	if err := l.recover(live); err != nil {
		l.Close()
		return nil, fmt.Errorf("open log: %w", err)
	}
	return l, nil
}

func makeLog(fds [3]int) *Log {
	l := &Log{batch: trimBatch, splice: splice, write: unix.Write, fds: fds, run: -1, spans: map[int64]*span{}}
	l.root.prev, l.root.next = &l.root, &l.root
	return l
}

func (l *Log) recover(live []Span) (err error) {
	for f := range l.pos {
		if l.pos[f], err = unix.Seek(l.fds[f], 0, io.SeekCurrent); err != nil {
			return err
		}
		if seals, err := unix.FcntlInt(uintptr(l.fds[f]), unix.F_GET_SEALS, 0); err == nil && seals&unix.F_SEAL_GROW != 0 {
			l.broken = ErrBroken
		}
	}
	size, err := unix.Seek(l.fds[logIndex], 0, io.SeekEnd) // nobody uses its position
	if err != nil {
		return err
	}
	l.run = size/8 - 1
	live = slices.Clone(live)
	slices.SortFunc(live, func(a, b Span) int { return cmp.Compare(a.Begin.Run, b.Begin.Run) })
	for _, s := range live { // the words of a span without output were never written
		if !s.sane() {
			return fmt.Errorf("%+v is not a span", s)
		}
		l.run = max(l.run, s.Begin.Run, s.End.Run-1)
	}
	for i, s := range live {
		if s.Open() && i < len(live)-1 {
			return fmt.Errorf("span %d is open and not the last", s.Begin.Run)
		}
		at := Point{}
		if i > 0 {
			at = live[i-1].End
		}
		if !at.before(s.Begin) || !l.endOf(s).before(l.endPointLocked()) || !s.Begin.before(l.endPointLocked()) {
			return fmt.Errorf("span %d is out of place", s.Begin.Run)
		}
	}
	for _, s := range live {
		sp := &span{log: l, Span: s}
		l.linkLocked(sp)
		l.reclaimLocked(sp.prev, sp)
	}
	l.reclaimLocked(l.root.prev, &l.root)
	return nil
}

// OnBreak sets the function that is told, once and without locks, why the log accepts no more. The journal goes on without it.
func (l *Log) OnBreak(f func(error)) { l.onBreak = f }

// Fds returns the descriptors stdout, stderr and index, for the keeper to hold and for OpenLog. They still belong to the log.
func (l *Log) Fds() [3]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fds
}

// Broken reports whether the log accepts no more.
func (l *Log) Broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.broken != nil
}

// Spans returns the number of live spans.
func (l *Log) Spans() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.spans)
}

// Close closes our descriptors and drops nothing else. An open span stays open for the next gateway, and a Fill reads no more from its pipe. Close is
// idempotent.
func (l *Log) Close() {
	l.fillMu.Lock()
	defer l.fillMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	for f, fd := range l.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
		l.fds[f] = -1
	}
}

func (l *Log) closedLocked() bool { return l.fds[logIndex] < 0 }

// AttachLog makes all of j's bytes go through l. Call it before j's first byte. The log keeps the first head and the last tail bytes of each stream,
// and as much as j's ring holds. Record j's Span before anything can write. Only one journal at a time writes to a log.
func (j *Journal) AttachLog(l *Log, head, tail int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.writer != nil:
		panic("journal: log has a writer")
	case j.span != nil || j.Size() > 0:
		panic("journal: log comes after the first byte")
	}
	j.span = &span{log: l}
	l.writer = j.span
	if l.broken != nil { // the log would not contain the bytes
		return
	}
	if last := l.root.prev; last != &l.root && last.Open() {
		panic("journal: log has an open span")
	}
	l.run++
	l.runStream = 0 // a span has its own runs, because it is read without its neighbours
	begin := l.endPointLocked()
	begin.Run = l.run
	keep := Keep{Ring: int64(j.bound - MaxWrite), Head: min(max(head, 0), maxPoint), Tail: min(max(tail, 0), maxPoint)}
	j.span.Span = Span{Begin: begin, Keep: keep}
	l.linkLocked(j.span)
}

// Span returns j's place in its log: open until Close, and zero without a log.
func (j *Journal) Span() Span {
	if j.span == nil {
		return Span{}
	}
	j.span.log.mu.Lock()
	defer j.span.log.mu.Unlock()
	return j.span.Span
}

// Fill moves what the non-blocking pipe holds into the journal, at least one and at most most bytes, through the journal's log if it has one. The
// bytes are in scratch afterwards; scratch and MaxWrite limit their number. 0 without an error is the pipe's end; unix.EAGAIN means that there are no
// bytes now. Two goroutines may fill one journal, each from its own pipe.
func (j *Journal) Fill(s Stream, pipe, most int, scratch []byte) (int, error) {
	p := scratch[:min(most, len(scratch), MaxWrite)]
	if j.span == nil {
		n, err := readPipe(pipe, p)
		if n > 0 {
			j.write(s, p[:n])
		}
		return n, err
	}
	return j.span.log.transfer(j, s, pipe, p)
}

// noPipe makes transfer use the bytes that it is given.
const noPipe = -1

// transfer moves bytes from the pipe into the log, into p and into the journal, and calls onBreak.
func (l *Log) transfer(j *Journal, s Stream, pipe int, p []byte) (int, error) {
	n, broke, err := l.transferQuietly(j, s, pipe, p)
	if broke != nil && l.onBreak != nil {
		l.onBreak(broke)
	}
	return n, err
}

// transferQuietly returns in broke why the log broke, if it broke just now.
func (l *Log) transferQuietly(j *Journal, s Stream, pipe int, p []byte) (n int, broke, err error) {
	l.fillMu.Lock()
	defer l.fillMu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writer != j.span {
		panic("journal: write after close")
	}
	was := l.broken
	if n, err = l.readInLocked(s, pipe, p); n > 0 {
		j.write(s, p[:n])
		l.trimLocked(l.batch)
	}
	if was == nil {
		broke = l.broken
	}
	return n, broke, err
}

// readInLocked moves bytes from the pipe into the log and into p. It releases mu during the move; fillMu stays held.
func (l *Log) readInLocked(s Stream, pipe int, p []byte) (int, error) {
	switch {
	case l.closedLocked() && pipe != noPipe:
		return 0, os.ErrClosed
	case l.closedLocked() || l.broken != nil || len(p) == 0 || !l.startRunLocked(s):
		return l.readPipeLocked(pipe, p)
	}
	f := fileOf(s)
	for !l.copies && pipe != noPipe {
		n, err := l.spliceLocked(pipe, l.fds[f], len(p))
		switch {
		case err == nil:
			l.exact = true
			l.pos[f] += int64(n)
			if err := l.readLocked(f, p[:n], l.pos[f]-int64(n)); err != nil { // a bad page of memory: the offsets must still be right
				clear(p[:n])
				l.breakLocked(err)
			}
			return n, nil
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, err
		case !l.exact && (err == unix.EINVAL || err == unix.ENOSYS || err == unix.EPERM):
			l.copies = true // an old or restricted kernel, or a terminal instead of a pipe
		default:
			l.breakLocked(err)
			return l.readPipeLocked(pipe, p) // if the pipe failed, this returns its error
		}
	}
	n, err := l.readPipeLocked(pipe, p)
	l.appendLocked(s, p[:n])
	return n, err
}

// spliceLocked calls splice without mu.
func (l *Log) spliceLocked(pipe, file, n int) (int, error) {
	l.mu.Unlock()
	defer l.mu.Lock()
	return l.splice(pipe, file, n)
}

// readPipeLocked calls readPipe without mu.
func (l *Log) readPipeLocked(pipe int, p []byte) (int, error) {
	l.mu.Unlock()
	defer l.mu.Lock()
	return readPipe(pipe, p)
}

func readPipe(fd int, p []byte) (int, error) {
	if fd == noPipe {
		return len(p), nil
	}
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

// startRunLocked records that s writes from here on, unless it did before. It returns false if the log is broken.
func (l *Log) startRunLocked(s Stream) bool {
	if s == l.runStream {
		return true
	}
	run, at := l.run, l.endPointLocked().merged()
	if l.runStream != 0 && l.start < at { // else no byte came, and the word is replaced
		run++
	}
	binary.LittleEndian.PutUint64(l.word[:], uint64(at)<<2|uint64(s))
	if _, err := unix.Pwrite(l.fds[logIndex], l.word[:], run*8); err != nil {
		l.breakLocked(err)
		return false
	}
	l.run, l.runStream, l.start = run, s, at
	return true
}

// appendLocked does after a read what splice does.
func (l *Log) appendLocked(s Stream, p []byte) {
	for f := fileOf(s); len(p) > 0; {
		n, err := l.write(l.fds[f], p)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.breakLocked(err)
			return
		}
		l.pos[f] += int64(n)
		p = p[n:]
	}
}

// breakLocked ends the log for good, before the first byte that it will not contain. The seal needs no memory and outlives us: a process that opens
// the log knows that its last span is incomplete.
func (l *Log) breakLocked(err error) {
	l.broken = err
	for f := range l.pos {
		_, _ = unix.FcntlInt(uintptr(l.fds[f]), unix.F_ADD_SEALS, unix.F_SEAL_GROW)
	}
}

// readLocked fills p from offset off of a file.
func (l *Log) readLocked(f int, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	if l.packed != nil {
		return l.packed.read(f, p, off)
	}
	n, err := unix.Pread(l.fds[f], p, off)
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// endPointLocked is the place of the next byte; its Run is the one after the newest.
func (l *Log) endPointLocked() Point {
	return Point{Out: l.pos[logStdout], Err: l.pos[logStderr], Run: l.run + 1}
}

// fileOf returns which file has the stream's bytes.
func fileOf(s Stream) int {
	if s == Stderr {
		return logStderr
	}
	return logStdout
}

// splice moves bytes between a pipe and a memfd, at their positions. It does not wait for the pipe, which may be non-blocking, too, but it waits for
// the pipe's lock. Every call on a pipe takes that lock, and a process that splices from a silent socket into the pipe holds it until the socket has
// data (fs/splice.c).
func splice(from, to, n int) (int, error) {
	got, err := unix.Splice(from, nil, to, nil, n, unix.SPLICE_F_NONBLOCK)
	return int(got), err
}
