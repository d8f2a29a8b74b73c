// Package snapshot has the files into which a session's shell writes its state, and knows which of them is whole, and which is current. A process
// that starts from the shell's state, and a shell that replaces a dead one, read them.
package snapshot

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"trl/runtime/crashpoint"
	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/sessionlog"
)

// Files are the snapshots of a shell. The shell writes them into two memfds by turns, so that one is whole at any moment, and the
// EXIT trap writes its snapshot into a third. Snapshots may have secrets, so they stay in memory and are gone with the descriptors. The session's shell
// makes them and closes them. Its session log is the fourth file that is held with them.
type Files struct {
	mu         sync.Mutex // guards all fields below but sessionLog and held, because a process may start from the last snapshot while a command runs
	fd         [2]int
	exit       int
	sessionLog *sessionlog.Log      // the session's entries, which the session's owner writes
	held       []int                // the keeper's numbers for fd[0], fd[1], exit and sessionLog; 0: the keeper has no such file, see Spare
	rests      bool                 // fd and exit are closed, see Rest
	archived   *sessionlog.Archived // the snapshot that was requested last, in the session log's archive; nil: it is in its file, see Rest
	settled    bool                 // lines that name a file are this gateway's, or the shell has executed them
	empty      bool                 // no shell was asked for a snapshot since the files were made or emptied
	endMarks   [2]string            // the end of a whole snapshot in fd[i]; "" if none was requested
	newer      int                  // index of the snapshot that was requested last
	seq        int                  // number of the snapshot that was requested last

	// A snapshot is current if no command has ended after the snapshot was requested. Only the holder of the shell's turn
	// requests snapshots and ends commands.
	ended  int    // how many commands have ended
	behind [2]int // the value of ended when fd[i] was requested, or unknownState
	tried  int    // the value of ended at the last try to get a snapshot
	last   []byte // the snapshot that the shell was restored with; nil for a fresh shell, and after the shell has written another
	lastAt int    // the value of ended that last belongs to, or unknownState
}

// unknownState says that it is unknown which commands had ended when a snapshot was requested.
const unknownState = -1

// noSnapshot is the number of a fresh shell's state in a saved.Command. Snapshots have greater numbers. An older version of trl wrote
// 0, which means unknown.
const noSnapshot = 1

// Alive is the argument of Script for a shell that is not dead.
const Alive = -1

// Indexes of Files.held.
const (
	heldExit       = 2
	heldSessionLog = 3
)

// New returns a state with its session log. setFiles sets the snapshot files.
func New() (*Files, error) {
	book, err := sessionlog.New()
	if err != nil {
		return nil, err
	}
	return &Files{fd: [2]int{-1, -1}, exit: -1, sessionLog: book, seq: noSnapshot, behind: [2]int{unknownState, unknownState}}, nil
}

// Held returns the keeper's numbers for the three files and the session log.
func (s *Files) Held() []int { return s.held }

// HeldExit returns the keeper's number for the file of the EXIT trap.
func (s *Files) HeldExit() int { return s.held[heldExit] }

