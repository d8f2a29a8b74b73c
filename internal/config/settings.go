// Package config is the settings of trl serve: the flags, the environment, the config file, their checks, and the docs made from them.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"trl/internal/cmdline"
	"trl/internal/statedir"
	"trl/pool"
	"trl/pool/requestkey"
	"trl/protocol"
	"trl/runtime/confine"
	"trl/runtime/host"
	"trl/web"
)

// Settings has every setting of trl serve. Define lists them as flags; sources.go says where else they come from.
type Settings struct {
	Web  web.Config
	Pool pool.Config

	Containment

	Auth          string
	TokenFile     string
	proxies       []string // --trusted-proxy
	SingleProcess bool
	StateDir      string
	LogFormat     string
	LogLevel      string
	File          string
	Operation     operation
	Cluster       Cluster

	Credentials authSettings

	// These are set in sources.go.
	flags           *pflag.FlagSet      // that Define was called with
	typed           map[string][]string // from the command line
	setBy           map[string]string   // for each setting, the name of its source
	FileText        []byte              // of the config file
	checkedByKeeper bool                // the first keeper has checked what only the keeper may check
	FileError       error               // why the config file is not used
	NeedRestart     []string            // settings that the file changes and that need a restart
}

// Containment says what the processes of sessions, and those of trl itself, may do.
type Containment struct {
	Isolation       string
	RequiredTier    string // the lowest tier that the operator accepts
	SessionUserName string // --session-user; SessionUser is its account
	SessionUser     *confine.Account
	GatewayUserName string // --user; GatewayUser is its account
	GatewayUser     *confine.Account
	AllowWrite      []string // --allow-write
	Sandbox         string
}

// settingGroups are the groups of settings in --help. Each setting is in one group.
var settingGroups = []struct{ title, flags string }{
	{"This gateway", "config state-dir on-term drain-timeout single-process"},
	{"Listening", "listen unix host origin trusted-proxy insecure tls-cert tls-key acme-domain acme-directory acme-dir acme-email"},
	{"Who may come in", `auth token-file jwt-key jwt-jwks jwt-alg jwt-issuer jwt-audience oidc-issuer oidc-client-id oidc-client-secret-file oidc-redirect-url oidc-scope
		oidc-session role-claim role-map role-default tls-client-ca tls-client-auth tls-client-name tls-client-role`},
	{"Clients and requests", "max-connections max-connections-per-principal max-connections-per-share max-frame-bytes max-output-bytes max-request-keys ring-bytes slow-client"},
	{"Sessions", "max-sessions max-sessions-per-principal idle-timeout retention default-dir default-shell shells allow-env default-timeout max-timeout warm"},
	{"Limits of a session", "limit-memory limit-pids limit-cpu limit-file-size limit-open-files"},
	{"Isolation", "isolation require-isolation session-user user allow-write sandbox"},
	{"Recording", "record record-dir record-max-bytes record-total-bytes record-keep"},
	{"Audit log", "audit-log audit-commands audit-max-bytes audit-max-age audit-keep audit-sync audit-required"},
	{"Several nodes", "cluster cluster-nats-creds cluster-nats-ca cluster-listen cluster-advertise cluster-secret cluster-ca cluster-cert cluster-key node node-label no-sessions public-url"},
	{"Logs, metrics and profiles", "log-format log-level metrics-listen admin-listen"},
}

// GroupTitles are the groups of flags in the order of --help. "" is for flags without a group.
var GroupTitles = func() (titles []string) {
	for _, g := range settingGroups {
		titles = append(titles, g.title)
	}
	return append(titles, "", cmdline.WhichGateway)
}()

