package figure

import (
	"bytes"
	"math"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantilesAreMeasuredValues(t *testing.T) {
	s := Samples{5, 1, 4, 2, 3}
	if s.Median() != 3 || s.Quantile(0) != 1 || s.Quantile(0.99) != 5 || s.Quantile(1) != 5 || (Samples{}).Median() != 0 {
		t.Error(s.Median(), s.Quantile(0), s.Quantile(0.99), s.Quantile(1))
	}
	if s[0] != 5 {
		t.Error("the order of measuring is lost")
	}
	s = nil
	s.Add(3 * time.Microsecond)
	if !reflect.DeepEqual(s, Samples{3000}) {
		t.Error(s)
	}
}

func TestRunsFollowTheOrderOfMeasuring(t *testing.T) {
	var s Samples
	for i := range 100 {
		s = append(s, float64(1+i/20)) // a machine that becomes slower
	}
	if got := s.Runs(5); !reflect.DeepEqual(got, []float64{1, 2, 3, 4, 5}) {
		t.Error(got)
	}
	if got := (Samples{7, 8}).Runs(5); !reflect.DeepEqual(got, []float64{7, 8}) {
		t.Error(got)
	}
}

// noisy returns samples around a median, spread by a factor.
func noisy(r *rand.Rand, n int, median, spread float64) (s Samples) {
	for range n {
		s = append(s, median*math.Exp(r.NormFloat64()*spread))
	}
	return s
}

func TestModes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	shuffled := func(parts ...Samples) (s Samples) {
		for _, p := range parts {
			s = append(s, p...)
		}
		r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
		return s
	}
	hot, woken := noisy(r, 700, 31e3, 0.1), noisy(r, 300, 130e3, 0.1)
	m := shuffled(hot, woken).Modes()
	if len(m) != 2 || math.Abs(m[0].Median-31e3) > 2e3 || math.Abs(m[1].Median-130e3) > 5e3 || math.Abs(m[0].Share-0.7) > 0.01 || m[0].Share+m[1].Share != 1 {
		t.Errorf("%+v", m)
	}
	for name, s := range map[string]Samples{
		"one heap":       noisy(r, 1000, 31e3, 0.2),
		"too close":      shuffled(noisy(r, 500, 31e3, 0.05), noisy(r, 500, 50e3, 0.05)),
		"a few outliers": shuffled(noisy(r, 990, 31e3, 0.1), noisy(r, 10, 5e6, 0.1)),
		"too few":        {1, 1, 9, 9},
		"none":           nil,
		"with a zero":    make(Samples, 100),
		"all the same":   slices.Repeat(Samples{7}, 100),
	} {
		if m := s.Modes(); m != nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func TestVerdicts(t *testing.T) {
	f := func(floor, own float64) Figure { return New("n", "K", Nanoseconds, Samples{floor}, Samples{own}) }
	for _, c := range []struct {
		f    Figure
		want Verdict
	}{
		{f(100, 150).AtMost(1.5), OK}, {f(100, 151).AtMost(1.5), Over}, {f(100, 300).AtMost(1.5), Over}, {f(100, 301).AtMost(1.5), FarOver},
		{f(100, 70).AtLeast(0.7), OK}, {f(100, 69).AtLeast(0.7), Over}, {f(100, 35).AtLeast(0.7), Over}, {f(100, 34).AtLeast(0.7), FarOver},
		{New("n", "K", Bytes, nil, Samples{10}).Below(10), OK}, {New("n", "K", Bytes, nil, Samples{21}).Below(10), FarOver},
		{New("n", "K", Nanoseconds, nil, Samples{10}).AtMost(1), ""}, // no floor on this machine
		{f(1, 1), ""},
	} {
		if c.f.Verdict != c.want {
			t.Errorf("%+v: %q, want %q", c.f, c.f.Verdict, c.want)
		}
	}
	r := Report{Figures: []Figure{f(100, 301).AtMost(1.5), f(100, 299).AtMost(1.5), New("abs", "K", Bytes, nil, Samples{99}).Below(10)}}
	if far := r.FarOver(); !reflect.DeepEqual(far, []string{"K"}) {
		t.Error(far)
	}
}

func TestModesAreComparedWithTheirLike(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	floor := append(noisy(r, 100, 30e3, 0.05), noisy(r, 100, 120e3, 0.05)...)
	own := append(noisy(r, 50, 60e3, 0.05), noisy(r, 150, 360e3, 0.05)...)
	f := New("exec", "Exec", Nanoseconds, floor, own)
	m := f.ModeRatios()
	if len(m) != 2 || math.Abs(m[0]-2) > 0.2 || math.Abs(m[1]-3) > 0.2 {
		t.Fatal(m)
	}
	var b bytes.Buffer
	f.Row(&b)
	if !regexp.MustCompile(`(?m)^  fast +\d+\.\d µs 50 % +\d+\.\d µs 25 % +(1\.9|2\.0)\d$`).Match(b.Bytes()) {
		t.Error(b.String())
	}
	if New("x", "X", Nanoseconds, floor, own[:50]).ModeRatios() != nil {
		t.Error("one mode compared with two")
	}
}

// TestBenchstatLines: golang.org/x/perf/benchfmt reads lines of a name, a count, a value and a unit.
func TestBenchstatLines(t *testing.T) {
	own := Samples{}
	for i := range 500 {
		own = append(own, 1000+float64(i/100))
	}
	r := Report{Machine: Machine{CPU: "Some CPU", Arch: "amd64", Commit: "abc"}, Figures: []Figure{
		New("exec.run, /bin/bash", "ExecRun/bin/bash", Nanoseconds, Samples{400, 400, 400, 400, 400}, own),
		New("rate", "ExecRate/sessions=16", PerSecond, nil, Samples{1, 2, 3, 4, 5}),
	}}
	var b bytes.Buffer
	r.Benchstat(&b)
	line := regexp.MustCompile(`^Benchmark[A-Z]\S* \d+ [0-9.e+]+ (ns/op|op/s|MB/s)$`)
	header := regexp.MustCompile(`^([a-z]+: \S.*|Unit \S+ better=higher)$`)
	count := map[string]int{}
	for l := range strings.Lines(b.String()) {
		l = strings.TrimSuffix(l, "\n")
		switch {
		case line.MatchString(l):
			count[strings.Fields(l)[0]]++
		case !header.MatchString(l):
			t.Errorf("%q", l)
		}
	}
	if want := map[string]int{"BenchmarkExecRun/bin/bash": 5, "BenchmarkExecRun/bin/bash/floor": 5, "BenchmarkExecRate/sessions=16": 5}; !reflect.DeepEqual(count, want) {
		t.Errorf("%v", count)
	}
	if !strings.Contains(b.String(), "BenchmarkExecRun/bin/bash 100 1000 ns/op\nBenchmarkExecRun/bin/bash 100 1001 ns/op\n") {
		t.Error(b.String())
	}
}

func TestWhatIsSavedIsLoaded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "r.json")
	r := Report{Machine: ThisMachine(), Figures: []Figure{New("a", "A", Nanoseconds, Samples{1}, Samples{2}).AtMost(3)}}
	if err := Save(path, r); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := Load(path, &back); err != nil || !reflect.DeepEqual(back, r) {
		t.Errorf("%v\n%+v\n%+v", err, back, r)
	}
	if r.Machine.Cores < 1 || r.Machine.Kernel == "" || r.Machine.Memory == 0 || r.Machine.Date == "" {
		t.Errorf("%+v", r.Machine)
	}
}

