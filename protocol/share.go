package protocol

import "time"

// The life of a share link where share.create does not say, and at most.
const (
	ShareTime    = 24 * 3600
	MaxShareTime = 30 * 24 * 3600
)

// ShareCreate is the params of share.create: a whole session, or one terminal.
type ShareCreate struct {
	SessionRef
	TermID    string   `json:"term_id,omitzero"`
	Mode      string   `json:"mode,omitzero"` // control | view
	Name      string   `json:"name,omitzero"`
	ExpiresIn *Seconds `json:"expires_in_s,omitzero"`
}

// Share is a link to a session or a terminal, without its token: share.list lists it.
type Share struct {
	ShareID   string    `json:"share_id"`
	SessionID string    `json:"session_id"`
	TermID    string    `json:"term_id,omitzero"` // absent: all of the session
	Mode      string    `json:"mode"`
	Name      string    `json:"name,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Clients   int       `json:"clients"`
}

// ShareCreated is what share.create answers. The token is told this once.
type ShareCreated struct {
	Share
	Token string `json:"token"`
	Path  string `json:"path"`
}

// Shares is what share.list answers, oldest first; the list is never null.
type Shares struct {
	Shares []Share `json:"shares"`
}

// ShareRef is the params of share.revoke.
type ShareRef struct {
	ShareID string `json:"share_id"`
}

// Validate wants a session or a terminal, and a time that ends.
func (q *ShareCreate) Validate() *Error {
	if q.TermID == "" {
		if e := q.SessionRef.Validate(); e != nil {
			return e
		}
	} else if q.SessionRef != (SessionRef{}) {
		return InvalidParam("term_id", "term_id and a session exclude each other")
	}
	if e := first(oneOf("mode", q.Mode), validName(q.Name), validSeconds("expires_in_s", q.ExpiresIn)); e != nil {
		return e
	}
	if s := q.ExpiresIn; s != nil && (*s <= 0 || *s > MaxShareTime) {
		return InvalidParam("expires_in_s", "expires_in_s is not between 0 and %d", MaxShareTime).With("limit", MaxShareTime)
	}
	return nil
}

// Validate wants a share.
func (q *ShareRef) Validate() *Error { return present("share_id", q.ShareID) }
