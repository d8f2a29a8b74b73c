package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"trl/metrics"
	"trl/pool"
	"trl/protocol"
	"trl/reaper"
	"trl/runtime"
	"trl/runtime/keeper"
	"trl/web"
	"trl/web/audit"
)

func newServe(start beginning) *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the gateway",
		Long: `Start the gateway: shell sessions over WebSocket, and over a Unix socket with --unix.

Each setting may also stand in the environment (TRL_ and the flag's name: TRL_MAX_SESSIONS) or in the config file (max_sessions).
A flag counts before the environment, the environment before the file; trl config says what comes of them.

When it is ready it prints its address. At the first start it makes a token and prints the link to log in with; the command line
on this machine finds both by itself. SIGTERM or SIGINT ends it and every session; a second one does not wait. With --on-term
drain SIGTERM lets the sessions that live go on, as trl drain does.

A session can do what its user can, which is yours unless root says otherwise with --session-user: another one for all, or a
number of its own for each. With --user the gateway is not root either. --allow-write keeps sessions from writing elsewhere.
--sandbox bwrap puts all of it in a sandbox.`,
		Example: `  trl serve
  trl serve --listen 0.0.0.0:7681 --tls-cert cert.pem --tls-key key.pem
  trl serve --config /etc/trl.yaml
  trl serve --session-user 100000-100999 --user trl     # as root`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := s.start(cmd.Flags(), start.will != nil)
			if err != nil {
				return err
			}
			log := newLogger(s, cmd.ErrOrStderr())
			if start.exposed != nil && !keeper.Started() {
				log.Warn().Err(start.exposed).Msg("sessions of this user can read the gateway's environment; keep secrets out of it")
			}
			return serve(s, start.will, cmd.OutOrStdout(), log)
		},
	}
	s.define(cmd.Flags())
	cmd.Flags().SortFlags = false // they are grouped by subject
	return cmd
}

// endWithin is how long a stop may take: clients get up to 1 s to hear of it, commands 5 s between TERM and KILL, and the
// rest is for the killing of some hundred trees on a busy machine.
const endWithin = 8 * time.Second

// leaveWithin is what clients get to hear that they shall come again, while nobody serves.
const leaveWithin = time.Second

