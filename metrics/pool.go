package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// PoolNumbers is one consistent view of the pool.
type PoolNumbers struct {
	ByState              map[string]int // a missing state counts as 0
	MaxSessions          int
	Warm                 int // shells started in advance
	Queued, RunningExecs int
	Processes, Terminals int
	Recordings           int // in progress
}

// Observe sets the function that returns the pool's gauges, once per scrape. Any goroutine may call the function. It takes the pool's lock, so do not
// call it with that lock held. These gauges are absent before Observe.
func (m *Metrics) Observe(snapshot func() PoolNumbers) { m.snapshot.Store(&snapshot) }

// states are exported even if no session has them. TERMINATED sessions have ended and are readable for the retention time.
var states = []string{"CREATING", "IDLE", "RUNNING", "TERMINATED"}

func poolDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// A Desc is immutable and holds no values: these are constants, not global state.
var (
	descSessions  = poolDesc("trl_sessions", "Sessions, by state; TERMINATED ones are kept for the retention time.", "state")
	descMax       = poolDesc("trl_sessions_max", "The maximum number of live sessions.")
	descWarm      = poolDesc("trl_warm_shells", "Shells started in advance, without a session.")
	descQueued    = poolDesc("trl_exec_queue_length", "Commands waiting for their session's turn.")
	descExecs     = poolDesc("trl_execs_running", "Commands running now.")
	descProcesses = poolDesc("trl_processes", "Background processes running now.")
	descTerminals = poolDesc("trl_terminals", "Terminals open now.")
	descRecording = poolDesc("trl_recordings", "Recordings in progress.")
)

// poolCollector reads the pool at scrape time. A gauge that code sets on every change would be wrong forever after one forgotten change.
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

// Handler serves the series that g gathers, for /metrics.
func Handler(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.ContinueOnError, // one failing collector must not hide the others
		MaxRequestsInFlight: 8,                        // a scrape reads /proc: many at once are an attack or a mistake
		Timeout:             10 * time.Second,         // Prometheus' own default scrape timeout
	})
}
