package main

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

	"trl/pool"
	"trl/protocol"
	"trl/runtime"
	"trl/web"
)

// settings is what serve was told. The flags are the one list of them; sources.go says where else they come from.
type settings struct {
	web  web.Config
	pool pool.Config

	containment

	auth          string
	tokenFile     string
	proxies       []string // --trusted-proxy
	singleProcess bool
	stateDir      string
	logFormat     string
	logLevel      string
	config        string
	operation     operation

	credentials authSettings

	// set in sources.go
	flags           *pflag.FlagSet      // that define was called with
	typed           map[string][]string // by the command line
	setBy           map[string]string   // how the one who set it called it
	text            []byte              // of the config file
	checkedByKeeper bool                // the first keeper has looked at what only it may
	configError     error               // why the config file does not count
	needRestart     []string            // settings that the file changes, and that want a restart
}

// containment is what the processes of sessions, and those of trl itself, may do.
type containment struct {
	isolation       string
	requiredTier    string // the least isolation that will do
	sessionUserName string // --session-user, and the account that it names
	sessionUser     *runtime.Account
	gatewayUserName string // --user, and the account that it names
	gatewayUser     *runtime.Account
	allowWrite      []string // --allow-write
	sandbox         string
}

// settingGroups is how --help lists the settings. Each is in one group.
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
	{"Logs, metrics and profiles", "log-format log-level metrics-listen admin-listen"},
}

// groupTitles are the groups of flags in the order of --help. "" is for a flag that is in no group.
var groupTitles = func() (titles []string) {
	for _, g := range settingGroups {
		titles = append(titles, g.title)
	}
	return append(titles, "", whichGateway)
}()

