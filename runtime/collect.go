package runtime

import (
	"math"
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// How much is let lie about beyond what Go would, and for how long: as long as a fork may take, it gets more anyway.
	garbageRoom  = 8 << 20
	garbageEvery = time.Second
	// mostMemory makes Go collect whatever else goes on: a keeper takes a fiftieth.
	mostMemory = 1 << 30
)

// CollectBetweenForks has Go's garbage collected only while nothing is forked. It begins with a stop of all threads, which
// would wait for a thread whose fork hangs, and with it watchFork. It returns when Close is called, and changes settings of
// the whole process.
func (h *Host) CollectBetweenForks() {
	debug.SetGCPercent(-1)
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(mostMemory)
	}
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	again := time.NewTicker(garbageEvery)
	defer again.Stop()
	for {
		select {
		case <-again.C:
		case <-h.nursery.stop:
			return
		}
		metrics.Read(heap)
		if heap[0].Value.Uint64() > 2*heap[1].Value.Uint64()+garbageRoom {
			h.nursery.forking.Lock()
			goruntime.GC()
			h.nursery.forking.Unlock()
		}
	}
}
