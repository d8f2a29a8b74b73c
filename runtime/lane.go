package runtime

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/journal"
	"trl/runtime/ledger"
)

// A lane is the way of a shell's output: a pipe for stdout and one for stderr, both ends with the keeper, which is where the
// shell opens them, and the read ends with us; and the log into which what comes out of them goes first, so that neither the shell nor what it printed notices when
// we are replaced. Commands use it one after the other for as long as each leaves nobody behind who could hold its ends;
// then what is left follows the old one (handOver) and the shell gets a new one. It belongs to the holder of the shell's
// turn, or to who follows it.
type lane struct {
	group KeptGroup
	log   *output

	mu   sync.Mutex // a process's exit and the end of its output may come at once
	r, w [2]int     // closing guarded by mu; -1 once closed, and w in a lane that nobody inherits an end of
	held []int      // what the keeper calls r[0], r[1], w[0], w[1]; changes guarded by mu; -1 once dropped

	files []HeldFile // the same with what they are; set once, dropped or not
}

// output is a lane's log, which outlives the lane: the journals that went through it may be wanted for a while. When the
// lane has ended, and with it the last journal that goes through the log, what is kept of them is packed into the archive
// of the session, and the log's descriptors go. Where that fails, they go when the last of the journals was dropped, or
// when the session is forgotten.
type output struct {
	*journal.Log
	group KeptGroup
	of    *outputs
	held  []HeldFile // its descriptors

	mu     sync.Mutex
	done   bool                   // guarded by mu; nothing more will be written
	closed bool                   // guarded by mu
	kept   map[int64]*ledger.Kept // guarded by mu; the packed spans, by Begin.Run
}

// outputs are those of one session that have not ended.
type outputs struct {
	broke func(error)   // told why one takes no more; set once
	slots chan struct{} // one element for each outlet that takes from its pipe; set once

	archive *ledger.Ledger // the session's, where logs are packed into; set once, before the first log
	number  int            // what the keeper calls its file; set once with archive

	mu  sync.Mutex
	all map[*output]struct{} // guarded by mu; nil before the first
}

// fillers bounds how many outlets of a session take from their pipes at once: whoever has a pipe can hold that up, see journal's
// splice, and each that is held up has a thread of ours, of which Go takes no more than 10,000.
const fillers = 8

func (os *outputs) add(o *output) {
	o.OnBreak(os.broke)
	os.mu.Lock()
	defer os.mu.Unlock()
	if os.all == nil {
		os.all = map[*output]struct{}{}
	}
	os.all[o] = struct{}{}
}

func (os *outputs) remove(o *output) {
	os.mu.Lock()
	defer os.mu.Unlock()
	delete(os.all, o)
}

// close closes what is left.
func (os *outputs) close() {
	os.mu.Lock()
	defer os.mu.Unlock()
	for o := range os.all {
		o.Close()
	}
	os.all = nil
}

// LaneRecord is what of a lane must be known to go on with it.
type LaneRecord struct {
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

// newLane makes one. inherited: a child is given the ends to write to.
func newLane(group KeptGroup, of *outputs, inherited bool) (*lane, error) {
	l := &lane{group: group, r: [2]int{-1, -1}, w: [2]int{-1, -1}}
	log, err := journal.NewLog()
	if err != nil {
		return nil, fmt.Errorf("output log: %w", err)
	}
	l.log = &output{Log: log, group: group, of: of}
	of.add(l.log)
	fds := log.Fds()
	pipes, held, err := group.Make([]Kind{OutPipe, OutPipe}, fds[:]...)
	if err != nil {
		l.close()
		return nil, fmt.Errorf("output pipes: %w", err)
	}
	for i, p := range pipes {
		l.r[i], l.w[i] = p.R, p.W
	}
	l.held, l.log.held = []int{pipes[0].NR, pipes[1].NR, pipes[0].NW, pipes[1].NW}, heldFiles(held, fds[:]...)
	l.files = heldFiles(l.held, l.r[0], l.r[1], l.w[0], l.w[1])
	if elsewhere(group) && !inherited {
		shut(&l.w[0])
		shut(&l.w[1])
	}
	return l, nil
}

// record is what a successor needs.
func (l *lane) record() LaneRecord {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LaneRecord{Pipes: renumbered(l.files, l.held), Log: l.log.held}
}

// empty throws away what is in the pipes: a shell that died before it had read its line complained into them, or nobody.
func (l *lane) empty() {
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

// end is how the shell finds the end of output i that it writes to: a number in the group's Dir.
func (l *lane) end(i int) int { return l.held[2+i] }

// open: a command can write to it. Not where closeWriters was called, be it by a gateway before us.
func (l *lane) open() bool { return l.held[2] >= 0 && l.held[3] >= 0 }

// closeWriters lets EOF come once nobody else writes.
func (l *lane) closeWriters() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.w {
		shut(&l.w[i])
	}
	drop(l.group, l.held, 2, 4)
}

// take gives the read end of output i to the caller, who closes it.
func (l *lane) take(i int) int {
	fd := l.r[i]
	l.r[i] = -1
	return fd
}

// close ends the lane but for what was taken.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.r {
		shut(&l.r[i])
		shut(&l.w[i])
	}
	drop(l.group, l.held, 0, 4)
	if l.log != nil {
		l.log.end()
	}
}

