package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"trl/internal/bench/figure"
	"trl/internal/bench/plot"
)

// plots writes the pictures, and the tables between their marks in the document, from the results of runs. It does not change tables and pictures
// without a result.
func plots() error {
	text, err := os.ReadFile(*doc)
	if err != nil {
		return err
	}
	var (
		r figure.Report
		s Scale
		a Agent
		k Soak
		c Recovery
		e Kept
		i Idle
		n figure.Report
		p figure.Report
		q Peers
	)
	for _, one := range []struct {
		name string
		into any
		show func() error
	}{
		{"bench", &r, func() error { text = tableOf(text, "bench", benchTable(r)); return nil }},
		{"nodes", &n, func() error { text = tableOf(text, "nodes", benchTable(n)); return nil }},
		{"principals", &p, func() error { text = tableOf(text, "principals", benchTable(p)); return nil }},
		{"peers", &q, func() error { text = tableOf(text, "peers", peersTable(q)); return nil }},
		{"scale", &s, func() error { text = tableOf(text, "scale", scaleTable(s)); return scalePlots(s) }},
		{"idle", &i, func() error { text = tableOf(text, "idle", idleTable(i)); return nil }},
		{"agent", &a, func() error { text = tableOf(text, "agent", agentTable(a)); return nil }},
		{"comeback", &c, func() error { text = tableOf(text, "comeback", recoveryTable(c)); return recoveryPlot(c) }},
		{"kept", &e, func() error { text = tableOf(text, "kept", keptTable(e)); return nil }},
		{"soak", &k, func() error { text = tableOf(text, "soak", soakTable(k)); return soakPlot(k) }},
	} {
		err := figure.Load(filepath.Join(*out, one.name+".json"), one.into)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = one.show()
		}
		if err != nil {
			return err
		}
	}
	if err := os.WriteFile(*doc, text, 0o666); err != nil {
		return err
	}
	return clusterPlots()
}

// tableOf puts a table between its marks: <!-- NAME --> and <!-- end -->.
func tableOf(text []byte, name, table string) []byte {
	begin := []byte("<!-- " + name + " -->\n")
	before, rest, ok := bytes.Cut(text, begin)
	_, after, closed := bytes.Cut(rest, []byte("<!-- end -->"))
	if !ok || !closed {
		panic(fmt.Sprintf("%s: no place for the table of %s", *doc, name))
	}
	return bytes.Join([][]byte{before, begin, []byte(table), []byte("<!-- end -->"), after}, nil)
}

func benchTable(r figure.Report) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n```\n", r.Machine)
	figure.Header(&b)
	for _, f := range r.Figures {
		f.Row(&b)
	}
	b.WriteString("```\n")
	return b.String()
}

func scaleTable(s Scale) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n| sessions | create | first exec.run | exec.run | p99 | ping beside it | idle CPU | memory, PSS | a session | gateway, RSS | keeper, RSS | descriptors | destroy |\n|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|-:|\n", s.Machine)
	ns, mem := figure.Nanoseconds.Format, figure.Bytes.Format
	for _, t := range s.Steps {
		fmt.Fprintf(&b, "| %d | %s | %s | %s | %s | %s | %.2f %% | %s | %s | %s | %s | %d | %s |\n", t.Sessions, ns(t.Create.Median), ns(t.First.Median), ns(t.Exec.Median), ns(t.Exec.P99), ns(t.Ping.Median),
			t.IdleCPU, mem(t.PSS), mem(t.PerSession), mem(t.Gateway), mem(t.Keeper), t.Descriptors, ns(t.Destroy.Median))
	}
	if s.Stopped != "" {
		fmt.Fprintf(&b, "\nStopped %s.\n", s.Stopped)
	}
	return b.String()
}

func agentTable(a Agent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n| step | agents | trl | bash -c | markers | trl / bash -c | trl / markers |\n|-|-:|-:|-:|-:|-:|-:|\n", a.Machine)
	ns := figure.Nanoseconds.Format
	for _, r := range a.Rows {
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s | %.2f | %.2f |\n", r.Step, r.Sessions, ns(r.TRL), ns(r.Once), ns(r.Marked), r.TRL/r.Once, r.TRL/r.Marked)
	}
	return b.String()
}

func soakTable(k Soak) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n%s, %d sessions; ", k.Machine, k.Lasted, k.Sessions)
	var counts []string
	for _, o := range ops {
		counts = append(counts, fmt.Sprintf("%d × %s", k.Ops[o.name], o.name))
	}
	fmt.Fprintf(&b, "%s.\n\n| | first quarter | last quarter | growth | allowed |\n|-|-:|-:|-:|-:|\n", strings.Join(counts, ", "))
	for _, t := range k.Trends {
		fmt.Fprintf(&b, "| %s | %s | %s | %+.1f %% | %.1f %% |\n", t.Name, soakNumber(t.Name, t.First), soakNumber(t.Name, t.Last), 100*t.Growth, 100*t.Allowed)
	}
	return b.String()
}

