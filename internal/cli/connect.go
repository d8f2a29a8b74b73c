package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"trl/client"
	"trl/internal/cmdline"
	"trl/internal/statedir"
	"trl/protocol"
)

// target says how to find the gateway.
type target struct {
	url, unix, token, tokenFile, stateDir string
	json                                  bool
	flags                                 *pflag.FlagSet // the command's flags; nil if no command line was parsed
}

// connection adds --json and the flags that every command of a client has.
func connection(cmd *cobra.Command) *target {
	t := connectionWithoutJSON(cmd)
	cmd.Flags().BoolVar(&t.json, "json", false, "print JSON")
	return t
}

// connectionWithoutJSON is connection for commands that print no JSON.
func connectionWithoutJSON(cmd *cobra.Command) *target {
	f := cmd.Flags()
	t := &target{flags: f}
	f.StringVar(&t.url, "url", os.Getenv("TRL_URL"), "`address` of the gateway. Order: --url, the gateway of a --state-dir that is given, TRL_URL, the one of the state dir")
	f.StringVar(&t.unix, "unix", "", "connect to the gateway's Unix socket at this `path`")
	f.StringVar(&t.token, "token", "", "the token itself, which other users can see on a command line; see --token-file")
	f.StringVar(&t.tokenFile, "token-file", os.Getenv("TRL_TOKEN_FILE"), "`file` with the token. Order: --token, --token-file, TRL_TOKEN, TRL_TOKEN_FILE, the operator-token in the state dir")
	f.StringVar(&t.stateDir, "state-dir", os.Getenv("TRL_STATE_DIR"), "where the gateway keeps its state (TRL_STATE_DIR; default: the user's, then the system's)")
	cmdline.MarkGroup(f, cmdline.WhichGateway, "url", "unix", "token", "token-file", "state-dir")
	return t
}

// stateDirs are the directories in which a gateway on this machine may have left its address.
func (t *target) stateDirs() []string {
	if t.stateDir != "" {
		return []string{t.stateDir}
	}
	return []string{statedir.OfUser(), statedir.OfSystem}
}

// typed says whether a flag is on the command line. Such a flag takes precedence over an environment variable for the same thing.
func (t *target) typed(flag string) bool { return t.flags != nil && t.flags.Changed(flag) }

// resolve finds the address and a token for it. It sends a token that it found on this machine only to the gateway that wrote it, or to an
// address of this machine that the user typed together with --state-dir.
func (t *target) resolve() (client.Options, error) {
	o := client.Options{URL: t.url, Unix: t.unix, Token: t.token}
	if t.typed("state-dir") && !t.typed("url") {
		o.URL = "" // TRL_URL names another gateway
	}
	if o.Token == "" && !t.typed("token-file") {
		o.Token = os.Getenv("TRL_TOKEN")
	}
	if o.Token == "" && t.tokenFile != "" {
		token, err := statedir.FirstToken(t.tokenFile)
		if errors.Is(err, statedir.ErrHashes) && !t.typed("token-file") {
			err = nil // TRL_TOKEN_FILE is meant for trl serve
		}
		if err != nil {
			return o, cmdline.WithHint(err, "check --token-file")
		}
		o.Token = token
	}
	if o.Unix != "" {
		return o, nil
	}
	var denied error
	for _, dir := range t.stateDirs() {
		b, err := os.ReadFile(filepath.Join(dir, statedir.AddressFile))
		if errors.Is(err, os.ErrPermission) {
			denied = fmt.Errorf("address of the gateway: %w", err)
		}
		if err != nil {
			continue
		}
		address := strings.TrimSpace(string(b))
		if o.URL != "" && strings.TrimRight(o.URL, "/") != address {
			continue
		}
		o.URL = address
		if o.Token == "" {
			o.Token = statedir.OperatorToken(dir)
		}
		return o, nil
	}
	switch {
	case o.URL != "":
		if o.Token == "" && t.typed("state-dir") && isLoopback(o.URL) {
			o.Token = statedir.OperatorToken(t.stateDir)
		}
		return o, nil
	case denied != nil:
		return o, cmdline.WithHint(denied, "run this as the gateway's user, or pass --url and --token")
	}
	return o, cmdline.WithHint(t.notFound(),
		"start one with `trl serve`, or say where it is with --url or TRL_URL")
}

func (t *target) notFound() error {
	return fmt.Errorf("no gateway found in %s", strings.Join(t.stateDirs(), " or "))
}

func isLoopback(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && addr.IsLoopback()
}

