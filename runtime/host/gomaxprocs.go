package host

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// How much of one processor's time a program may take before it is given the others, and how little, and for how long,
// before they are taken away again: with them the same work takes up to twice as much of it.
const (
	growAbove, shrinkBelow = 0.8, 0.5
	shrinkAfter            = time.Second
)

// AdjustGOMAXPROCS has Go use one processor for as long as one is enough, until stop is closed. With more, it wakes a thread
// for each goroutine that has something to do while another processor is idle, to find nothing left to do as a rule: of what
// a command took of the gateway that was half, and the processor it was done on is the one that the shell needs. Not for a
// program that forks into scopes: a change stops all threads, see CollectBetweenForks.
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

// checkInterval is when to look again: to be woken costs an idle program more than to look.
func checkInterval(load float64) time.Duration {
	switch {
	case load < 0.02:
		return time.Second
	case load < 0.2:
		return 100 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// cpuTime is what all threads of this process have had.
func cpuTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
