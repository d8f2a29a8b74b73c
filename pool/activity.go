package pool

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"trl/protocol"
)

// maxListedExecs is what Execs tells at most: a page of the latest commands.
const maxListedExecs = 200

// Execs is what exec.list answers: the commands that wait, the one that runs, and the latest of those that ended, oldest first.
func (s *Session) Execs() []protocol.ExecEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Exec, 0, maxListedExecs+len(s.execs))
	for i := len(s.retained.all) - 1; i >= 0 && len(all) < maxListedExecs; i-- { // by end, and nothing overtakes in a session
		if x, ok := s.retained.all[i].endedWork.(*endedExec); ok {
			all = append(all, x.toExec())
		}
	}
	for _, e := range s.execs {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *Exec) int { return a.queuedAt.Compare(b.queuedAt) })
	entries := []protocol.ExecEntry{}
	for _, e := range all[max(0, len(all)-maxListedExecs):] {
		x := protocol.ExecEntry{ExecID: e.ID(), StreamID: e.StreamID(), Command: truncateText(e.text), State: "queued", QueuedAt: e.queuedAt, RecordingID: e.recording}
		if !e.startedAt.IsZero() {
			started := e.startedAt
			x.State, x.StartedAt = "running", &started
		}
		select {
		case <-e.done:
			exit := e.exit
			x.State, x.Exit = "ended", &exit
		default:
		}
		entries = append(entries, x)
	}
	return entries
}

// noteLastExecLocked remembers the command that has just ended, for lists. s.mu is held.
func (s *Session) noteLastExecLocked(e *Exec) {
	s.last = newLastExec(e.ID(), e.text, &e.exit, e.endedAt)
}

func newLastExec(id, text string, x *protocol.ExecExit, at time.Time) *protocol.LastExec {
	return &protocol.LastExec{
		ExecID: id, Command: truncateText(text), ExitCode: x.ExitCode, Signal: x.Signal,
		TimedOut: x.TimedOut, Cancelled: x.Cancelled, DurationMS: x.DurationMS, EndedAt: at,
	}
}

// truncateText is what lists and events tell of a command's text, which may have 1 MiB: the first 4 KiB, cut between characters. It is a copy, so
// that it does not keep the whole text in memory.
func truncateText(text string) string {
	if len(text) <= protocol.MaxText {
		return text
	}
	cut := protocol.MaxText
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strings.Clone(text[:cut])
}
