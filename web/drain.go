package web

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/pool"
	"trl/protocol"
	"trl/web/rpc/move"
)

// drainer drains the gateway: no new sessions, running sessions go on, and /readyz reports it. A drain is over when no session is left, or when its
// time is over. The owner of the server waits for Drained and then calls Shutdown.
type drainer struct {
	pool  *pool.Pool
	mover *move.Mover // set once, before the first drain
	log   zerolog.Logger

	over     chan struct{} // closed when a drain is over
	overOnce sync.Once
	running  sync.WaitGroup // the goroutine of the current drain

	mu      sync.Mutex
	stop    func() // guarded by mu; ends the goroutine of the current drain; nil: no drain
	forGood bool   // guarded by mu; no client may undo the drain
	moving  bool   // guarded by mu; the current drain moves sessions to other nodes
	closed  bool   // guarded by mu; no drain may begin any more
}

// lastMoveTimeout is how long a drain whose last session has moved waits for the end of that move.
const lastMoveTimeout = 20 * time.Second

func newDrainer(p *pool.Pool, log zerolog.Logger) *drainer {
	return &drainer{pool: p, log: log, over: make(chan struct{})}
}

// Drained returns a channel that is closed when a drain is over.
func (d *drainer) Drained() <-chan struct{} { return d.over }

// Draining reports whether a drain has begun and has not been undone.
func (d *drainer) Draining() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop != nil
}

// DrainingForGood reports whether a drain has begun that no client can undo.
func (d *drainer) DrainingForGood() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.forGood
}

// Drain begins a drain, or changes the time of the current one. most is how long it may take; below 0: until no session is left. With forGood no
// client can undo it, because the supervisor of the gateway relies on the end. With move it moves sessions to other nodes of the cluster; a later call
// without move changes nothing of that.
func (d *drainer) Drain(most time.Duration, forGood, move bool) {
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
	d.moving = d.moving || move
	empty := d.pool.Drain()
	moved := make(chan struct{})
	if d.moving {
		sessions := d.mover.Drain()
		d.running.Go(func() { // moves sessions until none is left; ends with ctx; close waits for it
			defer close(moved)
			sessions.MoveAll(ctx)
		})
	} else {
		close(moved)
	}
	d.running.Add(1)
	go func() { // waits until the drain is over; ends with ctx; close waits for it
		defer d.running.Done()
		defer cancel()
		select {
		case <-empty:
			select { // the new node of the last session asks this one once more, and until then it has not the name
			case <-moved:
			case <-late:
			case <-time.After(lastMoveTimeout):
			case <-ctx.Done():
				return
			}
		case <-late:
		case <-ctx.Done(): // the drain was undone or got another time, or the server ends
			return
		}
		d.log.Info().Int("sessions", d.pool.LiveCount()).Msg("drained")
		d.overOnce.Do(func() { close(d.over) })
	}()
	d.log.Info().Bool("bounded", most >= 0).Dur("at_most_ms", max(0, most)).Int("sessions", d.pool.LiveCount()).Msg("draining: no new sessions")
}

// Undrain undoes the drain, unless it is for good.
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
	d.stop, d.moving = nil, false
	d.mover.Forget()
	d.pool.Undrain()
	d.log.Info().Msg("drain taken back")
	return nil
}

// refuse makes later calls of Drain have no effect.
func (d *drainer) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
}

// close returns when the goroutine of the drain has ended.
func (d *drainer) close() {
	d.mu.Lock()
	if d.stop != nil {
		d.stop()
	}
	d.mu.Unlock()
	d.running.Wait()
}
