package rpc

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/pool/ids"
	"trl/pool/recording"
	"trl/protocol"
	"trl/web/auth"
)

// listedRecordings is how many recordings are listed at most: as many as one node lists.
const listedRecordings = 1000

func recordingList(k *call, q *protocol.RecordingList) (any, bool, error) {
	if q.All && k.c.principal.Role != auth.Admin {
		return nil, false, protocol.Errorf(protocol.Forbidden, "only an admin may list everybody's recordings")
	}
	k.needsAudit = q.All
	list := k.c.srv.pool.Recordings().List(k.c.principal.Subject, q.All, q.SessionID)
	others := k.otherNodes("") // recordings outlive their sessions
	if epoch, _ := ids.EpochOf('s', q.SessionID); len(others) == 0 || epoch == k.c.relays.self {
		return &protocol.Recordings{Recordings: list}, false, nil
	}
	return k.answerLater(func() (any, bool, error) {
		partial := k.gather(others, q, func(data jsontext.Value) error {
			var more protocol.Recordings
			err := json.Unmarshal(data, &more)
			list = append(list, more.Recordings...)
			return err
		})
		slices.SortStableFunc(list, func(a, b protocol.Recording) int { return a.StartedAt.Compare(b.StartedAt) })
		return &protocol.Recordings{Recordings: list[max(0, len(list)-listedRecordings):], Partial: partial}, false, nil
	})
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
	rec, err := k.c.srv.pool.Recordings().Find(k.c.principal.Subject, k.c.principal.Role == auth.Admin, id)
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
