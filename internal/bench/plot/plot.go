// Package plot draws lines as SVG that is readable on light and dark pages.
package plot

import (
	"fmt"
	"html"
	"io"
	"math"
	"slices"
	"strings"
)

// A Chart shows a few lines over one axis. Logarithmic axes show factors: a cost that does not grow is level, and a cost that is proportional to its
// cause rises by a decade per decade.
type Chart struct {
	Title      string
	X, Y       string // the quantities on the axes
	LogX, LogY bool
	Lines      []Line
	Format     func(y float64) string // for the numbers at the axis; nil: %g
}

// A Line joins points in the order of x.
type Line struct {
	Name   string
	Points []Point
}

// A Point needs a y above 0 on a logarithmic axis; others are left out.
type Point struct{ X, Y float64 }

const (
	width, height = 720, 400
	left, right   = 84, 24
	top, bottom   = 48, 84
)

// Okabe and Ito chose these colours so that colour-blind people can tell them apart; they are lighter on dark pages.
const style = `
  text { font: 13px system-ui, sans-serif; fill: #24292f }
  .title { font-size: 15px; font-weight: 600 }
  .axis { stroke: #57606a } .grid { stroke: #d0d7de }
  .line { fill: none; stroke-width: 2 }
  .c0 { stroke: #0072b2 } .c1 { stroke: #d55e00 } .c2 { stroke: #009e73 } .c3 { stroke: #a5538a }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .axis { stroke: #8b949e } .grid { stroke: #30363d }
    .c0 { stroke: #56b4e9 } .c1 { stroke: #ff9b4a } .c2 { stroke: #35d3a4 } .c3 { stroke: #e69ccb }
  }
`

// axis maps values to pixels.
type axis struct {
	low, high float64 // of the visible values; logarithms on a logarithmic axis
	log       bool
	from, to  float64 // pixels
}

func (a axis) at(v float64) float64 {
	if a.log {
		v = math.Log10(v)
	}
	return a.from + (v-a.low)/(a.high-a.low)*(a.to-a.from)
}

// newAxis covers whole decades, or from zero to a round number.
func newAxis(values []float64, log bool, from, to float64) (a axis, ticks []float64) {
	a = axis{log: log, from: from, to: to}
	if log {
		a.low, a.high = math.Floor(math.Log10(slices.Min(values))), math.Ceil(math.Log10(slices.Max(values)))
		if a.high == a.low {
			a.high++
		}
		for e := a.low; e <= a.high; e++ {
			ticks = append(ticks, math.Pow(10, e))
		}
		return a, ticks
	}
	most := slices.Max(values)
	if most <= 0 {
		most = 1
	}
	step := math.Pow(10, math.Floor(math.Log10(most)))
	for _, finer := range []float64{2, 5, 10} {
		if most/step < 4 {
			step = step / finer * max(1, math.Floor(finer/5)) // half, then a fifth or a tenth of a decade
			break
		}
	}
	a.high = math.Ceil(most/step) * step
	for i := 0.0; i*step <= a.high*1.0001; i++ {
		ticks = append(ticks, i*step)
	}
	return a, ticks
}

// shows reports whether the chart has a place for the point.
func (c *Chart) shows(p Point) bool { return !(c.LogX && p.X <= 0 || c.LogY && p.Y <= 0) }

// SVG writes the chart.
func (c *Chart) SVG(w io.Writer) error {
	var xs, ys []float64
	for _, l := range c.Lines {
		for _, p := range l.Points {
			if c.shows(p) {
				xs, ys = append(xs, p.X), append(ys, p.Y)
			}
		}
	}
	if len(xs) == 0 {
		return fmt.Errorf("chart %q: nothing to draw", c.Title)
	}
	format := c.Format
	if format == nil {
		format = number
	}
	x, xticks := newAxis(xs, c.LogX, left, width-right)
	y, yticks := newAxis(ys, c.LogY, height-bottom, top)
	var b strings.Builder
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n<style>%s</style>\n", width, height, html.EscapeString(c.Title), style)
	text := func(x, y float64, anchor, class, s string) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, html.EscapeString(s))
	}
	text(left, 24, "start", "title", c.Title)
	for _, t := range yticks {
		fmt.Fprintf(&b, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", left, y.at(t), width-right)
		text(left-8, y.at(t)+4, "end", "", format(t))
	}
	for _, t := range xticks {
		text(x.at(t), height-bottom+20, "middle", "", number(t))
	}
	fmt.Fprintf(&b, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", left, height-bottom, width-right)
	text((left+width-right)/2, height-bottom+40, "middle", "", c.X)
	text(left, top-8, "end", "", c.Y)
	at := float64(left)
	for i, l := range c.Lines {
		points := slices.DeleteFunc(slices.Clone(l.Points), func(p Point) bool { return !c.shows(p) })
		var path strings.Builder
		for j, p := range points {
			fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(j, 1)], x.at(p.X), y.at(p.Y))
		}
		fmt.Fprintf(&b, "<path class=\"line c%d\" d=\"%s\"/>\n", i%4, path.String())
		for _, p := range points {
			fmt.Fprintf(&b, "<circle class=\"c%d\" fill=\"none\" stroke-width=\"2\" r=\"3\" cx=\"%.1f\" cy=\"%.1f\"/>\n", i%4, x.at(p.X), y.at(p.Y))
		}
		fmt.Fprintf(&b, "<path class=\"line c%d\" d=\"M%.0f %dh18\"/>\n", i%4, at, height-18)
		text(at+24, height-14, "start", "", l.Name)
		at += 24 + 7.5*float64(len([]rune(l.Name))) + 20 // the approximate width of a letter
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// number is a short form of a number, without decimals if it is whole.
func number(v float64) string {
	if v >= 1e4 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.4g", v)
}
