package link

import (
	"net/netip"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Node names one life of a node: its name, and the epoch that it has as long as its keeper lives.
type Node struct {
	Name  string `json:"name"`
	Epoch string `json:"epoch"`
}

// Hello is the dialer's first message: for whom the link is. The owner believes it, because only nodes of the cluster can send it.
type Hello struct {
	Principal  string     `json:"principal"`
	Role       string     `json:"role"` // admin, user or viewer
	Terms      Terms      `json:"terms,omitzero"`
	Credential string     `json:"credential,omitzero"` // id of the credential on which share links rest, see web/auth
	Share      string     `json:"share,omitzero"`      // token of a guest's share link; the owner of its session judges it
	Client     netip.Addr `json:"client,omitzero"`     // the client's address, if it has one
	Transport  string     `json:"transport"`           // how the client is connected: websocket, unix, http, in_process
	Binary     bool       `json:"binary,omitzero"`     // the client gets output in binary frames
	Inputs     bool       `json:"inputs,omitzero"`     // the client may send input in binary frames
	Carries    string     `json:"carries,omitzero"`    // ForMessages, ForHTTP, ForNode or ForMove
	Keep       bool       `json:"keep,omitzero"`       // the link may serve another client afterwards, see Conn.Release
	LogPrefix  string     `json:"log_prefix,omitzero"` // begins the ids of the client's requests in logs
}

// What a link carries.
const (
	ForMessages = ""     // the messages of a client's connection
	ForHTTP     = "http" // an HTTP connection with requests of a client, see Stream
	ForNode     = "node" // an HTTP connection with requests of the node itself, which Principal names
	ForMove     = "move" // one request of the node itself about the move of a session
)

// Terms are the bounds of the client's credential. The zero value has no bound.
type Terms struct {
	ExpiresInMS int64   `json:"expires_in_ms,omitzero"` // from now on, because the two nodes' clocks may differ
	MaxSessions int     `json:"max_sessions,omitzero"`
	MaxInFlight int     `json:"max_in_flight,omitzero"`
	Rate        float64 `json:"rate,omitzero"` // requests a second
}

// SetExpires sets when the credential ends, by this node's clock; zero: never. It returns false if that was before now.
func (t *Terms) SetExpires(at time.Time) bool {
	t.ExpiresInMS = 0
	if at.IsZero() {
		return true
	}
	t.ExpiresInMS = time.Until(at).Milliseconds()
	return t.ExpiresInMS > 0
}

// Expires returns when the credential ends, by this node's clock; zero: never. Its end at the dialer, where it may be revoked too, ends the link.
func (t *Terms) Expires() time.Time {
	if t.ExpiresInMS == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(t.ExpiresInMS) * time.Millisecond)
}

const (
	maxNodeName  = 253
	maxEpoch     = 64
	maxURL       = 1024
	maxPrincipal = 1024
	maxWord      = 512
	maxLogPrefix = 64
	maxRate      = 1e9
	maxCount     = 1 << 31
	maxMS        = 1 << 43 // 278 years
)

// Check returns a *HelloError if a field is out of its bounds.
func (h *Hello) Check() error {
	switch t := &h.Terms; {
	case !isWord(h.Principal, maxPrincipal):
		return &HelloError{"principal", "is not one printable word"}
	case h.Role != "admin" && h.Role != "user" && h.Role != "viewer":
		return &HelloError{"role", "is not admin, user or viewer"}
	case t.ExpiresInMS < 0 || t.ExpiresInMS > maxMS:
		return &HelloError{"expires_in_ms", "is out of range"}
	case t.MaxSessions < 0 || t.MaxSessions > maxCount:
		return &HelloError{"max_sessions", "is out of range"}
	case t.MaxInFlight < 0 || t.MaxInFlight > maxCount:
		return &HelloError{"max_in_flight", "is out of range"}
	case !(t.Rate >= 0 && t.Rate <= maxRate):
		return &HelloError{"rate", "is out of range"}
	case h.Credential != "" && !isWord(h.Credential, maxWord):
		return &HelloError{"credential", "is not one printable word"}
	case h.Share != "" && !isWord(h.Share, maxWord):
		return &HelloError{"share", "is not one printable word"}
	case h.Share != "" && h.Role == "admin":
		return &HelloError{"role", "of a guest is admin"}
	case h.Transport != "websocket" && h.Transport != "unix" && h.Transport != "http" && h.Transport != "in_process":
		return &HelloError{"transport", "is not websocket, unix, http or in_process"}
	case h.Carries != ForMessages && h.Carries != ForHTTP && h.Carries != ForNode && h.Carries != ForMove:
		return &HelloError{"carries", "is not one of those known"}
	case h.Keep && h.Carries != ForMessages:
		return &HelloError{"keep", "is for links that carry messages"}
	case h.LogPrefix != "" && !isWord(h.LogPrefix, maxLogPrefix):
		return &HelloError{"log_prefix", "is not one printable word"}
	}
	return nil
}

func (n Node) check() error {
	switch {
	case !isWord(n.Name, maxNodeName):
		return &HelloError{"node", "has a name that is not one printable word"}
	case !isWord(n.Epoch, maxEpoch):
		return &HelloError{"node", "has an epoch that is not one printable word"}
	}
	return nil
}

// isWord reports whether s is printable text of 1 to most bytes without spaces.
func isWord(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) &&
		!strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsGraphic(r) })
}
