package pool

import (
	"trl/pool/entry"
	"trl/pool/ids"
	"trl/pool/recording"
	"trl/protocol"
	"trl/runtime/cast"
	"trl/runtime/sessionlog"
)

// recordSet is what of the session is recorded: what the server's policy demands, and what its creator asked for beside that.
func (s *Session) recordSet() recording.Set { return s.spec.record | s.pool.recordings.Demanded() }

func (s *Session) newRecordingID() string {
	return ids.New("", 'r', s.pool.epoch, s.tag, ids.MemberLen)
}

// openRecordingsLocked counts what is being recorded now. s.mu is held.
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

// recordingSource is what to record of the terminal. s.mu is held, or nobody else knows the session.
func (t *Terminal) recordingSource() recording.Source {
	s := t.session
	return recording.Source{
		Notes:   recording.Notes{ID: t.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: t.ID(), Command: protocol.TruncateText(t.text), Demanded: s.pool.recordings.Demanded()&recording.Terminals != 0},
		Header:  cast.Header{Cols: t.cols, Rows: t.rows, Type: "xterm-256color", Title: s.name},
		Journal: t.journal,
		Nonce:   t.nonce,
		Size: func() (cols, rows int) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.cols, t.rows
		},
		OnDelete: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.recordingDeleted = true
			s.appendLog(entry.Entry{Unwanted: t.recording})
		},
	}
}

// A command has no terminal; this is the size of the one in which its output is played.
const (
	execCols = 80
	execRows = 24
)

// recordingSource is what to record of the command. s.mu is held, or nobody else knows the session.
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
				x.Rare.Recording, x.logSpan = "", sessionlog.Position{} // it is written anew
			}
			s.appendLog(entry.Entry{Unwanted: e.recording})
		},
	}
}

// RecordingID is that of the recording that is, was or will be made of the command; "" where none is.
func (e *Exec) RecordingID() string { return e.recording }

// RecordingID is that of the terminal's recording while that is being made, else "".
func (t *Terminal) RecordingID() string { return t.recorder.ID() }

// FindRecording gives who's recording; anybody's to who may see all.
func (p *Pool) FindRecording(who string, all bool, id string) (*recording.Recording, error) {
	if rec := p.recordings.Find(who, all, id); rec != nil {
		return rec, nil
	}
	return nil, recording.ErrNoRecording()
}

// Recordings lists who's latest recordings, oldest first; everybody's with all.
func (p *Pool) Recordings(who string, all bool, session string) []protocol.Recording {
	return p.recordings.List(who, all, session)
}