func (s *settings) define(f *pflag.FlagSet) {
	f.StringVar(&s.web.Listen, "listen", "127.0.0.1:7681", "address to listen on; port 0 takes a free one")
	f.StringVar(&s.web.Unix, "unix", "", "also listen on this Unix socket (NDJSON; the peer's uid is the principal)")
	f.StringVar(&s.config, "config", "", "read settings from this YAML `file` (keys are the flags' names)")
	f.StringVar(&s.auth, "auth", "token", "who may connect: `token|none`; none on loopback only")
	f.StringVar(&s.tokenFile, "token-file", "", "the tokens; made when missing (default tokens in the state dir)")
	s.defineAuth(f)
	f.StringVar(&s.web.TLSCert, "tls-cert", "", "certificate chain, PEM")
	f.StringVar(&s.web.TLSKey, "tls-key", "", "private key, PEM")
	f.BoolVar(&s.web.Insecure, "insecure", false, "allow plain HTTP beyond loopback")
	f.StringSliceVar(&s.web.Origins, "origin", nil, "another web `origin` that may connect (repeatable)")
	f.StringVar(&s.web.MetricsListen, "metrics-listen", "", "serve /metrics on this address instead")
	f.Int64Var(&s.web.MaxFrame, "max-frame-bytes", 4<<20, "largest request")
	f.DurationVar(&s.web.SlowClient, "slow-client", 30*time.Second, "drop a client that takes nothing for so long")
	s.defineEdge(f)

	f.IntVar(&s.pool.MaxSessions, "max-sessions", 256, "live sessions at most")
	f.IntVar(&s.pool.MaxPerPrincipal, "max-sessions-per-principal", 0, "live sessions of one principal at most; 0: seven eighths of --max-sessions, all for an admin")
	f.IntVar(&s.pool.MaxKeys, "max-request-keys", pool.DefaultMaxKeys, "request keys of one principal that are remembered at once, each for 10 minutes; a request with one more is refused")
	f.DurationVar(&s.pool.IdleTimeout, "idle-timeout", 4*time.Hour, "end a session in which nothing happened for so long; 0: never")
	f.DurationVar(&s.pool.Retention, "retention", 10*time.Minute, "how long what ended stays readable")
	f.StringVar(&s.pool.DefaultDir, "default-dir", defaultDir(), "where sessions start")
	f.StringVar(&s.pool.DefaultShell, "default-shell", "/bin/sh", "shell of a session that asks for none")
	f.StringSliceVar(&s.pool.Shells, "shells", nil, "shells that sessions may ask for (default sh,bash,dash,zsh,ash,busybox as far as present)")
	f.IntVar(&s.pool.WarmShells, "warm", 4, "shells kept ready ahead of their session")
	f.IntVar(&s.pool.RingBytes, "ring-bytes", 1<<20, "output kept of each stream")
	f.IntVar(&s.pool.MaxOutput, "max-output-bytes", 64<<20, "largest max_output_bytes a request may ask for")
	f.DurationVar(&s.pool.DefaultTimeout, "default-timeout", 0, "timeout of commands in sessions that set none; 0: none")
	f.DurationVar(&s.pool.MaxTimeout, "max-timeout", 0, "longest that a command may run, whatever its request says; 0: no such bound, and a timeout that a request names is at most 24h")

	f.Var((*size)(&s.pool.Limits.MemoryBytes), "limit-memory", "`memory` of a session's processes together (512M, 2G); 0: no limit")
	f.Int64Var(&s.pool.Limits.Pids, "limit-pids", 0, "processes and threads of a session; 0: no limit")
	f.Float64Var(&s.pool.Limits.CPU, "limit-cpu", 0, "processors that a session may keep busy (0.5); 0: no limit")
	f.Var((*size)(&s.pool.Limits.FileSizeBytes), "limit-file-size", "`size` of a file that a session's processes write (100M); 0: no limit")
	f.Int64Var(&s.pool.Limits.OpenFiles, "limit-open-files", 0, "open files of each process of a session; 0: no limit of its own")

	r := &s.pool.Record
	r.MaxBytes, r.TotalBytes = 64<<20, 1<<30
	f.StringVar(&r.Policy, "record", "off", "record in every session: `off|terminals|execs|all`; sessions may ask for more")
	f.StringVar(&r.Dir, "record-dir", "", "where recordings are (default recordings in the state dir)")
	f.Var((*size)(&r.MaxBytes), "record-max-bytes", "a recording ends at this `size`; what it is of goes on")
	f.Var((*size)(&r.TotalBytes), "record-total-bytes", "`size` of all recordings; those that have ended make room. 0: nothing is recorded, whoever asks")
	f.DurationVar(&r.Keep, "record-keep", 7*24*time.Hour, "how long an ended recording is kept; 0: as long as there is room")

	f.StringVar(&s.isolation, "isolation", "auto", "how processes are contained: `auto|cgroup|none`")
	f.StringVar(&s.requiredTier, "require-isolation", "none", "do not start with less than this `tier`: cgroup or none")
	f.StringVar(&s.sessionUserName, "session-user", "", "run sessions as this `user`: NAME, UID, UID:GID, or FROM-TO, of which each session gets one of its own (root only)")
	f.StringVar(&s.gatewayUserName, "user", "", "run the gateway as this `user`, below a keeper that stays root (NAME, UID or UID:GID; wants --session-user)")
	f.StringSliceVar(&s.allowWrite, "allow-write", nil, "sessions may write below this `directory` and nowhere else (Landlock, Linux 6.2; repeatable)")
	f.StringVar(&s.sandbox, "sandbox", "none", "put all of trl in one: `none|bwrap` (bubblewrap); sessions may then write below --allow-write, or else --default-dir, and see no other processes")
	f.BoolVar(&s.singleProcess, "single-process", false, "keep everything in one process, for debugging: nothing survives its death")
	f.StringVar(&s.stateDir, "state-dir", defaultStateDir(), "tokens, lock, address of the running gateway")
	f.StringVar(&s.logFormat, "log-format", "console", "`console|json`, on stderr")
	f.StringVar(&s.logLevel, "log-level", "info", "`debug|info|warn|error`")
	s.defineOperate(f)

	for _, g := range settingGroups {
		markGroup(f, g.title, strings.Fields(g.flags)...)
	}

	markChoice(f, "auth", "token", "none")
	markChoice(f, "isolation", append([]string{"auto"}, runtime.TierNames...)...)
	markChoice(f, "require-isolation", runtime.TierNames...)
	markChoice(f, "sandbox", "none", "bwrap")
	markChoice(f, "record", "off", "terminals", "execs", "all")
	markChoice(f, "log-format", "console", "json")
	markChoice(f, "log-level", "debug", "info", "warn", "error")

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
	markVaries(f, "shells", "sh, bash, dash, zsh, ash, busybox as far as present")
	markVaries(f, "session-user", "our own")
	markVaries(f, "user", "our own")
}

