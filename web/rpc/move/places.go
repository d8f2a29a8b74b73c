package move

import "sync"

// How many sessions of other nodes are remembered by their nodes. Beyond it all are forgotten, and looked up again.
const (
	MaxMoved = 4096 // of a gateway: sessions that have moved, by the marks of their ids, see ids.MarkOf
	MaxNamed = 1024 // of a connection, by their names
)

// Places are the nodes on which sessions are, as far as somebody has learned of it.
type Places struct {
	Max int // how many; set before use

	mu     sync.Mutex
	epochs map[string]string // by mark, or by name
}

// Note remembers where the ids with a mark, or the session with a name, are.
func (p *Places) Note(mark, epoch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epochs == nil || len(p.epochs) >= p.Max {
		p.epochs = map[string]string{}
	}
	p.epochs[mark] = epoch
}

// Of returns the epoch of the node, "" if it is not known.
func (p *Places) Of(mark string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epochs[mark]
}
