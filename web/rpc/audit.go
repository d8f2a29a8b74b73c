package rpc

import (
	"cmp"
	"crypto/rand"
	"time"

	"trl/protocol"
	"trl/web/audit"
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
	e.Fill(asked)
	e.Fill(data)
	if q, ok := asked.(*protocol.SessionMove); ok && err == nil {
		e.From, e.To = cmp.Or(e.Node, k.c.srv.nodeName()), q.Node
	}
	k.c.appendAudit(e)
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
	c.srv.config.Audit.AppendBy(who, e)
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