// drop lets the keeper forget what it calls held[from:to], once: a number that was dropped soon means another file.
func drop(group KeptGroup, held []int, from, to int) {
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

// carry lets a journal go through the log. head and tail are how much of each stream is wanted beside the ring.
func (o *output) carry(j *journal.Journal, head, tail int64) {
	j.Through(o.Log, head, tail)
	j.OnDrop(o.dropped)
}

// dropped is told that nobody needs a span any more.
func (o *output) dropped(s journal.Span) {
	o.mu.Lock()
	k := o.kept[s.Begin.Run]
	delete(o.kept, s.Begin.Run)
	o.mu.Unlock()
	if k != nil {
		k.Release()
		return
	}
	o.look()
}

// end says that nothing more will be written.
func (o *output) end() {
	o.mu.Lock()
	o.done = true
	o.mu.Unlock()
	o.Retire()
	o.look()
}

// look closes the log once nobody needs it, or what is kept of it has been packed.
func (o *output) look() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done || o.closed || o.Spans() > 0 && !o.packLocked() {
		return
	}
	o.closed = true
	o.of.remove(o)
	o.Close()
	var numbers []int
	for _, f := range o.held {
		numbers = append(numbers, f.Number)
	}
	o.group.Drop(numbers...)
}

// packLocked moves what is kept of the log into the archive, all of it or nothing. mu is held.
func (o *output) packLocked() bool {
	if o.of.archive == nil || len(o.held) == 0 {
		return false
	}
	kept := map[int64]*ledger.Kept{}
	err := o.Pack(func(s journal.Span, size int64, write func(io.Writer) error) error {
		k, err := o.of.archive.Keep(archiveKey(o.held, s), size, write)
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
	o.kept = kept
	return true
}

// archiveKey names a span, by its log.
func archiveKey(log []HeldFile, s journal.Span) ledger.Key {
	return ledger.Key{uint64(log[0].Number), log[0].Inode, uint64(s.Begin.Run)}
}

// Park closes what the gateway has open for a session that has ended and been written down: from then on, the keeper has
// one file for all that is kept of it.
func (s *Shell) Park() {
	if group := s.held(); elsewhere(group) && s.outputs.archive != nil {
		s.outputs.archive.Park(heldFile{group, s.outputs.number})
	}
}

// elsewhere says that what is held is held by another process: what shells open, need not be open here.
func elsewhere(group KeptGroup) bool {
	_, here := group.(localGroup)
	return group != nil && !here
}

// heldFile writes to a file that only the keeper has open.
type heldFile struct {
	group  KeptGroup
	number int
}

func (f heldFile) WriteAt(p []byte, at int64) { f.group.WriteHeld(f.number, p, at) }
func (f heldFile) Punch(from, to int64)       { f.group.PunchHeld(f.number, from, to) }

// halfPipe makes a pipe whose one end, ours, does not block: the other one may be inherited, and programs expect it to.
func halfPipe(ours int) (fd [2]int, err error) {
	if err = unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return fd, err
	}
	return fd, unix.SetNonblock(fd[ours], true)
}

// shut closes a descriptor once.
func shut(fd *int) {
	if *fd >= 0 {
		unix.Close(*fd)
		*fd = -1
	}
}
