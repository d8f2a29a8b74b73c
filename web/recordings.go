package web

import (
	"errors"
	"fmt"
	"net/http"

	"trl/pool"
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
	return k.answerLater(func() (any, bool, error) { // it may have to be ended first
		return nil, false, rec.Delete(k.c.principal.Role == auth.Admin)
	})
}

// foreignRecording is what the log says of an admin: once a connection, and of each download.
const foreignRecording = "admin uses a recording of another principal"

// recording is the one that the request is about. That an admin asks for another's is an entry, whatever he wants of it.
func (k *call) recording(id string) (*recording.Recording, error) {
	rec, err := findRecording(k.c.srv.pool, k.c.principal, id)
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
		k.c.log.Info().Str("recording", id).Str("owner", info.Owner).Msg(foreignRecording)
	}
	return rec, nil
}

// findRecording finds one that who may see: his own, and an admin any.
func findRecording(p *pool.Pool, who auth.Principal, id string) (*recording.Recording, error) {
	return p.FindRecording(who.Subject, who.Role == auth.Admin, id)
}

// serveRecording is the download.
func (s *Server) serveRecording(w http.ResponseWriter, r *http.Request) {
	who, no := s.auth.Authenticate(r) // and a stranger no more: a large file may take its time
	if no != nil {
		auth.Deny(w, no)
		return
	}
	if !s.auth.AdmitRequest(w, who) {
		return
	}
	defer who.EndRequest()
	format := r.URL.Query().Get("format")
	if format != "" && format != "v2" && format != "v3" {
		auth.Refuse(w, http.StatusBadRequest, "format is v3 or v2")
		return
	}
	rec, err := findRecording(s.pool, who.Principal, r.PathValue("id"))
	if err != nil {
		auth.Refuse(w, http.StatusNotFound, protocol.AsError(err).Message)
		return
	}
	if info := rec.Info(); info.Owner != who.Subject { // before anything is sent
		s.log.Info().Str("principal", who.Subject).Str("recording", info.RecordingID).Str("owner", info.Owner).Msg(foreignRecording)
		s.auditDownload(r, who.Principal, info)
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-asciicast")
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", rec.FileName()))
	out := &headerTracker{ResponseWriter: w} // a slow client has as long as it takes something: the socket sees to that
	err = rec.WriteTo(out, format == "v2")
	switch e := (*protocol.Error)(nil); {
	case err == nil:
	case out.headerSent:
		s.log.Debug().Err(err).Msg("download of a recording broke off")
		panic(http.ErrAbortHandler) // the client shall see that it is not all
	case errors.As(err, &e):
		h.Del("Content-Disposition")
		auth.Refuse(w, http.StatusNotFound, e.Message)
	default:
		s.log.Error().Err(err).Msg("recording cannot be read")
		h.Del("Content-Disposition")
		auth.Refuse(w, http.StatusInternalServerError, "the recording cannot be read; the log knows more")
	}
}

// headerTracker knows whether the answer has: then it is too late for another.
type headerTracker struct {
	http.ResponseWriter
	headerSent bool
}

func (b *headerTracker) Write(p []byte) (int, error) {
	b.headerSent = true
	return b.ResponseWriter.Write(p)
}