func TestTrends(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	run := func(of func(i int) float64) Trend {
		var at, values Samples
		for i := range 60 {
			at, values = append(at, float64(i)), append(values, of(i))
		}
		trend, err := NewTrend("n", at, values)
		if err != nil {
			t.Fatal(err)
		}
		return trend
	}
	grows := func(t Trend) bool { return t.Growth > t.Allowed }
	for _, c := range []struct { // in this order, so that each has the same noise every time
		name string
		of   func(i int) float64
		want bool
	}{
		{"level", func(int) float64 { return 100 }, false},
		{"nothing", func(int) float64 { return 0 }, false},
		{"noisy", func(int) float64 { return 100 + 10*r.NormFloat64() }, false},
		{"grows", func(i int) float64 { return 100 + float64(i) }, true},
		{"grows under noise", func(i int) float64 { return 100 + float64(i) + 3*r.NormFloat64() }, true},
		{"shrinks", func(i int) float64 { return 100 - float64(i) }, false},
		{"one more descriptor", func(i int) float64 { return 1000 + float64(i/59) }, false},
		{"warms up, then stays", func(i int) float64 { return 100 * min(1, 0.1*float64(i+1)) }, false},
		{"a few from nothing", func(i int) float64 { return float64(i / 10) }, true},
	} {
		if trend := run(c.of); grows(trend) != c.want {
			t.Errorf("%s: %+v", c.name, trend)
		}
	}
	if trend := run(func(i int) float64 { return 100 + float64(i) }); math.Abs(trend.Fit-47.0/100) > 0.1 {
		t.Errorf("%+v", trend)
	}
	if _, err := NewTrend("n", Samples{1, 2}, Samples{1, 2}); err == nil {
		t.Error("a trend of two samples")
	}
}
