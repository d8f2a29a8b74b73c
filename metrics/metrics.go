// Package metrics holds every series that we export, in one struct, on a registry that is passed in.
//
// Labels come only from closed lists. A session id, principal or command is never a label: these are unbounded, and operators may not read them.
package metrics

import (
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The outcomes of an exec, the label of trl_execs_total. The list is closed and in the order in which they are decided (a command that timed out has
// also failed).
const (
	OutcomeError     = "error"      // the command could not run, or its result is unknown
	OutcomeCancelled = "cancelled"  // a client cancelled it
	OutcomeTimeout   = "timeout"    // its time limit ended it
	OutcomeNoOutput  = "no_output"  // silent for no_output_timeout_s
	OutcomeShellDied = "shell_died" // it ended its shell: exit, set -e, kill -9 $$
	OutcomeSignaled  = "signaled"   // a signal that was not ours ended it
	OutcomeFailed    = "failed"     // a non-zero exit code
	OutcomeOK        = "ok"
)

// Outcomes lists all outcomes.
var Outcomes = []string{
	OutcomeOK, OutcomeFailed, OutcomeSignaled, OutcomeTimeout,
	OutcomeNoOutput, OutcomeCancelled, OutcomeShellDied, OutcomeError,
}

// The results of dialling another node.
const (
	LinkOK     = "ok"
	LinkFailed = "failed"
	LinkKept   = "kept" // an idle link was there
)

// The results of requests that were sent to other nodes.
const (
	RelayedOK          = "ok"
	RelayedFailed      = "failed"      // the node answered with an error
	RelayedUnreachable = "unreachable" // the node could not be dialled
	RelayedLost        = "lost"        // the link or the client's connection ended first
)

// RelayResults lists all results of relayed requests.
var RelayResults = []string{RelayedOK, RelayedFailed, RelayedUnreachable, RelayedLost}

// The directions of relayed bytes.
const (
	RelayedToOwner  = "to_owner"
	RelayedToClient = "to_client"
)

// The reasons for the end of a recording, with the same words as in the protocol.
const (
	RecordingExit    = "exit"    // the terminal or command ended
	RecordingFull    = "full"    // its own size limit
	RecordingNoRoom  = "no_room" // the limit of all recordings, and none could be removed
	RecordingFailed  = "failed"  // it could not be written
	RecordingDeleted = "deleted" // a client removed it while it was in progress
	RecordingLost    = "lost"    // its session did not survive the keeper
)

// RecordingReasons lists all reasons.
var RecordingReasons = []string{RecordingExit, RecordingFull, RecordingNoRoom, RecordingFailed, RecordingDeleted, RecordingLost}

// The results of reading a changed config file, the label of trl_config_reloads_total.
const (
	ReloadOK      = "ok"
	ReloadRefused = "refused"
)

// execBuckets reach from a builtin in a warm shell (below 0.5 ms) to a build of an hour. They are classic buckets, which every Prometheus and every
// dashboard can read.
var execBuckets = []float64{
	.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5,
	1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600,
}

// Metrics holds the series that code counts where an event happens, in groups by what they count. Gauges of the pool's state are read at scrape
// time instead: see Observe. docs/METRICS.md describes each series; a test compares them.
type Metrics struct {
	sessions
	execs
	streams
	processes
	clients
	recordings
	configFile
	auditLog
	directory

	buildInfo *prometheus.GaugeVec
	snapshot  atomic.Pointer[func() PoolNumbers] // set once by Observe; nil before
}

type sessions struct {
	SessionsCreated *prometheus.CounterVec // result: "ok" or the protocol code
	SessionsEnded   *prometheus.CounterVec // reason: protocol.Reasons
	SessionsReaped  *prometheus.CounterVec // reason: those that the reaper ended
	Draining        prometheus.Gauge       // 1 while no new session is accepted
}

type execs struct {
	Execs        *prometheus.CounterVec   // outcome
	ExecSeconds  *prometheus.HistogramVec // outcome; from the turn to the end, without the queue
	QueueSeconds prometheus.Histogram     // from the request to the turn
}

type streams struct {
	BytesOut           *prometheus.CounterVec // transport; output bytes, before framing
	Gaps               prometheus.Counter     // gaps reported to readers
	GapBytes           prometheus.Counter     // bytes that these gaps skipped
	SlowClientsDropped prometheus.Counter
}

type processes struct {
	KillEscalations prometheus.Counter     // TERM was not enough
	KillFailed      prometheus.Counter     // KILL was not enough: state D; a person must look
	OrphansKilled   prometheus.Counter     // escaped processes that the scan found and killed
	ZombiesReaped   prometheus.Counter     // exits of processes that we did not start ourselves
	GatewayCrashes  prometheus.Counter     // gateways that the keeper had to replace
	SignalsIgnored  prometheus.Counter     // signals to the keeper from sessions, and to the gateway from anybody but the keeper
	ShellRestores   *prometheus.CounterVec // cause
}

type clients struct {
	ClientConnections *prometheus.GaugeVec   // transport; open now
	ClientsClosed     *prometheus.CounterVec // reason
	ClientsRefused    *prometheus.CounterVec // reason: "all", "principal", "guests", "share" or "strangers"
	RateLimited       prometheus.Counter     // requests refused with RATE_LIMITED
	Auth              *prometheus.CounterVec // method, result; web has the lists
}

type recordings struct {
	RecordingBytes  prometheus.Counter     // written to recordings
	RecordingsEnded *prometheus.CounterVec // reason: RecordingReasons
}

type configFile struct {
	ConfigReloads *prometheus.CounterVec // result: ReloadOK or ReloadRefused
	ConfigInForce prometheus.Gauge       // 1: the config file is in force; 0: its last version was refused
	ConfigWaiting prometheus.Gauge       // settings that the file changes and that need a restart
}

type auditLog struct {
	AuditLost    prometheus.Counter // entries of the audit log that could not be written
	AuditFailing prometheus.Gauge   // 1 while the audit log cannot be written
}

type directory struct {
	DirectoryDegraded prometheus.Gauge       // 1 while NATS does not answer; 0 without a cluster
	ClusterNodes      prometheus.Gauge       // nodes that are known, this one among them; 0 without a cluster
	LinksDialled      *prometheus.CounterVec // result: LinkOK, LinkFailed or LinkKept
	LinksRefused      prometheus.Counter     // of nodes, or of strangers, that could not prove who they are
	Relays            prometheus.Gauge       // of clients' connections to other nodes; those that are being dialled count
	Relayed           *prometheus.CounterVec // requests; result: one of RelayResults
	RelayedBytes      *prometheus.CounterVec // direction: RelayedToOwner or RelayedToClient
	SessionMoves      *prometheus.CounterVec // of sessions of this node; result: one of MoveResults
}

// The results of trl_session_moves_total.
const (
	MoveOK      = "ok"
	MoveRefused = "refused" // the session has something that cannot go along
	MoveFailed  = "failed"  // the other node has not taken it, and the session has stayed
)

// MoveResults has all of them.
var MoveResults = []string{MoveOK, MoveRefused, MoveFailed}

// New makes the series and registers them, with the Go and process collectors, on reg. A second New on the same registry panics, because two owners of
// a series are a bug.
func New(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		sessions: sessions{
			SessionsCreated: counters("trl_sessions_created_total", "Answers to session.create, by result: ok or the error's code.", "result"),
			SessionsEnded:   counters("trl_sessions_ended_total", "Sessions that ended, by reason.", "reason"),
			SessionsReaped:  counters("trl_sessions_reaped_total", "Sessions that the reaper ended, by reason.", "reason"),
			Draining:        gauge("trl_draining", "1 while new sessions are refused, because of a drain."),
		},
		execs: execs{
			Execs: counters("trl_execs_total", "Commands that ended, by outcome.", "outcome"),
			ExecSeconds: f.NewHistogramVec(prometheus.HistogramOpts{
				Name: "trl_exec_duration_seconds", Help: "Time a command ran, without its time in the queue, by outcome.",
				Buckets: execBuckets,
			}, []string{"outcome"}),
			QueueSeconds: f.NewHistogram(prometheus.HistogramOpts{
				Name: "trl_exec_queue_seconds", Help: "Time a command waited for its turn.",
				Buckets: execBuckets,
			}),
		},
		streams: streams{
			BytesOut:           counters("trl_bytes_out_total", "Output bytes sent to clients, before framing, by transport.", "transport"),
			Gaps:               counter("trl_stream_gaps_total", "Gaps reported to readers of a stream."),
			GapBytes:           counter("trl_stream_gap_bytes_total", "Bytes that readers missed in those gaps."),
			SlowClientsDropped: counter("trl_slow_clients_dropped_total", "Clients disconnected because they read nothing for too long."),
		},
		processes: processes{
			KillEscalations: counter("trl_kill_escalations_total", "Commands and sessions that needed KILL because TERM did not end them."),
			KillFailed:      counter("trl_kill_failed_total", "Kills that left a process alive (state D): a person must look."),
			OrphansKilled:   counter("trl_orphans_killed_total", "Escaped processes that the orphan scan killed."),
			ZombiesReaped:   counter("trl_zombies_reaped_total", "Adopted processes that were reaped."),
			GatewayCrashes:  counter("trl_gateway_crashes_total", "Gateways that died and were replaced by their keeper."),
			SignalsIgnored:  counter("trl_signals_ignored_total", "Signals that were ignored: to the keeper from inside a session, to the gateway from anybody but the keeper."),
			ShellRestores:   counters("trl_shell_restores_total", "Dead shells that another shell replaced, by cause.", "cause"),
		},
		clients: clients{
			ClientConnections: f.NewGaugeVec(prometheus.GaugeOpts{Name: "trl_connections", Help: "Open client connections, by transport."}, []string{"transport"}),
			ClientsClosed:     counters("trl_connections_closed_total", "Client connections that ended, by reason.", "reason"),
			ClientsRefused:    counters("trl_connections_refused_total", "Connections refused because of a bound: on all, a principal, all guests, a share link, or strangers.", "reason"),
			RateLimited:       counter("trl_rate_limited_total", "Requests refused with RATE_LIMITED."),
			Auth: f.NewCounterVec(prometheus.CounterOpts{Name: "trl_auth_total", Help: "Requests that needed a credential, by the kind of credential and the result."},
				[]string{"method", "result"}),
		},
		recordings: recordings{
			RecordingBytes:  counter("trl_recording_bytes_total", "Bytes written to recordings."),
			RecordingsEnded: counters("trl_recordings_ended_total", "Recordings that ended, by reason.", "reason"),
		},
		configFile: configFile{
			ConfigReloads: counters("trl_config_reloads_total", "Changed config files that were read, by result.", "result"),
			ConfigInForce: gauge("trl_config_last_reload_success", "1 if the current config file is in force, 0 if an older version is."),
			ConfigWaiting: gauge("trl_config_waiting_settings", "Settings that the config file changes and that need a restart."),
		},
		auditLog: auditLog{
			AuditLost:    counter("trl_audit_lost_total", "Entries of the audit log that could not be written."),
			AuditFailing: gauge("trl_audit_failing", "1 while the audit log cannot be written."),
		},
		directory: directory{
			DirectoryDegraded: gauge("trl_directory_degraded", "1 while the cluster's directory does not answer."),
			ClusterNodes:      gauge("trl_cluster_nodes", "Nodes of the cluster that this one knows, itself among them; 0 without a cluster."),
			LinksDialled:      counters("trl_links_dialled_total", "Links to other nodes that were dialled, or were there and idle, by result.", "result"),
			LinksRefused:      counter("trl_links_refused_total", "Links that were refused because the other end did not prove that it is a node of the cluster."),
			Relays:            gauge("trl_relays", "Open relays: each carries the requests of one client's connection to one other node."),
			Relayed:           counters("trl_relayed_requests_total", "Requests that were sent to other nodes, by result.", "result"),
			RelayedBytes:      counters("trl_relayed_bytes_total", "Bytes of messages between clients and other nodes, by direction.", "direction"),
			SessionMoves:      counters("trl_session_moves_total", "Attempts to move a session of this node to another one, by result.", "result"),
		},
		buildInfo: f.NewGaugeVec(prometheus.GaugeOpts{Name: "trl_build_info", Help: "Always 1; the version is in the labels."}, []string{"version", "goversion"}),
	}
	m.ConfigInForce.Set(1)
	AtZero(m.ConfigReloads, ReloadOK, ReloadRefused)
	AtZero(m.LinksDialled, LinkOK, LinkFailed, LinkKept)
	AtZero(m.Relayed, RelayResults...)
	AtZero(m.RelayedBytes, RelayedToOwner, RelayedToClient)
	AtZero(m.SessionMoves, MoveResults...)
	AtZero(m.Execs, Outcomes...)
	AtZero(m.ExecSeconds, Outcomes...)
	AtZero(m.RecordingsEnded, RecordingReasons...)
	if reg != nil { // promauto does not register anything if reg is nil; neither do we, for tests of other packages
		reg.MustRegister(
			(*poolCollector)(m),
			collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		)
	}
	return m
}

// ExecSeries are the series of one outcome of commands.
type ExecSeries struct {
	Total   prometheus.Counter
	Seconds prometheus.Observer
}

// ExecSeries returns the series of each outcome. They are looked up once, because WithLabelValues hashes and locks.
func (m *Metrics) ExecSeries() map[string]ExecSeries {
	all := map[string]ExecSeries{}
	for _, outcome := range Outcomes {
		all[outcome] = ExecSeries{m.Execs.WithLabelValues(outcome), m.ExecSeconds.WithLabelValues(outcome)}
	}
	return all
}

// Build publishes the version of the running binary; cmd/trl calls it once.
func (m *Metrics) Build(version string) {
	m.buildInfo.WithLabelValues(version, runtime.Version()).Set(1)
}

// AtZero creates the series for each value of a vector's only label. They are exported as 0 until something is counted, so that rate() sees the first
// event and an alert on absence works.
func AtZero[Series any, Label ~string](vector interface{ WithLabelValues(...string) Series }, values ...Label) {
	for _, v := range values {
		vector.WithLabelValues(string(v))
	}
}
