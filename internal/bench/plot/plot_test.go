package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var chart = Chart{Title: "Costs < others & more", X: "sessions", LogX: true, LogY: true, Lines: []Line{
	{"level", []Point{{1, 50}, {10, 50}, {1000, 50}}},
	{"rising", []Point{{1, 1}, {10, 10}, {1000, 1000}, {2000, 0}}}, // the last cannot be shown
}}

func svg(t *testing.T, c Chart) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSVGIsWellFormedAndForBothSchemes(t *testing.T) {
	text := svg(t, chart)
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"prefers-color-scheme: dark", "Costs &lt; others &amp; more", ">level<", ">rising<", ">sessions<"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Error("a number that is none")
	}
}

// lines are the pixels of each line's points.
func lines(text string) (all [][][2]float64) {
	for _, m := range regexp.MustCompile(`class="line c\d" d="(M[^h"]*)"`).FindAllStringSubmatch(text, -1) {
		var points [][2]float64
		for p := range strings.SplitSeq(strings.ReplaceAll(m[1][1:], "L", "M"), "M") {
			x, y, _ := strings.Cut(p, " ")
			a, _ := strconv.ParseFloat(x, 64)
			b, _ := strconv.ParseFloat(y, 64)
			points = append(points, [2]float64{a, b})
		}
		all = append(all, points)
	}
	return all
}

func TestPointsLieWhereTheirFactorsPutThem(t *testing.T) {
	all := lines(svg(t, chart))
	if len(all) != 2 || len(all[0]) != 3 || len(all[1]) != 3 {
		t.Fatal(all)
	}
	level, rising := all[0], all[1]
	if level[0][1] != level[2][1] {
		t.Errorf("not level: %v", level)
	}
	// A decade has the same width and height everywhere: 10 is at a third of 1 to 1,000.
	if math.Abs((rising[1][0]-rising[0][0])*3-(rising[2][0]-rising[0][0])) > 0.5 || math.Abs((rising[1][1]-rising[0][1])*3-(rising[2][1]-rising[0][1])) > 0.5 {
		t.Errorf("%v", rising)
	}
	if rising[2][1] >= rising[0][1] {
		t.Error("more is lower")
	}
	for _, l := range all {
		for _, p := range l {
			if p[0] < left || p[0] > width-right || p[1] < top || p[1] > height-bottom {
				t.Errorf("%v is outside", p)
			}
		}
	}
}

func TestAxesEndAtRoundNumbers(t *testing.T) {
	for _, most := range []float64{0, 0.3, 1, 7, 12, 99, 104, 4000} {
		a, ticks := newAxis([]float64{0, most}, false, 0, 100)
		if a.high < most || len(ticks) < 3 || len(ticks) > 21 || math.Abs(ticks[len(ticks)-1]-a.high) > 1e-9 || a.high > 2*max(most, 1) {
			t.Errorf("%v: up to %v by %v", most, a.high, ticks)
		}
	}
	if _, ticks := newAxis([]float64{5, 5}, true, 0, 100); len(ticks) != 2 {
		t.Error(ticks)
	}
}

func TestNothingToDraw(t *testing.T) {
	if err := (&Chart{LogY: true, Lines: []Line{{"l", []Point{{1, 0}}}}}).SVG(io.Discard); err == nil {
		t.Error("an empty chart")
	}
}