// HeldFiles returns the keeper's numbers for those of the three files that it has.
func (s *Files) HeldFiles() (numbers []int) {
	for _, n := range s.held[:min(heldSessionLog, len(s.held))] {
		if n != 0 {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// Missing returns how many files for snapshots there are not, see Spare.
func (s *Files) Missing() (n int) {
	for i := range s.fd {
		if len(s.held) > i && s.held[i] == 0 {
			n++
		}
	}
	return n
}

// Spare returns the keeper's numbers for the files of which a shell at rest has no need, and goes on without them: the older snapshot, and the newer one if
// it is archived or there is none. The caller drops them when an entry says so. If ok is false, lines of an earlier gateway that name a file may still be
// executed. The caller has called Rest.
func (s *Files) Spare() (numbers []int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.settled || !s.rests {
		return nil, false
	}
	held := slices.Clone(s.held) // the last entry has the old slice
	for i := range s.fd {
		older := i != s.newer
		if held[i] == 0 || !s.empty && s.archived == nil && !(older && s.endMarks[s.newer] != "") {
			continue
		}
		numbers = append(numbers, held[i])
		held[i] = 0
		if older || s.archived == nil {
			s.endMarks[i] = ""
		}
	}
	s.held = held
	return numbers, true
}

// Unarchive writes the snapshot that Rest has archived into its file, which is one of those that Add will add. ReleaseArchived comes when an entry names
// that file. If the snapshot cannot be read, there is none, and one is wanted.
func (s *Files) Unarchive(made []own.Channel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.archived == nil {
		return nil
	}
	raw := make([]byte, s.archived.Size())
	if _, err := s.archived.ReadAt(raw, 0); err != nil { // the session log was invalidated while the shell was at rest
		s.archived, s.endMarks[s.newer], s.tried = nil, "", unknownState
		return nil
	}
	return descriptor.WriteMemfd(made[s.newer].W, raw)
}

// ReleaseArchived forgets what Rest has archived.
func (s *Files) ReleaseArchived() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.archived != nil {
		crashpoint.Here("before an archived snapshot is released")
		s.archived.Release()
		s.archived = nil
	}
}

// Add adds files for the missing ones. made has as many as Missing says.
func (s *Files) Add(made []own.Channel) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = slices.Clone(s.held)
	for i := range s.fd {
		if s.held[i] == 0 {
			s.fd[i], s.held[i], made = made[0].W, made[0].HeldW, made[1:]
		}
	}
}

// SessionLog returns the session's entries.
func (s *Files) SessionLog() *sessionlog.Log { return s.sessionLog }

// Kinds are the files into which the shell writes its snapshots.
var Kinds = []own.ChannelKind{own.MemFile, own.MemFile, own.MemFile}

// SetFiles sets the snapshot files. book is the keeper's number for the session log.
func (s *Files) SetFiles(made []own.Channel, book int) {
	s.fd[0], s.fd[1], s.exit = made[0].W, made[1].W, made[2].W
	s.held = []int{made[0].HeldW, made[1].HeldW, made[2].HeldW, book}
	s.settled, s.empty = true, true
}

// OnlyLog returns Files of an ended shell, which has a session log and nothing else.
func OnlyLog(book *sessionlog.Log) *Files {
	return &Files{fd: [2]int{-1, -1}, exit: -1, sessionLog: book}
}

// Restore goes on with the snapshot files of an earlier gateway. take returns a record of the session log's archive, nil if there is none; without both
// files, the last gateway has archived the newer snapshot. A snapshot that ends in a mark is whole. Only a saved.Command shows whether it is current, see
// RestoreRunning and RestoreEnded.
func Restore(held []int, a, b, exit int, book *sessionlog.Log, take func(sessionlog.Key) *sessionlog.Archived) *Files {
	s := &Files{fd: [2]int{a, b}, exit: exit, sessionLog: book, held: held, behind: [2]int{unknownState, unknownState}, tried: unknownState, lastAt: unknownState}
	ends := [2][]byte{endOf(a), endOf(b)}
	if held[0] == 0 && held[1] == 0 {
		if s.archived = take(sessionlog.SnapshotKey); s.archived != nil {
			ends[0] = make([]byte, min(s.archived.Size(), markRoom))
			_, _ = s.archived.ReadAt(ends[0], s.archived.Size()-int64(len(ends[0])))
		}
	}
	for i, end := range ends {
		if at := bytes.LastIndex(end, []byte(dialect.EndMark+" ")); at >= 0 && bytes.HasSuffix(end, []byte("\n")) {
			mark := string(end[at:])
			n, _ := strconv.Atoi(strings.TrimSpace(mark[len(dialect.EndMark):]))
			s.endMarks[i] = mark
			if n > s.seq {
				s.seq, s.newer = n, i
			}
		}
	}
	s.seq += afterAdoption
	s.settled = s.Missing() > 0 // the last gateway wrote such an entry before it sent another line
	return s
}

// markRoom is more than the size of an end mark.
const markRoom = 64

// endOf returns the last bytes of a file.
func endOf(fd int) []byte {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	end := make([]byte, min(st.Size, markRoom))
	if _, err := unix.Pread(fd, end, st.Size-int64(len(end))); err != nil {
		return nil
	}
	return end
}

// afterAdoption is added to the number of the newest snapshot in an adopted state. The last gateway may have requested a later
// snapshot, which the shell has not written yet, and two snapshots must not have the same number.
const afterAdoption = 1000

// RestoreRunning takes over the entry that the last gateway wrote when it began the command that still runs.
func (s *Files) RestoreRunning(r saved.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch newest := s.numberLocked(s.newer); {
	case r.Current && r.Snapshot == noSnapshot:
		s.lastAt = s.ended
	case r.Current && r.Snapshot == newest:
		s.behind[s.newer] = s.ended
	}
	s.seq = max(s.seq, r.Snapshot+afterAdoption)
}

// RestoreEnded takes over the entry of the last command that has ended, maybe with its shell. A snapshot with a greater number was
// requested after that command.
func (s *Files) RestoreEnded(r saved.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Snapshot > 0 && s.numberLocked(s.newer) > r.Snapshot {
		s.behind[s.newer], s.tried = s.ended, s.ended
	}
	s.seq = max(s.seq, r.Snapshot+afterAdoption)
}

// numberLocked returns the number of the snapshot in fd[i], 0 if there is none.
func (s *Files) numberLocked(i int) int {
	n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(s.endMarks[i], dialect.EndMark)))
	return n
}

