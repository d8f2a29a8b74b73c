package client

import (
	"context"
	"errors"

	"trl/protocol"
)

// Start and OpenTerminal send their request again when the answer was lost. A gateway with a new epoch knows neither the request_key nor the session,
// but it has a default session, and perhaps one of the same name: there the command would run a second time. These requests therefore name their
// session by its id, which such a gateway answers with SESSION_LOST.

// SessionID returns the id of the session that ref names; the zero value is the default session. The Client asks for the default session once. From then
// on its default session is that one, unless it ended under a gateway of the same epoch. For a client that may make no session, such as a guest of a
// share link, the id of the default session is empty; a share link is not valid in another epoch.
func (c *Client) SessionID(ctx context.Context, ref protocol.SessionRef) (string, error) {
	l, err := c.connected(ctx)
	if err != nil {
		return "", err
	}
	return c.sessionID(ctx, l, ref)
}

func (c *Client) sessionID(ctx context.Context, l *link, ref protocol.SessionRef) (string, error) {
	if ref.SessionID != "" {
		return ref.SessionID, nil
	}
	if ref.Session == "" {
		c.mu.Lock()
		id := c.defaultSession
		c.mu.Unlock()
		if id != "" {
			return id, nil
		}
	}
	var s protocol.Session
	if ref.Session != "" {
		err := l.call(ctx, "session.info", ref, &s, nil)
		return s.SessionID, err
	}
	err := l.call(ctx, "session.create", protocol.SessionCreate{Name: "default", IfExists: "return"}, &s, nil)
	if e, ok := errors.AsType[*protocol.Error](err); ok && e.Code == protocol.Forbidden {
		return "", nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.defaultSession = s.SessionID
	return s.SessionID, err
}

// inSession calls ask with the id of the session that ref names. If the default session has ended, it calls ask a second time, with the next one.
func (c *Client) inSession(ctx context.Context, l *link, ref protocol.SessionRef, ask func(protocol.SessionRef) error) error {
	id, err := c.sessionID(ctx, l, ref)
	if err != nil {
		return err
	}
	err = ask(protocol.SessionRef{SessionID: id})
	if ref != (protocol.SessionRef{}) || !hasEnded(err) {
		return err
	}
	c.mu.Lock()
	if c.defaultSession == id {
		c.defaultSession = ""
	}
	c.mu.Unlock()
	if id, err = c.sessionID(ctx, l, ref); err != nil {
		return err
	}
	return ask(protocol.SessionRef{SessionID: id})
}

// hasEnded reports whether a gateway of the session's own epoch has refused a request because the session has ended.
func hasEnded(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	return ok && (e.Code == protocol.SessionTerminated || e.Code == protocol.SessionNotFound)
}
