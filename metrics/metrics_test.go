package metrics

import (
	"io"
	"maps"
	"net/http/httptest"
	"os"
	"regexp"
	goruntime "runtime"
	"slices"
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
	allowed := []string{"state", "result", "reason", "outcome", "transport", "cause", "method", "version", "goversion"}
	for name, labels := range series(t) {
		for _, label := range labels {
			if !slices.Contains(allowed, label) {
				t.Errorf("%s{%s}: a label that could hold an id, a person or a command", name, label)
			}
		}
	}
}

func TestDocumentListsEverySeries(t *testing.T) {
	page, err := os.ReadFile("../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(trl_[a-z_]+)(?:\\{([a-z,]+)\\})?` \\|").FindAllStringSubmatch(string(page), -1) {
		var labels []string
		if row[2] != "" {
			labels = strings.Split(row[2], ",")
		}
		documented[row[1]] = labels
	}
	exported := series(t)
	if len(exported) < 20 {
		t.Fatalf("%d series found: the reading of descriptions is broken", len(exported))
	}
	for _, name := range slices.Sorted(maps.Keys(exported)) {
		labels, ok := documented[name]
		if !ok {
			t.Errorf("%s is exported and not in docs/METRICS.md", name)
		} else if !slices.Equal(labels, exported[name]) {
			t.Errorf("%s: labels %v in docs/METRICS.md, %v in the code", name, labels, exported[name])
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("%s is in docs/METRICS.md and not exported", name)
	}
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
# HELP trl_sessions_max The most live sessions that the pool takes.
# TYPE trl_sessions_max gauge
trl_sessions_max 256
# HELP trl_warm_shells Shells started ahead of their session.
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
		`trl_build_info{goversion="` + goruntime.Version() + `",version="v0.0-test"} 1`,
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
