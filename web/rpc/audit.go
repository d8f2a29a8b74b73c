package rpc

import (
	"cmp"
	"crypto/rand"
	"regexp"
	"time"

	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// unaudited are methods that change something and get no entry: input, and what accompanies it. It belongs to a command, process or terminal whose
// begin and end have entries.
var unaudited = map[string]bool{
	"exec.input": true, "process.input": true, "term.input": true, "term.resize": true, "session.touch": true,
}

// admitAudit refuses a request that could not be written down, if the operator demands that it is. From here on, a request that changes something
// gets an entry, whatever its outcome.
func (k *call) admitAudit(h handler) error {
	if k.needsAudit = h.access == changes && !unaudited[k.method]; !k.needsAudit {
		return nil
	}
	if err := k.c.srv.config.Audit.Admit(); err != nil {
		return protocol.Errorf(protocol.InternalError, "%s", err).With("log_id", "audit") // the gateway's log has the cause, once
	}
	return nil
}

// auditAnswer writes the entry of a request, once: when it is answered, or earlier if what it started takes long.
func (k *call) auditAnswer(data any, err error) {
	log := k.c.srv.config.Audit
	asked := k.auditParams
	k.auditParams = nil // a command may be long, and exec.cancel keeps the call
	if log == nil || k.auditDone {
		return
	}
	attach, _ := asked.(*protocol.TermAttach)
	control := err == nil && attach != nil && attach.Mode != "view" // a client that is answered "view" may get control later, by its claim
	forbidden := err != nil && err != errClientGone && protocol.AsError(err).Code == protocol.Forbidden
	if !k.needsAudit && !control && !forbidden {
		return
	}
	k.auditDone = true
	e := k.c.auditEntry(k.method)
	e.Session, e.Owner, e.DurationMS = k.session, k.owner, audit.Milliseconds(time.Since(k.receivedAt))
	switch {
	case err == errClientGone:
		e.Outcome = "client_gone" // what it started goes on
	case err != nil:
		e.Outcome = string(protocol.AsError(err).Code)
	}
	k.c.mu.Lock()
	e.Exec = k.execID
	if k.remote != nil && k.remote.relay != nil {
		e.Node = k.remote.relay.name
	}
	k.c.mu.Unlock()
	fillTargets(&e, asked)
	fillTargets(&e, data)
	k.c.appendAudit(e)
}

// fillTargets copies the ids and the command from a request's params or its answer.
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
	case *cluster.AnswerIDs:
		e.Session, e.Exec, e.Process = cmp.Or(v.SessionID, e.Session), cmp.Or(v.ExecID, e.Exec), cmp.Or(v.ProcessID, e.Process)
		e.Terminal, e.Share = cmp.Or(v.TermID, e.Terminal), cmp.Or(v.ShareID, e.Share)
	}
}

var idForm = regexp.MustCompile(`^[a-z]{1,2}-[0-9A-Za-z_-]{1,80}$`)

// validID returns id if it has the form of an id, else "": the log must not keep other text of a client.
func validID(id string) string {
	if idForm.MatchString(id) {
		return id
	}
	return ""
}

// auditEntry returns an entry of this connection with the outcome ok.
func (c *conn) auditEntry(action string) audit.Entry {
	e := audit.Entry{Action: action, Outcome: "ok", Principal: c.principal.Subject, Role: string(c.principal.Role), Remote: c.remote, Conn: c.id}
	e.Share = c.grant.GuestID() // a guest acts in the name of its host
	return e
}

// appendAudit adds an entry of this connection.
func (c *conn) appendAudit(e audit.Entry) {
	who := c.principal.Subject
	if guest := c.grant.GuestID(); guest != "" { // the bound counts for the guest, not for its host
		who = guest
	}
	AppendAudit(c.srv.config.Audit, who, e)
}

// AppendAudit adds an entry of who. Entries that take no right but a credential are bounded, so that nobody can use them to push out the entries of
// others.
func AppendAudit(log *audit.Log, who string, e audit.Entry) {
	if e.Role == string(auth.Viewer) || e.Outcome == string(protocol.Forbidden) {
		log.AppendBounded(who, e)
		return
	}
	log.Append(e)
}

// auditConnect writes the entry of a client that has authenticated, and gives the connection an id. A connection that serves one request, or some of
// another client's, gets neither: the entries of its requests name that client.
func (c *conn) auditConnect() {
	if l, ok := c.transport.(*transport.Link); ok { // the client's own node writes these entries
		c.id = l.ClientID()
		return
	}
	if c.srv.config.Audit == nil && c.relays == nil || c.request != nil || c.transport.Name() == transport.InProcessName {
		return
	}
	c.id = "c-" + rand.Text()[:16]
	if c.srv.config.Audit != nil {
		c.appendAudit(c.auditEntry(audit.ActionConnect))
	}
}

func (c *conn) auditDisconnect(since time.Time) {
	if c.id == "" || c.srv.config.Audit == nil || c.transport.Name() == transport.LinkName {
		return
	}
	e := c.auditEntry(audit.ActionDisconnect)
	e.Reason, e.DurationMS = string(c.reason), audit.Milliseconds(time.Since(since))
	c.appendAudit(e)
}
