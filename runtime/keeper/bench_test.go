package keeper

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"trl/runtime/host"
	"trl/runtime/own"
)

// BenchmarkSpawn compares a spawn by this process with one by a keeper in another process. They alternate, so that a busy machine slows
// down both.
func BenchmarkSpawn(b *testing.B) {
	direct := openCell(host.Local(newRig(b, "auto").host), "s-1")
	c, _ := serving(b, "auto")
	defer c.Close()
	across := openCell(c, "s-1")
	var times [2][]time.Duration
	spec := run("/bin/true")
	for b.Loop() {
		for i, scope := range []own.KeptScope{direct, across} {
			begin := time.Now()
			k, err := scope.Spawn(spec)
			times[i] = append(times[i], time.Since(begin))
			if err != nil {
				b.Fatal(err)
			}
			<-k.Exited()
			k.Close()
		}
	}
	for i, name := range []string{"direct", "keeper"} {
		slices.Sort(times[i])
		b.ReportMetric(float64(times[i][len(times[i])/2].Nanoseconds())/1000, name+"-p50-µs")
		b.ReportMetric(float64(times[i][0].Nanoseconds())/1000, name+"-min-µs")
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	c, _ := serving(b, "none")
	defer c.Close()
	for b.Loop() {
		c.Numbers()
	}
}

func BenchmarkOthers(b *testing.B) {
	for _, isolation := range []string{"auto", "none"} {
		b.Run(isolation, func(b *testing.B) {
			c, _ := serving(b, isolation)
			defer c.Close()
			scope := openCell(c, "s-1")
			shell, err := scope.Spawn(run("/bin/sleep", "100"))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if scope.MembersExcept(shell.Pid()) != nil {
					b.Fatal("somebody")
				}
			}
			shell.Signal(unix.SIGKILL)
		})
	}
}
