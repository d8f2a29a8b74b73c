// Package clock keeps times that one gateway writes down and another one counts from.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// The clock on the wall may be set at any time. Within one process, time.Time keeps what the kernel's monotonic clock said as well,
// and Go counts by that. A time that was written down for the next gateway has lost it. So what is decided by such a time has an
// uptime beside it.

// An Uptime is a time by the kernel's monotonic clock, which nobody sets. 0: not known.
type Uptime time.Duration

// A Boot is a time by the kernel's clock that goes on while the machine is suspended, and that nobody sets (CLOCK_BOOTTIME). A share
// link's expiry is one: it is a promise about time in the world. What bounds work, such as a timeout, goes by the Uptime, which stands still
// meanwhile, as the work does. 0: not known.
type Boot time.Duration

func bootNow() Boot {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // Linux has it
	return Boot(ts.Nano())
}

// BootAt is the boot time at t, a time that this process has taken.
func BootAt(t time.Time) Boot { return bootNow() + Boot(time.Until(t)) }

// startClocks is now by both clocks.
var startClocks = func() struct {
	at time.Time
	up Uptime
} {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // Linux has it
	return struct {
		at time.Time
		up Uptime
	}{time.Now(), Uptime(ts.Nano())}
}()

// UptimeAt is the uptime at t, a time that this process has taken or brought back.
func UptimeAt(t time.Time) Uptime { return startClocks.up + Uptime(t.Sub(startClocks.at)) }

// Time brings back a time that a gateway wrote down as at and u, so that this process can count from it. Its wall clock may say
// something else than at, which is what people are shown.
func (u Uptime) Time(at time.Time) time.Time {
	if u == 0 { // written by a version that did not know
		return at
	}
	return startClocks.at.Add(time.Duration(u - startClocks.up))
}

// Elapsed is the time from one to another, not negative: one of the two may be by the wall clock alone.
func Elapsed(from, to time.Time) time.Duration { return max(0, to.Sub(from)) }
