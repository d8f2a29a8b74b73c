package metrics

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// recorder keeps what New registers: a vector without children is described but
// not gathered, and the tests below are about every series.
type recorder struct {
	prometheus.Registerer
	collectors []prometheus.Collector
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.collectors = append(r.collectors, c)
	return r.Registerer.Register(c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	r.collectors = append(r.collectors, cs...)
	r.Registerer.MustRegister(cs...)
}

var descRE = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "([^"]*)", .*variableLabels: \{([^}]*)\}\}$`)

// series maps each of our names to its label names.
func series(t *testing.T) map[string][]string {
	t.Helper()
	rec := &recorder{Registerer: prometheus.NewRegistry()}
	New(rec)
	descs := make(chan *prometheus.Desc)
	go func() { // ends with the last Describe; the range below waits for it
		defer close(descs)
		for _, c := range rec.collectors {
			c.Describe(descs)
		}
	}()
	found := map[string][]string{}
	for d := range descs {
		m := descRE.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("unreadable description %s", d)
		}
		if !strings.HasPrefix(m[1], "trl_") {
			continue // Go and process collectors
		}
		if m[2] == "" {
			t.Errorf("%s has no help text", m[1])
		}
		found[m[1]] = strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
	}
	return found
}

func TestLabelsComeFromClosedLists(t *testing.T) {
	allowed := []string{"state", "result", "reason", "outcome", "transport", "cause", "method", "direction", "version", "goversion"}
	for name, labels := range series(t) {
		for _, label := range labels {
			if !slices.Contains(allowed, label) {
				t.Errorf("%s{%s}: a label that could hold an id, a person or a command", name, label)
			}
		}
	}
}

var update = flag.Bool("update", false, "rewrite docs/METRICS.md")

// TestReference holds the table of docs/METRICS.md to the registry, and the names in deploy/ to both.
func TestReference(t *testing.T) {
	kinds, help, buckets := gathered(t)
	var table strings.Builder
	table.WriteString("| Series | Type | Meaning |\n|---|---|---|\n")
	labels := series(t)
	if len(labels) < 20 {
		t.Fatalf("%d series found: the reading of descriptions is broken", len(labels))
	}
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		text := name
		if len(labels[name]) > 0 {
			text += "{" + strings.Join(labels[name], ",") + "}"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s%s |\n", text, kinds[name], help[name], buckets[name])
	}
	const path, from, to = "../docs/METRICS.md", "<!-- from the registry -->\n", "<!-- end -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), from)
	old, after, ok2 := strings.Cut(rest, to)
	switch {
	case !ok || !ok2:
		t.Fatalf("%s has no place for the table", path)
	case *update:
		if err := os.WriteFile(path, []byte(before+from+table.String()+to+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case old != table.String():
		t.Errorf("%s is not what the registry says: go test ./metrics -run Reference -update", path)
	}
}

// TestDeployNamesWhatThereIs: a dashboard or an alert on a series that nobody exports is always quiet.
func TestDeployNamesWhatThereIs(t *testing.T) {
	exported := series(t)
	word := regexp.MustCompile(`\btrl_[a-z_]+\b`)
	suffix := regexp.MustCompile(`_(bucket|sum|count)$`)
	label := regexp.MustCompile(`\b(trl_[a-z_]+)\{([^}]*)\}`)
	used := map[string]bool{}
	for _, path := range []string{"../deploy/grafana/trl.json", "../deploy/prometheus/alerts.yaml", "../deploy/prometheus/alerts_test.yaml", "../deploy/helm/trl/templates/hpa.yaml", "../deploy/helm/trl/README.md"} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range word.FindAllString(string(text), -1) {
			base := name
			if _, ok := exported[base]; !ok {
				base = suffix.ReplaceAllString(name, "")
			}
			if _, ok := exported[base]; !ok && name != "trl_pool_use" { // what the README tells the adapter to call the ratio
				t.Errorf("%s: nobody exports %s", path, name)
			}
			used[base] = true
		}
		for _, m := range label.FindAllStringSubmatch(string(text), -1) {
			labels := exported[suffix.ReplaceAllString(m[1], "")]
			for _, pair := range strings.Split(m[2], ",") {
				name := strings.TrimSpace(strings.FieldsFunc(pair, func(r rune) bool { return strings.ContainsRune("=!~", r) })[0])
				if !slices.Contains(append([]string{"instance", "job", "le", "namespace", "pod", "<<.LabelMatchers>>"}, labels...), name) {
					t.Errorf("%s: %s has no label %s", path, m[1], name)
				}
			}
		}
	}
	headings := map[string]bool{}
	runbook, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(runbook), -1) {
		headings[strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")] = true
	}
	alerts, _ := os.ReadFile("../deploy/prometheus/alerts.yaml")
	for _, m := range regexp.MustCompile(`docs/runbook\.md#(\S+)`).FindAllStringSubmatch(string(alerts), -1) {
		if !headings[m[1]] {
			t.Errorf("an alert sends people to %s in the runbook, which is not there", m[1])
		}
	}
	if text, _ := os.ReadFile("../deploy/grafana/trl.json"); !json.Valid(text) {
		t.Error("the dashboard is no JSON")
	}
	for name := range exported {
		if !used[name] && name != "trl_stream_gap_bytes_total" { // trl_stream_gaps_total is there
			t.Errorf("%s is on no dashboard and in no alert: why is it exported?", name)
		}
	}
}

// gathered is what a scrape tells of each series, when every vector has a child.
func gathered(t *testing.T) (kinds, help, buckets map[string]string) {
	t.Helper()
	rec := &recorder{Registerer: prometheus.NewRegistry()}
	m := New(rec)
	m.Observe(func() PoolNumbers { return PoolNumbers{} })
	for _, c := range rec.collectors {
		desc := make(chan *prometheus.Desc, 100)
		c.Describe(desc)
		values := make([]string, 0, 3)
		if d := descRE.FindStringSubmatch((<-desc).String()); d != nil {
			values = append(values, strings.FieldsFunc(d[3], func(r rune) bool { return r == ',' || r == ' ' })...)
		}
		switch v := c.(type) {
		case *prometheus.CounterVec:
			v.WithLabelValues(values...)
		case *prometheus.GaugeVec:
			v.WithLabelValues(values...)
		case *prometheus.HistogramVec:
			v.WithLabelValues(values...)
		}
	}
	families, err := rec.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds, help, buckets = map[string]string{}, map[string]string{}, map[string]string{}
	for _, f := range families {
		kinds[f.GetName()], help[f.GetName()] = strings.ToLower(f.GetType().String()), f.GetHelp()
		if h := f.GetMetric()[0].GetHistogram(); h != nil {
			var bounds []string
			for _, b := range h.GetBucket() {
				bounds = append(bounds, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
			}
			buckets[f.GetName()] = " Buckets, in seconds: " + strings.Join(bounds, ", ") + "."
		}
	}
	return kinds, help, buckets
}

func TestPoolGaugesAreReadAtScrape(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	if n, err := testutil.GatherAndCount(reg, "trl_sessions", "trl_sessions_max"); err != nil || n != 0 {
		t.Fatalf("gauges of a pool before there is one: %d, %v", n, err)
	}
	now := PoolNumbers{ByState: map[string]int{"IDLE": 3, "RUNNING": 1}, MaxSessions: 256, Warm: 2, Queued: 5, RunningExecs: 1, Processes: 7}
	m.Observe(func() PoolNumbers { return now })
	compare := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
			"trl_sessions", "trl_sessions_max", "trl_warm_shells", "trl_exec_queue_length", "trl_execs_running", "trl_processes"); err != nil {
			t.Error(err)
		}
	}
	expect := func(idle string) string {
		return `
# HELP trl_exec_queue_length Commands waiting for their session's turn.
# TYPE trl_exec_queue_length gauge
trl_exec_queue_length 5
# HELP trl_execs_running Commands running now.
# TYPE trl_execs_running gauge
trl_execs_running 1
# HELP trl_processes Background processes running now.
# TYPE trl_processes gauge
trl_processes 7
# HELP trl_sessions Sessions, by state; TERMINATED ones are kept for the retention time.
# TYPE trl_sessions gauge
trl_sessions{state="CREATING"} 0
trl_sessions{state="IDLE"} ` + idle + `
trl_sessions{state="RUNNING"} 1
trl_sessions{state="TERMINATED"} 0
# HELP trl_sessions_max The maximum number of live sessions.
# TYPE trl_sessions_max gauge
trl_sessions_max 256
# HELP trl_warm_shells Shells started in advance, without a session.
# TYPE trl_warm_shells gauge
trl_warm_shells 2
`
	}
	compare(expect("3"))
	now.ByState["IDLE"] = 2
	compare(expect("2"))
}

