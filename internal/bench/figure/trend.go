package figure

import (
	"errors"
	"math"
	"slices"
)

// A Trend describes how a number that should not change behaved over a long run.
type Trend struct {
	Name    string  `json:"name"`
	First   float64 `json:"first"`   // median of the first quarter, after the warm-up
	Last    float64 `json:"last"`    // median of the last quarter
	Growth  float64 `json:"growth"`  // from First to Last, as a share
	Allowed float64 `json:"allowed"` // flat plus the noise of the two medians
	Fit     float64 `json:"fit"`     // growth from the beginning to the end along a straight line
}

// flat is the growth that no number distinguishes from noise: a twentieth.
const flat = 0.05

// NewTrend leaves out the first fifth, in which pools fill and the heap grows to its size.
func NewTrend(name string, at, values Samples) (Trend, error) {
	skip := len(values) / 5
	at, values = at[skip:], values[skip:]
	q := len(values) / 4
	if q < 1 {
		return Trend{}, errors.New("too short for a trend")
	}
	a, b := values[:q], values[len(values)-q:]
	t := Trend{Name: name, First: a.Median(), Last: b.Median(), Allowed: flat}
	base := max(math.Abs(t.First), 1) // if First is zero, growth to one counts as 1 and not as infinite
	t.Growth = (t.Last - t.First) / base
	t.Allowed += 2 * math.Hypot(a.uncertainty(), b.uncertainty()) / base
	t.Fit = slope(at, values) * (at[len(at)-1] - at[0]) / base
	return t, nil
}

// uncertainty is the standard error of the median, from the median deviation, so that outliers do not widen it.
func (s Samples) uncertainty() float64 {
	m := s.Median()
	off := slices.Clone(s)
	for i, v := range s {
		off[i] = math.Abs(v - m)
	}
	const sigma, ofMedian = 1.4826, 1.2533 // of a normal distribution
	return ofMedian * sigma * off.Median() / math.Sqrt(float64(len(s)))
}

// slope is the slope of a least-squares line.
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
