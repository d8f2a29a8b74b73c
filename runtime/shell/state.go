package shell

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
	"trl/runtime/dialect"
	"trl/runtime/own"
	"trl/runtime/saved"
	"trl/runtime/sessionlog"
)

// state holds the snapshots of a shell. The shell writes them into two memfds by turns, so that one is whole at any moment, and the
// EXIT trap writes its snapshot into a third. Snapshots may have secrets, so they stay in memory and are gone with the descriptors.
type state struct {
	mu         sync.Mutex // guards all fields below, because a process may start from the last snapshot while a command runs
	fd         [2]int
	exit       int
	sessionLog *sessionlog.Log // the session's entries, which the session's owner writes
	held       []int           // the keeper's numbers for fd[0], fd[1], exit and sessionLog
	endMarks   [2]string       // the end of a whole snapshot in fd[i]; "" if none was requested
	newer      int             // index of the snapshot that was requested last
	seq        int             // number of the snapshot that was requested last

	// A snapshot is current if no command has ended after the snapshot was requested. Only the holder of Shell.turn requests
	// snapshots and ends commands.
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

// Indexes of state.held.
const (
	heldExit       = 2
	heldSessionLog = 3
)

// newState returns a state with its session log. setFiles sets the snapshot files.
func newState() (*state, error) {
	book, err := sessionlog.New()
	if err != nil {
		return nil, err
	}
	return &state{fd: [2]int{-1, -1}, exit: -1, sessionLog: book, seq: noSnapshot, behind: [2]int{unknownState, unknownState}}, nil
}

// stateFiles are the files into which the shell writes its snapshots.
var stateFiles = []own.ChannelKind{own.MemFile, own.MemFile, own.MemFile}

// setFiles sets the snapshot files. book is the keeper's number for the session log.
func (s *state) setFiles(made []own.Channel, book int) {
	s.fd[0], s.fd[1], s.exit = made[0].W, made[1].W, made[2].W
	s.held = []int{made[0].HeldW, made[1].HeldW, made[2].HeldW, book}
}

// restoreState goes on with the snapshot files of an earlier gateway. A snapshot that ends in a mark is whole. Only a saved.Command
// shows whether it is current, see restoreRunning and restoreEnded.
func restoreState(held []int, a, b, exit int, book *sessionlog.Log) *state {
	s := &state{fd: [2]int{a, b}, exit: exit, sessionLog: book, held: held, behind: [2]int{unknownState, unknownState}, tried: unknownState, lastAt: unknownState}
	for i, fd := range s.fd {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil {
			continue
		}
		end := make([]byte, min(st.Size, 64))
		if _, err := unix.Pread(fd, end, st.Size-int64(len(end))); err != nil {
			continue
		}
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
	return s
}

// afterAdoption is added to the number of the newest snapshot in an adopted state. The last gateway may have requested a later
// snapshot, which the shell has not written yet, and two snapshots must not have the same number.
const afterAdoption = 1000

// restoreRunning takes over the entry that the last gateway wrote when it began the command that still runs.
func (s *state) restoreRunning(r saved.Command) {
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

// restoreEnded takes over the entry of the last command that has ended, maybe with its shell. A snapshot with a greater number was
// requested after that command.
func (s *state) restoreEnded(r saved.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Snapshot > 0 && s.numberLocked(s.newer) > r.Snapshot {
		s.behind[s.newer], s.tried = s.ended, s.ended
	}
	s.seq = max(s.seq, r.Snapshot+afterAdoption)
}

// numberLocked returns the number of the snapshot in fd[i], 0 if there is none.
func (s *state) numberLocked(i int) int {
	n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(s.endMarks[i], dialect.EndMark)))
	return n
}

// commandEnded counts a command that has ended, which may have changed the shell's state.
func (s *state) commandEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
}

// wanted tells whether a command has ended since the last try to get a snapshot.
func (s *state) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried != s.ended && s.lastAt != s.ended
}

// skipSnapshot counts as a try, so that no snapshot is wanted until the next command ends.
func (s *state) skipSnapshot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = s.ended
}

