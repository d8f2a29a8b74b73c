package rpc

import "trl/web/auth"

// actsFor returns the subject in whose name a request about id is carried out: the client's own subject, and for an admin the owner of id. A name
// belongs to the client itself, so it never stands for the session of another principal.
func (c *conn) actsFor(id string) string {
	if c.principal.Role != auth.Admin {
		return c.principal.Subject
	}
	owner, session := c.srv.pool.Owner(id)
	if owner == "" || owner == c.principal.Subject {
		return c.principal.Subject
	}
	if c.isFirstUse(session) {
		c.log.Info().Str("session", session).Str("owner", owner).Msg("admin uses a session of another principal")
	}
	return owner
}

// isFirstUse records that id was used, and reports whether it was the first time.
func (c *conn) isFirstUse(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usedIDs.First(id)
}
