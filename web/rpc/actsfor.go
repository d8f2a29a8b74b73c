package rpc

import "trl/web/auth"

// maxUsedIDs bounds what a connection remembers of what is others' and it used.
const maxUsedIDs = 1024

// actsFor is the subject in whose name a request about id is carried out: the client's own; an admin's is the one whose it is. Names are
// everybody's own, and stand for nobody else's.
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

// isFirstUse notes that what has this id was used, and reports whether it is the first time.
func (c *conn) isFirstUse(id string) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = !c.usedIDs[id]
	if len(c.usedIDs) >= maxUsedIDs {
		clear(c.usedIDs)
	}
	c.usedIDs[id] = true
	return first
}
