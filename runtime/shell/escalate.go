package shell

import (
	"context"
	"time"
)

// An escalationStep asks processes to end, and gives them time.
type escalationStep struct {
	signal func()           // sends the step's signals
	until  func() time.Time // when the next step is due; it may come closer while the step lasts
}

// until is for a step whose time does not change.
func until(t time.Time) func() time.Time { return func() time.Time { return t } }

// escalate takes the steps until over says that nothing is left. It returns false when the steps have had their time, or ctx has
// ended, and something is left: the caller then sends KILL. An abort takes its steps from the run's event loop instead, see stepAbort.
func (b *Base) escalate(ctx context.Context, over func() bool, steps ...escalationStep) (ended bool) {
	for _, s := range steps {
		s.signal()
		for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
			if over() {
				return true
			}
			if ctx.Err() != nil || !time.Now().Before(s.until()) {
				break
			}
			time.Sleep(wait)
		}
	}
	if len(steps) == 0 {
		return over()
	}
	b.Metrics.KillEscalations.Inc()
	return false
}
