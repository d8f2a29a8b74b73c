package web

// maxVisits bounds what a connection remembers of the sessions of others that it used.
const maxVisits = 1024

// behalf is the subject in whose name a request about id is carried out: the client's own; an admin's is the one whose it is. Names are
// everybody's own, and stand for nobody else's.
func (c *conn) behalf(id string) string {
	if c.who.Role != Admin {
		return c.who.Subject
	}
	owner, session := c.srv.pool.Owner(id)
	if owner == "" || owner == c.who.Subject {
		return c.who.Subject
	}
	c.mu.Lock()
	first := !c.visits[session]
	if len(c.visits) >= maxVisits {
		clear(c.visits)
	}
	c.visits[session] = true
	c.mu.Unlock()
	if first {
		c.log.Info().Str("session", session).Str("owner", owner).Msg("admin uses a session of another principal")
	}
	return owner
}
