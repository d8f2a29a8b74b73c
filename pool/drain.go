package pool

import "trl/protocol"

func errDraining() error {
	return protocol.Errorf(protocol.ShuttingDown, "the server takes no new sessions: it is being drained").With("draining", true)
}

// Drain has the pool take no new sessions; those that live go on. empty is closed when the last one has ended. Asked again it is the same.
func (p *Pool) Drain() (empty <-chan struct{}) {
	_ = p.awaitRecovered("") // what comes back counts
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining == nil {
		p.draining = make(chan struct{})
		p.closeDrainedLocked()
	}
	p.metrics.Draining.Set(1)
	return p.draining
}

// Undrain has it take new sessions again, unless it is empty by now.
func (p *Pool) Undrain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = nil
	p.metrics.Draining.Set(0)
}

// closeDrainedLocked closes empty when it is. Only the last session's end comes here with none alive, and after that there is none to
// end: nobody gets in. p.mu is held.
func (p *Pool) closeDrainedLocked() {
	if p.draining != nil && p.live == 0 {
		close(p.draining)
	}
}

// LiveCount is how many sessions live, those that are being made or ended included.
func (p *Pool) LiveCount() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.live
}
