package pool

import (
	"trl/runtime/cast"
	"trl/runtime/ledger"
)

// recorded is what of the session is recorded: what the server's policy demands, and what its creator asked for beside that.
func (s *Session) recorded() recorded { return s.terms.record | s.pool.recordings.demanded }

func (s *Session) newRecordingID() string {
	return mint("", 'r', s.pool.epoch, s.tag, memberLen)
}

// recordingLocked counts what is being recorded now. s.mu is held.
func (s *Session) recordingLocked() (n int) {
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

// subject is what to record of the terminal. s.mu is held, or nobody else knows the session.
func (t *Terminal) subject() subject {
	s := t.session
	return subject{
		notes:   notes{ID: t.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: t.ID(), Command: beginning(t.text), Demanded: s.pool.recordings.demanded&recordTerminals != 0},
		header:  cast.Header{Cols: t.cols, Rows: t.rows, Type: "xterm-256color", Title: s.name},
		journal: t.journal,
		nonce:   t.nonce,
		size: func() (cols, rows int) {
			t.mu.Lock()
			defer t.mu.Unlock()
			return t.cols, t.rows
		},
		unwanted: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.unwanted = true
			s.record(entry{Unwanted: t.recording})
		},
	}
}

// A command has no terminal; this is the size of the one in which its output is played.
const (
	execCols = 80
	execRows = 24
)

// subject is what to record of the command. s.mu is held, or nobody else knows the session.
func (e *Exec) subject() subject {
	s := e.session
	return subject{
		notes:   notes{ID: e.recording, Owner: s.owner, SessionID: s.id, Session: s.name, Member: e.ID(), Command: beginning(e.text), Demanded: s.pool.recordings.demanded&recordExecs != 0},
		header:  cast.Header{Cols: execCols, Rows: execRows, Type: "dumb", Title: s.name},
		journal: e.journal,
		unwanted: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			e.unwanted = true
			if x := s.past[e.ID()]; x != nil && x.more != nil {
				x.more.Recording, x.stands = "", ledger.Span{} // it is written anew
			}
			s.record(entry{Unwanted: e.recording})
		},
	}
}

// RecordingID is that of the recording that is, was or will be made of the command; "" where none is.
func (e *Exec) RecordingID() string { return e.recording }

// RecordingID is that of the terminal's recording while that is being made, else "".
func (t *Terminal) RecordingID() string { return t.recorder.id() }
