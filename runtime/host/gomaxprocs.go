package host

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// A program that uses more than growAbove of one CPU gets all CPUs. When it has used less than shrinkBelow for
// shrinkAfter, it gets one again. With all CPUs the same work takes up to twice as much CPU time.
const (
	growAbove, shrinkBelow = 0.8, 0.5
	shrinkAfter            = time.Second
)

// AdjustGOMAXPROCS lets Go use one CPU for as long as one is enough, until stop is closed. With more CPUs, Go wakes an
// idle thread for each goroutine that becomes ready, and that thread usually finds nothing left to do. These wake-ups
// were half of the gateway's CPU time per command, on the CPU that the shell needs. A program that forks into scopes
// must not call it, because every change stops all threads, see CollectBetweenForks.
func AdjustGOMAXPROCS(stop <-chan struct{}) {
	all := runtime.GOMAXPROCS(0)
	if all == 1 {
		return
	}
	defer runtime.GOMAXPROCS(all)
	runtime.GOMAXPROCS(1)
	inUse, lastBusy := 1, time.Time{}
	at, used := time.Now(), cpuTime()
	next := time.NewTimer(checkInterval(0))
	defer next.Stop()
	for {
		select {
		case <-stop:
			return
		case <-next.C:
		}
		now, total := time.Now(), cpuTime()
		load := float64(total-used) / float64(now.Sub(at))
		at, used = now, total
		switch {
		case inUse == 1 && load > growAbove:
			inUse, lastBusy = all, now
			runtime.GOMAXPROCS(inUse)
		case load > shrinkBelow:
			lastBusy = now
		case inUse > 1 && now.Sub(lastBusy) > shrinkAfter:
			inUse = 1
			runtime.GOMAXPROCS(inUse)
		}
		next.Reset(checkInterval(load))
	}
}

// checkInterval returns how long to wait before the next check. It is longer for an idle program, because waking it
// costs more than the check.
func checkInterval(load float64) time.Duration {
	switch {
	case load < 0.02:
		return time.Second
	case load < 0.2:
		return 100 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// cpuTime returns the CPU time that all threads of this process have used.
func cpuTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
