package mcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"trl/client"
	"trl/protocol"
)

// idleTimeout ends a session that its program could not end, because it was killed itself.
const idleTimeout protocol.Seconds = 3600

// OwnSessions are the sessions that one server made: its own, for calls that name none, and those of its tool `session`. They end with the server.
type OwnSessions struct {
	Name string // use this session, and leave it at the end; "": make one
	Dir  string // the directory of new sessions; "": the gateway's default

	mu   sync.Mutex
	id   string   // guarded by mu; the session of calls that name none; "": not made yet
	made []string // guarded by mu; ids of the sessions to end
}

// own returns the id of the session of calls that name none. The first call makes it.
func (o *OwnSessions) own(ctx context.Context, c *client.Client, clientName string) (string, error) {
	o.mu.Lock() // held over the request: two calls at once make one session
	defer o.mu.Unlock()
	if o.id != "" {
		return o.id, nil
	}
	q := o.request(clientName)
	if q.Name = o.Name; o.Name == "" {
		q.Name = "mcp-" + strings.ToLower(rand.Text()[:8])
	} else {
		q.IdleTimeout, q.IfExists = nil, "return"
	}
	s, err := o.createLocked(ctx, c, q)
	if err != nil {
		return "", err
	}
	o.id = s.SessionID
	return o.id, nil
}

func (o *OwnSessions) request(clientName string) protocol.SessionCreate {
	q := protocol.SessionCreate{WorkingDir: o.Dir, IdleTimeout: new(idleTimeout)}
	if clientName = protocol.Clean(clientName); clientName != "" {
		q.Labels = map[string]string{"mcp": strings.ToValidUTF8(clientName[:min(len(clientName), 64)], "")}
	}
	return q
}

// create makes a session that ends with the server.
func (o *OwnSessions) create(ctx context.Context, c *client.Client, q protocol.SessionCreate) (protocol.Session, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.createLocked(ctx, c, q)
}

// createLocked also waits for the answer if the call is cancelled, so that a session which was made is known and can be ended. mu is held.
func (o *OwnSessions) createLocked(ctx context.Context, c *client.Client, q protocol.SessionCreate) (s protocol.Session, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	q.RequestKey = rand.Text()
	err = c.Call(ctx, "session.create", q, &s)
	if refused, ok := errors.AsType[*protocol.Error](err); ok && refused.Code == protocol.WorkingDirNotFound && q.WorkingDir == o.Dir {
		q.WorkingDir, q.RequestKey = "", rand.Text() // the gateway may run in a container
		err = c.Call(ctx, "session.create", q, &s)
	}
	if err == nil && q.IfExists != "return" {
		o.made = append(o.made, s.SessionID)
	}
	return s, err
}

// forget notes that the session of calls that name none has ended, if err says so.
func (o *OwnSessions) forget(err error) {
	e, ok := errors.AsType[*protocol.Error](err)
	if o == nil || !ok || !slices.Contains([]protocol.Code{protocol.SessionTerminated, protocol.SessionLost, protocol.SessionNotFound}, e.Code) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.id = ""
}

func (o *OwnSessions) current() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.id
}

// End ends the sessions that the server made.
func (o *OwnSessions) End(ctx context.Context, c *client.Client) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var first error
	for _, id := range o.made {
		err := c.Call(ctx, "session.destroy", protocol.SessionDestroy{SessionRef: protocol.SessionRef{SessionID: id}, Force: true}, nil)
		if e, ok := errors.AsType[*protocol.Error](err); ok && (e.Code == protocol.SessionNotFound || e.Code == protocol.SessionLost) {
			err = nil // it is gone
		}
		if first == nil {
			first = err
		}
	}
	o.made, o.id = nil, ""
	return first
}

// Made reports whether there is a session to end. It waits for one that is being made.
func (o *OwnSessions) Made() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.made) > 0
}

// session creates, resets or ends a session.
func (k *call) session(ctx context.Context, a sessionArgs) (string, error) {
	if a.Action != "create" && (a.CWD != "" || len(a.Env) > 0) {
		return "", protocol.InvalidParam("action", "cwd and env belong to create")
	}
	if a.Action == "create" {
		return k.createSession(ctx, a)
	}
	ref, err := k.ref(ctx, a.Name)
	if err != nil {
		return "", err
	}
	if a.Action == "reset" {
		var s protocol.Session
		if err := k.c.Call(ctx, "session.reset", ref, &s); err != nil {
			return "", err
		}
		return fmt.Sprintf("session %s is reset: a fresh shell in %s [%s]", s.Name, s.WorkingDir, s.SessionID), nil
	}
	var d protocol.Destroyed
	if ref == (protocol.SessionRef{}) {
		ref.Session = "default"
	}
	if err := k.c.Call(ctx, "session.destroy", protocol.SessionDestroy{SessionRef: ref}, &d); err != nil {
		return "", err
	}
	if a.Name == "" {
		k.Sessions.forget(protocol.Errorf(protocol.SessionTerminated, "ended"))
	}
	return fmt.Sprintf("session ended, with everything in it [%s]", d.SessionID), nil
}

func (k *call) createSession(ctx context.Context, a sessionArgs) (string, error) {
	own := k.Sessions
	if own == nil {
		own = &OwnSessions{} // over HTTP nobody ends it but its idle time
	}
	q := own.request(k.clientIs)
	q.Name = a.Name
	if a.CWD != "" {
		q.WorkingDir = a.CWD
	}
	for name, value := range a.Env {
		if q.Env == nil {
			q.Env = protocol.Env{}
		}
		q.Env[name] = &value
	}
	s, err := own.create(ctx, k.c, q)
	if err != nil {
		return "", err
	}
	name := s.Name
	if name == "" {
		name = s.SessionID
	}
	return fmt.Sprintf("session %s: %s in %s [%s]", name, s.Shell, s.WorkingDir, s.SessionID), nil
}
