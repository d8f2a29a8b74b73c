package rpc

import (
	"trl/pool/recording"
	"trl/protocol"
	"trl/web/auth"
)

func recordingList(k *call, q *protocol.RecordingList) (any, bool, error) {
	if q.All && k.c.principal.Role != auth.Admin {
		return nil, false, protocol.Errorf(protocol.Forbidden, "only an admin may list everybody's recordings")
	}
	k.needsAudit = q.All
	return &protocol.Recordings{Recordings: k.c.srv.pool.Recordings(k.c.principal.Subject, q.All, q.SessionID)}, false, nil
}

func recordingInfo(k *call, q *protocol.RecordingRef) (any, bool, error) {
	rec, err := k.recording(q.RecordingID)
	if err != nil {
		return nil, false, err
	}
	info := rec.Info()
	return &info, false, nil
}

func recordingDelete(k *call, q *protocol.RecordingRef) (any, bool, error) {
	rec, err := k.recording(q.RecordingID)
	if err != nil {
		return nil, false, err
	}
	return k.answerLater(func() (any, bool, error) { // the recording may have to be ended first
		return nil, false, rec.Delete(k.c.principal.Role == auth.Admin)
	})
}

// ForeignRecording is the log message about an admin who uses a recording of another principal: once per connection, and for each download.
const ForeignRecording = "admin uses a recording of another principal"

// recording returns the recording of a request. If an admin asks for another principal's, the request gets an entry in the audit log.
func (k *call) recording(id string) (*recording.Recording, error) {
	rec, err := k.c.srv.pool.FindRecording(k.c.principal.Subject, k.c.principal.Role == auth.Admin, id)
	if err != nil {
		return nil, err
	}
	info := rec.Info()
	k.session = info.SessionID
	if info.Owner == k.c.principal.Subject {
		return rec, nil
	}
	k.owner, k.needsAudit = info.Owner, true
	if k.c.isFirstUse(id) {
		k.c.log.Info().Str("recording", id).Str("owner", info.Owner).Msg(ForeignRecording)
	}
	return rec, nil
}
