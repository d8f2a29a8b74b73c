package shell

import (
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/own"
)

// measure begins to measure the command: within limits at its begin, else while its shell comes to its line, so that of a
// command at most its first microseconds are not counted.
func (r *run) measure() {
	if r.gauge == nil {
		r.openGauge()
		r.usageAtStart = r.gauge.ResetPeak()
	}
}

// resumeMeasure measures a command that was begun by another gateway, which wrote down from where.
func (r *run) resumeMeasure() {
	r.openGauge()
	r.peakUnknown = true
	if from := r.saved.UsedBefore; from != nil {
		r.usageAtStart = own.Usage{CPU: time.Duration(from.CPU), OOMKills: from.OOMKills, PIDHits: from.PIDHits}
	} else {
		r.usageAtStart = r.gauge.Counters()
	}
}

func (r *run) openGauge() {
	if r.s.gauge == nil {
		r.s.gauge = r.s.group.Gauge()
	}
	r.gauge = r.s.gauge
}

// savedUsage is for the record: exact within limits; else what was read when the last command had ended, if one had.
func (r *run) savedUsage() *SavedUsage {
	g := r.s.gauge
	if g == nil {
		return nil
	}
	return &SavedUsage{CPU: int64(g.Last.CPU), OOMKills: g.Last.OOMKills, PIDHits: g.Last.PIDHits}
}

// readUsage reads what there is to tell, before anything that follows the command adds to it.
func (r *run) readUsage() {
	if r.gauge != nil {
		r.usageAtEnd = r.gauge.Read()
	}
}

// addUsage writes into the outcome what the group used between the two. Whatever else of the session ran at the time is in
// it, too.
func (r *run) addUsage(o *Outcome) {
	if r.gauge == nil {
		return
	}
	if r.gauge.CPU >= 0 {
		o.CPU, o.HasUsage = r.usageAtEnd.CPU-r.usageAtStart.CPU, true
	}
	if !r.peakUnknown {
		o.MemoryPeak = r.usageAtEnd.Peak
	}
	o.OOMKilled = r.usageAtEnd.OOMKills > r.usageAtStart.OOMKills
	switch {
	case o.OOMKilled:
		o.LimitHit = own.LimitMemory
	case r.usageAtEnd.PIDHits > r.usageAtStart.PIDHits:
		o.LimitHit = own.LimitPIDs
	case r.s.cfg.Limits.FileSizeBytes > 0 && o.Code == protocol.SignalExitCode(unix.SIGXFSZ) &&
		(!r.died || r.p.child.Status().Signal == unix.SIGXFSZ): // not `exit 153`; of what the shell waited for only the code is known
		o.LimitHit = own.LimitFileSize
	}
}

// Limit is Group.Limit for a warm shell's session, and for those groups that a Reset makes.
func (s *Shell) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) {
		return nil
	}
	<-s.turn
	defer func() { s.turn <- struct{}{} }()
	s.mu.Lock()
	group := s.group
	s.cfg.Limits = l
	s.mu.Unlock()
	s.dropGauge()
	return group.Limit(l)
}

// dropGauge: the group's meters are others now. The caller has the turn.
func (s *Shell) dropGauge() {
	s.gauge.Close()
	s.gauge = nil
}