func (s *Settings) Define(f *pflag.FlagSet) {
	f.StringVar(&s.Web.Listen, "listen", "127.0.0.1:7681", "address to listen on; port 0 means a free port")
	f.StringVar(&s.Web.Unix, "unix", "", "also listen on this Unix socket (NDJSON; the peer's uid is the principal)")
	f.StringVar(&s.File, "config", "", "read settings from this YAML `file` (keys are the flags' names)")
	f.StringVar(&s.Auth, "auth", "token", "who may connect: `token|none`; none only on loopback")
	f.StringVar(&s.TokenFile, "token-file", "", "file with the tokens; trl makes it if it is missing (default tokens in the state dir)")
	s.defineAuth(f)
	f.StringVar(&s.Web.TLSCert, "tls-cert", "", "certificate chain, PEM")
	f.StringVar(&s.Web.TLSKey, "tls-key", "", "private key, PEM")
	f.BoolVar(&s.Web.Insecure, "insecure", false, "allow plain HTTP beyond loopback")
	f.StringSliceVar(&s.Web.Origins, "origin", nil, "another web `origin` that may connect (repeatable)")
	f.StringVar(&s.Web.MetricsListen, "metrics-listen", "", "serve /metrics on this address instead")
	f.Int64Var(&s.Web.MaxFrame, "max-frame-bytes", 4<<20, "largest request")
	f.DurationVar(&s.Web.SlowClient, "slow-client", 30*time.Second, "disconnect a client that reads nothing for this long")
	s.defineEdge(f)

	f.IntVar(&s.Pool.MaxSessions, "max-sessions", 256, "maximum number of live sessions")
	f.IntVar(&s.Pool.MaxPerPrincipal, "max-sessions-per-principal", 0, "maximum number of live sessions of one principal; 0: seven eighths of --max-sessions, all for an admin")
	f.IntVar(&s.Pool.MaxKeys, "max-request-keys", requestkey.DefaultMax, "how many request keys of one principal are remembered at once, each for 10 minutes; one more is refused")
	f.DurationVar(&s.Pool.IdleTimeout, "idle-timeout", 4*time.Hour, "end a session in which nothing has happened for this long; 0: never")
	f.DurationVar(&s.Pool.Retention, "retention", 10*time.Minute, "how long ended sessions, commands and processes stay readable")
	f.StringVar(&s.Pool.DefaultDir, "default-dir", defaultDir(), "where sessions start")
	f.StringVar(&s.Pool.DefaultShell, "default-shell", "/bin/sh", "shell of a session that names none")
	f.StringSliceVar(&s.Pool.Shells, "shells", nil, "shells that sessions may use (default sh,bash,dash,zsh,ash,busybox if present)")
	f.IntVar(&s.Pool.WarmShells, "warm", 4, "how many shells to start in advance, of the kinds of the last sessions")
	f.IntVar(&s.Pool.RingBytes, "ring-bytes", 1<<20, "how much output of each stream to keep")
	f.IntVar(&s.Pool.MaxOutput, "max-output-bytes", 64<<20, "largest max_output_bytes that a request may ask for")
	f.DurationVar(&s.Pool.DefaultTimeout, "default-timeout", 0, "timeout of commands in sessions that set none; 0: none")
	f.DurationVar(&s.Pool.MaxTimeout, "max-timeout", 0, "longest time that a command may run, whatever its request says; 0: no such bound, and a timeout in a request is at most 24h")

	f.Var((*size)(&s.Pool.Limits.MemoryBytes), "limit-memory", "`memory` of all processes of a session together (512M, 2G); 0: no limit")
	f.Int64Var(&s.Pool.Limits.Pids, "limit-pids", 0, "processes and threads of a session; 0: no limit")
	f.Float64Var(&s.Pool.Limits.CPU, "limit-cpu", 0, "processors that a session may keep busy (0.5); 0: no limit")
	f.Var((*size)(&s.Pool.Limits.FileSizeBytes), "limit-file-size", "`size` of a file that a session's processes write (100M); 0: no limit")
	f.Int64Var(&s.Pool.Limits.OpenFiles, "limit-open-files", 0, "open files of each process of a session; 0: no limit by trl")

	r := &s.Pool.Record
	r.MaxBytes, r.TotalBytes = 64<<20, 1<<30
	f.StringVar(&r.Policy, "record", "off", "what to record in every session: `off|terminals|execs|all`; sessions may ask for more")
	f.StringVar(&r.Dir, "record-dir", "", "directory for recordings (default recordings in the state dir)")
	f.Var((*size)(&r.MaxBytes), "record-max-bytes", "a recording ends at this `size`; its terminal or command goes on")
	f.Var((*size)(&r.TotalBytes), "record-total-bytes", "`size` of all recordings; ended ones make room. 0: nothing is recorded, even on request")
	f.DurationVar(&r.Keep, "record-keep", 7*24*time.Hour, "how long an ended recording is kept; 0: as long as there is room")

	f.StringVar(&s.Isolation, "isolation", "auto", "tier of containment: `auto|cgroup|none`")
	f.StringVar(&s.RequiredTier, "require-isolation", "none", "do not start with a weaker `tier` than this: cgroup or none")
	f.StringVar(&s.SessionUserName, "session-user", "", "run sessions as this `user`: NAME, UID, UID:GID, or FROM-TO, from which each session gets its own (root only)")
	f.StringVar(&s.GatewayUserName, "user", "", "run the gateway as this `user`, below a keeper that stays root (NAME, UID or UID:GID; needs --session-user)")
	f.StringSliceVar(&s.AllowWrite, "allow-write", nil, "sessions may write below this `directory` and nowhere else (Landlock, Linux 6.2; repeatable)")
	f.StringVar(&s.Sandbox, "sandbox", "none", "put all of trl into a sandbox: `none|bwrap` (bubblewrap); sessions may then write only below --allow-write, or else --default-dir, and see no processes outside")
	f.BoolVar(&s.SingleProcess, "single-process", false, "run without a keeper, for debugging: nothing survives the end of the process")
	f.StringVar(&s.StateDir, "state-dir", statedir.Default(), "directory for tokens, lock, address of the running gateway")
	f.StringVar(&s.LogFormat, "log-format", "console", "format of the log on stderr: `console|json`")
	f.StringVar(&s.LogLevel, "log-level", "info", "level of the log: `debug|info|warn|error`")
	s.defineOperate(f)
	s.defineCluster(f)

	for _, g := range settingGroups {
		cmdline.MarkGroup(f, g.title, strings.Fields(g.flags)...)
	}

	cmdline.MarkChoice(f, "auth", "token", "none")
	cmdline.MarkChoice(f, "isolation", append([]string{"auto"}, host.TierNames...)...)
	cmdline.MarkChoice(f, "require-isolation", host.TierNames...)
	cmdline.MarkChoice(f, "sandbox", "none", "bwrap")
	cmdline.MarkChoice(f, "record", "off", "terminals", "execs", "all")
	cmdline.MarkChoice(f, "log-format", "console", "json")
	cmdline.MarkChoice(f, "log-level", "debug", "info", "warn", "error")

	markLive(f, "at once", "max-sessions", "max-sessions-per-principal", "max-request-keys", "retention", "warm", "log-level", "origin", "tls-cert", "tls-key")
	markLive(f, "new commands", "max-timeout", "max-output-bytes")
	markLive(f, "new streams", "ring-bytes")
	markLive(f, "new connections", "max-frame-bytes", "slow-client")
	markLive(f, "new sessions", "idle-timeout", "default-timeout", "default-dir", "default-shell", "shells",
		"limit-memory", "limit-pids", "limit-cpu", "limit-file-size", "limit-open-files")

	markVaries(f, "default-dir", "home, else /tmp")
	markVaries(f, "state-dir", "$STATE_DIRECTORY; root: /var/lib/trl; else ~/.local/state/trl")
	markVaries(f, "token-file", "tokens in the state dir")
	markVaries(f, "record-dir", "recordings in the state dir")
	markVaries(f, "shells", "sh, bash, dash, zsh, ash, busybox if present")
	markVaries(f, "session-user", "our own")
	markVaries(f, "user", "our own")
}

