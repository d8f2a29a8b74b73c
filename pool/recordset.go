package pool

import (
	"trl/runtime/cast"
	"trl/runtime/sessionlog"
)

// recordSet is what of the session is recorded: what the server's policy demands, and what its creator asked for beside that.
func (s *Session) recordSet() recordSet { return s.spec.record | s.pool.recordings.demanded }

func (s *Session) newRecordingID() string {
	return makeID("", 'r', s.pool.epoch, s.tag, memberLen)
}

// openRecordingsLocked counts what is being recorded now. s.mu is held.
func (s *Session) openRecordingsLocked() (n int) {
	for _, t := range s.terminals {
		if t.recorder.id() != "" {
			n++
		}
	}
	if e := s.running; e != nil && e.recorder.id() != "" {
		n++
	}
	return n
}

// recordingSource is what to record of the terminal. s.mu is held, or nobody else knows the session.
func (t *Terminal) recordingSource() recordingSource {
	s := t.session
	return recordingSource{
		notes:   notes{ID: t.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: t.ID(), Command: truncateText(t.text), Demanded: s.pool.recordings.demanded&recordTerminals != 0},
		header:  cast.Header{Cols: t.cols, Rows: t.rows, Type: "xterm-256color", Title: s.name},
		journal: t.journal,
		nonce:   t.nonce,
		size: func() (cols, rows int) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.cols, t.rows
		},
		onDelete: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.recordingDeleted = true
			s.appendLog(entry{Unwanted: t.recording})
		},
	}
}

// A command has no terminal; this is the size of the one in which its output is played.
const (
	execCols = 80
	execRows = 24
)

// recordingSource is what to record of the command. s.mu is held, or nobody else knows the session.
func (e *Exec) recordingSource() recordingSource {
	s := e.session
	return recordingSource{
		notes:   notes{ID: e.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: e.ID(), Command: truncateText(e.text), Demanded: s.pool.recordings.demanded&recordExecs != 0},
		header:  cast.Header{Cols: execCols, Rows: execRows, Type: "dumb", Title: s.name},
		journal: e.journal,
		onDelete: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			e.recordingDeleted = true
			if x := s.endedExecs[e.ID()]; x != nil && x.rare != nil {
				x.rare.Recording, x.logSpan = "", sessionlog.Position{} // it is written anew
			}
			s.appendLog(entry{Unwanted: e.recording})
		},
	}
}

// RecordingID is that of the recording that is, was or will be made of the command; "" where none is.
func (e *Exec) RecordingID() string { return e.recording }

// RecordingID is that of the terminal's recording while that is being made, else "".
func (t *Terminal) RecordingID() string { return t.recorder.id() }
