package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool"
	"trl/runtime"
	"trl/web"
	"trl/web/audit"
)

// A following keeps in force what the config file says, of what is live. A file that is not all right changes nothing.
type following struct {
	sessions  *pool.Pool
	server    *web.Server
	processes runtime.Keeper
	counts    *metrics.Metrics
	log       zerolog.Logger
	watch     io.Closer // nil: there is no file, or nobody tells of its changes

	turn  chan struct{}           // who has put something in has the turn, and with it what is below
	now   *settings               // in force; replaced, never changed
	seen  [sha256.Size]byte       // of the file when it was last looked at, good or bad
	taken func(text []byte) error // who wants to know what was taken; nil: nobody
}

// follow begins. Its goroutine, if there is a file, ends with close.
func (s *settings) follow(sessions *pool.Pool, server *web.Server, processes runtime.Keeper, counts *metrics.Metrics, log zerolog.Logger) *following {
	f := &following{sessions: sessions, server: server, processes: processes, counts: counts, log: log, now: s, turn: make(chan struct{}, 1)}
	if s.config == "" {
		return f
	}
	if s.refused == nil { // else it has not been looked at, as far as we are concerned
		f.seen = sha256.Sum256(s.text)
		f.wait(s.waiting)
	}
	var err error
	if f.watch, err = web.Follow(log, func() error { f.changed(); return nil }, s.config); err != nil {
		log.Warn().Err(err).Msg("changes of the config file are not noticed; SIGHUP reads it again")
	}
	f.changed() // since it was read and before it was watched
	return f
}

func (f *following) close() {
	if f.watch != nil {
		f.watch.Close()
	}
}

// tell gives taken what is in force, now and whenever that changes.
func (f *following) tell(taken func(text []byte) error) {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	f.taken = taken
	f.told()
}

func (f *following) told() {
	if f.taken == nil || f.now.config == "" {
		return
	}
	if err := f.taken(f.now.text); err != nil {
		f.log.Warn().Err(err).Msg("the keeper does not know the config file; should this gateway die, the next one has the first")
	}
}

// changed reads the file again if it is another one than before.
func (f *following) changed() { f.read(false) }

// look reads it again in any case.
func (f *following) look() { f.read(true) }

func (f *following) read(anyway bool) {
	f.turn <- struct{}{}
	defer func() { <-f.turn }()
	if f.now.config == "" {
		f.log.Info().Msg("SIGHUP ignored: there is no config file; token and certificate files are read again when they change")
		return
	}
	text, err := readConfig(f.now.config)
	seen := sha256.Sum256(text)
	if err != nil {
		seen = sha256.Sum256([]byte("\x00" + err.Error()))
	}
	if seen == f.seen && !anyway {
		return
	}
	f.seen = seen
	var next *settings
	switch {
	case err != nil:
	case len(text) == 0: // as it is for a moment when it is written over
		err = refuse(fmt.Errorf("config file %s: empty", f.now.config), "it may be half written; one with a comment counts")
	default:
		next, err = f.now.again(text)
	}
	var changed []string
	if err == nil {
		changed, next.waiting = next.stay(f.now)
		err = f.apply(next)
	}
	if err != nil {
		f.refuse(err)
		return
	}
	f.now = next
	f.counts.ConfigReloads.WithLabelValues(metrics.ReloadOK).Inc()
	f.now.web.Audit.Append(audit.Entry{Action: audit.ActionReload, Outcome: "ok", Reason: "settings"})
	f.counts.ConfigInForce.Set(1)
	f.log.Info().Strs("changed", changed).Msg("config file read")
	f.wait(next.waiting)
	f.told()
}

func (f *following) refuse(err error) {
	f.counts.ConfigReloads.WithLabelValues(metrics.ReloadRefused).Inc()
	f.now.web.Audit.Append(audit.Entry{Action: audit.ActionReload, Outcome: "refused", Reason: "settings"})
	f.counts.ConfigInForce.Set(0)
	f.log.Error().Err(err).Msg("config file refused; the settings before stay in force")
}

func (f *following) wait(waiting []string) {
	f.counts.ConfigWaiting.Set(float64(len(waiting)))
	if len(waiting) > 0 {
		f.log.Warn().Strs("settings", waiting).Msg("changed in the config file, and need a restart")
	}
}

// apply puts next in force, or nothing of it: what can fail comes first and takes nothing away.
func (f *following) apply(next *settings) (err error) {
	now := f.now
	if err := next.enforceable(f.processes.Unenforceable()); err != nil {
		return err
	}
	if dir := next.pool.DefaultDir; dir != now.pool.DefaultDir {
		if info, err := os.Stat(dir); !errors.Is(err, os.ErrPermission) && (err != nil || !info.IsDir()) { // its shells may be allowed to look
			return refuse(fmt.Errorf("%s: %q", next.source("default-dir"), dir), "want an existing directory, from /")
		}
	}
	fault := func(flag string, value any, want string) error {
		return refuse(fmt.Errorf("%s: %v", next.source(flag), value), "want %s", want)
	}
	if err := next.checkShells(fault); err != nil {
		return err
	}
	next.web.AuthNone, next.web.Tokens, next.web.JWT, next.web.Logins, next.web.Sockets = now.web.AuthNone, now.web.Tokens, now.web.JWT, now.web.Logins, now.web.Sockets
	next.web.Version, next.web.Audit, next.web.Trace = now.web.Version, now.web.Audit, now.web.Trace
	next.web.Capabilities = next.capabilities(f.processes)
	if err := f.server.Reload(next.web); err != nil {
		return refuse(fmt.Errorf("%s: %w", next.source("tls-cert"), err), "check tls_cert and tls_key")
	}
	f.sessions.Configure(next.pool)
	level, _ := zerolog.ParseLevel(next.logLevel) // check knows them
	zerolog.SetGlobalLevel(level)
	return nil
}