// check refuses what no later step would notice. source names where a setting came from.
func (s *settings) check(source func(flag string) string) error {
	var all faults
	fault := func(flag string, value any, want string) error {
		return errorWithHint(fmt.Errorf("%s: %v", source(flag), value), "want %s", want)
	}
	s.flags.VisitAll(func(g *pflag.Flag) {
		of, value := g.Annotations[choiceMark], g.Value.String()
		switch {
		case of == nil || slices.Contains(of, value):
		case g.Name == "isolation" && value == "pidns":
			all.add(errorWithHint(fmt.Errorf("%s: %q: this version has no such tier", source(g.Name), value), "for a PID namespace run trl in a container, or with --sandbox bwrap"))
		default:
			all.add(fault(g.Name, strconv.Quote(value), strings.Join(of, " or ")))
		}
	})
	for _, c := range []struct {
		flag       string
		value, min int64
	}{
		{"max-sessions", int64(s.pool.MaxSessions), 1},
		{"max-sessions-per-principal", int64(s.pool.MaxPerPrincipal), 0},
		{"max-request-keys", int64(s.pool.MaxKeys), 1},
		{"warm", int64(s.pool.WarmShells), 0},
		{"ring-bytes", int64(s.pool.RingBytes), 64 << 10},
		{"max-output-bytes", int64(s.pool.MaxOutput), 1 << 10},
		{"max-frame-bytes", s.web.MaxFrame, 1 << 10},
		{"record-max-bytes", s.pool.Record.MaxBytes, 64 << 10},
	} {
		if c.value < c.min {
			all.add(fault(c.flag, c.value, fmt.Sprintf("at least %d", c.min)))
		}
	}
	for _, c := range []struct {
		flag       string
		value, min float64
	}{
		{"limit-memory", float64(s.pool.Limits.MemoryBytes), protocol.MinMemory},
		{"limit-pids", float64(s.pool.Limits.Pids), protocol.MinPids},
		{"limit-cpu", s.pool.Limits.CPU, protocol.MinCPU},
		{"limit-file-size", float64(s.pool.Limits.FileSizeBytes), protocol.MinFileSize},
		{"limit-open-files", float64(s.pool.Limits.OpenFiles), protocol.MinOpenFiles},
	} {
		if c.value != 0 && !(c.value >= c.min && c.value <= 1<<62) {
			all.add(fault(c.flag, c.value, "0, or at least "+strconv.FormatFloat(c.min, 'f', -1, 64)))
		}
	}
	for _, c := range []struct {
		flag       string
		value, min time.Duration
	}{
		{"idle-timeout", s.pool.IdleTimeout, 0},
		{"retention", s.pool.Retention, 0},
		{"default-timeout", s.pool.DefaultTimeout, 0},
		{"max-timeout", s.pool.MaxTimeout, 0},
		{"slow-client", s.web.SlowClient, time.Second},
		{"record-keep", s.pool.Record.Keep, 0},
	} {
		if c.value < c.min {
			all.add(fault(c.flag, c.value, fmt.Sprintf("at least %s", c.min)))
		}
	}
	if most := max(s.pool.MaxSessions, 4); s.pool.WarmShells > most { // the default is no fault
		all.add(fault("warm", s.pool.WarmShells, "at most --max-sessions"))
	}
	all.add(s.checkEdge(fault))
	if (s.web.TLSCert == "") != (s.web.TLSKey == "") {
		all.add(errorWithHint(errors.New("half a TLS identity"), "give both --tls-cert and --tls-key"))
	}
	all.add(s.checkRecord(fault))
	all.add(s.checkAuth(fault))
	all.add(s.checkOperate(fault))
	all.add(s.checkUsers(fault))
	s.pool.MaxIdle = maxIdle(s.pool.IdleTimeout)
	if s.checkedByKeeper { // we may be a user who may not look
		return all.err()
	}
	all.add(s.checkPlaces(fault))
	if info, err := os.Stat(s.pool.DefaultDir); err != nil || !info.IsDir() || !filepath.IsAbs(s.pool.DefaultDir) {
		all.add(fault("default-dir", fmt.Sprintf("%q", s.pool.DefaultDir), "an existing directory, from /"))
	} else if s.sessionUser != nil && os.Geteuid() == 0 { // checkUsers has said that nobody else can have it
		if err := s.sessionUser.Enterable(s.pool.DefaultDir); err != nil {
			all.add(fault("default-dir", fmt.Sprintf("%q", s.pool.DefaultDir), "a directory that "+s.sessionUser.Text+" may enter"))
		}
	}
	return all.err()
}

