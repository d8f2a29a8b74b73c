// Package metrics is every series we export: one struct, on a registry passed in.
//
// Labels come from closed lists only. No session id, principal or command ever
// becomes a label: those are unbounded, and they are not the operator's to read.
package metrics

import (
	goruntime "runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The outcomes of an exec, the label of trl_execs_total: a closed list, in the
// order in which they are decided (a command that timed out also "failed").
const (
	OutcomeError     = "error"      // it could not be run or its end is unknown
	OutcomeCancelled = "cancelled"  // a client asked
	OutcomeTimeout   = "timeout"    // the hard limit
	OutcomeNoOutput  = "no_output"  // silent for no_output_timeout_s
	OutcomeShellDied = "shell_died" // it took the shell with it: exit, set -e, kill -9 $$
	OutcomeSignaled  = "signaled"   // ended by a signal not ours
	OutcomeFailed    = "failed"     // a non-zero exit code
	OutcomeOK        = "ok"
)

// Outcomes is the whole list.
var Outcomes = []string{
	OutcomeOK, OutcomeFailed, OutcomeSignaled, OutcomeTimeout,
	OutcomeNoOutput, OutcomeCancelled, OutcomeShellDied, OutcomeError,
}

// Why recordings end; the same words in the protocol.
const (
	RecordingExit    = "exit"    // what was recorded ended
	RecordingFull    = "full"    // its own bound
	RecordingNoRoom  = "no_room" // the bound of all, and none to remove
	RecordingFailed  = "failed"  // it could not be written
	RecordingDeleted = "deleted" // a client did that while it was being made
	RecordingLost    = "lost"    // its session did not outlive the keeper
)

// RecordingReasons is the whole list.
var RecordingReasons = []string{RecordingExit, RecordingFull, RecordingNoRoom, RecordingFailed, RecordingDeleted, RecordingLost}

// The results of a look at a changed config file, the label of trl_config_reloads_total.
const (
	ReloadOK      = "ok"
	ReloadRefused = "refused"
)

// execBuckets reach from a builtin in a warm shell (below 0.5 ms) to a build of an
// hour. Classic buckets, because every Prometheus and every dashboard reads them.
var execBuckets = []float64{
	.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5,
	1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600,
}

// Metrics holds the series that the owner of an event counts where it happens.
// What is a state and not an event is read from the pool at scrape time: Observe.
// docs/METRICS.md says what each one means; a test compares the two.
type Metrics struct {
	SessionsCreated *prometheus.CounterVec // result: "ok" or the protocol code
	SessionsEnded   *prometheus.CounterVec // reason: PROTOCOL.md §3
	SessionsReaped  *prometheus.CounterVec // reason: those the reaper's clock ended

	Execs        *prometheus.CounterVec   // outcome
	ExecSeconds  *prometheus.HistogramVec // outcome; from the turn to the end, without the queue
	QueueSeconds prometheus.Histogram     // from the request to the turn

	BytesOut           *prometheus.CounterVec // transport; output bytes, before framing
	Gaps               prometheus.Counter     // gaps told to a reader
	GapBytes           prometheus.Counter     // bytes those gaps skipped
	SlowClientsDropped prometheus.Counter

	KillEscalations prometheus.Counter     // TERM was not enough
	KillFailed      prometheus.Counter     // KILL was not enough: D state; someone must look
	OrphansKilled   prometheus.Counter     // escaped processes that the scan found and ended
	ZombiesReaped   prometheus.Counter     // exits of processes that we did not start ourselves
	GatewayCrashes  prometheus.Counter     // gateways that the keeper had to replace
	SignalsIgnored  prometheus.Counter     // signals to the keeper from inside of sessions, to the gateway from others than the keeper
	ShellRestores   *prometheus.CounterVec // cause

	ClientConnections *prometheus.GaugeVec   // transport; open now
	ClientsClosed     *prometheus.CounterVec // reason
	ClientsRefused    *prometheus.CounterVec // reason: "all", "principal", "guests", "share" or "strangers"
	RateLimited       prometheus.Counter     // requests refused with RATE_LIMITED
	Auth              *prometheus.CounterVec // method, result; web has the lists

	RecordingBytes  prometheus.Counter     // written to recordings
	RecordingsEnded *prometheus.CounterVec // reason: RecordingReasons

	ConfigReloads *prometheus.CounterVec // result: ReloadOK or ReloadRefused
	ConfigInForce prometheus.Gauge       // 1: what the config file says is in force; 0: the last one was refused
	ConfigWaiting prometheus.Gauge       // settings that the file changes and that want a restart

	AuditLost    prometheus.Counter // entries of the audit log that could not be written
	AuditFailing prometheus.Gauge   // 1 while the audit log cannot be written
	Draining     prometheus.Gauge   // 1 while no new session is taken

	buildInfo *prometheus.GaugeVec
	snapshot  atomic.Pointer[func() PoolNumbers] // set once by Observe; nil before
}

// New makes the series and registers them, with the Go and process collectors, on
// reg. A second New on one registry panics: two owners of a series is a bug.
func New(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		SessionsCreated: counters("trl_sessions_created_total", "Answers to session.create, by result: ok or the error's code.", "result"),
		SessionsEnded:   counters("trl_sessions_ended_total", "Sessions that ended, by reason.", "reason"),
		SessionsReaped:  counters("trl_sessions_reaped_total", "Sessions that the reaper ended, by reason.", "reason"),

		Execs: counters("trl_execs_total", "Commands that ended, by outcome.", "outcome"),
		ExecSeconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "trl_exec_duration_seconds", Help: "Time a command ran, without its time in the queue, by outcome.",
			Buckets: execBuckets,
		}, []string{"outcome"}),
		QueueSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name: "trl_exec_queue_seconds", Help: "Time a command waited for its turn.",
			Buckets: execBuckets,
		}),

		BytesOut:           counters("trl_bytes_out_total", "Output bytes sent to clients, before framing, by transport.", "transport"),
		Gaps:               counter("trl_stream_gaps_total", "Gaps reported to readers of a stream."),
		GapBytes:           counter("trl_stream_gap_bytes_total", "Bytes that readers missed in those gaps."),
		SlowClientsDropped: counter("trl_slow_clients_dropped_total", "Clients disconnected because they took nothing for too long."),

		KillEscalations: counter("trl_kill_escalations_total", "Commands and sessions that TERM did not end and KILL had to."),
		KillFailed:      counter("trl_kill_failed_total", "Kills that left a process alive (state D): somebody must look."),
		OrphansKilled:   counter("trl_orphans_killed_total", "Escaped processes that the orphan scan ended."),
		ZombiesReaped:   counter("trl_zombies_reaped_total", "Adopted processes that were reaped."),
		GatewayCrashes:  counter("trl_gateway_crashes_total", "Gateways that died and were replaced by their keeper."),
		SignalsIgnored:  counter("trl_signals_ignored_total", "Signals that were ignored: to the keeper from inside a session, to the gateway from anybody but the keeper."),
		ShellRestores:   counters("trl_shell_restores_total", "Shells replaced and put back, by cause.", "cause"),

		ClientConnections: f.NewGaugeVec(prometheus.GaugeOpts{Name: "trl_connections", Help: "Open client connections, by transport."}, []string{"transport"}),
		ClientsClosed:     counters("trl_connections_closed_total", "Client connections that ended, by reason.", "reason"),
		ClientsRefused:    counters("trl_connections_refused_total", "Connections refused for the bound on all, on a principal's, on all guests, on a share link's or on strangers'.", "reason"),
		RateLimited:       counter("trl_rate_limited_total", "Requests refused with RATE_LIMITED."),
		Auth: f.NewCounterVec(prometheus.CounterOpts{Name: "trl_auth_total", Help: "Requests that had to show who sends them, by the kind of credential and what came of it."},
			[]string{"method", "result"}),

		RecordingBytes:  counter("trl_recording_bytes_total", "Bytes written to recordings."),
		RecordingsEnded: counters("trl_recordings_ended_total", "Recordings that ended, by reason.", "reason"),

		ConfigReloads: counters("trl_config_reloads_total", "Looks at a config file that had changed, by result.", "result"),
		ConfigInForce: f.NewGauge(prometheus.GaugeOpts{Name: "trl_config_last_reload_success", Help: "Whether the config file as it is now was taken: 1, or 0 where an older one is in force."}),
		ConfigWaiting: f.NewGauge(prometheus.GaugeOpts{Name: "trl_config_waiting_settings", Help: "Settings that the config file changes and that want a restart."}),

		AuditLost:    counter("trl_audit_lost_total", "Entries of the audit log that could not be written."),
		AuditFailing: f.NewGauge(prometheus.GaugeOpts{Name: "trl_audit_failing", Help: "1 while the audit log cannot be written."}),
		Draining:     f.NewGauge(prometheus.GaugeOpts{Name: "trl_draining", Help: "1 while new sessions are refused, because of a drain."}),

		buildInfo: f.NewGaugeVec(prometheus.GaugeOpts{Name: "trl_build_info", Help: "Always 1; the version is in the labels."}, []string{"version", "goversion"}),
	}
	m.ConfigInForce.Set(1)
	AtZero(m.ConfigReloads, ReloadOK, ReloadRefused)
	AtZero(m.Execs, Outcomes...)
	AtZero(m.ExecSeconds, Outcomes...)
	AtZero(m.RecordingsEnded, RecordingReasons...)
	if reg != nil { // promauto takes nil as "registered nowhere"; so do we, for tests of other packages
		reg.MustRegister(
			(*poolCollector)(m),
			collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		)
	}
	return m
}

// Build publishes the version of the running binary; cmd/trl calls it once.
func (m *Metrics) Build(version string) {
	m.buildInfo.WithLabelValues(version, goruntime.Version()).Set(1)
}

// AtZero creates the series of each value of a vector's one label. They are exported as 0 until something is counted, so that rate() sees the
// first time and an alert on absence means something.
func AtZero[Series any, Label ~string](vector interface{ WithLabelValues(...string) Series }, values ...Label) {
	for _, v := range values {
		vector.WithLabelValues(string(v))
	}
}
