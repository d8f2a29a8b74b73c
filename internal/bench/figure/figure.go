package figure

import "fmt"

// A Unit follows a number and says which direction is better.
type Unit string

const (
	Nanoseconds Unit = "ns/op"
	PerSecond   Unit = "op/s"
	MBPerSecond Unit = "MB/s"
	Bytes       Unit = "bytes"
)

// Format writes a value for people, in a suitable size of the unit.
func (u Unit) Format(v float64) string {
	switch u {
	case Nanoseconds:
		switch {
		case v >= 1e9:
			return fmt.Sprintf("%.2f s", v/1e9)
		case v >= 1e7:
			return fmt.Sprintf("%.1f ms", v/1e6)
		}
		return fmt.Sprintf("%.1f µs", v/1e3)
	case PerSecond:
		return fmt.Sprintf("%.0f /s", v)
	case MBPerSecond:
		return fmt.Sprintf("%.0f MB/s", v)
	}
	return fmt.Sprintf("%.2f MiB", v/(1<<20))
}

// runs is how many numbers benchstat gets of a figure: fewer than 5 are not enough.
const runs = 5

// Measured is a summary of one side's samples.
type Measured struct {
	Median float64   `json:"median"`
	P99    float64   `json:"p99"`
	N      int       `json:"n"`
	Runs   []float64 `json:"runs"`
	Modes  []Mode    `json:"modes,omitempty"`
}

// Measure summarises samples.
func Measure(s Samples) Measured {
	return Measured{Median: s.Median(), P99: s.Quantile(0.99), N: len(s), Runs: s.Runs(runs), Modes: s.Modes()}
}

// A Budget bounds a figure: its ratio to the floor or, if Absolute is set, the median itself.
type Budget struct {
	Limit    float64 `json:"limit"`
	AtLeast  bool    `json:"at_least,omitempty"` // else at most
	Absolute bool    `json:"absolute,omitempty"`
}

// A Verdict compares a figure with its budget.
type Verdict string

const (
	OK      Verdict = "ok"
	Over    Verdict = "over"
	FarOver Verdict = "far over" // by more than a factor of two
)

// A Figure is one measured quantity, with its floor if it has one.
type Figure struct {
	Name    string    `json:"name"` // for people
	Key     string    `json:"key"`  // for benchstat: ExecRun/bash
	Unit    Unit      `json:"unit"`
	Own     Measured  `json:"own"`
	Floor   *Measured `json:"floor,omitempty"`
	Ratio   float64   `json:"ratio,omitempty"` // of the medians; 0: no floor
	Budget  *Budget   `json:"budget,omitempty"`
	Verdict Verdict   `json:"verdict,omitempty"`
}

// New makes a figure without a budget; floor may be empty.
func New(name, key string, unit Unit, floor, own Samples) Figure {
	f := Figure{Name: name, Key: key, Unit: unit, Own: Measure(own)}
	if len(floor) > 0 {
		m := Measure(floor)
		f.Floor = &m
		if m.Median > 0 {
			f.Ratio = f.Own.Median / m.Median
		}
	}
	return f
}

// Within compares the figure with a budget.
func (f Figure) Within(b Budget) Figure {
	f.Budget = &b
	v := f.Ratio
	if b.Absolute {
		v = f.Own.Median
	}
	if !b.Absolute && f.Floor == nil {
		return f // nothing to compare with: no verdict
	}
	inside := func(limit float64) bool { return b.AtLeast && v >= limit || !b.AtLeast && v <= limit }
	far := 2 * b.Limit
	if b.AtLeast {
		far = b.Limit / 2
	}
	switch {
	case inside(b.Limit):
		f.Verdict = OK
	case inside(far):
		f.Verdict = Over
	default:
		f.Verdict = FarOver
	}
	return f
}

// AtMost and AtLeast bound the ratio, Below the median itself.
func (f Figure) AtMost(ratio float64) Figure  { return f.Within(Budget{Limit: ratio}) }
func (f Figure) AtLeast(ratio float64) Figure { return f.Within(Budget{Limit: ratio, AtLeast: true}) }
func (f Figure) Below(limit float64) Figure   { return f.Within(Budget{Limit: limit, Absolute: true}) }

// ModeRatios compares fast with fast and slow with slow, if both sides have both; else it returns nil.
func (f Figure) ModeRatios() []float64 {
	if f.Floor == nil || len(f.Floor.Modes) != 2 || len(f.Own.Modes) != 2 {
		return nil
	}
	return []float64{f.Own.Modes[0].Median / f.Floor.Modes[0].Median, f.Own.Modes[1].Median / f.Floor.Modes[1].Median}
}
