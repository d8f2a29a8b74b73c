package runtime

import (
	"errors"
	"slices"

	"trl/runtime/journal"
	"trl/runtime/ledger"
)

// An Adoption brings journals back out of the logs that are held, and out of what was packed of logs that have ended.

// wanted is what is wanted of a log.
type wanted struct {
	spans  []journal.Span
	packed []*ledger.Kept // what was packed of the log
	out    *output
}

// Want says that a journal will be brought back.
func (a *Adoption) Want(log []HeldFile, span journal.Span) {
	if len(log) != 3 || span == (journal.Span{}) || span.Empty() {
		return
	}
	w := a.want(log)
	if k := a.packed[archiveKey(log, span)]; k != nil {
		if s, err := journal.PackedSpan(k); err == nil && s.Begin == span.Begin {
			w.packed = append(w.packed, k)
			return
		}
	}
	w.spans = append(w.spans, span)
}

func (a *Adoption) want(log []HeldFile) *wanted {
	w := a.wanted[log[0]]
	if w == nil {
		w = &wanted{}
		a.wanted[log[0]] = w
	}
	return w
}

// holds says whether a log is there that is not open yet, or one that is.
func (a *Adoption) holds(log []HeldFile) bool {
	if len(log) == 3 && a.want(log).out != nil {
		return true
	}
	for _, f := range log {
		if fd, ok := a.from.Held[f.Number]; !ok || inode(fd) != f.Inode {
			return false
		}
	}
	return len(log) == 3
}

// output opens a log, once.
func (a *Adoption) output(held []HeldFile) (*output, error) {
	if len(held) != 3 {
		return nil, errors.New("output log: not held")
	}
	w := a.want(held)
	if w.out != nil {
		return w.out, nil
	}
	if len(w.spans) == 0 && len(w.packed) > 0 {
		w.out = &output{Log: journal.Closed(), group: a.from.Group, of: &a.shell.outputs, held: held, done: true, closed: true}
		return w.out, nil
	}
	fds := [3]int{a.takeFile(held[0]), a.takeFile(held[1]), a.takeFile(held[2])}
	log, err := journal.OpenLog(fds, w.spans)
	if err != nil {
		return nil, err
	}
	w.out = &output{Log: log, group: a.from.Group, of: &a.shell.outputs, held: held, done: true} // unless a lane goes on with it
	a.shell.outputs.add(w.out)
	return w.out, nil
}

// Bring gives j what is kept of its output. A journal that was open stays so where a command or process is brought back
// with it, or somebody follows it; who brings it sees to its Close.
func (a *Adoption) Bring(j *journal.Journal, log []HeldFile, span journal.Span) error {
	if span == (journal.Span{}) {
		return nil
	}
	if span.Empty() { // the log may be gone with it
		j.Close()
		return nil
	}
	if len(log) == 3 {
		if k := a.packed[archiveKey(log, span)]; k != nil && slices.Contains(a.want(log).packed, k) {
			j.OnDrop(func(journal.Span) { k.Release() })
			return journal.Unpack(j, k)
		}
	}
	if !a.holds(log) { // it was closed after this was written down, and what had a byte in it was packed
		j.Close()
		return nil
	}
	out, err := a.output(log)
	if err != nil {
		return err
	}
	j.OnDrop(out.dropped)
	err = out.Replay(j, span)
	if errors.Is(err, journal.ErrBroken) { // it goes on without; what was lost is known to be unknown
		a.b.Log.Warn().Str("session", a.from.ID).Msg("some output is lost: its log had broken off")
		return nil
	}
	return err
}
