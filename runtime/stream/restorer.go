package stream

import (
	"errors"
	"slices"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/sessionlog"
)

// A Restorer restores the streams of a session from the keeper's descriptors, and journals from the logs and from the packed spans of
// logs that have ended. Its methods are called in this order: ReadSessionLog; Reserve for every journal; UseLogs; the other methods;
// then CloseRest.
type Restorer struct {
	group    own.KeptGroup
	held     map[int]int               // our descriptors by the keeper's numbers, without those that were taken
	reserved map[HeldFile]*reservedLog // by the log's first file
	packed   map[sessionlog.Key]*sessionlog.Archived
	logs     *Logs
	log      zerolog.Logger // has the session's id

	SessionLog       *sessionlog.Log // nil before ReadSessionLog, and if the session has none
	SessionLogNumber int             // the keeper's number for its file
}

// reservedLog says which spans of a log will be restored.
type reservedLog struct {
	spans  []journal.Span
	packed []*sessionlog.Archived // spans that are packed in the archive
	log    *Log
}

// NewRestorer returns a Restorer for a session whose group and descriptors the keeper holds. held has our descriptors by the keeper's
// numbers; the Restorer owns them.
func NewRestorer(group own.KeptGroup, held map[int]int, log zerolog.Logger) *Restorer {
	return &Restorer{group: group, held: held, reserved: map[HeldFile]*reservedLog{}, log: log}
}

// ReadSessionLog calls read for each entry of the session log. A session that no client ever got has no log.
func (r *Restorer) ReadSessionLog(read func(entry []byte) error) error {
	for number, fd := range r.held {
		log, err := sessionlog.Open(fd, read)
		if errors.Is(err, sessionlog.ErrNotSessionLog) {
			continue
		}
		if err != nil {
			return err
		}
		r.Take(number)
		r.SessionLog, r.SessionLogNumber = log, number
		r.findPacked()
		return nil
	}
	return nil
}

// NewMovedRestorer returns a Restorer for output of another node, which is in the archive of a new session's log.
func NewMovedRestorer(group own.KeptGroup, logs *Logs, log zerolog.Logger) *Restorer {
	r := NewRestorer(group, nil, log)
	r.logs, r.SessionLog, r.SessionLogNumber = logs, logs.sessionLog, logs.sessionLogNumber
	r.findPacked()
	r.TakePacked(sessionlog.SnapshotKey) // the new session's own
	return r
}

func (r *Restorer) findPacked() {
	r.packed = map[sessionlog.Key]*sessionlog.Archived{}
	for _, k := range r.SessionLog.Archived() {
		r.packed[k.Key] = k
	}
}

// TakePacked returns the record of the archive with this key, nil if there is none. CloseRest releases the records that nobody took.
func (r *Restorer) TakePacked(key sessionlog.Key) *sessionlog.Archived {
	k := r.packed[key]
	delete(r.packed, key)
	return k
}

// UseLogs sets the logs of the restored session, to which the Restorer adds the logs that it opens.
func (r *Restorer) UseLogs(logs *Logs) {
	r.logs = logs
	logs.SetSessionLog(r.SessionLog, r.SessionLogNumber)
}

// Holds tells whether the keeper holds a descriptor with this number that was not taken.
func (r *Restorer) Holds(number int) bool {
	_, ok := r.held[number]
	return ok
}

// Take returns our descriptor for one that the keeper holds, -1 if there is none. The caller owns the descriptor.
func (r *Restorer) Take(number int) int {
	fd, ok := r.held[number]
	if !ok {
		return -1
	}
	delete(r.held, number)
	return fd
}

// TakeFile is Take, but returns -1 if the number by now means another file.
func (r *Restorer) TakeFile(f HeldFile) int {
	if fd, ok := r.held[f.Number]; !ok || inode(fd) != f.Inode {
		return -1
	}
	return r.Take(f.Number)
}

// takeFiles takes files. The number of one that is gone is -1, like its descriptor.
func (r *Restorer) takeFiles(files []HeldFile) (fds, numbers []int) {
	for _, f := range files {
		fd := r.TakeFile(f)
		if fd < 0 {
			f.Number = -1
		}
		fds, numbers = append(fds, fd), append(numbers, f.Number)
	}
	return fds, numbers
}

// Reserve says that Replay will be called for the span of this log.
func (r *Restorer) Reserve(log []HeldFile, span journal.Span) {
	if len(log) != 3 || span == (journal.Span{}) || span.Empty() {
		return
	}
	w := r.reservedLog(log)
	if k := r.packed[archiveKey(log, span)]; k != nil {
		if s, err := journal.PackedSpan(k); err == nil && s.Begin == span.Begin {
			w.packed = append(w.packed, k)
			return
		}
	}
	w.spans = append(w.spans, span)
}

func (r *Restorer) reservedLog(log []HeldFile) *reservedLog {
	w := r.reserved[log[0]]
	if w == nil {
		w = &reservedLog{}
		r.reserved[log[0]] = w
	}
	return w
}

// hasLog tells whether the log is open or can be opened.
func (r *Restorer) hasLog(log []HeldFile) bool {
	if len(log) == 3 && r.reservedLog(log).log != nil {
		return true
	}
	for _, f := range log {
		if fd, ok := r.held[f.Number]; !ok || inode(fd) != f.Inode {
			return false
		}
	}
	return len(log) == 3
}