// serve is both halves of a gateway: started by a person or a supervisor it is the keeper (keep.go), which starts it again
// as the gateway proper. With --single-process there is no keeper, and everything ends with this process.
//
// Start: state dir (nobody else uses it), signals, metrics, keeper (it must own every process from the first), pool, web (its
// port, so that a taken one is noticed before any shell is started), what an earlier gateway left, reaper. End: the other way
// round. Clients first, so that nobody starts anything new and everybody hears why; then the clock; then the sessions; then
// whatever processes are left; the address and the lock last, so that no other gateway starts on a state dir whose sessions
// still die.
func serve(s *settings, will *keeper.Will, stdout io.Writer, log zerolog.Logger) (err error) {
	s.web.AuthNone = s.auth == "none"
	conn, err := keeper.Inherit()
	if err != nil {
		return err
	}
	if web.ByActivation() && will == nil && conn == nil {
		if s.sandbox != "none" || s.isolation == "pidns" && runtime.NeedsUserNamespace() {
			return refuse(errors.New("sockets by activation do not get into a sandbox or a user namespace"), "leave the .socket unit out, and use --listen and --unix")
		}
		if s.web.Activated, err = web.Activated(); err != nil {
			return refuse(err, "see docs/operations.md, systemd")
		}
	}
	if conn == nil && will == nil && s.sandbox != "none" {
		if os.Getenv(sandboxedVar) == "" {
			return s.inSandbox()
		}
		if err := runtime.EnterSandbox(s.isolation == "pidns" && s.as != nil); err != nil { // sessions of another user have none
			return err
		}
	}
	if conn == nil && s.isolation == "pidns" && runtime.NeedsUserNamespace() {
		return inUserNamespace()
	}
	if conn == nil {
		s.forget()
	}
	if conn == nil && !s.single {
		return keep(s, will, log)
	}
	var state *stateDir
	if conn == nil {
		if state, err = openStateDir(s.stateDir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, state.Close()) }()
	} else { // the keeper has locked it
		state = &stateDir{path: s.stateDir}
	}

	signals := make(chan os.Signal, 4)
	var ignored func() uint64 // signals that were not the keeper's
	if conn != nil {
		if signals, ignored, err = keeper.Orders(log); err != nil {
			return err
		}
	} else {
		for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} {
			if !signal.Ignored(sig) { // a shell script's `trl serve &` is not for the terminal's Ctrl-C
				signal.Notify(signals, sig)
			}
		}
		signal.Notify(signals, syscall.SIGHUP) // caught, so that neither a closed terminal nor nohup's absence ends it
	}

	registry := prometheus.NewRegistry()
	counts := metrics.New(registry)
	counts.Build(buildVersion())

	tokens, first, closeAuth, err := s.openAuth(state, log)
	if err != nil {
		return err
	}
	defer closeAuth()

	if s.web.ACME.Dir == "" {
		s.web.ACME.Dir = state.file(acmeDir)
	}
	if s.web.TLSCert != "" { // before the keeper is asked: an upgrade must not begin with what cannot serve
		if _, err := tls.LoadX509KeyPair(s.web.TLSCert, s.web.TLSKey); err != nil {
			return hintListen(err, s)
		}
	}
	var kept *keeper.Client // nil: single process
	var processes runtime.Keeper
	var gone, yield <-chan struct{} // nil: never
	if conn != nil {
		if kept, err = keeper.Dial(conn, log); err != nil {
			return err
		}
		defer func() { _ = kept.Close() }()
		if s.web.Sockets, err = web.Inherit(kept.Files()); err != nil {
			return err
		}
		processes, gone, yield = kept, kept.Done(), kept.Yield()
		s.pool.Epoch = kept.Epoch()
	} else {
		host, e := runtime.NewHost(runtime.Config{Isolation: s.isolation, As: s.as, Write: s.fences(), Metrics: counts, Log: log})
		if e != nil {
			return refuse(e, "%s", hintHost(e))
		}
		defer func() { err = errors.Join(err, host.Close()) }() // KILLs what is left
		if err := requireTier(host.Tiers(), s.require); err != nil {
			return err
		}
		processes = runtime.Local(host)
	}

	if err := s.recordable(kept == nil || kept.Generation() == 0, log); err != nil {
		return err
	}
	if s.web.Audit, err = s.openAudit(counts, log); err != nil {
		return err
	}
	if s.web.Audit != nil {
		defer func() { err = errors.Join(err, s.web.Audit.Close()) }() // the last to go of what begins anything
		s.pool.Ended = web.Endings(s.web.Audit)
		if t, ok := s.web.Tokens.(*web.TokenFile); ok {
			t.OnReload(web.Reloads(s.web.Audit))
		}
	}
	trace, endTraces, err := openTraces(log)
	if err != nil {
		return refuse(err, "see OTEL_EXPORTER_OTLP_ENDPOINT and the others of OpenTelemetry")
	}
	defer endTraces()
	s.web.Trace = trace
	cannot := processes.Unenforceable()
	if err := s.enforceable(cannot); err != nil {
		return err
	}
	s.pool.BaseEnv = baseEnv(s.as)
	sessions := pool.New(s.pool, processes, counts, log)

	tier, why := processes.Isolation()
	s.web.Version = buildVersion()
	s.web.Capabilities = s.capabilities(processes)
	gatherer := prometheus.Gatherer(registry)
	if kept != nil {
		gatherer = countKeeper(registry, counts, kept, ignored)
	}
	server := web.New(s.web, sessions, counts, gatherer, log)
	if err := server.Listen(); err != nil {
		return hintListen(err, s)
	}

	generation := 0
	if kept != nil {
		generation = kept.Generation()
		sessions.Recover(kept.Inherited())
	}
	sessions.Start()
	clock := reaper.New(sessions, func() { processes.KillOrphans(sessions.Live) }, counts, log)
	clock.Start()
	served := make(chan error, 1)
	go func() { served <- server.Serve() }() // until Shutdown, or until the listener fails

	url := server.URL()
	if s.gateway != nil { // the state dir is the keeper's, which has done so
	} else if err := state.publish(localURL(url, s.web.Listen)); err != nil {
		log.Warn().Err(err).Msg("the command line will not find this gateway by itself")
	}
	if kept != nil {
		if err := kept.Ready(); err != nil {
			return err
		}
	}
	var pulse <-chan time.Time // for a supervisor; a keeper does it otherwise
	if kept == nil {
		notify(ready)
		if every := watchdog(); every > 0 {
			beat := time.NewTicker(every)
			defer beat.Stop()
			pulse = beat.C
		}
	}
	config := s.follow(sessions, server, processes, counts, log)
	defer config.close()
	if kept != nil {
		config.tell(kept.Remember)
	}
	if generation == 0 {
		announce(stdout, url, localURL(url, s.web.Listen), tokens, state, first)
	}
	s.web.Audit.Append(audit.Entry{Action: audit.ActionStart, Outcome: "ok", Version: buildVersion()})
	log.Info().Int("generation", generation).Str("address", server.Addr()).Str("version", buildVersion()).Str("isolation", tier).Str("why", why).Msg("listening")

	var failure error
	for running := true; running; {
		select {
		case sig := <-signals:
			if sig == syscall.SIGHUP {
				config.look()
				continue
			}
			if sig == syscall.SIGTERM && s.drains() > 0 && !server.Draining() {
				s.web.Audit.Append(audit.Entry{Action: audit.ActionDrain, Outcome: "ok"})
				server.Drain(s.drains(), true)
				continue
			}
			log.Info().Stringer("signal", sig).Msg("stopping")
		case <-pulse:
			notify(alive)
			continue
		case <-server.Drained():
		case failure = <-served:
		case <-yield:
			ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
			defer cancel()
			server.Leave(ctx)
			endTraces()
			s.web.Audit.Append(audit.Entry{Action: audit.ActionLeave, Outcome: "ok"})
			if e := s.web.Audit.Close(); e != nil {
				log.Error().Err(e).Msg("audit log")
			}
			log.Info().Msg("left everything to the next gateway")
			os.Exit(0) // and nothing else of us may run: what belongs to the sessions has one user at a time
		case <-gone:
			// Nothing shall run that nobody owns. Should we be killed, too, the next start does it (keep.go).
			if s.gateway != nil { // whom we may not touch: the undertaker does
				log.Error().Msg("the keeper is dead")
			} else {
				ended := kept.Instance().End(endWithin)
				log.Error().Ints("pids", ended).Msg("the keeper is dead: ended what it left")
			}
			return errors.New("the keeper is gone, and with it every session")
		}
		running = false
	}

	if kept == nil {
		notify(stopping)
	}
	ctx, cancel := context.WithTimeout(context.Background(), endWithin)
	defer cancel()
	go func() { // a second signal: no step waits any more, and host.Close KILLs; ends with the program
		for sig := range signals {
			if sig != syscall.SIGHUP {
				cancel()
			}
		}
	}()
	start := time.Now()
	config.close()
	if e := server.Shutdown(ctx); e != nil {
		log.Warn().Err(e).Msg("clients did not go in time")
	}
	clock.Close()
	if e := sessions.Close(ctx); e != nil {
		log.Warn().Err(e).Msg("sessions did not end in time and are killed")
	}
	s.web.Audit.Append(audit.Entry{Action: audit.ActionStop, Outcome: "ok", DurationMS: float64(time.Since(start).Milliseconds())})
	log.Info().Dur("took", time.Since(start)).Msg("stopped")
	if kept != nil && failure == nil {
		failure = kept.Bye()
	}
	return failure
}