// faultFunc makes the error of a setting: its value, and what check wants instead.
type faultFunc func(flag string, value any, want string) error

// atLeast returns an error if value is below least.
func atLeast[N int | int64 | time.Duration](fault faultFunc, flag string, value, least N) error {
	if value >= least {
		return nil
	}
	return fault(flag, value, fmt.Sprintf("at least %v", least))
}

// check refuses mistakes that no later step would notice. source names the source of a setting.
func (s *Settings) check(source func(flag string) string) error {
	var all cmdline.Faults
	fault := func(flag string, value any, want string) error {
		return cmdline.WithHint(fmt.Errorf("%s: %v", source(flag), value), "want %s", want)
	}
	s.flags.VisitAll(func(g *pflag.Flag) {
		of, value := g.Annotations[cmdline.ChoiceMark], g.Value.String()
		switch {
		case of == nil || slices.Contains(of, value):
		case g.Name == "isolation" && value == "pidns":
			all.Add(cmdline.WithHint(fmt.Errorf("%s: %q: this version has no such tier", source(g.Name), value), "for a PID namespace run trl in a container, or with --sandbox bwrap"))
		default:
			all.Add(fault(g.Name, strconv.Quote(value), strings.Join(of, " or ")))
		}
	})
	all.Add(atLeast(fault, "max-sessions", s.Pool.MaxSessions, 1))
	all.Add(atLeast(fault, "max-sessions-per-principal", s.Pool.MaxPerPrincipal, 0))
	all.Add(atLeast(fault, "max-request-keys", s.Pool.MaxKeys, 1))
	all.Add(atLeast(fault, "warm", s.Pool.WarmShells, 0))
	all.Add(atLeast(fault, "ring-bytes", s.Pool.RingBytes, 64<<10))
	all.Add(atLeast(fault, "max-output-bytes", s.Pool.MaxOutput, 1<<10))
	all.Add(atLeast(fault, "max-frame-bytes", s.Web.MaxFrame, 1<<10))
	all.Add(atLeast(fault, "record-max-bytes", s.Pool.Record.MaxBytes, 64<<10))
	for _, c := range []struct {
		flag       string
		value, min float64
	}{
		{"limit-memory", float64(s.Pool.Limits.MemoryBytes), protocol.MinMemory},
		{"limit-pids", float64(s.Pool.Limits.Pids), protocol.MinPids},
		{"limit-cpu", s.Pool.Limits.CPU, protocol.MinCPU},
		{"limit-file-size", float64(s.Pool.Limits.FileSizeBytes), protocol.MinFileSize},
		{"limit-open-files", float64(s.Pool.Limits.OpenFiles), protocol.MinOpenFiles},
	} {
		if c.value != 0 && !(c.value >= c.min && c.value <= 1<<62) {
			all.Add(fault(c.flag, c.value, "0, or at least "+strconv.FormatFloat(c.min, 'f', -1, 64)))
		}
	}
	all.Add(atLeast(fault, "idle-timeout", s.Pool.IdleTimeout, 0))
	all.Add(atLeast(fault, "retention", s.Pool.Retention, 0))
	all.Add(atLeast(fault, "default-timeout", s.Pool.DefaultTimeout, 0))
	all.Add(atLeast(fault, "max-timeout", s.Pool.MaxTimeout, 0))
	all.Add(atLeast(fault, "slow-client", s.Web.SlowClient, time.Second))
	all.Add(atLeast(fault, "record-keep", s.Pool.Record.Keep, 0))
	if most := max(s.Pool.MaxSessions, 4); s.Pool.WarmShells > most { // the default is always accepted
		all.Add(fault("warm", s.Pool.WarmShells, "at most --max-sessions"))
	}
	all.Add(s.checkEdge(fault))
	if (s.Web.TLSCert == "") != (s.Web.TLSKey == "") {
		all.Add(cmdline.WithHint(errors.New("TLS needs both a certificate and a key"), "give both --tls-cert and --tls-key"))
	}
	all.Add(s.checkRecord(fault))
	all.Add(s.checkAuth(fault))
	all.Add(s.checkOperate(fault))
	all.Add(s.checkUsers(fault))
	all.Add(s.checkCluster(fault))
	s.Pool.MaxIdle = maxIdle(s.Pool.IdleTimeout)
	if s.checkedByKeeper { // we may run as a user who may not examine the paths
		return all.Err()
	}
	all.Add(s.checkPlaces(fault))
	if info, err := os.Stat(s.Pool.DefaultDir); err != nil || !info.IsDir() || !filepath.IsAbs(s.Pool.DefaultDir) {
		all.Add(fault("default-dir", fmt.Sprintf("%q", s.Pool.DefaultDir), "an existing directory, from /"))
	} else if s.SessionUser != nil && os.Geteuid() == 0 { // checkUsers has refused --session-user for any other user
		if err := s.SessionUser.Enterable(s.Pool.DefaultDir); err != nil {
			all.Add(fault("default-dir", fmt.Sprintf("%q", s.Pool.DefaultDir), "a directory that "+s.SessionUser.Text+" may enter"))
		}
	}
	return all.Err()
}