// dial connects. Its errors have a hint.
func (t *target) dial(ctx context.Context, onLost func(error)) (*client.Client, error) {
	o, err := t.resolve()
	if err != nil {
		return nil, err
	}
	return dial(ctx, o, onLost)
}

func dial(ctx context.Context, o client.Options, onLost func(error)) (*client.Client, error) {
	o.OnLost, o.AwaitSuccessor = onLost, true
	// A gateway answers an upgrade in milliseconds; ten seconds allow for a slow network and a machine that swaps.
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c, err := client.Connect(ctx, o)
	if err != nil {
		return nil, hintDial(err, o)
	}
	return c, nil
}

func hintDial(err error, o client.Options) error {
	where := o.URL
	if o.Unix != "" {
		where = o.Unix
	}
	err = fmt.Errorf("connect to %s: %w", where, err)
	var (
		refused *protocol.Error
		dns     *net.DNSError
		name    x509.HostnameError
		signer  x509.UnknownAuthorityError
		op      *net.OpError
	)
	switch {
	case errors.As(err, &refused) && refused.Code == protocol.AuthFailed && o.Token == "":
		return cmdline.WithHint(fmt.Errorf("connect to %s: a token is needed", where), "pass --token-file, TRL_TOKEN, or the gateway's own --state-dir")
	case errors.As(err, &refused) && refused.Code == protocol.AuthFailed:
		return cmdline.WithHint(fmt.Errorf("connect to %s: the gateway does not know this token", where), "check --token, TRL_TOKEN or --token-file; the server's tokens are in its state dir")
	case errors.As(err, &refused) && refused.Code == protocol.LimitExceeded:
		return cmdline.WithHint(err, "the gateway is full: try again when a client has left, or raise --max-connections or --max-connections-per-principal")
	case errors.As(err, &refused) && refused.Code == protocol.RateLimited:
		return cmdline.WithHint(err, "check the token, and try again in a while")
	case errors.As(err, &refused) && refused.Code == protocol.ShuttingDown:
		return cmdline.WithHint(err, "the gateway is ending; try again when it is back")
	case errors.As(err, &refused):
		return cmdline.WithHint(err, "check the address: no trl gateway answers there")
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return cmdline.WithHint(err, "is the gateway running? start one with `trl serve`")
	case errors.Is(err, os.ErrPermission):
		return cmdline.WithHint(err, "the socket belongs to another user; use --url and --token")
	case errors.As(err, &name) && len(name.Certificate.DNSNames) > 0:
		return cmdline.WithHint(err, "its certificate is for another name: use --url %s, with --token-file or TRL_TOKEN (on its own machine the token is in %s, in its state dir);\n"+
			"or --unix, where it has a Unix socket", withHost(o.URL, name.Certificate.DNSNames[0]), statedir.OperatorFile)
	case errors.As(err, &signer):
		return cmdline.WithHint(err, "trust the authority that signed its certificate: SSL_CERT_FILE=ca.pem")
	case errors.As(err, &op) && op.Op == "remote error": // a TLS alert: ACME gives no certificate for an IP address
		return cmdline.WithHint(err, "it may have certificates only for host names: use --url https://NAME, with --token-file or TRL_TOKEN")
	case errors.As(err, &dns):
		return cmdline.WithHint(err, "check the host name in --url")
	}
	if u, e := url.Parse(o.URL); e != nil || u.Host == "" {
		return cmdline.WithHint(err, "write --url http://HOST:PORT")
	}
	return cmdline.WithHint(err, "check --url")
}

// withHost replaces the host of an address.
func withHost(address, name string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "https://" + name
	}
	if port := u.Port(); port != "" {
		name = net.JoinHostPort(name, port)
	}
	u.Host = name
	return u.String()
}

// call connects, makes one request, and disconnects.
func (t *target) call(ctx context.Context, method string, params, into any) error {
	c, err := t.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	return addHint(c.Call(ctx, method, params, into))
}

