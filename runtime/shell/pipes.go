package shell

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/sessionlog"
)

// An outputPipes is a pipe for stdout, a pipe for stderr and a stream log. The keeper holds both ends of the pipes, and the shell
// opens them through the keeper; the gateway holds the read ends. Output goes into the log first. So neither the shell nor its
// output is affected when another gateway takes over.
//
// Commands use the same outputPipes one after the other, until a command leaves a process behind that may hold the write ends. Then
// a Copier reads the old pipes (leavePipes) and the shell gets new ones. An outputPipes belongs to the holder of the shell's turn,
// or to the Copier.
type outputPipes struct {
	group own.KeptGroup
	log   *streamLog

	mu          sync.Mutex // a process may exit while its output ends
	r, w        [2]int     // closing guarded by mu; -1 once closed; w is -1, too, if no child inherits the write ends
	heldNumbers []int      // the keeper's numbers for r[0], r[1], w[0], w[1]; changes guarded by mu; -1 once dropped

	files []HeldFile // the same numbers with their inodes; set once, so also of dropped ones
}

// streamLog is the log of an outputPipes or a pty. It outlives them, because clients may still read the journals that went through
// it. When nothing more will be written, what is kept of the journals is packed into the session's archive, and the log's
// descriptors are closed. If packing fails, they are closed when the last of the journals is dropped, or when the session is
// forgotten.
type streamLog struct {
	*journal.Log
	group own.KeptGroup
	set   *streamLogs
	held  []HeldFile // its descriptors

	mu       sync.Mutex
	done     bool                           // guarded by mu; nothing more will be written
	closed   bool                           // guarded by mu
	archived map[int64]*sessionlog.Archived // guarded by mu; the packed spans, by Begin.Run
}

// streamLogs are the stream logs of one session that are not closed.
type streamLogs struct {
	onBreak   func(error)   // called with the reason when a log can take no more output; set once
	readSlots chan struct{} // has one element for each Copier goroutine that reads its pipe; set once

	sessionLog       *sessionlog.Log // the session log, whose archive takes the packed logs; set once, before the first log
	sessionLogNumber int             // the keeper's number for its file; set once with sessionLog

	mu  sync.Mutex
	all map[*streamLog]struct{} // guarded by mu; nil before the first
}

// maxReadSlots is how many Copier goroutines of one session may read their pipes at once. A process that has a pipe can block such
// a read (see splice in package journal), and each blocked read keeps a thread. Go ends a program with 10,000 threads.
const maxReadSlots = 8

func (os *streamLogs) add(o *streamLog) {
	o.OnBreak(os.onBreak)
	os.mu.Lock()
	defer os.mu.Unlock()
	if os.all == nil {
		os.all = map[*streamLog]struct{}{}
	}
	os.all[o] = struct{}{}
}

func (os *streamLogs) remove(o *streamLog) {
	os.mu.Lock()
	defer os.mu.Unlock()
	delete(os.all, o)
}

// close closes the logs that are left.
func (os *streamLogs) close() {
	os.mu.Lock()
	defer os.mu.Unlock()
	for o := range os.all {
		o.Close()
	}
	os.all = nil
}

// SavedPipes is what the next gateway must know to go on with an outputPipes.
type SavedPipes struct {
	Pipes []HeldFile `json:"pipes"` // the read ends, the write ends
	Log   []HeldFile `json:"log"`
}

// HeldFile names a descriptor that the keeper holds: by the keeper's number, -1 once dropped, and by its inode. A dropped number
// soon means another file, and an entry may be older than that.
type HeldFile struct {
	Number int    `json:"n"`
	Inode  uint64 `json:"i"`
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// heldFiles returns the HeldFile for each of our descriptors and its number at the keeper.
func heldFiles(numbers []int, fds ...int) []HeldFile {
	files := make([]HeldFile, len(numbers))
	for i, n := range numbers {
		files[i] = HeldFile{n, inode(fds[i])}
	}
	return files
}

// renumbered returns files with their present numbers.
func renumbered(files []HeldFile, held []int) []HeldFile {
	files = slices.Clone(files)
	for i, n := range held {
		files[i].Number = n
	}
	return files
}

// newOutputPipes makes an outputPipes. With inherited, a child will be started with the write ends.
func newOutputPipes(group own.KeptGroup, of *streamLogs, inherited bool) (*outputPipes, error) {
	l := &outputPipes{group: group, r: [2]int{-1, -1}, w: [2]int{-1, -1}}
	log, err := journal.NewLog()
	if err != nil {
		return nil, fmt.Errorf("output log: %w", err)
	}
	l.log = &streamLog{Log: log, group: group, set: of}
	of.add(l.log)
	fds := log.Fds()
	pipes, held, err := group.MakeChannels([]own.ChannelKind{own.OutPipe, own.OutPipe}, fds[:]...)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("output pipes: %w", err)
	}
	for i, p := range pipes {
		l.r[i], l.w[i] = p.R, p.W
	}
	l.heldNumbers, l.log.held = []int{pipes[0].HeldR, pipes[1].HeldR, pipes[0].HeldW, pipes[1].HeldW}, heldFiles(held, fds[:]...)
	l.files = heldFiles(l.heldNumbers, l.r[0], l.r[1], l.w[0], l.w[1])
	if group.HeldElsewhere() && !inherited {
		descriptor.Close(&l.w[0])
		descriptor.Close(&l.w[1])
	}
	return l, nil
}