// newLogger builds the one logger, on stderr.
func newLogger(s *settings, w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(s.logLevel)
	if err != nil {
		level = zerolog.InfoLevel // settings.check has refused everything else
	}
	if s.logFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, NoColor: !isatty.IsTerminal(os.Stderr.Fd()) || os.Getenv("NO_COLOR") != "", TimeFormat: time.RFC3339}
	}
	zerolog.SetGlobalLevel(level)         // and no logger has another one: so it can change
	zerolog.ErrorHandler = func(error) {} // a log nobody reads must not end us, and there is nowhere else to say so
	return zerolog.New(w).With().Timestamp().Logger()
}

// announce prints what whoever started us waits for. The login link is a secret: it is printed when it is new, or to a person,
// and not into the log of every later start. A stdout that is closed is fine. Tokens are kept hashed: the link has the operator's own.
func announce(w io.Writer, url, local string, tokens *web.TokenFile, state *stateDir, first bool) {
	fmt.Fprintf(w, "trl: listening on %s\n", url)
	if tokens == nil || !first && !isatty.IsTerminal(os.Stdout.Fd()) {
		return
	}
	token, _ := firstToken(state.file(operatorFile))
	if !tokens.Knows(token) {
		token = tokens.AdminToken()
	}
	if token != "" {
		fmt.Fprintf(w, "trl: open %s/login#token=%s\n", local, token)
	}
}

