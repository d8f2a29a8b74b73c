// Package figure holds results: samples and their modes, figures with their floors and budgets. It prints them for people, for programs and for
// benchstat.
package figure

import (
	"math"
	"slices"
	"time"
)

// Samples are values of one quantity, in the order of measurement.
type Samples []float64

// Add appends a duration, in nanoseconds.
func (s *Samples) Add(d time.Duration) { *s = append(*s, float64(d.Nanoseconds())) }

// Median is the middle sample, or 0 without samples.
func (s Samples) Median() float64 { return s.Quantile(0.5) }

// Quantile is the nearest rank: a measured value, never one in between.
func (s Samples) Quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Runs are the medians of n consecutive parts of the samples, for benchstat. If the machine's speed changed meanwhile, they spread.
func (s Samples) Runs(n int) []float64 {
	n = min(n, len(s))
	runs := make([]float64, n)
	for i := range n {
		runs[i] = s[i*len(s)/n : (i+1)*len(s)/n].Median()
	}
	return runs
}

// A Mode is one of the groups of the samples.
type Mode struct {
	Median float64 `json:"median"`
	Share  float64 `json:"share"` // of the samples, 0 to 1
}

const (
	apart    = 2.0  // medians closer than this are one mode with noise: waking up takes three times an answer of a hot core
	leastOne = 0.05 // a smaller group is a tail, not a mode
	enough   = 20   // samples; fewer say nothing about groups
)

// Modes returns the fast and the slow mode if there are two, else nil. It splits the samples so that the variance of their logarithms within both
// parts is smallest (Otsu's threshold), because factors matter here.
func (s Samples) Modes() []Mode {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n < enough || sorted[0] <= 0 {
		return nil
	}
	var sum float64
	for _, v := range sorted {
		sum += math.Log(v)
	}
	// The smallest variance within the parts is the largest variance between them, which needs only the two means.
	split, best, below := 0, -1.0, 0.0
	for i := 1; i < n; i++ {
		below += math.Log(sorted[i-1])
		a, b := float64(i), float64(n-i)
		d := below/a - (sum-below)/b
		if between := a * b * d * d; between > best {
			split, best = i, between
		}
	}
	fast, slow := Samples(sorted[:split]), Samples(sorted[split:])
	share := float64(split) / float64(n)
	if slow.Median() < apart*fast.Median() || min(share, 1-share) < leastOne {
		return nil
	}
	return []Mode{{fast.Median(), share}, {slow.Median(), 1 - share}}
}
