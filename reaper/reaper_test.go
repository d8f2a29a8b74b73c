package reaper

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"

	"trl/internal/testkit"
	"trl/metrics"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// diary is a pool that notes when it is asked what.
type diary struct {
	ended, warned, forgotten, scanned []time.Duration
	began                             time.Time
	idle                              int // what EndIdle answers
}

func (d *diary) EndIdle(now time.Time) int {
	d.ended = append(d.ended, now.Sub(d.began))
	return d.idle
}
func (d *diary) WarnExpiring(now time.Time) { d.warned = append(d.warned, now.Sub(d.began)) }
func (d *diary) DropExpired(now time.Time)  { d.forgotten = append(d.forgotten, now.Sub(d.began)) }
func (d *diary) scan()                      { d.scanned = append(d.scanned, time.Since(d.began)) }

func TestEverySecondAndOrphansEveryTen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{began: time.Now(), idle: 2}
		m := metrics.New(nil)
		r := New(d, d.scan, m, zerolog.Nop())
		r.Start()
		time.Sleep(25*time.Second + time.Second/2)
		r.Close(t.Context())
		time.Sleep(time.Minute) // nothing comes after Close
		if len(d.ended) != 25 || len(d.warned) != 25 || len(d.forgotten) != 25 {
			t.Fatalf("asked %d, %d, %d times in 25 s", len(d.ended), len(d.warned), len(d.forgotten))
		}
		for i, at := range d.ended {
			if want := time.Duration(i+1) * time.Second; at != want {
				t.Fatalf("asked at %v, want %v", at, want)
			}
		}
		if len(d.scanned) != 2 || d.scanned[0] != 10*time.Second || d.scanned[1] != 20*time.Second {
			t.Fatalf("scanned at %v", d.scanned)
		}
		if n := testutil.ToFloat64(m.SessionsReaped.WithLabelValues("idle")); n != 50 {
			t.Fatalf("%v sessions counted", n)
		}
	})
}

func TestCloseBeforeStartAndTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{began: time.Now()}
		r := New(d, nil, metrics.New(nil), zerolog.Nop())
		r.Close(t.Context())
		r.Start() // too late
		time.Sleep(time.Minute)
		r.Close(t.Context())
		if len(d.ended) != 0 {
			t.Fatal("a closed reaper went on")
		}
	})
}

// TestCloseWaitsForAScanWithinItsTime: a keeper that has much to kill answers the scan of orphans late, and a stop must not wait for that.
func TestCloseWaitsForAScanWithinItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		r := New(&diary{began: time.Now()}, func() { <-answer }, metrics.New(nil), zerolog.Nop())
		r.Start()
		time.Sleep(11 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		start := time.Now()
		r.Close(ctx)
		if took := time.Since(start); took != 8*time.Second {
			t.Errorf("took %v", took)
		}
		close(answer)
		r.Close(t.Context())
	})
}