func soakNumber(name string, v float64) string {
	switch {
	case strings.HasSuffix(name, "_pss"), strings.HasSuffix(name, "_rss"), strings.HasSuffix(name, "_heap"):
		return figure.Bytes.Format(v)
	case strings.HasSuffix(name, "_us"):
		return figure.Nanoseconds.Format(1e3 * v)
	}
	return fmt.Sprintf("%.4g", v)
}

func draw(name string, c plot.Chart) error {
	var b bytes.Buffer
	if err := c.SVG(&b); err != nil {
		return err
	}
	if err := os.MkdirAll(*img, 0o777); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(*img, name+".svg"), b.Bytes(), 0o666)
}

func scalePlots(s Scale) error {
	over := func(name string, of func(Step) float64) plot.Line {
		l := plot.Line{Name: name}
		for _, t := range s.Steps {
			l.Points = append(l.Points, plot.Point{X: float64(t.Sessions), Y: of(t)})
		}
		return l
	}
	bytes := func(v float64) string { return fmt.Sprintf("%.4g MiB", v) }
	return errors.Join(
		draw("scale-time", plot.Chart{Title: "What one session costs, beside how many others", X: "sessions", LogX: true, LogY: true, Format: figure.Nanoseconds.Format, Lines: []plot.Line{
			over("create", func(t Step) float64 { return t.Create.Median }),
			over("exec.run", func(t Step) float64 { return t.Exec.Median }),
			over("system.ping", func(t Step) float64 { return t.Ping.Median }),
			over("destroy", func(t Step) float64 { return t.Destroy.Median }),
		}}),
		draw("scale-memory", plot.Chart{Title: "Memory with idle sessions", X: "sessions", LogX: true, LogY: true, Format: bytes, Lines: []plot.Line{
			over("all of it, PSS", func(t Step) float64 { return t.PSS / (1 << 20) }),
			over("gateway, RSS", func(t Step) float64 { return t.Gateway / (1 << 20) }),
			over("keeper, RSS", func(t Step) float64 { return t.Keeper / (1 << 20) }),
		}}),
		draw("scale-idle", plot.Chart{Title: "Processor time while all sessions are idle", X: "sessions", LogX: true, Format: func(v float64) string { return fmt.Sprintf("%.2g %%", v) }, Lines: []plot.Line{
			over("of one core", func(t Step) float64 { return t.IdleCPU }),
		}}),
	)
}

func recoveryTable(c Recovery) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n| commands with a key, before | sessions | first answer | a session's first answer | every session has answered | next gateway, RSS |\n|-:|-:|-:|-:|-:|-:|\n", c.Machine)
	ns := figure.Nanoseconds.Format
	for _, r := range c.Runs {
		fmt.Fprintf(&b, "| %d | %d | %s | %s | %s | %s |\n", r.Commands, r.Sessions, ns(r.Ping.Median), ns(r.Session.Median), ns(r.All.Median), figure.Bytes.Format(r.RSS))
	}
	return b.String()
}

func recoveryPlot(c Recovery) error {
	over := func(name string, of func(RecoveryRun) float64) plot.Line {
		l := plot.Line{Name: name}
		for _, r := range c.Runs {
			l.Points = append(l.Points, plot.Point{X: float64(r.Commands), Y: of(r)})
		}
		return l
	}
	return draw("comeback", plot.Chart{Title: "From kill -9 of the gateway to an answer", X: "commands with a request_key before", LogX: true, LogY: true, Format: figure.Nanoseconds.Format, Lines: []plot.Line{
		over("a ping", func(r RecoveryRun) float64 { return r.Ping.Median }),
		over("a command in one session", func(r RecoveryRun) float64 { return r.Session.Median }),
		over("every session", func(r RecoveryRun) float64 { return r.All.Median }),
	}})
}

func keptTable(k Kept) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n| | gateway, RSS | keeper, RSS | descriptors, gateway + keeper |\n|---|-:|-:|-:|\n", k.Machine)
	for _, s := range k.Steps {
		fmt.Fprintf(&b, "| %s | %s | %s | %d + %d |\n", s.What, figure.Bytes.Format(s.Gateway), figure.Bytes.Format(s.Keeper), s.Files[0], s.Files[1])
	}
	return b.String()
}

// soakPlot shows each number relative to the first quarter.
func soakPlot(k Soak) error {
	c := plot.Chart{Title: "Mixed work: numbers beside those of the first quarter", X: "minutes", Format: func(v float64) string { return fmt.Sprintf("%.0f %%", v) }}
	for _, name := range []string{"gateway_pss", "sessions_pss", "gateway_descriptors", "goroutines"} {
		l := plot.Line{Name: strings.ReplaceAll(name, "_", " ")}
		for _, t := range k.Trends {
			for _, s := range k.Samples {
				if t.Name == name && t.First > 0 {
					l.Points = append(l.Points, plot.Point{X: s.At / 60, Y: 100 * s.Numbers[name] / t.First})
				}
			}
		}
		c.Lines = append(c.Lines, l)
	}
	return draw("soak", c)
}