// CommandEnded counts a command that has ended, which may have changed the shell's state.
func (s *Files) CommandEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
}

// Wanted tells whether a command has ended since the last try to get a snapshot.
func (s *Files) Wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried != s.ended && s.lastAt != s.ended
}

// Skip counts as a try, so that no snapshot is wanted until the next command ends.
func (s *Files) Skip() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = s.ended
}

// AskedFor returns the number of the snapshot that was requested last, and whether that snapshot, once whole, has the shell's
// present state.
func (s *Files) AskedFor() (number int, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endMarks[s.newer] != "" && s.behind[s.newer] == s.ended {
		return s.seq, true
	}
	if s.last == nil && s.lastAt == s.ended {
		return noSnapshot, true
	}
	return s.seq, false
}

// Rest closes our descriptors of the snapshot files, which the keeper holds. It first archives the newer snapshot, unless that is large, so that the keeper
// need not hold its file. Rest reports whether the shell has written all that it was asked for; else it closes nothing.
func (s *Files) Rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rests || s.pendingLocked() {
		return s.rests
	}
	if s.archived == nil && s.settled && s.endMarks[s.newer] != "" && s.Size() <= maxArchived {
		raw := content(s.fd[s.newer])
		s.archived, _ = s.sessionLog.Archive(sessionlog.SnapshotKey, int64(len(raw)), func(w io.Writer) error { _, err := w.Write(raw); return err })
	}
	for _, fd := range []*int{&s.fd[0], &s.fd[1], &s.exit} {
		descriptor.Close(fd)
	}
	s.rests = true
	return true
}

// Rests tells whether our descriptors are closed.
func (s *Files) Rests() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rests
}

// WakeUp gets the descriptors of HeldFiles back.
func (s *Files) WakeUp(fds []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, fd := range []*int{&s.fd[0], &s.fd[1], &s.exit} {
		if s.held[i] != 0 {
			*fd, fds = fds[0], fds[1:]
		}
	}
	s.rests = false
}

// maxArchived is the size of the largest snapshot that is archived while the shell rests.
const maxArchived = 64 << 10

