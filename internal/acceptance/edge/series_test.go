package edge

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"trl/internal/rig"
)

// Every series that docs/METRICS.md names is in the first scrape of a fresh gateway, with every label value of its tables:
// rate() misses the first increase of a series that begins with it.
func TestSeriesAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	scrape := rig.Gateway(t).Get(t, "/metrics")
	has := func(name, label string) bool {
		return regexp.MustCompile(`(?m)^` + name + `(_count)?(\{[^}]*` + label + `[^}]*\})? `).MatchString(scrape)
	}
	documented := regexp.MustCompile("(?m)^\\| `(trl_[a-z_]+)(?:\\{[a-z,]+\\})?` \\|").FindAllStringSubmatch(string(page), -1)
	if len(documented) < 35 {
		t.Fatalf("%d series found in the table", len(documented))
	}
	for _, m := range documented {
		if !has(m[1], "") {
			t.Errorf("%s is not in the first scrape", m[1])
		}
	}
	for row, series := range map[string]string{ // how a row of the table of labels begins
		"`state`": "trl_sessions", "`result` of created sessions": "trl_sessions_created_total", "`result` of config reloads": "trl_config_reloads_total",
		"`reason` of sessions": "trl_sessions_ended_total", "`reason` of reaped sessions": "trl_sessions_reaped_total",
		"`reason` of connections": "trl_connections_closed_total", "`reason` of refused connections": "trl_connections_refused_total",
		"`reason` of recordings": "trl_recordings_ended_total", "`outcome`": "trl_execs_total", "`transport`": "trl_connections trl_bytes_out_total",
		"`cause`": "trl_shell_restores_total",
	} {
		label := strings.Split(row, "`")[1]
		_, rest, found := strings.Cut(string(page), "\n| "+row+" |")
		values, _, _ := strings.Cut(rest, "\n")
		words := regexp.MustCompile("`([A-Za-z_]+)`").FindAllStringSubmatch(values, -1)
		if !found || len(words) == 0 {
			t.Errorf("no row of label values %q", row)
		}
		for _, name := range strings.Fields(series) {
			for _, word := range words {
				if word[1] != "--retention" && !has(name, label+`="`+word[1]+`"`) {
					t.Errorf("%s{%s=%q} is not in the first scrape", name, label, word[1])
				}
			}
		}
	}
}
