package web

import (
	"net/http"

	"github.com/go-json-experiment/json"

	"trl/pool/ends"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
)

// auditLogin writes the entry of a browser that has logged in.
func (s *Server) auditLogin(r *http.Request, who auth.Principal) {
	s.cfg.Audit.AppendBy(who.Subject, audit.Entry{Action: audit.ActionLogin, Outcome: "ok", Principal: who.Subject, Role: string(who.Role), Remote: r.RemoteAddr})
}

// auditDownload writes the entry of an admin who downloads another principal's recording. If the client is another node's, that node gets it, too.
func (s *Server) auditDownload(r *http.Request, who auth.Principal, rec protocol.Recording) {
	x := audit.Entry{
		Action: audit.ActionDownload, Outcome: "ok", Principal: who.Subject, Role: string(who.Role), Remote: r.RemoteAddr,
		Session: rec.SessionID, Recording: rec.RecordingID, Owner: rec.Owner,
	}
	if c, ok := r.Context().Value(linkConnKey{}).(*linkConn); ok {
		x.Conn = c.hello.LogPrefix
	}
	if head, ok := r.Context().Value(auditHeadKey{}).(http.Header); ok {
		if text, err := json.Marshal(x); err == nil {
			head.Set(auditHeader, string(text))
		}
	}
	s.cfg.Audit.AppendBy(who.Subject, x)
}

// auditRefusal writes the entry of a client that was not let in.
func (s *Server) auditRefusal(r *http.Request, why string) {
	s.cfg.Audit.AppendStranger(audit.Entry{Action: audit.ActionRefused, Outcome: string(protocol.AuthFailed), Remote: r.RemoteAddr, Reason: why})
}

// reloadEntry returns the entry of something that was read again.
func reloadEntry(what string, err error) audit.Entry {
	e := audit.Entry{Action: audit.ActionReload, Outcome: "ok", Reason: what}
	if err != nil { // the old configuration stays in force; the gateway's log says why
		e.Outcome = "refused"
	}
	return e
}

// AuditReloads returns a function that writes the entry of each reload of the tokens, for TokenFile.OnReload.
func AuditReloads(log *audit.Log) func(error) {
	return func(err error) { log.Append(reloadEntry("tokens", err)) }
}

// AuditEnds returns a function that writes the entry of each end of a session or of work, for pool.Config.OnEnd.
func AuditEnds(log *audit.Log) func(ends.End) {
	return func(e ends.End) {
		x := audit.Entry{Action: string(e.Kind) + ".end", Principal: e.Owner, Session: e.Session, Outcome: e.Outcome, Reason: e.Reason, ExitCode: e.Code, Signal: e.Signal}
		switch e.Kind {
		case ends.Exec:
			x.Exec = e.ID
		case ends.Process:
			x.Process = e.ID
		case ends.Terminal:
			x.Action, x.Terminal = audit.ActionTermEnd, e.ID
		}
		if !e.StartedAt.IsZero() {
			x.DurationMS = audit.Milliseconds(max(0, e.EndedAt.Sub(e.StartedAt))) // another gateway's clock may have given StartedAt
		}
		log.Append(x)
	}
}
