package web

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/pool"
	"trl/protocol"
)

// drainer lets the gateway run empty: there are no new sessions, those that live go on, and /readyz says so. A drain is over when no session lives,
// or when its time is over. The owner of the server, who hears of it by Drained, then calls Shutdown.
type drainer struct {
	pool *pool.Pool
	log  zerolog.Logger

	over     chan struct{} // closed when a drain is over
	overOnce sync.Once
	running  sync.WaitGroup // the goroutine of a drain

	mu      sync.Mutex
	stop    func() // guarded by mu; ends the goroutine of a drain; nil: there is none
	forGood bool   // guarded by mu; nobody may take the drain back
	closed  bool   // guarded by mu; none may begin any more
}

func newDrainer(p *pool.Pool, log zerolog.Logger) *drainer {
	return &drainer{pool: p, log: log, over: make(chan struct{})}
}

// Drained is closed when a drain is over.
func (d *drainer) Drained() <-chan struct{} { return d.over }

// Draining: a drain has begun, and was not taken back.
func (d *drainer) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil
}

// DrainingForGood: a drain has begun that no client can take back.
func (d *drainer) DrainingForGood() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.forGood
}

// Drain begins a drain, or gives the one that there is another time. At most for so long; below 0: until no session lives. forGood: who
// supervises us counts on the end, so no client may put it off.
func (d *drainer) Drain(most time.Duration, forGood bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.forGood {
		return
	}
	d.forGood = forGood
	if d.stop != nil {
		d.stop()
	}
	ctx, cancel := context.WithCancel(context.Background()) // ends with stop
	var late <-chan time.Time
	if most >= 0 {
		late = time.After(most)
	}
	d.stop = cancel
	empty := d.pool.Drain()
	d.running.Add(1)
	go func() { // waits for the drain to be over; ends with ctx; close waits for it
		defer d.running.Done()
		defer cancel()
		select {
		case <-empty:
		case <-late:
		case <-ctx.Done(): // taken back, given another time, or we end anyway
			return
		}
		d.log.Info().Int("sessions", d.pool.LiveCount()).Msg("drained")
		d.overOnce.Do(func() { close(d.over) })
	}()
	d.log.Info().Bool("bounded", most >= 0).Dur("at_most_ms", max(0, most)).Int("sessions", d.pool.LiveCount()).Msg("draining: no new sessions")
}

// Undrain takes it back, unless it is for good.
func (d *drainer) Undrain() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stop == nil {
		return nil
	}
	if d.forGood {
		return protocol.Errorf(protocol.ShuttingDown, "a signal began this drain, and who sent it counts on the end")
	}
	d.stop()
	d.stop = nil
	d.pool.Undrain()
	d.log.Info().Msg("drain taken back")
	return nil
}

// refuse lets no drain begin any more.
func (d *drainer) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// close returns when a drain's goroutine has ended.
func (d *drainer) close() {
	d.mu.Lock()
	if d.stop != nil {
		d.stop()
	}
	d.mu.Unlock()
	d.running.Wait()
}