// askedFor returns the number of the snapshot that was requested last, and whether that snapshot, once whole, has the shell's
// present state.
func (s *state) askedFor() (number int, current bool) {
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

// close closes the snapshot files. The session log stays open until the session is forgotten.
func (s *state) close() {
	for _, fd := range []int{s.fd[0], s.fd[1], s.exit} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// ask sends the line that makes the shell write a snapshot, and does not wait for it. The shell reads this line before any later
// command.
func (s *state) ask(p *shellProc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.newer
	if !s.pendingLocked() {
		into ^= 1 // overwrite the older one; the newer one is whole and stays valid until this one is whole
	}
	m := strconv.Itoa(s.seq + 1)
	line := fmt.Sprintf("__trl_s \"$__trl_p/%d\" %s%s\n", s.held[into], m, p.dialect.KeepStatus)
	if p.dialect.Name == "bash" {
		line = fmt.Sprintf("__trl_v=$?;__trl_k;\\builtin trap -p >|\"$__trl_p/%d\";", s.held[into]) + line
	}
	if !p.sendBy(time.Now().Add(abortTimeout), line) {
		return // a snapshot is still wanted
	}
	s.newer, s.tried = into, s.ended
	s.seq++
	s.endMarks[into], s.behind[into] = dialect.EndMark+" "+m+"\n", s.ended
}

// pending tells whether the shell has not finished the snapshot that was requested last.
func (s *state) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pendingLocked()
}

func (s *state) pendingLocked() bool {
	return s.endMarks[s.newer] != "" && !isWhole(s.fd[s.newer], s.endMarks[s.newer])
}

// size returns the size of the last snapshot. Large snapshots are taken less often.
func (s *state) size() int64 {
	var st unix.Stat_t
	if unix.Fstat(s.fd[s.newer], &st) != nil {
		return 0
	}
	return st.Size
}

// script returns the newest whole snapshot as a script, nil if there is none, and whether it has the effects of every command that
// has ended. dead is the shell that will be replaced, or nil; the snapshot of its EXIT trap counts as the newest.
func (s *state) script(k *dialect.Dialect, dead *shellProc) (script []byte, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, at := s.last, s.lastAt
	for _, i := range []int{s.newer ^ 1, s.newer} {
		if s.endMarks[i] != "" && isWhole(s.fd[i], s.endMarks[i]) {
			raw, at = content(s.fd[i]), s.behind[i]
			s.last, s.lastAt = nil, unknownState
		}
	}
	if dead != nil {
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

// exitedLocked tells whether the EXIT trap of this shell has written a whole snapshot. A snapshot from inside a function does not
// count, because it has the function's local variables.
//
// The file may still have the snapshot of the previous shell, if a gateway died before it emptied the file. So the mark has the
// number of the shell's control pipe. Two successive shells have different numbers, because the second pipe is made before the
// first is closed.
func (s *state) exitedLocked(p *shellProc) bool {
	return isWhole(s.exit, dialect.EndMark+" x0 "+strconv.Itoa(p.held[heldCtlW])+"\n")
}

func (s *state) exited(p *shellProc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exitedLocked(p)
}

// restored forgets the snapshot files after a new shell has got the state. The state counts as current.
func (s *state) restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endMarks, s.lastAt = [2]string{}, s.ended
	_ = unix.Ftruncate(s.exit, 0)
}

// forget drops the whole state. The caller tells the client that it is lost.
func (s *state) forget() {
	s.restored()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.fd { // otherwise the next gateway would restore a whole snapshot from them
		_ = unix.Ftruncate(fd, 0)
	}
	s.last = nil
}

// maxSnapshot is the largest snapshot that is read, because the session can make the file as large as it likes. It is some thousand
// times the size of an ordinary snapshot. A larger one is not restored, and no process starts from it.
const maxSnapshot = 16 << 20

// isWhole tells whether the snapshot ends in its mark. A file with holes does not count: no shell wrote it, and it would cost us
// memory but the session none.
func isWhole(fd int, mark string) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size < int64(len(mark)) || st.Size > maxSnapshot || st.Blocks*512 < st.Size {
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
	b := make([]byte, min(st.Size, maxSnapshot)) // read through the descriptor, because the file may belong to another user
	for n := 0; n < len(b); {
		k, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, b[n:], int64(n)) })
		if err != nil || k == 0 {
			return b[:n]
		}
		n += k
	}
	return b
}

// forgetLast drops last once the shell has written a newer snapshot.
func (s *state) forgetLast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && s.endMarks[s.newer] != "" && !s.pendingLocked() {
		s.last, s.lastAt = nil, unknownState
	}
}
