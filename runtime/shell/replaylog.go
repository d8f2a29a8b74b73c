package shell

import (
	"errors"
	"slices"

	"trl/runtime/journal"
	"trl/runtime/sessionlog"
)

// An Adoption restores journals from the logs that the keeper holds, and from the packed spans of logs that have ended.

// reservedLog says which spans of a log will be restored.
type reservedLog struct {
	spans  []journal.Span
	packed []*sessionlog.Archived // spans that are packed in the archive
	log    *streamLog
}

// ReserveLog says that a journal will be restored.
func (a *Adoption) ReserveLog(log []HeldFile, span journal.Span) {
	if len(log) != 3 || span == (journal.Span{}) || span.Empty() {
		return
	}
	w := a.reserve(log)
	if k := a.packed[archiveKey(log, span)]; k != nil {
		if s, err := journal.PackedSpan(k); err == nil && s.Begin == span.Begin {
			w.packed = append(w.packed, k)
			return
		}
	}
	w.spans = append(w.spans, span)
}

func (a *Adoption) reserve(log []HeldFile) *reservedLog {
	w := a.reservedLogs[log[0]]
	if w == nil {
		w = &reservedLog{}
		a.reservedLogs[log[0]] = w
	}
	return w
}

// hasLog tells whether the log is open or can be opened.
func (a *Adoption) hasLog(log []HeldFile) bool {
	if len(log) == 3 && a.reserve(log).log != nil {
		return true
	}
	for _, f := range log {
		if fd, ok := a.from.Held[f.Number]; !ok || inode(fd) != f.Inode {
			return false
		}
	}
	return len(log) == 3
}

// openLog opens a log, or returns the one that is open.
func (a *Adoption) openLog(held []HeldFile) (*streamLog, error) {
	if len(held) != 3 {
		return nil, errors.New("keeper does not hold the output log")
	}
	w := a.reserve(held)
	if w.log != nil {
		return w.log, nil
	}
	if len(w.spans) == 0 && len(w.packed) > 0 {
		w.log = &streamLog{Log: journal.ClosedLog(), group: a.from.Group, set: &a.shell.streamLogs, held: held, done: true, closed: true}
		return w.log, nil
	}
	fds := [3]int{a.takeFile(held[0]), a.takeFile(held[1]), a.takeFile(held[2])}
	log, err := journal.OpenLog(fds, w.spans)
	if err != nil {
		return nil, err
	}
	w.log = &streamLog{Log: log, group: a.from.Group, set: &a.shell.streamLogs, held: held, done: true} // pipes and pty set done to false if they go on with the log
	a.shell.streamLogs.add(w.log)
	return w.log, nil
}

// ReplayLog writes to j what is kept of its output. A journal that was open stays open; the caller restores its command or process,
// or calls ReadOn, and one of these closes j.
func (a *Adoption) ReplayLog(j *journal.Journal, log []HeldFile, span journal.Span) error {
	if span == (journal.Span{}) {
		return nil
	}
	if span.Empty() { // an empty span needs no log, and the log may be gone
		j.Close()
		return nil
	}
	if len(log) == 3 {
		if k := a.packed[archiveKey(log, span)]; k != nil && slices.Contains(a.reserve(log).packed, k) {
			j.OnDrop(func(journal.Span) { k.Release() })
			return journal.Unpack(j, k)
		}
	}
	if !a.hasLog(log) { // the log was closed after the entry was written, and spans with output were packed
		j.Close()
		return nil
	}
	out, err := a.openLog(log)
	if err != nil {
		return err
	}
	j.OnDrop(out.spanDropped)
	err = out.Replay(j, span)
	if errors.Is(err, journal.ErrBroken) { // j has what the log has and goes on without a log; how much output is missing is unknown
		a.b.Log.Warn().Str("session", a.from.ID).Msg("some output is lost: its log is incomplete")
		return nil
	}
	return err
}
