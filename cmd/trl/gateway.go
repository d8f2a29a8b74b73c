package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool"
	"trl/reaper"
	"trl/runtime"
	"trl/runtime/keeper"
	"trl/web"
	"trl/web/audit"
)

// endWithin is how long a stop may take: clients get up to 1 s to hear of it, commands 5 s between TERM and KILL, and the
// rest is for the killing of some hundred trees on a busy machine.
const endWithin = 8 * time.Second

// leaveWithin is what clients get to hear that they shall come again, while nobody serves.
const leaveWithin = time.Second

// A gateway is what serves, each part made from those above it. One goroutine makes it, waits, and ends it.
//
// Begin: state dir (nobody else uses it), signals, metrics, keeper (it must own every process from the first), pool, web (its
// port, so that a taken one is noticed before any shell is started), what an earlier gateway left, reaper. End: the other way
// round. Clients first, so that nobody starts anything new and everybody hears why; then the clock; then the sessions; then
// whatever processes are left; the address and the lock last, so that no other gateway starts on a state dir whose sessions
// still die.
type gateway struct {
	s    *settings
	log  zerolog.Logger
	ends []func() error // of what was opened; the last is called first

	state     *stateDir
	signals   chan os.Signal
	ignored   func() uint64 // signals that were not the keeper's
	registry  *prometheus.Registry
	counts    *metrics.Metrics
	tokens    *web.TokenFile
	first     bool           // the token was made just now
	kept      *keeper.Client // nil: single process
	processes runtime.Keeper
	endTraces func()
	sessions  *pool.Pool
	server    *web.Server
	served    chan error // how Serve has ended
	failure   error      // that, where nobody wanted it
	clock     *reaper.Reaper
	config    *following
}

// run is a gateway's life; conn is its keeper, nil for one that is its own.
func (g *gateway) run(conn *os.File, stdout io.Writer) (err error) {
	defer func() {
		for _, end := range slices.Backward(g.ends) {
			if e := end(); e != nil {
				err = errors.Join(err, e)
			}
		}
	}()
	if err := g.open(conn); err != nil {
		return err
	}
	if err := g.begin(stdout); err != nil {
		return err
	}
	if err := g.wait(); err != nil {
		return err
	}
	return g.end()
}

func (g *gateway) atEnd(f func() error) { g.ends = append(g.ends, f) }

// open makes all that can fail, up to the port. Nothing runs yet, and no client is answered.
func (g *gateway) open(conn *os.File) (err error) {
	if conn == nil {
		if g.state, err = openStateDir(g.s.stateDir); err != nil {
			return err
		}
		g.atEnd(g.state.Close)
	} else { // the keeper has locked it
		g.state = &stateDir{path: g.s.stateDir}
	}
	if err := g.hear(conn != nil); err != nil {
		return err
	}
	g.registry = prometheus.NewRegistry()
	g.counts = metrics.New(g.registry)
	g.counts.Build(buildVersion())

	tokens, first, closeAuth, err := g.s.openAuth(g.state, g.log)
	if err != nil {
		return err
	}
	g.tokens, g.first = tokens, first
	g.atEnd(func() error { closeAuth(); return nil })
	if g.s.web.ACME.Dir == "" {
		g.s.web.ACME.Dir = g.state.file(acmeDir)
	}
	if g.s.web.TLSCert != "" { // before the keeper is asked: an upgrade must not begin with what cannot serve
		if _, err := tls.LoadX509KeyPair(g.s.web.TLSCert, g.s.web.TLSKey); err != nil {
			return hintListen(err, g.s)
		}
	}
	if conn != nil {
		err = g.dial(conn)
	} else {
		err = g.own()
	}
	if err != nil {
		return err
	}
	if err := g.s.recordable(g.generation() == 0, g.log); err != nil {
		return err
	}
	if err := g.openLogs(); err != nil {
		return err
	}
	if err := g.s.enforceable(g.processes.Unenforceable()); err != nil {
		return err
	}
	g.s.pool.BaseEnv = baseEnv(g.s.as)
	g.sessions = pool.New(g.s.pool, g.processes, g.counts, g.log)

	g.s.web.Version = buildVersion()
	g.s.web.Capabilities = g.s.capabilities(g.processes)
	gatherer := prometheus.Gatherer(g.registry)
	if g.kept != nil {
		gatherer = countKeeper(g.registry, g.counts, g.kept, g.ignored)
	}
	g.server = web.New(g.s.web, g.sessions, g.counts, gatherer, g.log)
	if err := g.server.Listen(); err != nil {
		return hintListen(err, g.s)
	}
	return nil
}

