// Package clock converts times that one gateway writes down so that the next gateway can measure durations from them.
package clock

import (
	"time"

	"golang.org/x/sys/unix"
)

// Somebody may set the wall clock at any time. Within one process a time.Time also has a reading of the kernel's monotonic clock, and
// Go measures durations with it. A time that was written to a file has lost that reading. Where a gateway decides something by such a
// time, the file therefore also has an Uptime.

// An Uptime is a time of the kernel's monotonic clock, which nobody can set. 0 means unknown.
type Uptime time.Duration

// A Boot is a time of CLOCK_BOOTTIME. Nobody can set that clock, and it goes on while the machine is suspended. The expiry of a share link
// is a Boot, because a link expires in real time. The time limits of work use the Uptime, which stands still during a suspension, as the
// work does. 0 means unknown.
type Boot time.Duration

func bootNow() Boot {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // cannot fail on Linux
	return Boot(ts.Nano())
}

// BootAt returns the boot time at t. This process must have taken t from time.Now.
func BootAt(t time.Time) Boot { return bootNow() + Boot(time.Until(t)) }

// startClocks is the same moment on both clocks.
var startClocks = func() struct {
	at time.Time
	up Uptime
} {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // cannot fail on Linux
	return struct {
		at time.Time
		up Uptime
	}{time.Now(), Uptime(ts.Nano())}
}()

// UptimeAt returns the uptime at t. t must come from time.Now in this process, or from Uptime.Time.
func UptimeAt(t time.Time) Uptime { return startClocks.up + Uptime(t.Sub(startClocks.at)) }

// Time restores a time that a gateway wrote down as at and u, so that this process can measure durations from it. The wall clock of the
// result may differ from at. People are shown at.
func (u Uptime) Time(at time.Time) time.Time {
	if u == 0 { // an older version wrote it
		return at
	}
	return startClocks.at.Add(time.Duration(u - startClocks.up))
}

// Elapsed returns the time between two times. It is never negative, although one of the two may have a reading of the wall clock alone.
func Elapsed(from, to time.Time) time.Duration { return max(0, to.Sub(from)) }