// openLog opens a log, or returns the one that is open.
func (r *Restorer) openLog(held []HeldFile) (*Log, error) {
	if len(held) != 3 {
		return nil, errors.New("keeper does not hold the output log")
	}
	w := r.reservedLog(held)
	if w.log != nil {
		return w.log, nil
	}
	if len(w.spans) == 0 && len(w.packed) > 0 {
		w.log = &Log{Log: journal.ClosedLog(), group: r.group, set: r.logs, held: held, done: true, closed: true}
		return w.log, nil
	}
	fds := [3]int{r.TakeFile(held[0]), r.TakeFile(held[1]), r.TakeFile(held[2])}
	log, err := journal.OpenLog(fds, w.spans)
	if err != nil {
		return nil, err
	}
	w.log = &Log{Log: log, group: r.group, set: r.logs, held: held, done: true} // Pipes and PTY call reopen if they go on with the log
	r.logs.add(w.log)
	return w.log, nil
}

// Replay writes to j what is kept of its output. A journal that was open stays open; the caller restores what writes to it, and that
// closes j.
func (r *Restorer) Replay(j *journal.Journal, log []HeldFile, span journal.Span) error {
	if span == (journal.Span{}) {
		return nil
	}
	if span.Empty() { // an empty span needs no log, and the log may be gone
		j.Close()
		return nil
	}
	if len(log) == 3 {
		if k := r.packed[archiveKey(log, span)]; k != nil && slices.Contains(r.reservedLog(log).packed, k) {
			j.OnDrop(func(journal.Span) { k.Release() })
			return journal.Unpack(j, k)
		}
	}
	if !r.hasLog(log) { // the log was closed after the entry was written, and spans with output were packed
		j.Close()
		return nil
	}
	out, err := r.openLog(log)
	if err != nil {
		return err
	}
	j.OnDrop(out.spanDropped)
	err = out.Replay(j, span)
	if errors.Is(err, journal.ErrBroken) { // j has what the log has and goes on without a log; how much output is missing is unknown
		r.log.Warn().Msg("some output is lost: its log is incomplete")
		return nil
	}
	return err
}

// Pipes restores the output pipes of a command or a process.
func (r *Restorer) Pipes(saved SavedPipes) (*Pipes, error) {
	if len(saved.Pipes) != 4 {
		return nil, errors.New("keeper does not hold the output pipes")
	}
	fds, numbers := r.takeFiles(saved.Pipes)
	l := &Pipes{group: r.group, r: [2]int(fds[:2]), w: [2]int(fds[2:]), heldNumbers: numbers, files: saved.Pipes}
	out, err := r.openLog(saved.Log)
	if err != nil {
		l.Close()
		return nil, err
	}
	descriptor.Close(&l.w[0]) // a process that was started with the write ends has its own descriptors
	descriptor.Close(&l.w[1])
	l.log = out
	if packed := out.reopen(); packed { // the pipes had ended; the last gateway had not yet told the keeper to drop them
		for i := range l.r {
			descriptor.Close(&l.r[i])
		}
	}
	return l, nil
}

// Stdin restores the stdin of a command, a process or a terminal, nil if it had none.
func (r *Restorer) Stdin(files []HeldFile) *Stdin {
	if len(files) != 3 {
		return nil
	}
	fds, numbers := r.takeFiles(files)
	in := &Stdin{group: r.group, heldNumbers: numbers, files: files, fileNumber: files[1].Number, mem: fds[0], r: fds[1], w: fds[2], inPipe: -1}
	if in.hadReader = in.r >= 0; !in.hadReader { // opening the pipe tells whether the shell has opened it
		in.fileNumber = files[2].Number
	}
	if in.mem >= 0 {
		in.fed, _ = unix.Seek(in.mem, 0, 1)
		var st unix.Stat_t
		if unix.Fstat(in.mem, &st) == nil {
			in.size = st.Size
		}
		seals, err := unix.FcntlInt(uintptr(in.mem), unix.F_GET_SEALS, 0)
		in.eof = err == nil && seals&unix.F_SEAL_GROW != 0
	}
	return in
}

// PTY restores the PTY of a terminal.
func (r *Restorer) PTY(saved SavedPTY) (*PTY, error) {
	if len(saved.Files) != 4 {
		return nil, errors.New("keeper does not hold the terminal")
	}
	fds, numbers := r.takeFiles(saved.Files)
	l := &PTY{group: r.group, files: saved.Files, slave: fds[1], r: fds[2], w: fds[3], heldNumbers: numbers, inPipe: -1}
	out, err := r.openLog(saved.Log)
	if err == nil {
		l.log = out
		err = l.setMaster(fds[0])
	}
	if err == nil && (l.r < 0 || l.w < 0) {
		err = errors.New("keeper does not hold the pipe of the terminal")
	}
	if err != nil {
		l.Close()
		l.Release()
		return nil, err
	}
	out.reopen()
	return l, nil
}

// CloseRest drops the descriptors that nobody took, and packs the logs that the last gateway had not packed yet.
func (r *Restorer) CloseRest() {
	for _, w := range r.reserved {
		for _, k := range w.packed {
			delete(r.packed, k.Key)
		}
		if w.log != nil {
			w.log.closeIfUnused()
		}
	}
	for _, k := range r.packed {
		k.Release()
	}
	r.packed = nil
	if numbers := r.closeHeld(); len(numbers) > 0 {
		r.group.Drop(numbers...)
	}
}

// Discard closes everything of a session that cannot be restored. The keeper's descriptors are dropped with the session's group.
func (r *Restorer) Discard() {
	r.closeHeld()
	if r.SessionLog != nil {
		r.SessionLog.Close()
	}
	if r.logs != nil {
		r.logs.Close()
	}
}

// closeHeld closes our descriptors that nobody took, and returns the keeper's numbers for them.
func (r *Restorer) closeHeld() (numbers []int) {
	for n, fd := range r.held {
		unix.Close(fd)
		numbers = append(numbers, n)
	}
	r.held = nil
	return numbers
}
