package rpc

import (
	"crypto/rand"
	"regexp"
	"time"

	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
)

// unaudited are the methods that change something and are no entry: bytes that somebody types, and what comes with every one of them.
// They belong to a command, process or terminal whose beginning and end are there.
var unaudited = map[string]bool{
	"exec.input": true, "process.input": true, "term.input": true, "term.resize": true, "session.touch": true,
}

// admitAudit refuses what could not be written down, where it must be. A request that changes something is an entry from here on,
// whatever comes of it.
func (k *call) admitAudit(h handler) error {
	if k.needsAudit = h.access == changes && !unaudited[k.method]; !k.needsAudit {
		return nil
	}
	if err := k.c.srv.config.Audit.Admit(); err != nil {
		return protocol.Errorf(protocol.InternalError, "%s", err).With("log_id", "audit") // the log has said so, once
	}
	return nil
}

// auditAnswer makes the entry of a request, once: when it is answered, or before that when what it began goes on for long.
func (k *call) auditAnswer(data any, err error) {
	log := k.c.srv.config.Audit
	asked := k.auditParams
	k.auditParams = nil // a command may be long, and calls are remembered
	if log == nil || k.auditDone {
		return
	}
	attach, _ := asked.(*protocol.TermAttach)
	control := err == nil && attach != nil && attach.Mode != "view" // who is answered "view" may still get it later, by its claim
	forbidden := err != nil && err != errClientGone && protocol.AsError(err).Code == protocol.Forbidden
	if !k.needsAudit && !control && !forbidden {
		return
	}
	k.auditDone = true
	e := k.c.auditEntry(k.method)
	e.Session, e.Owner, e.DurationMS = k.session, k.owner, audit.Milliseconds(time.Since(k.receivedAt))
	switch {
	case err == errClientGone:
		e.Outcome = "client_gone" // what it began goes on
	case err != nil:
		e.Outcome = string(protocol.AsError(err).Code)
	}
	k.c.mu.Lock()
	e.Exec = k.execID
	k.c.mu.Unlock()
	fillTargets(&e, asked)
	fillTargets(&e, data)
	k.c.appendAudit(e)
}

// fillTargets takes the ids out of a request's params or its answer, and the command.
func fillTargets(e *audit.Entry, v any) {
	switch v := v.(type) {
	case *protocol.ExecRun:
		e.Text = v.Command
	case *protocol.ExecStream:
		e.Text = v.Command
	case *protocol.ProcessStart:
		e.Text = v.Command
	case *protocol.TermOpen:
		e.Text = v.Command
	case *protocol.ExecCancel:
		e.Exec = validID(v.ExecID)
	case *protocol.ProcessKill:
		e.Process = validID(v.ProcessID)
	case *protocol.TermClose:
		e.Terminal = validID(v.TermID)
	case *protocol.ShareCreate:
		e.Terminal = validID(v.TermID)
	case *protocol.ShareRef:
		e.Share = validID(v.ShareID)
	case *protocol.RecordingRef:
		e.Recording = validID(v.RecordingID)

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
	}
}

var idForm = regexp.MustCompile(`^[a-z]{1,2}-[0-9A-Za-z_-]{1,80}$`)

// validID is id, if it may be one: what a client wrote instead is nobody's to keep.
func validID(id string) string {
	if idForm.MatchString(id) {
		return id
	}
	return ""
}

// auditEntry is one of this connection's, of good outcome.
func (c *conn) auditEntry(action string) audit.Entry {
	e := audit.Entry{Action: action, Outcome: "ok", Principal: c.principal.Subject, Role: string(c.principal.Role), Remote: c.remote, Conn: c.id}
	if sh := c.grant.Share; sh != nil { // it acts in its host's name
		e.Share = sh.ID()
	}
	return e
}

// appendAudit adds a line of this connection's.
func (c *conn) appendAudit(e audit.Entry) {
	who := c.principal.Subject
	if sh := c.grant.Share; sh != nil { // a guest is bounded, and not who invited him
		who = sh.ID()
	}
	AppendAudit(c.srv.config.Audit, who, e)
}

// AppendAudit adds a line of who. There is a bound to what takes no right but to be let in: with it nobody shall push out the lines of others.
func AppendAudit(log *audit.Log, who string, e audit.Entry) {
	if e.Role == string(auth.Viewer) || e.Outcome == string(protocol.Forbidden) {
		log.AppendBounded(who, e)
		return
	}
	log.Append(e)
}

// auditConnect makes the entry of a client that has shown who it is, and names it.
func (c *conn) auditConnect() {
	if c.srv.config.Audit == nil {
		return
	}
	c.id = "c-" + rand.Text()[:16]
	c.appendAudit(c.auditEntry(audit.ActionConnect))
}

func (c *conn) auditDisconnect(since time.Time) {
	e := c.auditEntry(audit.ActionDisconnect)
	e.Reason, e.DurationMS = string(c.reason), audit.Milliseconds(time.Since(since))
	c.appendAudit(e)
}
