package acceptance

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var documentedSeries = regexp.MustCompile("(?m)^\\| `(trl_[a-z_]+)")

// TestSeriesAreThereFromTheStart: every documented series stands in the first scrape, with each value of its label. Otherwise rate() misses
// the first increment, and a panel has no data until something happens.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	g := gateway(t)
	names := func() (all []string) {
		for line := range strings.Lines(g.get(t, "/metrics")) {
			if name, _, ok := strings.Cut(line, " "); ok && strings.HasPrefix(name, "trl_") {
				all = append(all, name)
			}
		}
		return all
	}
	first := names()
	page, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := documentedSeries.FindAllStringSubmatch(string(page), -1)
	if len(documented) < 20 {
		t.Fatalf("%d series found in METRICS.md", len(documented))
	}
	for _, d := range documented {
		if !slices.ContainsFunc(first, func(name string) bool {
			return name == d[1] || strings.HasPrefix(name, d[1]+"{") || strings.HasPrefix(name, d[1]+"_count")
		}) {
			t.Errorf("%s is not there from the start", d[1])
		}
	}

	c := g.dial(t)
	s := c.session(nil)
	expect(t, c.run(s, "exit 3"), 3, "", "")
	expect(t, c.run(s, "kill -9 $$"), 137, "", "")
	c.try("session.create", object{"shell": "/nosuch"})
	c.call("session.destroy", object{"session_id": s})
	c.close()
	eventually(t, "the connection has ended", func() bool { return strings.Contains(g.get(t, "/metrics"), `trl_connections{transport="websocket"} 0`) })
	for _, name := range names() {
		if !slices.Contains(first, name) {
			t.Errorf("%s was not there from the start", name)
		}
	}
}
