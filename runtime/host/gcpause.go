package host

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// How much is let lie about beyond what Go would, and for how long: as long as a fork may take, it gets more anyway.
	extraGarbage = 8 << 20
	gcInterval   = time.Second
	// memoryLimit makes Go collect whatever else goes on: a keeper takes a fiftieth.
	memoryLimit = 1 << 30
)

// CollectBetweenForks has Go's garbage collected only while nothing is forked. The collector stops all threads, and would wait
// for one whose fork hangs, and with it watchFork. So does a change of its settings, which are the whole process's: they are
// made here, before anything is forked into a scope, and what it has begun is ended. collect returns when Close is called.
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
