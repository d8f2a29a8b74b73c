package protocol

import "time"

// The default and the longest life of a share link.
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
	TermID    string    `json:"term_id,omitzero"` // absent: the whole session
	Mode      string    `json:"mode"`
	Name      string    `json:"name,omitzero"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"`
	Clients   int       `json:"clients"`
}

// ShareCreated is the answer of share.create. No other answer contains the token.
type ShareCreated struct {
	Share
	Token string `json:"token"`
	Path  string `json:"path"`
}

// Shares is the answer of share.list, oldest first; the list is never null.
type Shares struct {
	Shares []Share `json:"shares"`
}

// ShareRef is the params of share.revoke.
type ShareRef struct {
	ShareID string `json:"share_id"`
}

// Validate requires a session or a terminal, and an end.
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

// Validate requires a share.
func (q *ShareRef) Validate() *Error { return present("share_id", q.ShareID) }
