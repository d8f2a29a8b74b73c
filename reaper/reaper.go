// Package reaper ends sessions that are idle or expired, drops what was retained long enough, and starts orphan scans, by the clock.
//
// The reaper decides when, the pool decides what. It is one goroutine with one ticker, and it never waits for a session to end.
package reaper

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/metrics"
)

const (
	tickInterval       = time.Second      // idle timeouts are minutes; a client that asks for 2 s gets 2 to 3
	orphanScanInterval = 10 * time.Second // a scan of every process of the machine takes milliseconds

	reasonIdle = "idle" // PROTOCOL.md, Reason
)

// Pool is the part of the pool that the reaper needs. All three methods return at once.
type Pool interface {
	EndIdle(now time.Time) (ended int) // starts to end sessions that have been idle for too long
	WarnExpiring(now time.Time)        // tells the watchers of sessions that will end soon
	DropExpired(now time.Time)         // drops work that has been retained for long enough
}

// Reaper runs the loop.
type Reaper struct {
	pool    Pool
	orphans func()
	metrics *metrics.Metrics
	log     zerolog.Logger

	start   sync.Once
	close   sync.Once
	stop    chan struct{} // closed by Close
	stopped chan struct{} // closed when the loop has ended, or never began
}

// New makes a reaper. orphans ends processes that escaped their session; it is nil if none can escape.
func New(p Pool, orphans func(), m *metrics.Metrics, log zerolog.Logger) *Reaper {
	metrics.AtZero(m.SessionsReaped, reasonIdle)
	return &Reaper{pool: p, orphans: orphans, metrics: m, log: log, stop: make(chan struct{}), stopped: make(chan struct{})}
}

// Start starts the loop. Close ends it.
func (r *Reaper) Start() { r.start.Do(func() { go r.run() }) }

// Close ends the loop and returns when it has ended, or when ctx is done: an orphan scan waits for the keeper. It is idempotent.
func (r *Reaper) Close(ctx context.Context) {
	r.close.Do(func() { close(r.stop) })
	r.start.Do(func() { close(r.stopped) })
	select {
	case <-r.stopped:
	case <-ctx.Done():
	}
}

func (r *Reaper) run() {
	defer close(r.stopped)
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	scanned := time.Now()
	for {
		select {
		case <-r.stop:
			return
		case <-tick.C:
		}
		now := time.Now() // not the tick's time, which is old after a suspend or a slow scan
		r.pool.WarnExpiring(now)
		if n := r.pool.EndIdle(now); n > 0 {
			r.metrics.SessionsReaped.WithLabelValues(reasonIdle).Add(float64(n))
		}
		r.pool.DropExpired(now)
		if r.orphans != nil && now.Sub(scanned) >= orphanScanInterval {
			scanned = now
			r.orphans()
		}
		if took := time.Since(now); took > tickInterval { // timeouts are late by as much: the machine is too small, or /proc is too large
			r.log.Warn().Dur("took_ms", took).Msg("slow housekeeping")
		}
	}
}