// homeIsUsable says whether sessions can start in the home of --session-user. Root can try. A gateway of another user cannot, and sees at
// most that there is none; its keeper has tried.
func (s *settings) homeIsUsable() bool {
	if os.Geteuid() == 0 {
		return s.sessionUser.Enterable(s.sessionUser.Home) == nil
	}
	_, err := os.Stat(s.sessionUser.Home)
	return s.checkedByKeeper && !errors.Is(err, fs.ErrNotExist)
}

// checkUsers finds out who is who, and what they may do.
func (s *settings) checkUsers(fault func(flag string, value any, want string) error) (err error) {
	if s.sessionUserName != "" {
		if s.sessionUser, err = runtime.ParseAccount(s.sessionUserName, true); err != nil {
			return fault("session-user", fmt.Sprintf("%q: %v", s.sessionUserName, err), "NAME, UID, UID:GID or FROM-TO")
		}
		if !s.isSet("default-dir") { // ours is nobody else's
			s.pool.DefaultDir = "/tmp"
			if s.sessionUser.Home != "" && s.homeIsUsable() {
				s.pool.DefaultDir = s.sessionUser.Home
			}
		}
	}
	if s.gatewayUserName != "" {
		if s.gatewayUser, err = runtime.ParseAccount(s.gatewayUserName, false); err != nil {
			return fault("user", fmt.Sprintf("%q: %v", s.gatewayUserName, err), "NAME, UID or UID:GID")
		}
		if s.sessionUser == nil {
			return fault("user", s.gatewayUserName, "--session-user, too: sessions would be root's, and could do whatever the gateway may not; give another user than this one, else sessions can look into the gateway")
		}
		if s.singleProcess {
			return fault("user", s.gatewayUserName, "no --single-process: there is but one process, and it starts the sessions")
		}
	}
	if (s.sessionUser != nil) && !s.checkedByKeeper && os.Geteuid() != 0 {
		return fault("session-user", s.sessionUserName, "to be root: nobody else can start processes of another user")
	}
	if err := runtime.Landlock(); err != nil && len(s.allowWrite) > 0 && s.sandbox == "none" && !s.checkedByKeeper {
		return errorWithHint(fmt.Errorf("%s: %w", s.source("allow-write"), err), "leave it out: sessions may then write wherever their user may")
	}
	for i, dir := range s.allowWrite {
		if info, err := os.Stat(dir); !filepath.IsAbs(dir) || !s.checkedByKeeper && (err != nil || !info.IsDir()) {
			return fault("allow-write", fmt.Sprintf("%q", dir), "existing directories, from /")
		}
		s.allowWrite[i] = filepath.Clean(dir)
	}
	return nil
}

// landlockDirs are --allow-write for Landlock. A sandbox holds without it, too, and then there is only that.
func (s *settings) landlockDirs() []string {
	if s.sandbox != "none" && runtime.Landlock() != nil {
		return nil
	}
	return s.allowWrite
}

// limitFlags names the flag of each limit of a session.
var limitFlags = map[string]string{
	"memory_bytes": "limit-memory", "pids": "limit-pids", "cpu": "limit-cpu", "file_size_bytes": "limit-file-size", "open_files": "limit-open-files",
}

// enforceable refuses a limit for every session where it could not be enforced: sessions without it are not what was asked for.
func (s *settings) enforceable(cannot map[string]string) error {
	for _, limit := range s.pool.Limits.Names() {
		if why, ok := cannot[limit]; ok {
			return errorWithHint(fmt.Errorf("%s: cannot be enforced here: %s", s.source(limitFlags[limit]), why), "leave it out, or see \"Limits of a session\" in docs/operations.md")
		}
	}
	return nil
}

// size is a number of bytes that may be written with K, M, G or T, of 1024.
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

// maxIdle bounds the idle_timeout_s a client may ask for: a week, or what the operator gives everybody where that is more.
func maxIdle(standard time.Duration) time.Duration {
	if standard == 0 {
		return 0
	}
	return max(standard, 7*24*time.Hour)
}
