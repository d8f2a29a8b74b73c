package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"trl/pool"
	"trl/protocol"
	"trl/runtime"
	"trl/runtime/keeper"
	"trl/web"
	"trl/web/listen"
)

func newServe(start startup) *cobra.Command {
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
			s, err := s.resolve(cmd.Flags(), start.handover != nil)
			if err != nil {
				return err
			}
			log := newLogger(s, cmd.ErrOrStderr())
			if start.exposed != nil && !keeper.Started() {
				log.Warn().Err(start.exposed).Msg("sessions of this user can read the gateway's environment; keep secrets out of it")
			}
			return serve(s, start.handover, cmd.OutOrStdout(), log)
		},
	}
	s.define(cmd.Flags())
	cmd.Flags().SortFlags = false // they are grouped by subject
	return cmd
}

// serve is both halves of a gateway: started by a person or a supervisor it is the keeper (keeper.go), which starts it again
// as the gateway proper (gateway.go). With --single-process there is no keeper, and everything ends with this process. With
// --sandbox both are in the sandbox, and this process waits for them.
func serve(s *settings, will *keeper.Handover, stdout io.Writer, log zerolog.Logger) error {
	s.web.AuthNone = s.auth == "none"
	conn, err := keeper.GatewaySocket()
	if err != nil {
		return err
	}
	if conn != nil {
		return (&gateway{settings: s, log: log}).run(conn, stdout)
	}
	if listen.ByActivation() && will == nil {
		if s.sandbox != "none" {
			return errorWithHint(errors.New("sockets by activation do not get into a sandbox"), "leave the .socket unit out, and use --listen and --unix")
		}
		if s.web.Activated, err = listen.Activated(); err != nil {
			return errorWithHint(err, "see docs/operations.md, systemd")
		}
	}
	if s.sandbox != "none" && will == nil {
		if os.Getenv(sandboxedVar) == "" {
			return s.inSandbox()
		}
		if err := runtime.EnterSandbox(); err != nil {
			return err
		}
	}
	if will == nil { // once, by the first process
		for _, err := range unknownVariables() {
			event := log.Warn()
			if r := (*hintedError)(nil); errors.As(err, &r) {
				event = event.Str("hint", r.hint)
			}
			event.Msg(err.Error())
		}
	}
	s.clearEnvironment()
	if s.singleProcess {
		return (&gateway{settings: s, log: log}).run(nil, stdout)
	}
	return runKeeper(s, will, log)
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

// printAddress prints what whoever started us waits for. The login link is a secret: it is printed when it is new, or to a person,
// and not into the log of every later start. A stdout that is closed is fine. Tokens are kept hashed: the link has the operator's own.
func printAddress(w io.Writer, url, local string, tokens *web.TokenFile, state *stateDir, first bool) {
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
		"max_sessions_per_principal": float64(cmp.Or(s.pool.MaxPerPrincipal, pool.AllButReserve(s.pool.MaxSessions))),
		"max_frame_bytes":            float64(s.web.MaxFrame),
		"max_output_bytes":           float64(s.pool.MaxOutput),
		"ring_bytes":                 float64(s.pool.RingBytes),
		"slow_client_s":              s.web.SlowClient.Seconds(),
		"idle_timeout_s":             s.pool.IdleTimeout.Seconds(),
		"max_idle_timeout_s":         s.pool.MaxIdle.Seconds(),
		"default_timeout_s":          s.pool.DefaultTimeout.Seconds(),
		"max_timeout_s":              cmp.Or(s.pool.MaxTimeout, pool.LongestTimeout).Seconds(),
		"retention_s":                s.pool.Retention.Seconds(),
		"record_max_bytes":           float64(s.pool.Record.MaxBytes),
		"record_total_bytes":         float64(s.pool.Record.TotalBytes),
		"record_keep_s":              s.pool.Record.Keep.Seconds(),
	}
	all["max_connections"], all["max_connections_per_principal"] = float64(s.web.MaxConns), float64(cmp.Or(s.web.MaxConnsOfPrincipal, pool.AllButReserve(s.web.MaxConns)))
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
		SessionUser: s.sessionUserName, NoNewPrivs: s.sessionUser != nil || len(s.allowWrite) > 0 || s.sandbox != "none", AllowWrite: s.allowWrite,
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
		return errorWithHint(err, "stop what listens there, or choose another --unix")
	case isPath(s.web.AdminListen) && strings.HasPrefix(err.Error(), "listen on "+s.web.AdminListen+": "):
		return errorWithHint(err, "stop what listens there, or choose another --admin-listen")
	case errors.Is(err, syscall.EADDRINUSE):
		return errorWithHint(err, "stop what listens there, or choose another --listen (port 0 takes a free one)")
	case errors.Is(err, syscall.EACCES) && errors.As(err, &op):
		return errorWithHint(err, "ports below 1024 need privileges; choose another --listen")
	case errors.As(err, &op):
		return errorWithHint(err, "check --listen HOST:PORT")
	case errors.As(err, &path):
		return errorWithHint(err, "check --tls-cert, --tls-key and --unix")
	case s.web.AuthNone:
		return errorWithHint(err, "listen on 127.0.0.1, or use --auth token")
	case !s.web.TLS():
		return errorWithHint(err, "listen on 127.0.0.1, or give --tls-cert and --tls-key; --insecure when a proxy in front does TLS")
	}
	return errorWithHint(err, "check --tls-cert and --tls-key")
}
