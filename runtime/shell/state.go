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
	"trl/runtime/sessionlog"
)

// state is what is known of a shell's state outside of it: two memfds that the shell writes snapshots into by turns, so
// that one of them is whole at any moment, and one for the snapshot of the EXIT trap. Snapshots may hold secrets: they stay in memory, and go with the descriptors.
type state struct {
	mu         sync.Mutex // guards all below: a process may be started from the last snapshot while a command runs
	fd         [2]int
	exit       int
	sessionLog *sessionlog.Log // what our owner writes down about the session
	held       []int           // what the keeper calls fd[0], fd[1], exit and book
	endMarks   [2]string       // what ends a whole snapshot in fd[i]; "" for one never asked for
	newer      int             // index of the one asked for last
	seq        int             // Number of the one asked for last

	// A snapshot is current when every command that has ended did so before the snapshot was asked for. Only the holder
	// of Shell.turn asks for snapshots and ends commands.
	ended  int    // how many commands have ended
	behind [2]int // the value of ended when fd[i] was asked for; unknownState: not known
	tried  int    // the value of ended at the last try to get a snapshot
	last   []byte // what the shell was put back with, until it has written another snapshot; nil: a fresh shell, or it has
	lastAt int    // the value of ended that last belongs to; unknownState: not known
}

// unknownState stands where it is not known which commands had ended when a snapshot was asked for.
const unknownState = -1

// noSnapshot is the number of a fresh shell's state in a SavedCommand; snapshots have greater numbers. 0 was written by a
// version that did not know.
const noSnapshot = 1

// Which of held is which.
const (
	heldExit       = 2
	heldSessionLog = 3
)

// newState makes the session log; the rest comes with take.
func newState() (*state, error) {
	book, err := sessionlog.New()
	if err != nil {
		return nil, err
	}
	return &state{fd: [2]int{-1, -1}, exit: -1, sessionLog: book, seq: noSnapshot, behind: [2]int{unknownState, unknownState}}, nil
}

// stateFiles are what the shell writes its snapshots into.
var stateFiles = []own.ChannelKind{own.MemFile, own.MemFile, own.MemFile}

// setFiles makes them s's own; book is what the keeper calls the session log.
func (s *state) setFiles(made []own.Channel, book int) {
	s.fd[0], s.fd[1], s.exit = made[0].W, made[1].W, made[2].W
	s.held = []int{made[0].HeldW, made[1].HeldW, made[2].HeldW, book}
}

// restoreState goes on with descriptors that another process wrote: what ends in a mark is whole. Whether that is current, only
// a SavedCommand can tell: see before and after.
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

// afterAdoption is added to the number of the newest snapshot that an adopted state knows of. The last gateway may have asked
// for a later one, which the shell has not written yet, and two snapshots must not have the same number.
const afterAdoption = 1000

// restoreRunning takes over what the last gateway wrote down when it began the command that is still being run.
func (s *state) restoreRunning(r SavedCommand) {
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

// restoreEnded takes over the record of the last command that has ended, maybe with its shell: a snapshot with a later number was asked for
// behind it.
func (s *state) restoreEnded(r SavedCommand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Snapshot > 0 && s.numberLocked(s.newer) > r.Snapshot {
		s.behind[s.newer], s.tried = s.ended, s.ended
	}
	s.seq = max(s.seq, r.Snapshot+afterAdoption)
}

// numberLocked is the number of the snapshot in fd[i], 0 when there is none.
func (s *state) numberLocked(i int) int {
	n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(s.endMarks[i], dialect.EndMark)))
	return n
}

// commandEnded says that the shell's state may be another one from now on.
func (s *state) commandEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
}

// wanted: a command has ended since the last try to get a snapshot.
func (s *state) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tried != s.ended && s.lastAt != s.ended
}

// skipSnapshot remembers that no snapshot can be had now.
func (s *state) skipSnapshot() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = s.ended
}

// askedFor returns the number of the last snapshot, and whether that is of the state that the shell is in, if the shell
// finishes it.
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

