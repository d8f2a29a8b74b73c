package own

import (
	"bytes"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/descriptor"
)

// Usage is what a group has used since it was made, and how often it reached its limits.
type Usage struct {
	CPU      time.Duration
	Peak     int64 // maximum memory since Gauge.ResetPeak, including the file cache
	OOMKills int64 // processes killed because the group had no memory left
	PIDHits  int64 // forks refused because the group had no pids left
}

// A Gauge reads meters. Only one goroutine at a time may use it.
type Gauge struct {
	CPU, peak, oom, pids int   // descriptors; -1: there is none
	Last                 Usage // the last result of Counters
	buf                  [512]byte
}

// Files gives up the gauge's descriptors. It returns them with their places in the Gauge, so that another process can
// pass both to GaugeOf.
func (g *Gauge) Files() (places, fds []int) {
	for i, fd := range []*int{&g.CPU, &g.peak, &g.oom, &g.pids} {
		if *fd >= 0 {
			places, fds = append(places, i), append(fds, *fd)
			*fd = -1
		}
	}
	return places, fds
}

// Close closes the files. On a nil Gauge it does nothing.
func (g *Gauge) Close() {
	if g == nil {
		return
	}
	for _, fd := range []*int{&g.CPU, &g.peak, &g.oom, &g.pids} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// ResetPeak resets the peak and reads the other meters. With cgroup v2 this needs Linux 6.12; on older kernels the peak
// is not reported from then on.
func (g *Gauge) ResetPeak() Usage {
	if g.peak >= 0 {
		if _, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pwrite(g.peak, []byte("0\n"), 0) }); err != nil {
			unix.Close(g.peak)
			g.peak = -1
		}
	}
	return g.Counters()
}

// Read reads all meters.
func (g *Gauge) Read() Usage {
	u := g.Counters()
	u.Peak = g.number(g.peak, "")
	return u
}

func (g *Gauge) Counters() Usage {
	g.Last = Usage{
		CPU:      time.Duration(g.number(g.CPU, "usage_usec ")) * time.Microsecond,
		OOMKills: g.number(g.oom, "oom_kill "),
		PIDHits:  g.number(g.pids, "max "),
	}
	return g.Last
}

// number reads the number that follows key at the beginning of a line of a small file. It returns 0 if there is none.
func (g *Gauge) number(fd int, key string) int64 {
	if fd < 0 {
		return 0
	}
	n, err := descriptor.RetryEINTR(func() (int, error) { return unix.Pread(fd, g.buf[:], 0) })
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(g.buf[:n]) {
		if rest, ok := bytes.CutPrefix(line, []byte(key)); ok {
			var v int64
			for _, c := range rest {
				if c < '0' || c > '9' || v > math.MaxInt64/10-1 {
					break
				}
				v = v*10 + int64(c-'0')
			}
			return v
		}
	}
	return 0
}

// Meters are the files with a group's usage; "" means that there is none. We use files and not numbers: a gateway then
// needs a few reads of 0.2 µs for each command's usage, and no request to the keeper.
type Meters struct {
	CPU, Peak, OOM, PIDs string
}

// Open opens those meters that it can open.
func (m Meters) Open() *Gauge {
	open := func(path string, flags int) int {
		if path == "" {
			return -1
		}
		fd, err := descriptor.RetryEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
		if err != nil {
			return -1
		}
		return fd
	}
	return &Gauge{CPU: open(m.CPU, unix.O_RDONLY), peak: open(m.Peak, unix.O_RDWR), oom: open(m.OOM, unix.O_RDONLY), pids: open(m.PIDs, unix.O_RDONLY)}
}

// GaugeOf returns a Gauge with the descriptors that Files returned.
func GaugeOf(places, fds []int) *Gauge {
	g := &Gauge{CPU: -1, peak: -1, oom: -1, pids: -1}
	all := []*int{&g.CPU, &g.peak, &g.oom, &g.pids}
	for i, fd := range fds {
		if i < len(places) && places[i] >= 0 && places[i] < len(all) && *all[places[i]] < 0 {
			*all[places[i]] = fd
		} else {
			unix.Close(fd)
		}
	}
	return g
}
