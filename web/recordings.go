package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"trl/pool/recording"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc"
)

// serveRecording serves the download of a recording of this node.
func (s *Server) serveRecording(w http.ResponseWriter, r *http.Request, who *auth.Grant) {
	format := r.URL.Query().Get("format")
	if format != "" && format != "v2" && format != "v3" {
		auth.Refuse(w, http.StatusBadRequest, "format is v3 or v2")
		return
	}
	rec, err := s.findRecording(r, who.Principal, r.PathValue("id"))
	if err != nil {
		auth.Refuse(w, http.StatusNotFound, protocol.AsError(err).Message)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-asciicast")
	h.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", rec.FileName()))
	if r.Method == http.MethodHead {
		return
	}
	out := &headerTracker{ResponseWriter: w} // a slow client has time as long as it reads something; the socket sees to that
	err = rec.WriteTo(out, format == "v2")
	switch e := (*protocol.Error)(nil); {
	case err == nil:
	case out.headerSent:
		s.log.Debug().Err(err).Msg("download of a recording broke off")
		panic(http.ErrAbortHandler) // the client must see that the file is incomplete
	case errors.As(err, &e):
		h.Del("Content-Disposition")
		auth.Refuse(w, http.StatusNotFound, e.Message)
	default:
		s.log.Error().Err(err).Msg("recording cannot be read")
		h.Del("Content-Disposition")
		auth.Refuse(w, http.StatusInternalServerError, "the recording cannot be read; the log knows more")
	}
}

func (s *Server) hasRecording(g *auth.Grant, id string) bool {
	_, err := s.pool.Recordings().Find(g.Subject, g.Role == auth.Admin, id)
	return err == nil
}

// writeRecording writes a recording that any node may have.
func (s *Server) writeRecording(r *http.Request, g *auth.Grant, id string, to io.Writer) error {
	at, fault := s.ownerOf(r, g, recordingRoute, id)
	if fault != nil {
		return fault
	}
	if at == nil {
		rec, err := s.findRecording(r, g.Principal, id)
		if err != nil {
			return err
		}
		return rec.WriteTo(to, false)
	}
	res, err := at.get(r.Context(), http.MethodGet, "/v1/recordings/"+id)
	if err != nil {
		return at.faultOf(err)
	}
	defer res.Body.Close()
	at.appendAudit(res)
	switch res.StatusCode {
	case http.StatusOK:
		_, err = io.Copy(to, res.Body)
		return err
	case http.StatusNotFound:
		return recording.ErrNoRecording()
	}
	return protocol.Errorf(protocol.InternalError, "the recording's node answers %s", res.Status)
}

// findRecording returns a recording that a principal is about to read. If an admin reads another principal's, it tells the log and the audit log.
func (s *Server) findRecording(r *http.Request, who auth.Principal, id string) (*recording.Recording, error) {
	rec, err := s.pool.Recordings().Find(who.Subject, who.Role == auth.Admin, id)
	if err != nil {
		return nil, err
	}
	if info := rec.Info(); info.Owner != who.Subject {
		s.log.Info().Str("principal", who.Subject).Str("recording", info.RecordingID).Str("owner", info.Owner).Msg(rpc.ForeignRecording)
		s.auditDownload(r, who, info)
	}
	return rec, nil
}

// headerTracker records whether the answer has begun. Then it is too late for an error.
type headerTracker struct {
	http.ResponseWriter
	headerSent bool
}

func (b *headerTracker) Write(p []byte) (int, error) {
	b.headerSent = true
	return b.ResponseWriter.Write(p)
}
