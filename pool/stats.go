package pool

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"trl/metrics"
	"trl/protocol"
)

// metricsSnapshot is one look at the pool, for the gauges.
func (p *Pool) metricsSnapshot() metrics.PoolNumbers {
	n := metrics.PoolNumbers{ByState: map[string]int{}, MaxSessions: p.config.Load().MaxSessions, Warm: p.warm.count(), Recordings: p.recordings.OpenCount()}
	for _, s := range p.all() {
		s.mu.Lock()
		n.ByState[string(s.state.State())]++
		n.Queued += len(s.waiting)
		if s.running != nil {
			n.RunningExecs++
		}
		n.Processes += s.liveProcesses
		n.Terminals += s.openTerminals
		s.mu.Unlock()
	}
	return n
}

// Stats is what system.stats answers.
func (p *Pool) Stats() protocol.Stats {
	n := p.metricsSnapshot()
	st := protocol.Stats{
		ByState: n.ByState, MaxSessions: n.MaxSessions, TotalCommandsRun: p.commands.Load(),
		Running: n.RunningExecs, Queued: n.Queued, Processes: n.Processes, Terminals: n.Terminals,
		WarmShells: n.Warm, UptimeS: int64(time.Since(p.started).Seconds()), MemoryRSSBytes: residentBytes(),
	}
	for state, count := range n.ByState {
		if state != stateTerminated {
			st.ActiveSessions += count
		}
	}
	return st
}

// residentBytes is our own resident memory, 0 where proc(5) does not tell.
func residentBytes() int64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(string(fields[1]), 10, 64)
	return pages * int64(os.Getpagesize())
}
