package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// PoolNumbers is one consistent look at the pool.
type PoolNumbers struct {
	ByState              map[string]int // a missing state counts as 0
	MaxSessions          int
	Warm                 int // shells started ahead of their session
	Queued, RunningExecs int
	Processes, Terminals int
	Recordings           int // being made
}

// Observe names the function that the gauges of the pool are read from, once per
// scrape. It may be called from any goroutine and takes the pool's lock, so it must
// not be called with that lock held. Before Observe those gauges are absent.
func (m *Metrics) Observe(snapshot func() PoolNumbers) { m.snapshot.Store(&snapshot) }

// states are exported even when no session is in them. TERMINATED: ended, and still
// readable for the retention time.
var states = []string{"CREATING", "IDLE", "RUNNING", "TERMINATED"}

func poolDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// A Desc is immutable and holds no values: these are constants, not global state.
var (
	descSessions  = poolDesc("trl_sessions", "Sessions, by state; TERMINATED ones are kept for the retention time.", "state")
	descMax       = poolDesc("trl_sessions_max", "The most live sessions that the pool takes.")
	descWarm      = poolDesc("trl_warm_shells", "Shells started ahead of their session.")
	descQueued    = poolDesc("trl_exec_queue_length", "Commands waiting for their session's turn.")
	descExecs     = poolDesc("trl_execs_running", "Commands running now.")
	descProcesses = poolDesc("trl_processes", "Background processes running now.")
	descTerminals = poolDesc("trl_terminals", "Terminals open now.")
	descRecording = poolDesc("trl_recordings", "Recordings being made now.")
)

// poolCollector reads the pool at scrape time: a gauge that is set on every change
// is one forgotten change away from lying for ever.
type poolCollector Metrics

func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSessions, descMax, descWarm, descQueued, descExecs, descProcesses, descTerminals, descRecording} {
		ch <- d
	}
}

func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	snapshot := c.snapshot.Load()
	if snapshot == nil {
		return
	}
	n := (*snapshot)()
	gauge := func(d *prometheus.Desc, v int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for _, state := range states {
		gauge(descSessions, n.ByState[state], state)
	}
	gauge(descMax, n.MaxSessions)
	gauge(descWarm, n.Warm)
	gauge(descQueued, n.Queued)
	gauge(descExecs, n.RunningExecs)
	gauge(descProcesses, n.Processes)
	gauge(descTerminals, n.Terminals)
	gauge(descRecording, n.Recordings)
}

// Handler serves what g gathers, for /metrics.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // one bad collector must not hide the others
		MaxRequestsInFlight: 8,                        // a scrape reads /proc: a pile of them is an attack or a mistake
		Timeout:             10 * time.Second,         // Prometheus' own default scrape timeout
	})
}
