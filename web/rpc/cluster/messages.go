package cluster

import (
	"bytes"

	"github.com/go-json-experiment/json"

	"trl/pool/ids"
)

// What a gateway reads and changes in the messages that it passes on.

// WithID returns an HTTP request that has no id with the id 0.
func WithID(msg []byte) []byte {
	i := bytes.IndexByte(msg, '{') + 1
	return append([]byte(`{"id":0,`), msg[i:]...)
}

// AnswerIDs are the ids in an answer, for the audit log.
type AnswerIDs struct {
	SessionID string `json:"session_id"`
	ExecID    string `json:"exec_id"`
	ProcessID string `json:"process_id"`
	TermID    string `json:"term_id"`
	ShareID   string `json:"share_id"`
}

// IDsOfAnswer returns the ids in an answer, as far as they can be read.
func IDsOfAnswer(msg []byte) *AnswerIDs {
	var answer struct {
		Data AnswerIDs `json:"data"`
	}
	_ = json.Unmarshal(msg, &answer) // it is ours; what cannot be read stays empty
	return &answer.Data
}

// EpochOfStream returns the epoch of the node that has a stream.
func EpochOfStream(id string) (epoch string, ok bool) {
	if len(id) <= len(ids.StreamPrefix) || id[:len(ids.StreamPrefix)] != ids.StreamPrefix {
		return "", false
	}
	id = id[len(ids.StreamPrefix):]
	return ids.EpochOf(id[0], id)
}
