package pool

import (
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime/cast"
	"trl/runtime/sessionlog"
)

// recordSet returns what is recorded in the session: what the server's policy demands, and what its creator asked for.
func (s *Session) recordSet() recording.Set { return s.spec.Record | s.pool.recordings.Demanded() }

func (s *Session) newRecordingID() string {
	return ids.New("", 'r', s.pool.epoch, s.tag, ids.MemberLen)
}

// openRecordingsLocked returns the number of recordings in progress. s.mu is held.
func (s *Session) openRecordingsLocked() (n int) {
	for _, t := range s.terminals {
		if t.recorder.ID() != "" {
			n++
		}
	}
	if e := s.running; e != nil && e.recorder.ID() != "" {
		n++
	}
	return n
}

// recordingSource describes the recording of the terminal. s.mu is held, or nobody else knows the session.
func (t *Terminal) recordingSource() recording.Source {
	s := t.session
	cols, rows := t.viewers.Size()
	return recording.Source{
		Notes:   recording.Notes{ID: t.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: t.ID(), Command: protocol.TruncateText(t.text), Demanded: s.pool.recordings.Demanded()&recording.Terminals != 0},
		Header:  cast.Header{Cols: cols, Rows: rows, Type: "xterm-256color", Title: s.name},
		Journal: t.journal,
		Nonce:   t.nonce,
		Size:    t.viewers.Size,
		OnDelete: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.recordingDeleted = true
			s.appendLog(entry.Entry{Unwanted: t.recording})
		},
	}
}

// The size of the terminal in which the output of a command is played. The command itself has none.
const (
	execCols = 80
	execRows = 24
)

// recordingSource describes the recording of the command. s.mu is held, or nobody else knows the session.
func (e *Exec) recordingSource() recording.Source {
	s := e.session
	return recording.Source{
		Notes:   recording.Notes{ID: e.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: e.ID(), Command: protocol.TruncateText(e.text), Demanded: s.pool.recordings.Demanded()&recording.Execs != 0},
		Header:  cast.Header{Cols: execCols, Rows: execRows, Type: "dumb", Title: s.name},
		Journal: e.journal,
		OnDelete: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			e.recordingDeleted = true
			if x := s.endedExecs[e.ID()]; x != nil && x.Rare != nil {
				x.Rare.Recording, x.logSpan = "", sessionlog.Position{} // the entry is written anew
			}
			s.appendLog(entry.Entry{Unwanted: e.recording})
		},
	}
}

// RecordingID returns the id of the command's recording, also before it begins and after it ends, or "".
func (e *Exec) RecordingID() string { return e.recording }

// RecordingID returns the id of the terminal's recording while it is in progress, or "".
func (t *Terminal) RecordingID() string { return t.recorder.ID() }

// Recordings returns the recordings.
func (p *Pool) Recordings() *recording.Store { return p.recordings }