// homeIsUsable says whether sessions can start in the home of --session-user. Root can try it. A gateway that runs as another user can only
// see whether it exists; its keeper has tried the rest.
func (s *Settings) homeIsUsable() bool {
	if os.Geteuid() == 0 {
		return s.SessionUser.Enterable(s.SessionUser.Home) == nil
	}
	_, err := os.Stat(s.SessionUser.Home)
	return s.checkedByKeeper && !errors.Is(err, fs.ErrNotExist)
}

// checkUsers finds the accounts and checks what they may do.
func (s *Settings) checkUsers(fault faultFunc) (err error) {
	if s.SessionUserName != "" {
		if s.SessionUser, err = confine.ParseAccount(s.SessionUserName, true); err != nil {
			return fault("session-user", fmt.Sprintf("%q: %v", s.SessionUserName, err), "NAME, UID, UID:GID or FROM-TO")
		}
		if !s.IsSet("default-dir") { // our own default directory is not for another user
			s.Pool.DefaultDir = "/tmp"
			if s.SessionUser.Home != "" && s.homeIsUsable() {
				s.Pool.DefaultDir = s.SessionUser.Home
			}
		}
	}
	if s.GatewayUserName != "" {
		if s.GatewayUser, err = confine.ParseAccount(s.GatewayUserName, false); err != nil {
			return fault("user", fmt.Sprintf("%q: %v", s.GatewayUserName, err), "NAME, UID or UID:GID")
		}
		if s.SessionUser == nil {
			return fault("user", s.GatewayUserName, "--session-user, too: sessions would be root's, and could do whatever the gateway may not; give another user than this one, otherwise sessions can look into the gateway")
		}
		if s.SingleProcess {
			return fault("user", s.GatewayUserName, "no --single-process: there is only one process then, and it starts the sessions")
		}
	}
	if (s.SessionUser != nil) && !s.checkedByKeeper && os.Geteuid() != 0 {
		return fault("session-user", s.SessionUserName, "to be root: nobody else can start processes of another user")
	}
	if err := confine.Landlock(); err != nil && len(s.AllowWrite) > 0 && s.Sandbox == "none" && !s.checkedByKeeper {
		return cmdline.WithHint(fmt.Errorf("%s: %w", s.Source("allow-write"), err), "leave it out: sessions may then write wherever their user may")
	}
	for i, dir := range s.AllowWrite {
		if info, err := os.Stat(dir); !filepath.IsAbs(dir) || !s.checkedByKeeper && (err != nil || !info.IsDir()) {
			return fault("allow-write", fmt.Sprintf("%q", dir), "existing directories, from /")
		}
		s.AllowWrite[i] = filepath.Clean(dir)
	}
	return nil
}

