package audit

import (
	"cmp"
	"regexp"

	"github.com/go-json-experiment/json"

	"trl/protocol"
)

// Fill copies the ids and the command from a request's params or its answer.
func (e *Entry) Fill(v any) {
	switch v := v.(type) {
	case *protocol.ExecRun:
		e.Text = v.Command
	case *protocol.ExecStream:
		e.Text = v.Command
	case *protocol.ProcessStart:
		e.Text = v.Command
	case *protocol.SessionCreate:
		if v.Terminal != nil {
			e.Text = v.Terminal.Command
		}
	case *protocol.TermOpen:
		e.Text = v.Command
	case *protocol.ExecCancel:
		e.Exec = ValidID(v.ExecID)
	case *protocol.ProcessKill:
		e.Process = ValidID(v.ProcessID)
	case *protocol.TermClose:
		e.Terminal = ValidID(v.TermID)
	case *protocol.ShareCreate:
		e.Terminal = ValidID(v.TermID)
	case *protocol.ShareRef:
		e.Share = ValidID(v.ShareID)
	case *protocol.RecordingRef:
		e.Recording = ValidID(v.RecordingID)

	case *protocol.SessionCreated:
		e.Session = v.SessionID
		if v.Terminal != nil {
			e.Terminal = v.Terminal.TermID
		}
	case *protocol.Session:
		e.Session = v.SessionID
	case *protocol.Destroyed:
		e.Session, e.Reason = v.SessionID, string(v.Reason)
	case *protocol.StreamOpened:
		e.Exec = v.ExecID
	case *protocol.ExecCancelled:
		e.Exec = v.ExecID
	case *protocol.ProcessStarted:
		e.Process = v.ProcessID
	case *protocol.ProcessInfo:
		e.Process, e.Session = v.ProcessID, v.SessionID
	case *protocol.TermOpened:
		e.Terminal, e.Session = v.TermID, v.SessionID
	case *protocol.TermInfo:
		e.Terminal, e.Session = v.TermID, v.SessionID
	case *protocol.TermAttached:
		e.Terminal = v.TermID
	case *protocol.ShareCreated:
		e.Share, e.Session = v.ShareID, v.SessionID
	case *IDs:
		e.Session, e.Exec, e.Process = cmp.Or(v.SessionID, e.Session), cmp.Or(v.ExecID, e.Exec), cmp.Or(v.ProcessID, e.Process)
		e.Terminal, e.Share = cmp.Or(v.TermID, e.Terminal), cmp.Or(v.ShareID, e.Share)
	}
}

var idForm = regexp.MustCompile(`^[a-z]{1,2}-[0-9A-Za-z_-]{1,80}$`)

// ValidID returns id if it has the form of an id, else "": the log must not keep other text of a client.
func ValidID(id string) string {
	if idForm.MatchString(id) {
		return id
	}
	return ""
}

// IDs are the ids in an answer, for the audit log.
type IDs struct {
	SessionID string `json:"session_id"`
	ExecID    string `json:"exec_id"`
	ProcessID string `json:"process_id"`
	TermID    string `json:"term_id"`
	ShareID   string `json:"share_id"`
}

// IDsOf returns the ids in an answer of another node.
func IDsOf(msg []byte) *IDs {
	var answer struct {
		Data IDs `json:"data"`
	}
	_ = json.Unmarshal(msg, &answer) // it is ours; what cannot be read stays empty
	return &answer.Data
}