// hear begins to take the signals: a keeper's, or everybody's.
func (g *gateway) hear(kept bool) (err error) {
	if kept {
		g.signals, g.ignored, err = keeper.Orders(g.log)
		return err
	}
	g.signals = make(chan os.Signal, 4)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if !signal.Ignored(sig) { // a shell script's `trl serve &` is not for the terminal's Ctrl-C
			signal.Notify(g.signals, sig)
		}
	}
	signal.Notify(g.signals, syscall.SIGHUP) // caught, so that neither a closed terminal nor nohup's absence ends it
	return nil
}

// dial takes up what the keeper has: processes, sockets, sessions.
func (g *gateway) dial(conn *os.File) (err error) {
	if g.kept, err = keeper.Dial(conn, g.log); err != nil {
		return err
	}
	g.atEnd(func() error { _ = g.kept.Close(); return nil })
	if g.s.web.Sockets, err = web.Inherit(g.kept.Files()); err != nil {
		return err
	}
	g.processes, g.s.pool.Epoch = g.kept, g.kept.Epoch()
	return nil
}

// own makes this process the one that owns all others.
func (g *gateway) own() error {
	host, err := runtime.NewHost(runtime.Config{Isolation: g.s.isolation, As: g.s.as, Write: g.s.fences(), Metrics: g.counts, Log: g.log})
	if err != nil {
		return refuse(err, "%s", hintHost(err))
	}
	g.atEnd(host.Close) // KILLs what is left
	g.processes = runtime.Local(host)
	return requireTier(host.Tiers(), g.s.require)
}

func (g *gateway) openLogs() (err error) {
	if g.s.web.Audit, err = g.s.openAudit(g.counts, g.log); err != nil {
		return err
	}
	if g.s.web.Audit != nil {
		g.atEnd(g.s.web.Audit.Close) // the last to go of what begins anything
		g.s.pool.Ended = web.Endings(g.s.web.Audit)
		if t, ok := g.s.web.Tokens.(*web.TokenFile); ok {
			t.OnReload(web.Reloads(g.s.web.Audit))
		}
	}
	if g.s.web.Trace, g.endTraces, err = openTraces(g.log); err != nil {
		return refuse(err, "see OTEL_EXPORTER_OTLP_ENDPOINT and the others of OpenTelemetry")
	}
	g.atEnd(func() error { g.endTraces(); return nil })
	return nil
}

// generation is how many gateways have served these sessions before.
func (g *gateway) generation() int {
	if g.kept == nil {
		return 0
	}
	return g.kept.Generation()
}

// begin takes up what an earlier gateway left, serves, and says so.
func (g *gateway) begin(stdout io.Writer) error {
	if g.kept != nil {
		g.sessions.Recover(g.kept.Inherited())
	}
	g.sessions.Start()
	g.clock = reaper.New(g.sessions, func() { g.processes.KillOrphans(g.sessions.Live) }, g.counts, g.log)
	g.clock.Start()
	if g.kept != nil { // else we fork
		g.useFewProcessors()
	}
	g.served = make(chan error, 1)
	go func() { g.served <- g.server.Serve() }() // until Shutdown, or until the listener fails
	g.sessions.Recovered()                       // who asks for one meanwhile waits for that one; the keeper, for all: before, this program has not taken over

	url := g.server.URL()
	local := localURL(url, g.s.web.Listen)
	if g.s.gateway == nil { // else the state dir is the keeper's, which has done so
		if err := g.state.publish(local); err != nil {
			g.log.Warn().Err(err).Msg("the command line will not find this gateway by itself")
		}
	}
	if g.kept == nil {
		notify(ready)
	} else if err := g.kept.Ready(); err != nil {
		return err
	}
	g.config = g.s.follow(g.sessions, g.server, g.processes, g.counts, g.log)
	g.atEnd(func() error { g.config.close(); return nil })
	if g.kept != nil {
		g.config.tell(g.kept.Remember)
	}
	if g.generation() == 0 {
		announce(stdout, url, local, g.tokens, g.state, g.first)
	}
	tier, why := g.processes.Isolation()
	g.s.web.Audit.Append(audit.Entry{Action: audit.ActionStart, Outcome: "ok", Version: buildVersion()})
	g.log.Info().Int("generation", g.generation()).Str("address", g.server.Addr()).Str("version", buildVersion()).
		Str("isolation", tier).Str("why", why).Msg("listening")
	return nil
}

