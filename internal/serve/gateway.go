package serve

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

	"trl/internal/buildinfo"
	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/member"
	"trl/internal/statedir"
	"trl/metrics"
	"trl/pool"
	"trl/reaper"
	"trl/runtime/host"
	"trl/runtime/keeper"
	"trl/runtime/keeper/client"
	"trl/runtime/own"
	"trl/web"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/listen"
)

// StopTimeout bounds a stop: clients get up to 1 s to hear of it, commands get 5 s between TERM and KILL, and the rest is for killing some
// hundred process trees on a busy machine.
const StopTimeout = 8 * time.Second

// byeTimeout is how long the keeper, after a stop, has to answer that it knows of it. Both together are less than the keeper's gatewayStopTimeout.
const byeTimeout = 2 * time.Second

// handoverTimeout is the time in which clients are told to connect again. Nobody serves during that time.
const handoverTimeout = time.Second

// gateway has the parts of a gateway process. Each part is made from those above it. One goroutine makes the gateway, waits, and ends it.
//
// It begins in this order: state dir (so that no other gateway uses it), signals, metrics, keeper (it must own every process from the
// first), member of a cluster (if it is one: the pool claims names there), pool, web (it binds the port, so a port in use is noticed before any shell starts), recovery of what an earlier gateway left,
// reaper. It ends in the reverse order: first the clients, so that nobody starts anything new and everybody hears why; then the reaper;
// then the sessions; then the processes that are left. It releases the address and the lock last, so that no other gateway starts on a
// state dir whose sessions are still ending.
type gateway struct {
	settings *config.Settings
	log      zerolog.Logger
	cleanups []func() error // one for each opened part; run calls them in reverse order

	state        *statedir.Dir
	signals      chan os.Signal
	ignored      func() uint64 // counts the signals that did not come from the keeper
	registry     *prometheus.Registry
	metrics      *metrics.Metrics
	tokens       *auth.TokenFile
	tokenIsNew   bool           // this process made the token
	keeperClient *client.Client // nil: single process
	host         own.Keeper
	endTraces    func()
	member       *member.Member // nil: this is the only node
	pool         *pool.Pool
	server       *web.Server
	serveEnded   chan error // receives the result of Serve
	serveErr     error      // that result, if Serve ended by itself
	reaper       *reaper.Reaper
	reloader     *configReloader
}