// limits is what clients may find out about the bounds in force.
func (s *settings) limits() map[string]float64 {
	all := map[string]float64{
		"max_sessions":               float64(s.pool.MaxSessions),
		"max_sessions_per_principal": float64(s.pool.MaxPerPrincipal),
		"max_frame_bytes":            float64(s.web.MaxFrame),
		"max_output_bytes":           float64(s.pool.MaxOutput),
		"ring_bytes":                 float64(s.pool.RingBytes),
		"slow_client_s":              s.web.SlowClient.Seconds(),
		"idle_timeout_s":             s.pool.IdleTimeout.Seconds(),
		"max_idle_timeout_s":         s.pool.MaxIdle.Seconds(),
		"default_timeout_s":          s.pool.DefaultTimeout.Seconds(),
		"max_timeout_s":              s.pool.MaxTimeout.Seconds(),
		"retention_s":                s.pool.Retention.Seconds(),
		"record_max_bytes":           float64(s.pool.Record.MaxBytes),
		"record_total_bytes":         float64(s.pool.Record.TotalBytes),
		"record_keep_s":              s.pool.Record.Keep.Seconds(),
	}
	all["max_connections"], all["max_connections_per_principal"] = float64(s.web.MaxConns), float64(s.web.MaxConnsOf)
	all["max_connections_per_share"] = float64(s.web.MaxGuests)
	l := s.pool.Limits
	for name, v := range map[string]float64{
		"memory_bytes": float64(l.MemoryBytes), "pids": float64(l.Pids), "cpu": l.CPU,
		"file_size_bytes": float64(l.FileSizeBytes), "open_files": float64(l.OpenFiles),
	} {
		if v > 0 {
			all[name] = v
		}
	}
	return all
}

// capabilities is what clients may find out about the server.
func (s *settings) capabilities(processes runtime.Keeper) protocol.Capabilities {
	cannot := processes.Unenforceable()
	c := protocol.Capabilities{
		DefaultShell: s.pool.DefaultShell, Isolation: isolation(processes), Limits: s.limits(),
		SessionUser: s.sessionAs, NoNewPrivs: s.as != nil || len(s.write) > 0 || s.sandbox != "none", AllowWrite: s.write,
		SessionLimits: slices.DeleteFunc(slices.Sorted(maps.Keys(limitFlags)), func(limit string) bool { return cannot[limit] != "" }),
	}
	if s.sandbox != "none" {
		c.Sandbox = s.sandbox
	}
	if s.pool.Record.Dir != "" {
		c.Record = s.pool.Record.Policy
	}
	return c
}

// localURL is where this machine reaches a gateway that listens on every address: by IPv4, unless it was told an address of IPv6.
func localURL(url, listen string) string {
	loopback := "//127.0.0.1:"
	if strings.HasPrefix(listen, "[") {
		loopback = "//[::1]:"
	}
	return strings.NewReplacer("//0.0.0.0:", "//127.0.0.1:", "//[::]:", loopback).Replace(url)
}

// maxIdle bounds the idle_timeout_s a client may ask for: a week, or what the operator gives everybody where that is more.
func maxIdle(standard time.Duration) time.Duration {
	if standard == 0 {
		return 0
	}
	return max(standard, 7*24*time.Hour)
}

func hintListen(err error, s *settings) error {
	var (
		op   *net.OpError
		path *fs.PathError
	)
	switch {
	case s.web.Unix != "" && strings.HasPrefix(err.Error(), "listen on "+s.web.Unix+": "):
		return refuse(err, "stop what listens there, or choose another --unix")
	case isPath(s.web.AdminListen) && strings.HasPrefix(err.Error(), "listen on "+s.web.AdminListen+": "):
		return refuse(err, "stop what listens there, or choose another --admin-listen")
	case errors.Is(err, syscall.EADDRINUSE):
		return refuse(err, "stop what listens there, or choose another --listen (port 0 takes a free one)")
	case errors.Is(err, syscall.EACCES) && errors.As(err, &op):
		return refuse(err, "ports below 1024 need privileges; choose another --listen")
	case errors.As(err, &op):
		return refuse(err, "check --listen HOST:PORT")
	case errors.As(err, &path):
		return refuse(err, "check --tls-cert, --tls-key and --unix")
	case s.web.AuthNone:
		return refuse(err, "listen on 127.0.0.1, or use --auth token")
	case !s.web.TLS():
		return refuse(err, "listen on 127.0.0.1, or give --tls-cert and --tls-key; --insecure when a proxy in front does TLS")
	}
	return refuse(err, "check --tls-cert and --tls-key")
}
