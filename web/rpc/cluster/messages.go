package cluster

import (
	"bytes"
	"strings"

	"trl/pool/ids"
	"trl/protocol"
)

// What a gateway reads and changes in the messages that it passes on.

// WithID returns an HTTP request that has no id with the id 0.
func WithID(msg []byte) []byte {
	i := bytes.IndexByte(msg, '{') + 1
	return append([]byte(`{"id":0,`), msg[i:]...)
}

// IDOfStream returns the id of what a stream is the output of.
func IDOfStream(stream string) (id string, ok bool) {
	id, ok = strings.CutPrefix(stream, ids.StreamPrefix)
	return id, ok && id != ""
}

// MayHaveMoved reports whether an error may mean that a session has moved.
func MayHaveMoved(code protocol.Code) bool {
	switch code {
	case protocol.SessionNotFound, protocol.SessionLost, protocol.ExecNotFound, protocol.ProcessNotFound, protocol.TermNotFound:
		return true
	}
	return false
}