// run is the life of a gateway. conn is the socket to its keeper, nil if it has none.
func (g *gateway) run(conn *os.File, stdout io.Writer) (err error) {
	defer func() {
		for _, end := range slices.Backward(g.cleanups) {
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
	return g.shutDown()
}

func (g *gateway) addCleanup(f func() error) { g.cleanups = append(g.cleanups, f) }

// open does everything that can fail, up to binding the port. Nothing runs yet and no client gets an answer.
func (g *gateway) open(conn *os.File) (err error) {
	if conn == nil {
		if g.state, err = statedir.Open(g.settings.StateDir); err != nil {
			return err
		}
		g.addCleanup(g.state.Close)
	} else { // the keeper holds the lock
		g.state = statedir.At(g.settings.StateDir)
	}
	if err := g.startSignals(conn != nil); err != nil {
		return err
	}
	g.registry = prometheus.NewRegistry()
	g.metrics = metrics.New(g.registry)
	g.metrics.Build(buildinfo.Version())

	tokens, first, closeAuth, err := openAuth(g.settings, g.state, g.log)
	if err != nil {
		return err
	}
	g.tokens, g.tokenIsNew = tokens, first
	g.addCleanup(func() error { closeAuth(); return nil })
	if g.settings.Web.ACME.Dir == "" {
		g.settings.Web.ACME.Dir = g.state.File(statedir.ACMEDir)
	}
	if g.settings.Web.TLSCert != "" { // before the keeper hears of us: a gateway that cannot serve must not begin an upgrade
		if _, err := tls.LoadX509KeyPair(g.settings.Web.TLSCert, g.settings.Web.TLSKey); err != nil {
			return hintListen(err, g.settings)
		}
	}
	if conn != nil {
		err = g.connectKeeper(conn)
	} else {
		err = g.startSingleProcess()
	}
	if err != nil {
		return err
	}
	if err := checkRecordable(g.settings, g.generation() == 0, g.log); err != nil {
		return err
	}
	if err := g.openLogs(); err != nil {
		return err
	}
	if err := g.settings.Enforceable(g.host.Unenforceable()); err != nil {
		return err
	}
	g.settings.Pool.BaseEnv = config.SessionEnv(g.settings.SessionUser)
	if err := g.joinCluster(); err != nil {
		return err
	}
	g.pool = pool.New(g.settings.PoolConfig(), g.host, g.metrics, g.log)
	if g.member != nil {
		g.member.Attach(g.pool)
	}

	g.settings.Web.Version = buildinfo.Version()
	g.settings.Web.Capabilities = capabilities(g.settings, g.host)
	gatherer := prometheus.Gatherer(g.registry)
	if g.keeperClient != nil {
		gatherer = countKeeper(g.registry, g.metrics, g.keeperClient, g.ignored)
	}
	g.server = web.New(g.settings.Web, g.pool, g.metrics, gatherer, g.log)
	if err := g.server.Listen(); err != nil {
		return hintListen(err, g.settings)
	}
	return nil
}

// startSignals subscribes to signals: with a keeper to those that the keeper sends, otherwise to all.
func (g *gateway) startSignals(kept bool) (err error) {
	if kept {
		g.signals, g.ignored, err = keeper.KeeperSignals(g.log)
		return err
	}
	g.signals = make(chan os.Signal, 4)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if !signal.Ignored(sig) { // a shell ignores INT for a background `trl serve &`; Ctrl-C is not meant for it
			signal.Notify(g.signals, sig)
		}
	}
	signal.Notify(g.signals, syscall.SIGHUP) // caught, so that a closed terminal does not end the gateway
	return nil
}

// connectKeeper takes over what the keeper holds: processes, sockets, sessions.
func (g *gateway) connectKeeper(conn *os.File) (err error) {
	if g.keeperClient, err = client.Dial(conn, g.log); err != nil {
		return err
	}
	g.addCleanup(func() error { _ = g.keeperClient.Close(); return nil })
	if g.settings.Web.Sockets, err = listen.Inherit(g.keeperClient.Files()); err != nil {
		return err
	}
	g.host, g.settings.Pool.Epoch = g.keeperClient, g.keeperClient.Epoch()
	return nil
}

// startSingleProcess makes this process the owner of all others.
func (g *gateway) startSingleProcess() error {
	h, err := host.NewHost(host.Config{Isolation: g.settings.Isolation, SessionUser: g.settings.SessionUser, WritableDirs: g.settings.LandlockDirs(), Metrics: g.metrics, Log: g.log})
	if err != nil {
		return cmdline.WithHint(err, "%s", hintHost(err))
	}
	g.addCleanup(h.Close) // kills all processes that are left
	g.host = host.Local(h)
	return requireTier(h.Tiers(), g.settings.RequiredTier)
}

func (g *gateway) openLogs() (err error) {
	if g.settings.Web.Audit, err = openAudit(g.settings, g.metrics, g.log); err != nil {
		return err
	}
	if g.settings.Web.Audit != nil {
		g.addCleanup(g.settings.Web.Audit.Close) // closed after every part that can start something
		g.settings.Pool.OnEnd = web.AuditEnds(g.settings.Web.Audit)
		if t, ok := g.settings.Web.Tokens.(*auth.TokenFile); ok {
			t.OnReload(web.AuditReloads(g.settings.Web.Audit))
		}
	}
	if g.settings.Web.Trace, g.endTraces, err = openTraces(g.log); err != nil {
		return cmdline.WithHint(err, "see OTEL_EXPORTER_OTLP_ENDPOINT and OpenTelemetry's other variables")
	}
	g.addCleanup(func() error { g.endTraces(); return nil })
	return nil
}

// generation is the number of gateways that served these sessions before this one.
func (g *gateway) generation() int {
	if g.keeperClient == nil {
		return 0
	}
	return g.keeperClient.Generation()
}

// begin restores what an earlier gateway left, serves, and announces it.
func (g *gateway) begin(stdout io.Writer) error {
	if g.keeperClient != nil {
		g.pool.Recover(g.keeperClient.HeldSessions())
	}
	g.pool.Start()
	g.reaper = reaper.New(g.pool, func() { g.host.KillOrphans(g.pool.IsLive) }, g.metrics, g.log)
	g.reaper.Start()
	if g.keeperClient != nil { // otherwise this process forks itself
		g.adjustGOMAXPROCS()
	}
	if g.member != nil {
		if err := g.startMember(); err != nil {
			return err
		}
	}
	g.serveEnded = make(chan error, 1)
	go func() { g.serveEnded <- g.server.Serve() }() // until Shutdown, or until the listener fails
	g.pool.Recovered()                               // requests for a session that is being restored wait for it; the keeper waits for all of them before it regards this program as the gateway

	url := g.server.URL()
	local := localURL(url, g.settings.Web.Listen)
	if g.settings.GatewayUser == nil { // otherwise the state dir is the keeper's, and the keeper has written the address
		if err := g.state.Publish(local); err != nil {
			g.log.Warn().Err(err).Msg("the command line will not find this gateway by itself")
		}
	}
	if g.keeperClient == nil {
		notify(ready)
	} else if err := g.keeperClient.Ready(); err != nil {
		return err
	}
	g.reloader = follow(g.settings, g.pool, g.server, g.host, g.member, g.metrics, g.log)
	g.addCleanup(func() error { g.reloader.close(); return nil })
	if g.keeperClient != nil {
		g.reloader.subscribe(g.keeperClient.Remember)
	}
	if g.generation() == 0 {
		printAddress(stdout, url, local, g.tokens, g.state, g.tokenIsNew)
	}
	tier, why := g.host.Isolation()
	g.settings.Web.Audit.Append(audit.Entry{Action: audit.ActionStart, Outcome: "ok", Version: buildinfo.Version()})
	g.log.Info().Int("generation", g.generation()).Str("address", g.server.Addr()).Str("version", buildinfo.Version()).
		Str("isolation", tier).Str("why", why).Msg("listening")
	return nil
}

// adjustGOMAXPROCS starts the goroutine that adjusts GOMAXPROCS to the load.
func (g *gateway) adjustGOMAXPROCS() {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends when stop is closed; the cleanup waits for it
		defer close(ended)
		host.AdjustGOMAXPROCS(stop)
	}()
	g.addCleanup(func() error { close(stop); <-ended; return nil })
}

