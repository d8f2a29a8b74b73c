package serve

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/rs/zerolog"

	"trl/internal/cmdline"
	"trl/internal/config"
	"trl/internal/member"
	"trl/metrics"
	"trl/pool"
	"trl/runtime/own"
	"trl/web"
	"trl/web/audit"
	"trl/web/filewatch"
)

// configReloader applies changes of the live settings in the config file. A file with any mistake changes nothing.
type configReloader struct {
	pool    *pool.Pool
	server  *web.Server
	host    own.Keeper
	member  *member.Member // nil: there is no cluster
	metrics *metrics.Metrics
	log     zerolog.Logger
	watch   io.Closer // nil: there is no file, or no notice of its changes

	slot      chan struct{}           // holds the lock on the fields below while it has an element
	current   *config.Settings        // in force; replaced, never changed
	lastHash  [sha256.Size]byte       // of the file when it was last read, valid or not
	onApplied func(text []byte) error // called with the file that is in force; may be nil
}

// follow makes a configReloader. If there is a file, its goroutine ends with close.
func follow(s *config.Settings, sessions *pool.Pool, server *web.Server, processes own.Keeper, node *member.Member, counts *metrics.Metrics, log zerolog.Logger) *configReloader {
	f := &configReloader{pool: sessions, server: server, host: processes, member: node, metrics: counts, log: log, current: s, slot: make(chan struct{}, 1)}
	if s.File == "" {
		return f
	}
	if s.FileError == nil { // otherwise the file has not been read
		f.lastHash = sha256.Sum256(s.FileText)
		f.setWaiting(s.NeedRestart)
	}
	var err error
	if f.watch, err = filewatch.Follow(log, func() error { f.reloadIfChanged(); return nil }, s.File); err != nil {
		log.Warn().Err(err).Msg("changes of the config file are not noticed; SIGHUP reads it again")
	}
	f.reloadIfChanged() // the file may have changed between reading and watching it
	return f
}

func (f *configReloader) close() {
	if f.watch != nil {
		f.watch.Close()
	}
}

// subscribe calls taken with the file in force, now and whenever it changes.
func (f *configReloader) subscribe(taken func(text []byte) error) {
	f.slot <- struct{}{}
	defer func() { <-f.slot }()
	f.onApplied = taken
	f.notifyApplied()
}

func (f *configReloader) notifyApplied() {
	if f.onApplied == nil || f.current.File == "" {
		return
	}
	if err := f.onApplied(f.current.FileText); err != nil {
		f.log.Warn().Err(err).Msg("the keeper did not get the config file; if this gateway dies, the next one uses the text from the keeper's start")
	}
}

// reloadIfChanged reads the file again if its content differs from the last time.
func (f *configReloader) reloadIfChanged() { f.read(false) }

// reloadAlways reads the file again in any case.
func (f *configReloader) reloadAlways() { f.read(true) }

func (f *configReloader) read(anyway bool) {
	f.slot <- struct{}{}
	defer func() { <-f.slot }()
	if f.current.File == "" {
		f.log.Info().Msg("SIGHUP ignored: there is no config file; token and certificate files are read again when they change")
		return
	}
	text, err := config.ReadFile(f.current.File)
	seen := sha256.Sum256(text)
	if err != nil {
		seen = sha256.Sum256([]byte("\x00" + err.Error()))
	}
	if seen == f.lastHash && !anyway {
		return
	}
	f.lastHash = seen
	var next *config.Settings
	switch {
	case err != nil:
	case len(text) == 0: // it is empty for a moment while a program rewrites it
		err = cmdline.WithHint(fmt.Errorf("config file %s: empty", f.current.File), "it may be half written; one with a comment counts")
	default:
		next, err = f.current.WithFile(text)
	}
	var changed []string
	if err == nil {
		changed, next.NeedRestart = next.KeepFixed(f.current)
		err = f.apply(next)
	}
	if err != nil {
		f.reject(err)
		return
	}
	f.current = next
	f.metrics.ConfigReloads.WithLabelValues(metrics.ReloadOK).Inc()
	f.current.Web.Audit.Append(audit.Entry{Action: audit.ActionReload, Outcome: "ok", Reason: "settings"})
	f.metrics.ConfigInForce.Set(1)
	f.log.Info().Strs("changed", changed).Msg("config file read")
	f.setWaiting(next.NeedRestart)
	f.notifyApplied()
}

func (f *configReloader) reject(err error) {
	f.metrics.ConfigReloads.WithLabelValues(metrics.ReloadRefused).Inc()
	f.current.Web.Audit.Append(audit.Entry{Action: audit.ActionReload, Outcome: "refused", Reason: "settings"})
	f.metrics.ConfigInForce.Set(0)
	f.log.Error().Err(err).Msg("config file refused; the previous settings stay in force")
}

func (f *configReloader) setWaiting(waiting []string) {
	f.metrics.ConfigWaiting.Set(float64(len(waiting)))
	if len(waiting) > 0 {
		f.log.Warn().Strs("settings", waiting).Msg("changed in the config file, and need a restart")
	}
}

// apply puts all of next in force, or nothing: the steps that can fail come first and change nothing.
func (f *configReloader) apply(next *config.Settings) (err error) {
	now := f.current
	if err := next.Enforceable(f.host.Unenforceable()); err != nil {
		return err
	}
	if dir := next.Pool.DefaultDir; dir != now.Pool.DefaultDir {
		if info, err := os.Stat(dir); !errors.Is(err, os.ErrPermission) && (err != nil || !info.IsDir()) { // the sessions' shells may be allowed to enter it
			return cmdline.WithHint(fmt.Errorf("%s: %q", next.Source("default-dir"), dir), "want an existing directory, from /")
		}
	}
	fault := func(flag string, value any, want string) error {
		return cmdline.WithHint(fmt.Errorf("%s: %v", next.Source(flag), value), "want %s", want)
	}
	if err := next.CheckShells(fault); err != nil {
		return err
	}
	next.Web.AuthNone, next.Web.Tokens, next.Web.JWT, next.Web.LoginsFile, next.Web.Sockets = now.Web.AuthNone, now.Web.Tokens, now.Web.JWT, now.Web.LoginsFile, now.Web.Sockets
	next.Web.Version, next.Web.Audit, next.Web.Trace = now.Web.Version, now.Web.Audit, now.Web.Trace
	next.Web.Capabilities = capabilities(next, f.host)
	if err := f.server.Reload(next.Web); err != nil {
		return cmdline.WithHint(fmt.Errorf("%s: %w", next.Source("tls-cert"), err), "check tls_cert and tls_key")
	}
	f.pool.Configure(next.PoolConfig())
	f.member.Configure(next)
	level, _ := zerolog.ParseLevel(next.LogLevel) // check accepted the level
	zerolog.SetGlobalLevel(level)
	return nil
}
