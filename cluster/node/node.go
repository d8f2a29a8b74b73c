// Package node describes one machine of a cluster, as the directory tells it to the others.
package node

// Node is one machine. Its epoch is part of every id that it gives out, and lives as long as its keeper.
type Node struct {
	Epoch     string            `json:"epoch"`
	Name      string            `json:"name"`
	URL       string            `json:"url"`                  // of its link listener
	PublicURL string            `json:"public_url,omitempty"` // for clients that want to connect to it directly
	Zone      string            `json:"zone,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Version   string            `json:"version"`      // of trl
	Link      int               `json:"link_version"` // the newest version of the link protocol that it speaks
	Live      int               `json:"live_sessions"`
	Max       int               `json:"max_sessions"` // 0: it owns no sessions
	Load      float64           `json:"load"`         // processes that want to run, per processor
	Draining  bool              `json:"draining,omitempty"`
	Starting  bool              `json:"starting,omitempty"` // its gateway has just been started, and says soon how many sessions it may have
}

// HasRoom says whether the node takes another session.
func (n *Node) HasRoom() bool { return n.Live < n.Max }

// Matches says whether the node has all labels of where. The label "zone" is also the node's Zone, and "node" its name.
func (n *Node) Matches(where map[string]string) bool {
	for label, want := range where {
		have, ok := n.Labels[label]
		switch {
		case ok:
		case label == "zone":
			have = n.Zone
		case label == "node":
			have = n.Name
		default:
			return false
		}
		if have != want {
			return false
		}
	}
	return true
}
