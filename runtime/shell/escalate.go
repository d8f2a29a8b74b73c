package shell

import (
	"context"
	"time"
)

// An escalationStep signals processes and gives them time to end.
type escalationStep struct {
	signal func()           // sends the step's signals
	until  func() time.Time // when the next step is due; this time may become earlier during the step
}

// until returns escalationStep.until for a step whose time does not change.
func until(t time.Time) func() time.Time { return func() time.Time { return t } }

// escalate does the steps until over returns true. It returns false if processes are left after the last step's time or the end
// of ctx; the caller then sends KILL. An abort does its steps in the run's event loop instead, see stepAbort.
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