func TestOutcomesStartAtZero(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	if n := testutil.CollectAndCount(m.Execs); n != len(Outcomes) {
		t.Errorf("%d outcomes exported, want %d", n, len(Outcomes))
	}
	m.Execs.WithLabelValues(OutcomeTimeout).Inc()
	if v := testutil.ToFloat64(m.Execs.WithLabelValues(OutcomeTimeout)); v != 1 {
		t.Errorf("timeouts = %v", v)
	}
}

func TestHandlerServesEverything(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Build("v0.0-test")
	m.Observe(func() PoolNumbers { return PoolNumbers{} })
	w := httptest.NewRecorder()
	Handler(reg).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, _ := io.ReadAll(w.Body)
	for _, want := range []string{
		`trl_build_info{goversion="` + runtime.Version() + `",version="v0.0-test"} 1`,
		`trl_exec_duration_seconds_bucket{outcome="ok",le="0.0005"} 0`,
		`trl_exec_duration_seconds_bucket{outcome="ok",le="3600"} 0`,
		"trl_kill_failed_total 0",
		"go_goroutines ",
		"process_open_fds ",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %q in the answer", want)
		}
	}
}

func TestSeriesFollowTheNamingRules(t *testing.T) {
	problems, err := testutil.GatherAndLint(func() prometheus.Gatherer {
		reg := prometheus.NewRegistry()
		New(reg).Observe(func() PoolNumbers { return PoolNumbers{} })
		return reg
	}())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "trl_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// A second owner of the series, or a package-level registry, would show here.
func TestTwoRegistriesDoNotMeet(t *testing.T) {
	a, b := New(prometheus.NewRegistry()), New(prometheus.NewRegistry())
	a.Gaps.Inc()
	if v := testutil.ToFloat64(b.Gaps); v != 0 {
		t.Errorf("a gap of one gateway counted in another: %v", v)
	}
	New(nil).Gaps.Inc() // registered nowhere, for tests of other packages
}