// Close closes the snapshot files. The session log stays open until the session is forgotten.
func (s *Files) Close() {
	s.ReleaseArchived()
	for _, fd := range []int{s.fd[0], s.fd[1], s.exit} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// Ask sends the line that makes the shell write a snapshot, and does not wait for it. The shell reads this line before any later
// command. send reports whether the shell will get it.
func (s *Files) Ask(k *dialect.Dialect, send func(line string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.newer
	if !s.pendingLocked() {
		into ^= 1 // overwrite the older one; the newer one is whole and stays valid until this one is whole
	}
	m := strconv.Itoa(s.seq + 1)
	line := fmt.Sprintf("__trl_s \"$__trl_p/%d\" %s%s\n", s.held[into], m, k.KeepStatus)
	if k.Name == "bash" {
		line = fmt.Sprintf("__trl_v=$?;__trl_k;\\builtin trap -p >|\"$__trl_p/%d\";", s.held[into]) + line
	}
	if !send(line) {
		return // a snapshot is still wanted
	}
	s.newer, s.tried = into, s.ended
	s.settled, s.empty = true, false
	s.seq++
	s.endMarks[into], s.behind[into] = dialect.EndMark+" "+m+"\n", s.ended
}

// Pending tells whether the shell has not finished the snapshot that was requested last.
func (s *Files) Pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pendingLocked()
}

func (s *Files) pendingLocked() bool {
	return s.archived == nil && s.endMarks[s.newer] != "" && !isWhole(s.fd[s.newer], s.endMarks[s.newer])
}

// Size returns the size of the last snapshot. Large snapshots are taken less often.
func (s *Files) Size() int64 {
	var st unix.Stat_t
	if unix.Fstat(s.fd[s.newer], &st) != nil {
		return 0
	}
	return st.Size
}

// Script returns the newest whole snapshot as a script, nil if there is none, and whether it has the effects of every command that
// has ended. dead is the keeper's number for the control pipe of a shell that is dead and will be replaced, or Alive; the snapshot of its EXIT trap
// counts as the newest.
func (s *Files) Script(k *dialect.Dialect, dead int) (script []byte, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, at := s.newestLocked()
	if dead != Alive {
		if s.exitedLocked(dead) {
			raw, at = content(s.exit), s.ended
		}
		s.last, s.lastAt = raw, at // restored will forget the files
	}
	switch current = at == s.ended; {
	case raw == nil:
		return nil, current
	case k.ListsFunctions:
		return dialect.ListedScript(raw), current
	}
	return dialect.PosixScript(raw), current
}

// Newest returns the newest whole snapshot as the shell wrote it, for Load, nil if there is none; and whether it has the effects of every command that
// has ended.
func (s *Files) Newest() (raw []byte, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, at := s.newestLocked()
	return raw, at == s.ended
}

// Load makes the snapshot of another shell the current one.
func (s *Files) Load(raw []byte) {
	s.Restored()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = raw
}

// newestLocked returns the newest whole snapshot of a shell that is alive, and the value of ended that it belongs to.
func (s *Files) newestLocked() (raw []byte, at int) {
	raw, at = s.last, s.lastAt
	for _, i := range []int{s.newer ^ 1, s.newer} {
		if s.endMarks[i] != "" && isWhole(s.fd[i], s.endMarks[i]) {
			raw, at = content(s.fd[i]), s.behind[i]
			s.last, s.lastAt = nil, unknownState
		}
	}
	return raw, at
}

// exitedLocked tells whether the EXIT trap of this shell has written a whole snapshot. A snapshot from inside a function does not
// count, because it has the function's local variables.
//
// The file may still have the snapshot of the previous shell, if a gateway died before it emptied the file. So the mark has the
// number of the shell's control pipe. Two successive shells have different numbers, because the second pipe is made before the
// first is closed.
func (s *Files) exitedLocked(dead int) bool {
	return isWhole(s.exit, dialect.EndMark+" x0 "+strconv.Itoa(dead)+"\n")
}

// Exited tells whether the EXIT trap of a dead shell has written a whole snapshot.
func (s *Files) Exited(dead int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exitedLocked(dead)
}

// Restored forgets the snapshot files after a new shell has got the state. The state counts as current.
func (s *Files) Restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endMarks, s.lastAt = [2]string{}, s.ended
	_ = unix.Ftruncate(s.exit, 0)
}

// Forget drops the whole state. The caller tells the client that it is lost.
func (s *Files) Forget() {
	s.Restored()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.fd { // otherwise the next gateway would restore a whole snapshot from them
		_ = unix.Ftruncate(fd, 0)
	}
	s.last, s.empty = nil, true
}

// MaxSize is the largest snapshot that is read, because the session can make the file as large as it likes. It is some thousand
// times the size of an ordinary snapshot. A larger one is not restored, and no process starts from it.
const MaxSize = 16 << 20

// isWhole tells whether the snapshot ends in its mark. A file with holes does not count: no shell wrote it, and it would cost us
// memory but the session none.
func isWhole(fd int, mark string) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size < int64(len(mark)) || st.Size > MaxSize || st.Blocks*512 < st.Size {
		return false
	}
	b := make([]byte, len(mark))
	n, err := unix.Pread(fd, b, st.Size-int64(len(mark)))
	return err == nil && string(b[:n]) == mark
}

// content returns the content of a snapshot file.
func content(fd int) []byte {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	b := make([]byte, min(st.Size, MaxSize)) // read through the descriptor, because the file may belong to another user
	for n := 0; n < len(b); {
		k, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, b[n:], int64(n)) })
		if err != nil || k == 0 {
			return b[:n]
		}
		n += k
	}
	return b
}

// ForgetLast drops last once the shell has written a newer snapshot.
func (s *Files) ForgetLast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && s.endMarks[s.newer] != "" && !s.pendingLocked() {
		s.last, s.lastAt = nil, unknownState
	}
}