// useFewProcessors begins to be sparing with them.
func (g *gateway) useFewProcessors() {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // until the end, which waits for it
		defer close(ended)
		runtime.UseFewProcessors(stop)
	}()
	g.atEnd(func() error { close(stop); <-ended; return nil })
}

// wait returns when it is time to end in order, or with an error when there is nothing left to end.
func (g *gateway) wait() error {
	var gone, yield <-chan struct{} // nil: never
	var pulse <-chan time.Time      // for a supervisor; a keeper does it otherwise
	if g.kept != nil {
		gone, yield = g.kept.Done(), g.kept.Yield()
	} else if every := watchdog(); every > 0 {
		beat := time.NewTicker(every)
		defer beat.Stop()
		pulse = beat.C
	}
	for {
		select {
		case sig := <-g.signals:
			switch {
			case sig == syscall.SIGHUP:
				g.config.look()
			case sig == syscall.SIGTERM && g.s.drains() > 0 && !g.server.DrainingForGood():
				g.s.web.Audit.Append(audit.Entry{Action: audit.ActionDrain, Outcome: "ok"})
				g.server.Drain(g.s.drains(), true)
			default:
				g.log.Info().Msg("stopping: " + sig.String())
				return nil
			}
		case <-pulse:
			notify(alive)
		case <-g.server.Drained():
			return nil
		case g.failure = <-g.served:
			return nil
		case <-yield:
			g.leave()
		case <-gone:
			// Nothing shall run that nobody owns. Should we be killed, too, the next start does it (keep.go).
			if g.s.gateway != nil { // whom we may not touch: the undertaker does
				g.log.Error().Msg("the keeper is dead; trl undertaker ends what it left")
			} else {
				ended := g.kept.Instance().End(endWithin)
				g.log.Error().Ints("pids", ended).Msg("the keeper is dead: ended what it left")
			}
			ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
			defer cancel()
			_ = g.server.Shutdown(ctx) // who waits for an answer gets it
			return refuse(errors.New("the keeper is gone, and every session with it"), "something killed it (kill -9, the OOM killer); start trl serve again")
		}
	}
}

// leave gives everything to the next gateway, and ends the program.
func (g *gateway) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	g.server.Leave(ctx)
	g.endTraces()
	g.s.web.Audit.Append(audit.Entry{Action: audit.ActionLeave, Outcome: "ok"})
	if err := g.s.web.Audit.Close(); err != nil {
		g.log.Error().Err(err).Msg("audit log")
	}
	g.log.Info().Msg("left everything to the next gateway")
	os.Exit(0) // and nothing else of us may run: what belongs to the sessions has one user at a time
}

// end ends the sessions, and before them whoever might begin something. A second signal means that no step waits any more,
// and what owns the processes KILLs.
func (g *gateway) end() error {
	if g.kept == nil {
		notify(stopping)
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	go func() { // ends with the program
		for sig := range g.signals {
			if sig != syscall.SIGHUP {
				cancel()
			}
		}
	}()
	start := time.Now()
	g.config.close()
	if err := g.server.Shutdown(ctx); err != nil {
		g.log.Warn().Err(err).Msg("clients did not go in time")
	}
	g.clock.Close()
	if err := g.sessions.Close(ctx); err != nil {
		g.log.Warn().Err(err).Msg("sessions did not end in time and are killed")
	}
	took := time.Since(start)
	g.s.web.Audit.Append(audit.Entry{Action: audit.ActionStop, Outcome: "ok", DurationMS: float64(took.Milliseconds())})
	g.log.Debug().Dur("took_ms", took).Msg("stopped")
	if g.kept != nil && g.failure == nil {
		return g.kept.Bye()
	}
	return g.failure
}
