package host

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// extraGarbage is how much more garbage than Go's default we let accumulate, and gcInterval is how often we look. A
	// fork that takes longer lets more accumulate anyway.
	extraGarbage = 8 << 20
	gcInterval   = time.Second
	// With memoryLimit Go collects garbage whatever else happens. A keeper normally uses a fiftieth of it.
	memoryLimit = 1 << 30
)

// CollectBetweenForks makes Go collect garbage only while no fork is under way. The collector stops all threads. It
// would wait for a thread whose fork hangs, and watchFork, which ends such a fork, would then be stopped too. A change
// of the collector's settings, which apply to the whole process, stops all threads as well. We therefore make it here,
// before anything is forked into a scope, and finish the collection that is under way. The caller runs collect in a
// goroutine; it returns when Host.Close is called.
func (h *Host) CollectBetweenForks() (collect func()) {
	debug.SetGCPercent(-1)
	runtime.GC()
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(memoryLimit)
	}
	return h.collectGarbage
}

func (h *Host) collectGarbage() {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	again := time.NewTicker(gcInterval)
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-h.childReaper.stop:
			return
		}
		metrics.Read(heap)
		if heap[0].Value.Uint64() > 2*heap[1].Value.Uint64()+extraGarbage {
			h.childReaper.forkMu.Lock()
			runtime.GC()
			h.childReaper.forkMu.Unlock()
		}
	}
}
