package web

import (
	"net/http"

	"trl/pool"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc"
)

// auditLogin makes the entry of a browser that is who from now on.
func (s *Server) auditLogin(r *http.Request, who auth.Principal) {
	rpc.AppendAudit(s.cfg.Audit, who.Subject, audit.Entry{Action: audit.ActionLogin, Outcome: "ok", Principal: who.Subject, Role: string(who.Role), Remote: r.RemoteAddr})
}

// auditDownload makes the entry of an admin who gets another's recording.
func (s *Server) auditDownload(r *http.Request, who auth.Principal, rec protocol.Recording) {
	rpc.AppendAudit(s.cfg.Audit, who.Subject, audit.Entry{
		Action: audit.ActionDownload, Outcome: "ok", Principal: who.Subject, Role: string(who.Role), Remote: r.RemoteAddr,
		Session: rec.SessionID, Recording: rec.RecordingID, Owner: rec.Owner,
	})
}

// auditRefusal makes the entry of somebody who was not let in.
func (s *Server) auditRefusal(r *http.Request, why string) {
	s.cfg.Audit.AppendStranger(audit.Entry{Action: audit.ActionRefused, Outcome: string(protocol.AuthFailed), Remote: r.RemoteAddr, Reason: why})
}

// reloadEntry is the entry of something that was read again.
func reloadEntry(what string, err error) audit.Entry {
	e := audit.Entry{Action: audit.ActionReload, Outcome: "ok", Reason: what}
	if err != nil { // what was in force stays; the log of the gateway says why
		e.Outcome = "refused"
	}
	return e
}

// AuditReloads makes the entries of tokens that are read again, for TokenFile.OnReload.
func AuditReloads(log *audit.Log) func(error) {
	return func(err error) { log.Append(reloadEntry("tokens", err)) }
}

// AuditEnds makes the entries of what ends, for pool.Config.Ended.
func AuditEnds(log *audit.Log) func(pool.End) {
	return func(e pool.End) {
		x := audit.Entry{Action: string(e.Kind) + ".end", Principal: e.Owner, Session: e.Session, Outcome: e.Outcome, Reason: e.Reason, ExitCode: e.Code, Signal: e.Signal}
		switch e.Kind {
		case pool.ExecEnd:
			x.Exec = e.ID
		case pool.ProcessEnd:
			x.Process = e.ID
		case pool.TerminalEnd:
			x.Action, x.Terminal = audit.ActionTermEnd, e.ID
		}
		if !e.StartedAt.IsZero() {
			x.DurationMS = audit.Milliseconds(max(0, e.EndedAt.Sub(e.StartedAt))) // Began may be by another gateway's clock
		}
		log.Append(x)
	}
}