// saved returns what the next gateway needs.
func (l *outputPipes) saved() SavedPipes {
	l.mu.Lock()
	defer l.mu.Unlock()
	return SavedPipes{Pipes: renumbered(l.files, l.heldNumbers), Log: l.log.held}
}

// discard reads and drops what is in the pipes. Only a shell that died before it read its line can have written there.
func (l *outputPipes) discard() {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for _, fd := range l.r {
		for fd >= 0 {
			if n, err := unix.Read(fd, *buf); n <= 0 && err != unix.EINTR {
				break
			}
		}
	}
}

// writeEnd returns the name of output i's write end in the group's Dir, where the shell opens it.
func (l *outputPipes) writeEnd(i int) int { return l.heldNumbers[2+i] }

// isOpen tells whether a command can write to the pipes. It cannot after closeWriters, also if an earlier gateway called it.
func (l *outputPipes) isOpen() bool { return l.heldNumbers[2] >= 0 && l.heldNumbers[3] >= 0 }

// closeWriters closes our and the keeper's write ends, so that the pipes end when no other process has them open.
func (l *outputPipes) closeWriters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.w {
		descriptor.Close(&l.w[i])
	}
	dropHeld(l.group, l.heldNumbers, 2, 4)
}

// takeReadEnd returns the read end of output i. The caller closes it.
func (l *outputPipes) takeReadEnd(i int) int {
	fd := l.r[i]
	l.r[i] = -1
	return fd
}

// close closes the pipes, except for read ends that were taken, and finishes the log.
func (l *outputPipes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.r {
		descriptor.Close(&l.r[i])
		descriptor.Close(&l.w[i])
	}
	dropHeld(l.group, l.heldNumbers, 0, 4)
	if l.log != nil {
		l.log.finish()
	}
}

// dropHeld makes the keeper close the descriptors with the numbers held[from:to]. It drops each number only once, because a dropped
// number soon means another file.
func dropHeld(group own.KeptGroup, held []int, from, to int) {
	var numbers []int
	for i := from; i < min(to, len(held)); i++ {
		if held[i] >= 0 {
			numbers = append(numbers, held[i])
			held[i] = -1
		}
	}
	if len(numbers) > 0 {
		group.Drop(numbers...)
	}
}

// attachJournal makes j write through the log. head and tail are how much of each stream's beginning and end the log keeps if the
// journal's ring keeps less.
func (o *streamLog) attachJournal(j *journal.Journal, head, tail int64) {
	j.AttachLog(o.Log, head, tail)
	j.OnDrop(o.spanDropped)
}

// spanDropped is called when nobody needs a span any more.
func (o *streamLog) spanDropped(s journal.Span) {
	o.mu.Lock()
	k := o.archived[s.Begin.Run]
	delete(o.archived, s.Begin.Run)
	o.mu.Unlock()
	if k != nil {
		k.Release()
		return
	}
	o.closeIfUnused()
}

// finish is called when nothing more will be written to the log.
func (o *streamLog) finish() {
	o.mu.Lock()
	o.done = true
	o.mu.Unlock()
	o.Retire()
	o.closeIfUnused()
}

// closeIfUnused closes the log if nothing more will be written and its spans are dropped or can be packed.
func (o *streamLog) closeIfUnused() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done || o.closed || o.Spans() > 0 && !o.packLocked() {
		return
	}
	o.closed = true
	o.set.remove(o)
	o.Close()
	var numbers []int
	for _, f := range o.held {
		numbers = append(numbers, f.Number)
	}
	o.group.Drop(numbers...)
}

// packLocked moves all spans of the log into the archive. If one fails, it moves none and returns false. mu is held.
func (o *streamLog) packLocked() bool {
	if o.set.sessionLog == nil || len(o.held) == 0 {
		return false
	}
	kept := map[int64]*sessionlog.Archived{}
	err := o.Pack(func(s journal.Span, size int64, write func(io.Writer) error) error {
		k, err := o.set.sessionLog.Archive(archiveKey(o.held, s), size, write)
		kept[s.Begin.Run] = k
		return err
	})
	if err != nil {
		for _, k := range kept {
			if k != nil {
				k.Release()
			}
		}
		return false
	}
	o.archived = kept
	return true
}

// archiveKey returns the key of a span in the archive. The log's first file is part of it.
func archiveKey(log []HeldFile, s journal.Span) sessionlog.Key {
	return sessionlog.Key{uint64(log[0].Number), log[0].Inode, uint64(s.Begin.Run)}
}

// CloseLogs closes the gateway's session log file of a session that has ended, after its end was written down. From then on only
// the keeper has that file open.
func (s *Shell) CloseLogs() {
	if group := s.currentGroup(); group != nil && group.HeldElsewhere() && s.streamLogs.sessionLog != nil {
		s.streamLogs.sessionLog.CloseLocal(heldFile{group, s.streamLogs.sessionLogNumber})
	}
}

// heldFile writes to a file that only the keeper has open.
type heldFile struct {
	group  own.KeptGroup
	number int
}

func (f heldFile) WriteAt(p []byte, at int64) { f.group.WriteHeld(f.number, p, at) }
func (f heldFile) Punch(from, to int64)       { f.group.PunchHeld(f.number, from, to) }
