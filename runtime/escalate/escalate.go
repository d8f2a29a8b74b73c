// Package escalate ends processes in steps: it sends signals, and gives the processes time before it goes on.
package escalate

import (
	"context"
	"time"
)

// A Step signals processes and gives them time to end.
type Step struct {
	Signal func()           // sends the step's signals
	Until  func() time.Time // when the next step is due; this time may become earlier during the step
}

// At returns Step.Until for a step whose time does not change.
func At(t time.Time) func() time.Time { return func() time.Time { return t } }

// Run does the steps until over returns true. It returns false if processes are left after the last step's time or the end
// of ctx; the caller then sends KILL, and Run has called count if there was a step. An abort of a command does its steps in its event loop instead.
func Run(ctx context.Context, count func(), over func() bool, steps ...Step) (ended bool) {
	for _, s := range steps {
		s.Signal()
		for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
			if over() {
				return true
			}
			if ctx.Err() != nil || !time.Now().Before(s.Until()) {
				break
			}
			time.Sleep(wait)
		}
	}
	if len(steps) == 0 {
		return over()
	}
	count()
	return false
}
