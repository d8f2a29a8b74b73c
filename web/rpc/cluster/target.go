package cluster

import "github.com/go-json-experiment/json/jsontext"

// Target are the params that decide where a request goes.
type Target struct {
	SessionID   string         `json:"session_id"`
	Session     string         `json:"session"`
	ExecID      string         `json:"exec_id"`
	ProcessID   string         `json:"process_id"`
	TermID      string         `json:"term_id"`
	ShareID     string         `json:"share_id"`
	RecordingID string         `json:"recording_id"`
	StreamID    string         `json:"stream_id"`
	RequestID   jsontext.Value `json:"request_id"`

	Name       string            `json:"name"` // of session.create
	Node       string            `json:"node"` // of session.create and system.drain
	Where      map[string]string `json:"where"`
	RequestKey string            `json:"request_key"`
	IfExists   string            `json:"if_exists"`

	// What only a connection can do.
	WindowBytes  int64  `json:"window_bytes"`
	Follow       bool   `json:"follow"`
	OnDisconnect string `json:"on_disconnect"`

	Terminal *struct{} `json:"terminal"` // of session.create
}

// ID returns the id that the request is about, and its kind.
func (t *Target) ID() (kind byte, id string) {
	for _, x := range []struct {
		kind byte
		id   string
	}{{'s', t.SessionID}, {'x', t.ExecID}, {'p', t.ProcessID}, {'t', t.TermID}, {'l', t.ShareID}, {'r', t.RecordingID}} {
		if x.id != "" {
			return x.kind, x.id
		}
	}
	return 0, ""
}
