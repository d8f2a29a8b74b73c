package shell

import (
	"time"

	"golang.org/x/sys/unix"

	"trl/protocol"
	"trl/runtime/own"
	"trl/runtime/saved"
)

// measure starts to measure the command. A session with limits measures before the command begins. Any other session measures
// while the shell reads the command's line, so at most the command's first microseconds are not counted.
func (r *run) measure() {
	if r.gauge == nil {
		r.openGauge()
		r.usageAtStart = r.gauge.ResetPeak()
	}
}

// resumeMeasure goes on measuring a command that an earlier gateway began. That gateway wrote down the usage at the begin.
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
	switch s := r.s; {
	case s.gauge == nil:
		s.gauge = s.group.Gauge()
	case s.gaugeRests:
		last := s.gauge.Last
		s.gauge = s.group.Gauge()
		s.gauge.Last = last
	}
	r.s.gaugeRests = false
	r.gauge = r.s.gauge
}

// savedUsage returns the usage at the command's begin for the entry. It is exact in a session with limits. Otherwise it is the
// usage at the end of the previous command, or nil if there was none.
func (r *run) savedUsage() *saved.Usage {
	g := r.s.gauge
	if g == nil {
		return nil
	}
	return &saved.Usage{CPU: int64(g.Last.CPU), OOMKills: g.Last.OOMKills, PIDHits: g.Last.PIDHits}
}

// readUsage reads the usage at the command's end, before later work adds to it.
func (r *run) readUsage() {
	if r.gauge != nil {
		r.usageAtEnd = r.gauge.Read()
	}
}

// addUsage sets in the outcome what the group used during the command. This includes other processes of the session that ran
// at the same time.
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
		(!r.died || r.p.child.Status().Signal == unix.SIGXFSZ): // not `exit 153` of the shell itself. A child's `exit 153` looks like SIGXFSZ, because only its code is known
		o.LimitHit = own.LimitFileSize
	}
}

// Limit sets the limits of a warm shell's session. Reset applies them to each new group.
func (s *Shell) Limit(l protocol.Limits) error {
	if l == (protocol.Limits{}) {
		return nil
	}
	<-s.turn
	defer s.giveTurn()
	s.mu.Lock()
	group := s.group
	s.cfg.Limits = l
	s.mu.Unlock()
	s.dropGauge()
	return group.Limit(l)
}

// dropGauge closes the gauge after the group or its limits have changed. The caller has the turn.
func (s *Shell) dropGauge() {
	s.gauge.Close()
	s.gauge, s.gaugeRests = nil, false
}