// LandlockDirs are the directories of --allow-write for Landlock. In a sandbox the bind mounts enforce them too, so a kernel without
// Landlock is good enough there.
func (s *Settings) LandlockDirs() []string {
	if s.Sandbox != "none" && confine.Landlock() != nil {
		return nil
	}
	return s.AllowWrite
}

// LimitFlags maps each limit of a session to its flag.
var LimitFlags = map[string]string{
	"memory_bytes": "limit-memory", "pids": "limit-pids", "cpu": "limit-cpu", "file_size_bytes": "limit-file-size", "open_files": "limit-open-files",
}

// Enforceable returns an error if a configured limit of every session could not be enforced here.
func (s *Settings) Enforceable(cannot map[string]string) error {
	for _, limit := range s.Pool.Limits.Names() {
		if why, ok := cannot[limit]; ok {
			return cmdline.WithHint(fmt.Errorf("%s: cannot be enforced here: %s", s.Source(LimitFlags[limit]), why), "leave it out, or see \"Limits of a session\" in docs/operations.md")
		}
	}
	return nil
}

// size is a flag value in bytes; the suffixes K, M, G and T are powers of 1024.
type size int64

func (n *size) Set(text string) error {
	digits, shift := strings.TrimSuffix(strings.TrimSuffix(strings.ToUpper(text), "B"), "I"), 0
	if at := strings.IndexAny(digits, "KMGT"); at >= 0 && at == len(digits)-1 {
		shift = 10 * (1 + strings.IndexByte("KMGT", digits[at]))
		digits = digits[:at]
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || v < 0 || v > math.MaxInt64>>shift {
		return errors.New("write bytes, or 100K, 512M, 2G, 1T")
	}
	*n = size(v << shift)
	return nil
}

func (n *size) String() string { return strconv.FormatInt(int64(*n), 10) }
func (n *size) Type() string   { return "size" }

// maxIdle bounds the idle_timeout_s that a client may request: a week, or the operator's idle timeout if that is longer.
func maxIdle(standard time.Duration) time.Duration {
	if standard == 0 {
		return 0
	}
	return max(standard, 7*24*time.Hour)
}
