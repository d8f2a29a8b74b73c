// Package serve starts and runs a gateway and its keeper: trl serve, and trl doctor, which examines the machine for them.
package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/statedir"
	"trl/runtime/confine"
	"trl/runtime/keeper"
	"trl/runtime/keeper/client"
	"trl/web/auth"
	"trl/web/listen"
)

func NewServe(start Startup) *cobra.Command {
	s := &config.Settings{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the gateway",
		Long: `Start the gateway: shell sessions over WebSocket, and over a Unix socket with --unix.

Each setting can also be in the environment (TRL_ and the flag's name: TRL_MAX_SESSIONS) or in the config file (max_sessions).
A flag overrides the environment, and the environment overrides the file; trl config shows the result.

When the gateway is ready it prints its address. The first start makes a token and prints the link to log in with; the command
line on this machine finds both by itself. SIGTERM or SIGINT ends the gateway and every session; a second one does not wait. With
--on-term drain SIGTERM lets live sessions go on, as trl drain does.

A session can do everything that its user can. That is your user, unless root sets another one with --session-user: one for all
sessions, or one for each. With --user the gateway is not root either. --allow-write keeps sessions from writing elsewhere.
--sandbox bwrap puts all of trl into a sandbox.`,
		Example: `  trl serve
  trl serve --listen 0.0.0.0:7681 --tls-cert cert.pem --tls-key key.pem
  trl serve --config /etc/trl.yaml
  trl serve --session-user 100000-100999 --user trl     # as root`,
		Args: cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := s.Resolve(cmd.Flags(), start.handover != nil)
			if err != nil {
				return err
			}
			log := newLogger(s, cmd.ErrOrStderr())
			if start.exposed != nil && !client.Started() {
				log.Warn().Err(start.exposed).Msg("sessions of this user can read the gateway's environment; keep secrets out of it")
			}
			return serve(s, start.handover, cmd.OutOrStdout(), log)
		},
	}
	s.Define(cmd.Flags())
	cmd.Flags().SortFlags = false // they are grouped by subject
	return cmd
}

// serve runs both halves of a gateway. Started by a person or a supervisor, it is the keeper (keeper.go), which starts the program again as
// the gateway (gateway.go). With --single-process there is no keeper, and everything ends with this process. With --sandbox both halves are
// in the sandbox, and this process waits for them.
func serve(s *config.Settings, will *keeper.Handover, stdout io.Writer, log zerolog.Logger) error {
	s.Web.AuthNone = s.Auth == "none"
	conn, err := client.GatewaySocket()
	if err != nil {
		return err
	}
	if conn != nil {
		return (&gateway{settings: s, log: log}).run(conn, stdout)
	}
	if listen.ByActivation() && will == nil {
		if s.Sandbox != "none" {
			return cmdline.WithHint(errors.New("socket activation does not work with --sandbox"), "leave the .socket unit out, and use --listen and --unix")
		}
		if s.Web.Activated, err = listen.Activated(); err != nil {
			return cmdline.WithHint(err, "see docs/operations.md, systemd")
		}
	}
	if s.Sandbox != "none" && will == nil {
		if os.Getenv(config.SandboxedVar) == "" {
			return inSandbox(s)
		}
		if err := confine.EnterSandbox(); err != nil {
			return err
		}
	}
	if will == nil { // only in the first process
		for _, err := range config.UnknownVariables() {
			event := log.Warn()
			if r := (*cmdline.HintedError)(nil); errors.As(err, &r) {
				event = event.Str("hint", r.Hint)
			}
			event.Msg(err.Error())
		}
	}
	outsidePID := clearEnvironment(s)
	if s.SingleProcess {
		return (&gateway{settings: s, log: log}).run(nil, stdout)
	}
	return runKeeper(s, will, outsidePID, log)
}

// newLogger builds the one logger, on stderr.
func newLogger(s *config.Settings, w io.Writer) zerolog.Logger {
	level, err := zerolog.ParseLevel(s.LogLevel)
	if err != nil {
		level = zerolog.InfoLevel // Settings.check has refused every other text
	}
	if s.LogFormat == "console" {
		w = zerolog.ConsoleWriter{Out: w, NoColor: !isatty.IsTerminal(os.Stderr.Fd()) || os.Getenv("NO_COLOR") != "", TimeFormat: time.RFC3339}
	}
	zerolog.SetGlobalLevel(level)         // the only level: no logger has its own, so a reload can change it
	zerolog.ErrorHandler = func(error) {} // an error of the log must not end us, and there is no other place to report it
	return zerolog.New(w).With().Timestamp().Logger()
}

// printAddress prints the address, for whoever started us. The login link is a secret: printAddress prints it when it is new, or on a
// terminal, but not into the log of every later start. A closed stdout is no error. The link contains the operator's own token, because trl
// keeps only hashes of the others.
func printAddress(w io.Writer, url, local string, tokens *auth.TokenFile, state *statedir.Dir, first bool) {
	fmt.Fprintf(w, "trl: listening on %s\n", url)
	if tokens == nil || !first && !isatty.IsTerminal(os.Stdout.Fd()) {
		return
	}
	token, _ := statedir.FirstToken(state.File(statedir.OperatorFile))
	if !tokens.Knows(token) {
		token = tokens.AdminToken()
	}
	if token != "" {
		fmt.Fprintf(w, "trl: open %s/login#token=%s\n", local, token)
	}
}

// localURL is the address at which this machine reaches a gateway that listens on every address: by IPv4, unless --listen has an IPv6
// address.
func localURL(url, listen string) string {
	loopback := "//127.0.0.1:"
	if strings.HasPrefix(listen, "[") {
		loopback = "//[::1]:"
	}
	return strings.NewReplacer("//0.0.0.0:", "//127.0.0.1:", "//[::]:", loopback).Replace(url)
}

func hintListen(err error, s *config.Settings) error {
	var (
		op   *net.OpError
		path *fs.PathError
	)
	switch {
	case s.Web.Unix != "" && strings.HasPrefix(err.Error(), "listen on "+s.Web.Unix+": "):
		return cmdline.WithHint(err, "stop what listens there, or choose another --unix")
	case config.IsPath(s.Web.AdminListen) && strings.HasPrefix(err.Error(), "listen on "+s.Web.AdminListen+": "):
		return cmdline.WithHint(err, "stop what listens there, or choose another --admin-listen")
	case s.Web.Link != "" && strings.HasPrefix(err.Error(), "listen tcp") && strings.Contains(err.Error(), " "+s.Web.Link+": "):
		return cmdline.WithHint(err, "check --cluster-listen HOST:PORT; port 0 takes a free one")
	case errors.Is(err, syscall.EADDRINUSE):
		return cmdline.WithHint(err, "stop what listens there, or choose another --listen (port 0 takes a free one)")
	case errors.Is(err, syscall.EACCES) && errors.As(err, &op):
		return cmdline.WithHint(err, "ports below 1024 need privileges; choose another --listen")
	case errors.As(err, &op):
		return cmdline.WithHint(err, "check --listen HOST:PORT")
	case errors.As(err, &path):
		return cmdline.WithHint(err, "check --tls-cert, --tls-key and --unix")
	case s.Web.AuthNone:
		return cmdline.WithHint(err, "listen on 127.0.0.1, or use --auth token")
	case !s.Web.TLS():
		return cmdline.WithHint(err, "listen on 127.0.0.1, or give --tls-cert and --tls-key; --insecure when a proxy in front does TLS")
	}
	return cmdline.WithHint(err, "check --tls-cert and --tls-key")
}