// addHint adds a hint to the refusals that users often meet.
func addHint(err error) error {
	var e *protocol.Error
	if !errors.As(err, &e) {
		return err
	}
	advice := map[protocol.Code]string{
		protocol.SessionNotFound:    "see `trl ls` for your sessions",
		protocol.SessionTerminated:  "the session has ended; `trl info` tells why",
		protocol.SessionLost:        "the session went with an earlier trl serve; start anew",
		protocol.SessionBusy:        "wait for the command that runs, or `trl kill --signal INT` it",
		protocol.MaxSessionsReached: "end one with `trl kill`, or raise --max-sessions",
		protocol.ExecNotFound:       "see `trl history` of its session; it has ended too long ago (--retention), or was never yours",
		protocol.ProcessNotFound:    "see `trl ps` of its session",
		protocol.TermNotFound:       "it has ended too long ago (see --retention), or was never yours",
		protocol.ShareNotFound:      "see `trl shares SESSION`",
		protocol.RecordingNotFound:  "see `trl recordings`; old ones are removed (--record-keep, --record-total-bytes)",
		protocol.WorkingDirNotFound: "the directory must exist where the gateway runs",
		protocol.Forbidden:          "this token's role does not allow it",
		protocol.ShuttingDown:       "the gateway is ending; try again when it is back",
		protocol.InternalError:      "the gateway's log knows more",
	}[e.Code]
	return cmdline.WithHint(err, "%s", advice)
}

// sessionRef turns an argument for a session into a reference: it is an id as trl ls prints it, or a name.
func sessionRef(arg string) protocol.SessionRef {
	if isID(arg, "s-") {
		return protocol.SessionRef{SessionID: arg}
	}
	return protocol.SessionRef{Session: arg}
}

// defaultSession is the session of a command line that names none.
const defaultSession = "default"

const defaultHelp = `Without a session that is your session "default", as for trl run.`

// sessionOf returns the session of a command line with at most one argument.
func sessionOf(args []string) string {
	if len(args) == 0 {
		return defaultSession
	}
	return args[0]
}

// hintSession is addHint for a command line that may have no session argument.
func hintSession(err error, args []string) error {
	if e := (*protocol.Error)(nil); len(args) == 0 && errors.As(err, &e) && e.Code == protocol.SessionNotFound {
		return cmdline.WithHint(fmt.Errorf("there is no session %q", defaultSession), "`trl run` makes it; or name one of `trl ls`")
	}
	return addHint(err)
}

// isID tells an id from a name: an id has the prefix and at least 100 random bits (pool/ids).
func isID(arg, prefix string) bool {
	return strings.HasPrefix(arg, prefix) && len(arg) >= len(prefix)+16
}

// completeSessions offers the names and ids of live sessions to the shell's completion.
func completeSessions(t *target) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		var all protocol.Sessions
		if len(args) > 0 || t.call(cmd.Context(), "session.list", nil, &all) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, s := range all.Sessions {
			switch {
			case s.State == "TERMINATED":
			case s.Name != "":
				names = append(names, s.Name)
			default:
				names = append(names, s.SessionID)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeIDs completes live sessions, and their work of the given kinds.
func completeIDs(t *target, kinds ...idKind) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (ids []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := t.dial(ctx, nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer c.Close()
		var all protocol.Sessions
		_ = c.Call(ctx, "session.list", nil, &all) // without an answer it offers nothing
		offer := func(id, what string) { ids = append(ids, id+"\t"+cmdline.Shorten(cmdline.Printable(what), 60)) }
		for _, s := range all.Sessions {
			ids = append(ids, cmp.Or(s.Name, s.SessionID))
			ref := protocol.SessionRef{SessionID: s.SessionID}
			var of struct {
				protocol.Execs
				protocol.Processes
				protocol.Terminals
			}
			if slices.Contains(kinds, execID) {
				_ = c.Call(ctx, "exec.list", ref, &of.Execs)
			}
			if slices.Contains(kinds, processID) {
				_ = c.Call(ctx, "process.list", ref, &of.Processes)
			}
			if slices.Contains(kinds, terminalID) {
				_ = c.Call(ctx, "term.list", ref, &of.Terminals)
			}
			for _, e := range of.Execs.Execs {
				offer(e.ExecID, e.Command)
			}
			for _, p := range of.Processes.Processes {
				offer(p.ProcessID, strings.TrimSpace(p.Name+" "+p.Command))
			}
			for _, t := range of.Terminals.Terminals {
				offer(t.TermID, t.Command)
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeTimeout is how long completion may wait for a gateway with many sessions. It then offers the ids that it has.
const completeTimeout = 3 * time.Second

// idKind is the kind of an id on the command line.
type idKind int

const (
	sessionID idKind = iota // or a session's name
	execID
	processID
	terminalID
	recordingID
)

func kindOf(arg string) idKind {
	switch {
	case isID(arg, "x-"):
		return execID
	case isID(arg, "p-"):
		return processID
	case isID(arg, "t-"):
		return terminalID
	case isID(arg, "r-"):
		return recordingID
	}
	return sessionID
}
