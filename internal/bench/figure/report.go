package figure

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// A Report is the result of one run, and where it was measured.
type Report struct {
	Machine Machine  `json:"machine"`
	Figures []Figure `json:"figures"`
}

// Save writes a result as JSON to a file, and makes the file's directory.
func Save(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o666)
}

// Load reads a file of Save.
func Load(path string, into any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// FarOver are the keys of the figures whose ratio is out of budget by more than a factor of two. It leaves out absolute figures, because they depend
// more on the machine.
func (r Report) FarOver() (keys []string) {
	for _, f := range r.Figures {
		if f.Verdict == FarOver && !f.Budget.Absolute {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

// Header is the first line of a table of figures.
func Header(w io.Writer) {
	fmt.Fprintf(w, "%-40s %11s %11s %11s %7s %9s  %s\n", "", "floor", "trl", "p99", "ratio", "budget", "verdict")
}

// Row prints a figure, and a line for each of its modes if one side has two.
func (f Figure) Row(w io.Writer) {
	floor, ratio, budget := "", "", ""
	if f.Floor != nil {
		floor = f.Unit.Format(f.Floor.Median)
		ratio = fmt.Sprintf("%.2f", f.Ratio)
	}
	if f.Budget != nil {
		budget = f.Budget.format(f.Unit)
	}
	p99 := ""
	if f.Unit == Nanoseconds && f.Own.N >= 100 {
		p99 = f.Unit.Format(f.Own.P99)
	}
	line := fmt.Sprintf("%-40s %11s %11s %11s %7s %9s  %s", f.Name, floor, f.Unit.Format(f.Own.Median), p99, ratio, budget, f.Verdict)
	fmt.Fprintln(w, strings.TrimRight(line, " "))
	if f.Unit != Nanoseconds {
		return
	}
	modes := func(m *Measured, i int) string {
		if m == nil || len(m.Modes) != 2 {
			return ""
		}
		return fmt.Sprintf("%s %2.0f %%", f.Unit.Format(m.Modes[i].Median), 100*m.Modes[i].Share)
	}
	for i, name := range []string{"fast", "slow"} {
		a, b := modes(f.Floor, i), modes(&f.Own, i)
		if a == "" && b == "" {
			continue
		}
		ratio := ""
		if r := f.ModeRatios(); r != nil {
			ratio = fmt.Sprintf("%.2f", r[i])
		}
		line := fmt.Sprintf("  %-4s %45s %16s %13s", name, a, b, ratio)
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

func (b Budget) format(u Unit) string {
	sign := "≤"
	if b.AtLeast {
		sign = "≥"
	}
	if b.Absolute {
		return sign + " " + u.Format(b.Limit)
	}
	return fmt.Sprintf("%s %.2f", sign, b.Limit)
}

// Benchstat prints figures in the format of `go test -bench`, each five times, and its floor as a separate benchmark.
func (r Report) Benchstat(w io.Writer) {
	fmt.Fprintf(w, "goos: linux\ngoarch: %s\npkg: trl\ncpu: %s\ncommit: %s\n", r.Machine.Arch, r.Machine.CPU, r.Machine.Commit)
	for _, u := range []Unit{PerSecond, MBPerSecond} {
		fmt.Fprintf(w, "Unit %s better=higher\n", u)
	}
	for _, f := range r.Figures {
		benchLines(w, f.Key, f.Unit, &f.Own)
		if f.Floor != nil {
			benchLines(w, f.Key+"/floor", f.Unit, f.Floor)
		}
	}
}

func benchLines(w io.Writer, key string, u Unit, m *Measured) {
	for _, v := range m.Runs {
		fmt.Fprintf(w, "Benchmark%s %d %.6g %s\n", key, max(1, m.N/len(m.Runs)), v, u)
	}
}