// close closes all but the session log, which ends when the session is forgotten.
func (s *state) close() {
	for _, fd := range []int{s.fd[0], s.fd[1], s.exit} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// ask sends the line that makes the shell write one, and does not wait for it: the shell takes it before any later command.
func (s *state) ask(p *shellProc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	into := s.newer
	if !s.pendingLocked() {
		into ^= 1 // the other one is whole and the better of the two until this is
	}
	m := strconv.Itoa(s.seq + 1)
	line := fmt.Sprintf("__trl_s \"$__trl_p/%d\" %s%s\n", s.held[into], m, p.dialect.KeepStatus)
	if p.dialect.Name == "bash" {
		line = fmt.Sprintf("__trl_v=$?;__trl_k;\\builtin trap -p >|\"$__trl_p/%d\";", s.held[into]) + line
	}
	if !p.sendBy(time.Now().Add(abortTimeout), line) {
		return // it stays wanted
	}
	s.newer, s.tried = into, s.ended
	s.seq++
	s.endMarks[into], s.behind[into] = dialect.EndMark+" "+m+"\n", s.ended
}

// pending: the shell has not finished the snapshot asked for last.
func (s *state) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pendingLocked()
}

func (s *state) pendingLocked() bool {
	return s.endMarks[s.newer] != "" && !isWhole(s.fd[s.newer], s.endMarks[s.newer])
}

// size is that of the last snapshot: large ones are taken less often.
func (s *state) size() int64 {
	var st unix.Stat_t
	if unix.Fstat(s.fd[s.newer], &st) != nil {
		return 0
	}
	return st.Size
}

// script returns the newest whole snapshot as a script, nil when there is none, and whether it has the effects of every
// command that has ended. With dead, the shell that is to be replaced, what its EXIT trap wrote counts.
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
		s.last, s.lastAt = raw, at // restored is about to forget what the files hold
	}
	switch current = at == s.ended; {
	case raw == nil:
		return nil, current
	case k.ListsFunctions:
		return dialect.ListedScript(raw), current
	}
	return dialect.PosixScript(raw), current
}

// exitedLocked: the EXIT trap of this shell has written all down, and not from inside of a function, whose locals would be among
// it. A gateway may have died before it forgot what the shell before wrote there, so the mark has a number of the shell's own: two
// shells that follow each other do not have the same control pipe, since the second one has its own before the first one's is closed.
func (s *state) exitedLocked(p *shellProc) bool {
	return isWhole(s.exit, dialect.EndMark+" x0 "+strconv.Itoa(p.held[heldCtlW])+"\n")
}

func (s *state) exited(p *shellProc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exitedLocked(p)
}

// restored starts again after the state was put into a new shell, where it is still true.
func (s *state) restored() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endMarks, s.lastAt = [2]string{}, s.ended
	_ = unix.Ftruncate(s.exit, 0)
}

// forget drops everything: the session starts anew, and whoever calls this says so to the client.
func (s *state) forget() {
	s.restored()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range s.fd { // our successor goes by what is whole in there
		_ = unix.Ftruncate(fd, 0)
	}
	s.last = nil
}

// maxSnapshot bounds what is read of a session's state, some thousand times that of an ordinary one: the session may make the
// file as large as it likes. What is in a larger one is not put back, and nothing starts from it.
const maxSnapshot = 16 << 20

// isWhole: the snapshot has its mark at the end. One with holes is none that a shell wrote: it costs its session nothing, and us memory.
func isWhole(fd int, mark string) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size < int64(len(mark)) || st.Size > maxSnapshot || st.Blocks*512 < st.Size {
		return false
	}
	b := make([]byte, len(mark))
	n, err := unix.Pread(fd, b, st.Size-int64(len(mark)))
	return err == nil && string(b[:n]) == mark
}

// content is what a snapshot's file holds.
func content(fd int) []byte {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return nil
	}
	b := make([]byte, min(st.Size, maxSnapshot)) // not by its path: it may be another user's
	for n := 0; n < len(b); {
		k, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, b[n:], int64(n)) })
		if err != nil || k == 0 {
			return b[:n]
		}
		n += k
	}
	return b
}

// forgetLast drops the copy of a snapshot that the shell has written another one after.
func (s *state) forgetLast() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil && s.endMarks[s.newer] != "" && !s.pendingLocked() {
		s.last, s.lastAt = nil, unknownState
	}
}
