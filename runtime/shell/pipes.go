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

// An outputPipes is the way of a shell's output: a pipe for stdout and one for stderr, both ends with the keeper, which is where the
// shell opens them, and the read ends with us; and the log into which what comes out of them goes first, so that neither the shell nor what it printed notices when
// we are replaced. Commands use it one after the other for as long as each leaves nobody behind who could hold its ends;
// then what is left follows the old one (leavePipes) and the shell gets a new one. It belongs to the holder of the shell's
// turn, or to who follows it.
type outputPipes struct {
	group own.KeptGroup
	log   *streamLog

	mu          sync.Mutex // a process's exit and the end of its output may come at once
	r, w        [2]int     // closing guarded by mu; -1 once closed, and w in a pair of output pipes that nobody inherits an end of
	heldNumbers []int      // what the keeper calls r[0], r[1], w[0], w[1]; changes guarded by mu; -1 once dropped

	files []HeldFile // the same with what they are; set once, dropped or not
}

// streamLog is a pair of output pipes' log, which outlives the output pipes: the journals that went through it may be wanted for a while. When the
// output pipes has ended, and with it the last journal that goes through the log, what is kept of them is packed into the archive
// of the session, and the log's descriptors go. Where that fails, they go when the last of the journals was dropped, or
// when the session is forgotten.
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

// streamLogs are those of one session that have not ended.
type streamLogs struct {
	onBreak   func(error)   // told why one takes no more; set once
	readSlots chan struct{} // one element for each goroutine of a Copier that takes from its pipe; set once

	sessionLog       *sessionlog.Log // the session's, where logs are packed into; set once, before the first log
	sessionLogNumber int             // what the keeper calls its file; set once with archive

	mu  sync.Mutex
	all map[*streamLog]struct{} // guarded by mu; nil before the first
}

// maxReadSlots bounds how many goroutines of a session's Copiers take from their pipes at once: whoever has a pipe can hold that up, see journal's
// splice, and each that is held up has a thread of ours, of which Go takes no more than 10,000.
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

// close closes what is left.
func (os *streamLogs) close() {
	os.mu.Lock()
	defer os.mu.Unlock()
	for o := range os.all {
		o.Close()
	}
	os.all = nil
}

// SavedPipes is what of a pair of output pipes must be known to go on with it.
type SavedPipes struct {
	Pipes []HeldFile `json:"pipes"` // the read ends, the write ends
	Log   []HeldFile `json:"log"`
}

// HeldFile is a descriptor that the keeper holds: its number there, -1 when it was dropped, and which file it is. A number
// that was dropped soon means another file, and a record may be older than that.
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

// heldFiles names descriptors of ours by what the keeper calls them.
func heldFiles(numbers []int, fds ...int) []HeldFile {
	files := make([]HeldFile, len(numbers))
	for i, n := range numbers {
		files[i] = HeldFile{n, inode(fds[i])}
	}
	return files
}

// renumbered are the files under the numbers that they go by now.
func renumbered(files []HeldFile, held []int) []HeldFile {
	files = slices.Clone(files)
	for i, n := range held {
		files[i].Number = n
	}
	return files
}

// newOutputPipes makes one. inherited: a child is given the ends to write to.
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

// saved is what a successor needs.
func (l *outputPipes) saved() SavedPipes {
	l.mu.Lock()
	defer l.mu.Unlock()
	return SavedPipes{Pipes: renumbered(l.files, l.heldNumbers), Log: l.log.held}
}

// discard throws away what is in the pipes: a shell that died before it had read its line complained into them, or nobody.
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

// writeEnd is how the shell finds the end of output i that it writes to: a number in the group's Dir.
func (l *outputPipes) writeEnd(i int) int { return l.heldNumbers[2+i] }

// isOpen: a command can write to it. Not where closeWriters was called, be it by a gateway before us.
func (l *outputPipes) isOpen() bool { return l.heldNumbers[2] >= 0 && l.heldNumbers[3] >= 0 }

// closeWriters lets EOF come once nobody else writes.
func (l *outputPipes) closeWriters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.w {
		descriptor.Close(&l.w[i])
	}
	dropHeld(l.group, l.heldNumbers, 2, 4)
}

// takeReadEnd gives the read end of output i to the caller, who closes it.
func (l *outputPipes) takeReadEnd(i int) int {
	fd := l.r[i]
	l.r[i] = -1
	return fd
}

// close ends the output pipes but for what was taken.
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

// dropHeld lets the keeper forget what it calls held[from:to], once: a number that was dropped soon means another file.
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

// attachJournal lets a journal go through the log. head and tail are how much of each stream is wanted beside the ring.
func (o *streamLog) attachJournal(j *journal.Journal, head, tail int64) {
	j.AttachLog(o.Log, head, tail)
	j.OnDrop(o.spanDropped)
}

// spanDropped is told that nobody needs a span any more.
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

// finish says that nothing more will be written.
func (o *streamLog) finish() {
	o.mu.Lock()
	o.done = true
	o.mu.Unlock()
	o.Retire()
	o.closeIfUnused()
}

// closeIfUnused closes the log once nobody needs it, or what is kept of it has been packed.
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

// packLocked moves what is kept of the log into the archive, all of it or nothing. mu is held.
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

// archiveKey names a span, by its log.
func archiveKey(log []HeldFile, s journal.Span) sessionlog.Key {
	return sessionlog.Key{uint64(log[0].Number), log[0].Inode, uint64(s.Begin.Run)}
}

// CloseLogs closes what the gateway has open for a session that has ended and been written down: from then on, the keeper has
// one file for all that is kept of it.
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
