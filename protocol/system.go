package protocol

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Drain is the params of system.drain.
type Drain struct {
	Node string   `json:"node,omitzero"`
	Wait *Seconds `json:"wait_s,omitzero"`
	Undo bool     `json:"undo,omitzero"`
	Move bool     `json:"move,omitzero"`
}

// Most returns how long the drain may take; below 0: as long as it takes.
func (q *Drain) Most() time.Duration {
	if q.Wait == nil {
		return -1
	}
	return q.Wait.Duration()
}

// Drained is the answer of system.drain.
type Drained struct {
	Node           string      `json:"node,omitzero"`
	Draining       bool        `json:"draining"`
	ActiveSessions int         `json:"active_sessions"`
	Moves          *DrainMoves `json:"moves,omitzero"` // absent: the drain moves no sessions
}

// DrainMoves says how far a drain is that moves sessions to other nodes.
type DrainMoves struct {
	Moved   int       `json:"moved"`
	Unmoved []Unmoved `json:"unmoved"`
}

// Unmoved is a session that has not moved yet.
type Unmoved struct {
	SessionID string `json:"session_id"`
	Reason    string `json:"reason"`
	Message   string `json:"message,omitzero"`
}

// Pong is the answer of system.ping.
type Pong struct {
	UptimeS  int64     `json:"uptime_s"`
	Version  string    `json:"version"`
	Time     time.Time `json:"time"`
	Epoch    string    `json:"epoch"`
	Node     string    `json:"node,omitzero"` // absent: there is one node
	Degraded bool      `json:"degraded,omitzero"`
}

// Node is one node of a cluster, in the answer of system.nodes.
type Node struct {
	Node           string            `json:"node"` // its name
	Epoch          string            `json:"epoch"`
	URL            string            `json:"url,omitzero"` // for clients
	Zone           string            `json:"zone,omitzero"`
	Labels         map[string]string `json:"labels,omitzero"`
	Version        string            `json:"version"`
	ActiveSessions int               `json:"active_sessions"`
	MaxSessions    int               `json:"max_sessions"`
	Load           float64           `json:"load,omitzero"`
	Draining       bool              `json:"draining,omitzero"`
	Self           bool              `json:"self,omitzero"`        // the node that answers
	Unreachable    string            `json:"unreachable,omitzero"` // why; absent: it can be reached
}

// Nodes is the answer of system.nodes, by name.
type Nodes struct {
	Nodes    []Node `json:"nodes"`
	Degraded bool   `json:"degraded,omitzero"`
}

// SystemStats is the params of system.stats.
type SystemStats struct {
	Node string `json:"node,omitzero"`
}

// Stats is the answer of system.stats.
type Stats struct {
	ActiveSessions   int            `json:"active_sessions"`
	Draining         bool           `json:"draining"`
	ByState          map[string]int `json:"by_state"`
	MaxSessions      int            `json:"max_sessions"`
	TotalCommandsRun int64          `json:"total_commands_run"`
	Running          int            `json:"running"`
	Queued           int            `json:"queued"`
	Processes        int            `json:"processes"`
	Terminals        int            `json:"terminals"`
	WarmShells       int            `json:"warm_shells"`
	UptimeS          int64          `json:"uptime_s"`
	MemoryRSSBytes   int64          `json:"memory_rss_bytes"`
	Partial          []string       `json:"partial,omitzero"`
	Moves            *DrainMoves    `json:"moves,omitzero"`
}

// Add adds the counts of another node.
func (s *Stats) Add(more *Stats) {
	s.ActiveSessions += more.ActiveSessions
	s.MaxSessions += more.MaxSessions
	s.TotalCommandsRun += more.TotalCommandsRun
	s.Running += more.Running
	s.Queued += more.Queued
	s.Processes += more.Processes
	s.Terminals += more.Terminals
	s.WarmShells += more.WarmShells
	s.MemoryRSSBytes += more.MemoryRSSBytes
	if m := more.Moves; m != nil {
		sum := *cmp.Or(s.Moves, &DrainMoves{})
		s.Moves = &DrainMoves{sum.Moved + m.Moved, slices.Concat(sum.Unmoved, m.Unmoved)}
	}
	if s.ByState = maps.Clone(s.ByState); s.ByState == nil {
		s.ByState = map[string]int{}
	}
	for state, n := range more.ByState {
		s.ByState[state] += n
	}
}

// Isolation is the tier of containment in force, and why there is no better one.
type Isolation struct {
	Tier  string          `json:"tier"`
	Why   string          `json:"why"`
	Tiers []IsolationTier `json:"tiers"`
}

// IsolationTier is one tier, and whether the server's machine provides it.
type IsolationTier struct {
	Tier      string `json:"tier"`
	Available bool   `json:"available"`
	InForce   bool   `json:"in_force"`
	Why       string `json:"why"`
}

// Capabilities is the answer of system.capabilities.
type Capabilities struct {
	Version      string             `json:"version"`
	Shells       []string           `json:"shells"`
	DefaultShell string             `json:"default_shell"`
	Encodings    []string           `json:"encodings"`
	Subprotocols []string           `json:"subprotocols"`
	Methods      []string           `json:"methods"`
	Features     []string           `json:"features"`
	Isolation    Isolation          `json:"isolation"`
	Limits       map[string]float64 `json:"limits"`

	SessionLimits []string `json:"session_limits"`
	Principal     Who      `json:"principal"`

	SessionUser string   `json:"session_user,omitzero"`
	NoNewPrivs  bool     `json:"no_new_privs,omitzero"`
	AllowWrite  []string `json:"allow_write,omitempty"`
	Sandbox     string   `json:"sandbox,omitzero"`
	Record      string   `json:"record,omitzero"`
}
