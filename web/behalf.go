package web

// maxVisits bounds what a connection remembers of what is others' and it used.
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
	if c.visit(session) {
		c.log.Info().Str("session", session).Str("owner", owner).Msg("admin uses a session of another principal")
	}
	return owner
}

// visit notes that what has this id was used, and reports whether it is the first time.
func (c *conn) visit(id string) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = !c.visits[id]
	if len(c.visits) >= maxVisits {
		clear(c.visits)
	}
	c.visits[id] = true
	return first
}