// wait returns nil when it is time for an orderly end, and an error if no orderly end is possible.
func (g *gateway) wait() error {
	var gone, yield <-chan struct{} // nil: never
	var pulse <-chan time.Time      // for systemd's watchdog; with a keeper, the keeper answers it
	if g.keeperClient != nil {
		gone, yield = g.keeperClient.Done(), g.keeperClient.Yield()
	} else if every := watchdogInterval(); every > 0 {
		beat := time.NewTicker(every)
		defer beat.Stop()
		pulse = beat.C
	}
	for {
		select {
		case sig := <-g.signals:
			switch {
			case sig == syscall.SIGHUP:
				g.reloader.reloadAlways()
			case sig == syscall.SIGTERM && g.settings.DrainTime() > 0 && !g.server.DrainingForGood():
				g.settings.Web.Audit.Append(audit.Entry{Action: audit.ActionDrain, Outcome: "ok"})
				g.server.Drain(g.settings.DrainTime(), true, g.settings.MovesOnTerm())
			default:
				g.log.Info().Msg("stopping: " + sig.String())
				return nil
			}
		case <-pulse:
			notify(watchdogAlive)
		case <-g.server.Drained():
			return nil
		case g.serveErr = <-g.serveEnded:
			return nil
		case <-yield:
			g.handOver()
		case <-gone:
			// No process may run without an owner. If we are killed as well, the next start kills them (keeper.go).
			if g.settings.GatewayUser != nil { // we may not kill another user's processes: the orphan killer does
				g.log.Error().Msg("the keeper is dead; trl kill-orphans ends what it left")
			} else {
				ended := g.keeperClient.Instance().KillLeftovers(StopTimeout)
				g.log.Error().Ints("pids", ended).Msg("the keeper is dead: killed the processes that it left")
			}
			ctx, cancel := context.WithTimeout(context.Background(), handoverTimeout)
			defer cancel()
			_ = g.server.Shutdown(ctx) // clients that wait for an answer get an error
			if g.member != nil {
				g.member.Leave(context.Background())
			}
			return cmdline.WithHint(errors.New("the keeper is gone, and every session with it"), "something killed it (kill -9, the OOM killer); start trl serve again")
		}
	}
}

// handOver leaves everything to the next gateway and exits.
func (g *gateway) handOver() {
	ctx, cancel := context.WithTimeout(context.Background(), handoverTimeout)
	defer cancel()
	g.server.HandOver(ctx)
	g.endTraces()
	g.settings.Web.Audit.Append(audit.Entry{Action: audit.ActionLeave, Outcome: "ok"})
	if err := g.settings.Web.Audit.Close(); err != nil {
		g.log.Error().Err(err).Msg("audit log")
	}
	g.log.Info().Msg("left everything to the next gateway")
	os.Exit(0) // at once, because only one gateway at a time may use the sessions
}

// shutDown ends the clients' connections, which could start something, and then the sessions. After a second signal no step waits any
// longer, and the owner of the processes kills them.
func (g *gateway) shutDown() error {
	if g.keeperClient == nil {
		notify(stopping)
	}
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	go func() { // ends with the program
		for sig := range g.signals {
			if sig != syscall.SIGHUP {
				cancel()
			}
		}
	}()
	start := time.Now()
	g.reloader.close()
	if err := g.server.Shutdown(ctx); err != nil {
		g.log.Warn().Err(err).Msg("clients did not disconnect in time")
	}
	g.reaper.Close(ctx)
	if err := g.pool.Close(ctx); err != nil {
		g.log.Warn().Err(err).Msg("sessions did not end in time and are killed")
	}
	if g.member != nil {
		g.member.Leave(ctx)
	}
	took := time.Since(start)
	g.settings.Web.Audit.Append(audit.Entry{Action: audit.ActionStop, Outcome: "ok", DurationMS: float64(took.Milliseconds())})
	g.log.Debug().Dur("took_ms", took).Msg("stopped")
	if g.keeperClient != nil && g.serveErr == nil {
		soon, cancel := context.WithTimeout(context.Background(), byeTimeout) // the sessions' ends may be before it in the keeper's queue
		defer cancel()
		return g.keeperClient.Bye(soon)
	}
	return g.serveErr
}
