package move

import "sync"

// maxPlaces is how many sessions of other nodes a gateway remembers by the node to which they have moved. Beyond it, it asks again.
const maxPlaces = 4096

// Places are the nodes to which sessions have moved, as far as this gateway has learned of it.
type Places struct {
	mu     sync.Mutex
	epochs map[string]string // by mark, see ids.MarkOf
}

// Note remembers where the ids with a mark are.
func (p *Places) Note(mark, epoch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.epochs == nil || len(p.epochs) >= maxPlaces {
		p.epochs = map[string]string{}
	}
	p.epochs[mark] = epoch
}

// Of returns the epoch of the node, "" if the ids are not known to have moved.
func (p *Places) Of(mark string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epochs[mark]
}
