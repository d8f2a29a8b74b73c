package stream

import (
	"fmt"
	"io"
	"sync"

	"trl/runtime/journal"
	"trl/runtime/own"
	"trl/runtime/sessionlog"
)

// A Log is the log of a Pipes or a PTY. It outlives them, because clients may still read the journals that went through it. When
// nothing more will be written, what is kept of the journals is packed into the session's archive, and the log's descriptors are
// closed. If packing fails, they are closed when the last of the journals is dropped, or when the session is forgotten.
type Log struct {
	*journal.Log
	group own.KeptGroup
	set   *Logs
	held  []HeldFile // its descriptors

	mu       sync.Mutex
	done     bool                           // guarded by mu; nothing more will be written
	closed   bool                           // guarded by mu
	archived map[int64]*sessionlog.Archived // guarded by mu; the packed spans, by Begin.Run
}

// Logs are the logs of one session that are not closed. The session closes those that are left when it is forgotten.
type Logs struct {
	onBreak   func(error)   // called with the reason when a log can take no more output; set once
	readSlots chan struct{} // has one element for each Copier goroutine that reads its pipe; set once

	sessionLog       *sessionlog.Log // the session log, whose archive takes the packed logs; set once, before the first log
	sessionLogNumber int             // the keeper's number for its file; set once with sessionLog

	mu  sync.Mutex
	all map[*Log]struct{} // guarded by mu; nil before the first
}

// maxReadSlots is how many Copier goroutines of one session may read their pipes at once. A process that has a pipe can block such
// a read (see splice in package journal), and each blocked read keeps a thread. Go ends a program with 10,000 threads.
const maxReadSlots = 8

// NewLogs returns the logs of a new session. onBreak is called with the reason when a log can take no more output.
func NewLogs(onBreak func(error)) *Logs {
	return &Logs{readSlots: make(chan struct{}, maxReadSlots), onBreak: onBreak}
}

// SetSessionLog sets the session log and the keeper's number for its file. It is called once, before the first log is made.
func (s *Logs) SetSessionLog(log *sessionlog.Log, number int) {
	s.sessionLog, s.sessionLogNumber = log, number
}

// CloseSessionLog closes the gateway's session log file of a session that has ended, after its end was written down. From then on
// only the keeper has that file open.
func (s *Logs) CloseSessionLog(group own.KeptGroup) {
	if group != nil && group.HeldElsewhere() && s.sessionLog != nil {
		s.sessionLog.CloseLocal(heldFile{group, s.sessionLogNumber})
	}
}

// newLog makes a log of the session.
func (s *Logs) newLog(group own.KeptGroup) (*Log, error) {
	log, err := journal.NewLog()
	if err != nil {
		return nil, fmt.Errorf("output log: %w", err)
	}
	l := &Log{Log: log, group: group, set: s}
	s.add(l)
	return l, nil
}

func (s *Logs) add(l *Log) {
	l.OnBreak(s.onBreak)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[*Log]struct{}{}
	}
	s.all[l] = struct{}{}
}

func (s *Logs) remove(l *Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, l)
}

// Close closes the logs that are left.
func (s *Logs) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.all {
		l.Close()
	}
	s.all = nil
}

// AttachJournal makes j write through the log. head and tail are how much of each stream's beginning and end the log keeps if the
// journal's ring keeps less.
func (l *Log) AttachJournal(j *journal.Journal, head, tail int64) {
	j.AttachLog(l.Log, head, tail)
	j.OnDrop(l.spanDropped)
}

// spanDropped is called when nobody needs a span any more.
func (l *Log) spanDropped(s journal.Span) {
	l.mu.Lock()
	k := l.archived[s.Begin.Run]
	delete(l.archived, s.Begin.Run)
	l.mu.Unlock()
	if k != nil {
		k.Release()
		return
	}
	l.closeIfUnused()
}

// finish is called when nothing more will be written to the log.
func (l *Log) finish() {
	l.mu.Lock()
	l.done = true
	l.mu.Unlock()
	l.Retire()
	l.closeIfUnused()
}

// reopen says that output will again be written to the log. It tells whether the log is closed, which means that it was packed.
func (l *Log) reopen() (closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = false
	return l.closed
}

// closeIfUnused closes the log if nothing more will be written and its spans are dropped or can be packed.
func (l *Log) closeIfUnused() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done || l.closed || l.Spans() > 0 && !l.packLocked() {
		return
	}
	l.closed = true
	l.set.remove(l)
	l.Close()
	var numbers []int
	for _, f := range l.held {
		numbers = append(numbers, f.Number)
	}
	l.group.Drop(numbers...)
}

// packLocked moves all spans of the log into the archive. If one fails, it moves none and returns false. mu is held.
func (l *Log) packLocked() bool {
	if l.set.sessionLog == nil || len(l.held) == 0 {
		return false
	}
	kept := map[int64]*sessionlog.Archived{}
	err := l.Pack(func(span journal.Span, size int64, write func(io.Writer) error) error {
		k, err := l.set.sessionLog.Archive(archiveKey(l.held, span), size, write)
		kept[span.Begin.Run] = k
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
	l.archived = kept
	return true
}

// ArchiveKey returns the key under which the archive of a session log has the output of a span of a log.
func ArchiveKey(log []HeldFile, s journal.Span) (key sessionlog.Key, ok bool) {
	if len(log) != 3 {
		return key, false
	}
	return archiveKey(log, s), true
}

// archiveKey returns the key of a span in the archive. The log's first file is part of it.
func archiveKey(log []HeldFile, s journal.Span) sessionlog.Key {
	return sessionlog.Key{uint64(log[0].Number), log[0].Inode, uint64(s.Begin.Run)}
}

// heldFile writes to a file that only the keeper has open.
type heldFile struct {
	group  own.KeptGroup
	number int
}

func (f heldFile) WriteAt(p []byte, at int64) { f.group.WriteHeld(f.number, p, at) }
func (f heldFile) Punch(from, to int64)       { f.group.PunchHeld(f.number, from, to) }
