// Package timeouts bounds how long a command runs, a session is idle, and a process has between TERM and KILL.
package timeouts

import (
	"context"
	"time"

	"trl/protocol"
)

// Longest is the most that a command may ask for if no maximum is set.
const Longest = 24 * time.Hour

// The time between TERM and KILL.
const (
	DefaultGrace = 5 * time.Second // if the request does not say
	MaxGrace     = time.Minute     // the most that a request gets
)

// Or returns what a request asks for, or the default if it asks for nothing.
func Or(asked *protocol.Seconds, d time.Duration) time.Duration {
	if asked == nil {
		return d
	}
	return asked.Duration()
}

// Grace returns the grace for a request's kill_grace_s.
func Grace(asked *protocol.Seconds) time.Duration { return min(Or(asked, DefaultGrace), MaxGrace) }

// Command returns the timeout in force for a command that asks for d. most is the operator's maximum, 0: none. 0 is no timeout, which is above every
// maximum.
func Command(d, most time.Duration) time.Duration {
	if most == 0 {
		return min(d, Longest)
	}
	return Idle(d, most)
}

// Idle returns the idle timeout that a session gets which asks for d. most is the operator's maximum, 0: none.
func Idle(d, most time.Duration) time.Duration {
	if most > 0 && (d == 0 || d > most) { // "never" is above every maximum
		return most
	}
	return d
}

// GraceWithin returns the grace for sessions that have to end before ctx does. It leaves time for KILL.
func GraceWithin(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return DefaultGrace
	}
	return min(DefaultGrace, max(0, time.Until(deadline)-2*time.Second))
}
