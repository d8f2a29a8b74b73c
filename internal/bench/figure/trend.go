package figure

import (
	"errors"
	"math"
	"slices"
)

// A Trend says how a number that should stay where it is went over a long run.
type Trend struct {
	Name    string  `json:"name"`
	First   float64 `json:"first"`   // median of the first quarter, after the warm-up
	Last    float64 `json:"last"`    // and of the last
	Growth  float64 `json:"growth"`  // from one to the other, as a share
	Allowed float64 `json:"allowed"` // flat, and what noise may do to the two medians
	Fit     float64 `json:"fit"`     // growth from begin to end along a straight line
}

// flat is what may not be told from noise in any number: a twentieth.
const flat = 0.05

// NewTrend leaves out the first fifth: pools fill, the heap finds its size.
func NewTrend(name string, at, values Samples) (Trend, error) {
	skip := len(values) / 5
	at, values = at[skip:], values[skip:]
	q := len(values) / 4
	if q < 1 {
		return Trend{}, errors.New("too short for a trend")
	}
	a, b := values[:q], values[len(values)-q:]
	t := Trend{Name: name, First: a.Median(), Last: b.Median(), Allowed: flat}
	base := max(math.Abs(t.First), 1) // of nothing, one more is growth by 1, not by infinity
	t.Growth = (t.Last - t.First) / base
	t.Allowed += 2 * math.Hypot(a.uncertainty(), b.uncertainty()) / base
	t.Fit = slope(at, values) * (at[len(at)-1] - at[0]) / base
	return t, nil
}

// uncertainty is the standard error of the median, from the median deviation: outliers do not widen it.
func (s Samples) uncertainty() float64 {
	m := s.Median()
	off := slices.Clone(s)
	for i, v := range s {
		off[i] = math.Abs(v - m)
	}
	const sigma, ofMedian = 1.4826, 1.2533 // of a normal distribution
	return ofMedian * sigma * off.Median() / math.Sqrt(float64(len(s)))
}

// slope is that of the least squares.
func slope(x, y Samples) float64 {
	var mx, my, above, below float64
	for i := range x {
		mx += x[i] / float64(len(x))
		my += y[i] / float64(len(y))
	}
	for i := range x {
		above += (x[i] - mx) * (y[i] - my)
		below += (x[i] - mx) * (x[i] - mx)
	}
	if below == 0 {
		return 0
	}
	return above / below
}
