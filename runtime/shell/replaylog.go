package shell

import (
	"errors"
	"slices"

	"trl/runtime/journal"
	"trl/runtime/sessionlog"
)

// An Adoption brings journals back out of the logs that are held, and out of what was packed of logs that have ended.

// reservedLog is what is wanted of a log.
type reservedLog struct {
	spans  []journal.Span
	packed []*sessionlog.Archived // what was packed of the log
	log    *streamLog
}

// ReserveLog says that a journal will be brought back.
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

// hasLog says whether a log is there that is not open yet, or one that is.
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

// openLog opens a log, once.
func (a *Adoption) openLog(held []HeldFile) (*streamLog, error) {
	if len(held) != 3 {
		return nil, errors.New("output log: not held")
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
	w.log = &streamLog{Log: log, group: a.from.Group, set: &a.shell.streamLogs, held: held, done: true} // unless a pair of output pipes goes on with it
	a.shell.streamLogs.add(w.log)
	return w.log, nil
}

// ReplayLog gives j what is kept of its output. A journal that was open stays so where a command or process is brought back
// with it, or somebody follows it; who brings it sees to its Close.
func (a *Adoption) ReplayLog(j *journal.Journal, log []HeldFile, span journal.Span) error {
	if span == (journal.Span{}) {
		return nil
	}
	if span.Empty() { // the log may be gone with it
		j.Close()
		return nil
	}
	if len(log) == 3 {
		if k := a.packed[archiveKey(log, span)]; k != nil && slices.Contains(a.reserve(log).packed, k) {
			j.OnDrop(func(journal.Span) { k.Release() })
			return journal.Unpack(j, k)
		}
	}
	if !a.hasLog(log) { // it was closed after this was written down, and what had a byte in it was packed
		j.Close()
		return nil
	}
	out, err := a.openLog(log)
	if err != nil {
		return err
	}
	j.OnDrop(out.spanDropped)
	err = out.Replay(j, span)
	if errors.Is(err, journal.ErrBroken) { // it goes on without; what was lost is known to be unknown
		a.b.Log.Warn().Str("session", a.from.ID).Msg("some output is lost: its log had broken off")
		return nil
	}
	return err
}
