package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
)

type runFlags struct {
	*target
	session cmdline.NonEmpty
	node    string
	where   map[string]string
	timeout time.Duration
	cwd     string
	env     []string
	record  bool
}

func newRun() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND…",
		Short: "Run a command in a session",
		Long: `Run a command in a session's shell. The next command sees its changes of directory, variables and functions.

A single word is shell text; several words are a command and its arguments, passed on exactly.
Output appears as it comes, stdout and stderr apart, byte for byte. Standard input is passed on if it is a pipe or a file.
Without --session the command runs in your session "default". trl makes a session that does not exist yet.

The exit code is the command's; 128+n if signal n ended it; 124 if it timed out; 125 if trl itself failed.
Ctrl-C, TERM or HUP cancels the command and waits for its end; a second one does not wait.`,
		Example: `  trl run -- 'cd /src && make'
  trl run --session build --timeout 10m -- go test ./...
  tar c . | trl run -- 'tar xC /tmp/copy'`,
		Args: wantCommand,
		RunE: func(cmd *cobra.Command, args []string) error { return run(cmd, &f, args) },
	}
	f.addTo(cmd, connection(cmd), "run in this session (`name` or id)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end the command after so long")
	f.addEnvFlags(cmd, "run the command", "command")
	cmd.Flags().BoolVar(&f.record, "record", false, "record what it prints (see trl recordings)")
	return cmd
}

// addTo adds --session to a command with a command line of its own.
func (f *runFlags) addTo(cmd *cobra.Command, t *target, usage string) {
	f.target = t
	cmd.Flags().SetInterspersed(false) // the words after the command are its arguments
	cmd.Flags().VarP(&f.session, "session", "s", usage)
	_ = cmd.RegisterFlagCompletionFunc("session", completeSessions(t))
	cmd.Flags().StringVar(&f.node, "node", "", "if the session has to be made: on this `node` of the cluster (see trl nodes)")
	cmd.Flags().StringToStringVar(&f.where, "where", nil, "if the session has to be made: on a node with this label (`K=V`; repeatable)")
}

// addEnvFlags adds the flags for the directory and the environment.
func (f *runFlags) addEnvFlags(cmd *cobra.Command, does, what string) {
	cmd.Flags().StringVar(&f.cwd, "cwd", "", does+" in this `directory` of the gateway's machine (also --dir); the session stays where it is")
	cmd.Flags().StringArrayVarP(&f.env, "env", "e", nil, "set a variable for this "+what+" (`K=V`; K alone: as it is here; repeatable)")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "dir" {
			name = "cwd"
		}
		return pflag.NormalizedName(name)
	})
}

func wantCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmdline.WithHint(errors.New("no command"), "usage: %s", cmd.UseLine())
	}
	return nil
}

func run(cmd *cobra.Command, f *runFlags, args []string) error {
	ctx := cmd.Context()
	command, o, err := f.request(args)
	if err != nil {
		return err
	}
	o.OpenStdin = stdinWanted()
	c, err := f.dial(ctx, func(why error) {
		fmt.Fprintf(os.Stderr, "trl: connection lost (%s), connecting again\n", cmdline.Printable(why.Error()))
	})
	if err != nil {
		return err
	}
	defer c.Close()
	var s *client.Command
	err = f.inSession(ctx, c, func(in *client.Session) error {
		s, err = in.ExecStream(ctx, command, o)
		return err
	})
	if err != nil {
		return addHint(err)
	}
	defer s.Detach()

	interrupted := onInterrupt(ctx, s)
	var input chan error
	if o.OpenStdin {
		input = make(chan error, 1)
		// This goroutine passes on stdin. It ends at EOF or when the command accepts no more input. Nobody waits for it, because a read
		// from a pipe cannot be cancelled; it ends with the program at the latest.
		go func() {
			err := passInput(ctx, s)
			input <- err
			if err != nil { // otherwise the command would wait for the rest for ever
				_ = s.Kill(ctx)
			}
		}()
	}
	var r *client.ExecResult
	if f.json {
		r, err = collect(ctx, s, cmd.OutOrStdout())
	} else {
		r, err = s.Copy(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	if unknown, ok := errors.AsType[*client.OutcomeUnknownError](err); ok {
		return addHint(unknown.Exit.Error)
	}
	if err != nil {
		stop, cancel := context.WithTimeout(ctx, 10*time.Second) // nobody reads our output, so the command need not go on
		defer cancel()
		_ = s.Kill(stop)
		return addHint(err)
	}
	select {
	case sig := <-interrupted:
		return cmdline.ExitBySignal(sig)
	case err := <-input:
		if err != nil {
			return fmt.Errorf("pass on stdin: %w", err) // the command has read only a part, so its result is wrong
		}
	default:
	}
	if !f.json {
		printLost(cmd, r.StateLost)
	}
	return execExit(r.ExecExit)
}

// printLost says what is missing of a session's state since its shell was replaced or moved.
func printLost(cmd *cobra.Command, lost []string) {
	if len(lost) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "trl: the session has lost its %s\n", strings.Join(lost, ", "))
	}
}

// execExit turns the command's end into our exit code.
func execExit(exit protocol.ExecExit) error {
	switch {
	case exit.Error != nil:
		return addHint(exit.Error)
	case exit.KillFailed:
		return cmdline.WithHint(errors.New("the command could not be killed"), "it hangs in the kernel; see `trl ps`")
	case exit.TimedOut:
		return cmdline.ExitCode(cmdline.ExitTimeout)
	}
	return exitCodeOf(exit.ExitCode)
}

// exitCodeOf turns an exit code from a session into ours.
func exitCodeOf(code *int) error {
	switch {
	case code == nil:
		return errors.New("its exit code is unknown")
	case *code != 0:
		return cmdline.ExitCode(*code)
	}
	return nil
}

// request makes the command and its options from flags and arguments.
func (f *runFlags) request(args []string) (command string, o *client.ExecOptions, err error) {
	if command = args[0]; len(args) > 1 {
		command = client.Quote(args...)
	}
	if f.timeout < 0 {
		return "", nil, cmdline.WithHint(fmt.Errorf("--timeout %s", f.timeout), "want a time such as 90s or 10m")
	}
	return command, &client.ExecOptions{Cwd: f.cwd, Env: f.variables(), Timeout: f.timeout, Record: f.record}, nil
}

// variables are the variables of --env; nil if there are none.
func (f *runFlags) variables() map[string]string {
	var env map[string]string
	for _, kv := range f.env {
		k, v, set := strings.Cut(kv, "=")
		if !set {
			if v, set = os.LookupEnv(k); !set {
				continue
			}
		}
		if env == nil {
			env = map[string]string{}
		}
		env[k] = v
	}
	return env
}

// inSession calls begin with the session that the flags name. If a named session does not exist, inSession makes it.
func (f *runFlags) inSession(ctx context.Context, c *client.Client, begin func(*client.Session) error) error {
	name := string(f.session)
	if name == "" && f.node == "" && len(f.where) == 0 {
		return begin(&c.Session)
	}
	name = cmp.Or(name, "default")
	session, err := c.GetSession(ctx, name)
	if err == nil {
		err = begin(session)
	}
	if isID(name, "s-") || !client.IsSessionNotFound(err) && client.CodeOf(err) != protocol.SessionTerminated {
		return err
	}
	if session, err = c.CreateSession(ctx, f.sessionOptions()); err != nil {
		return err
	}
	return begin(session)
}

// namesSession reports whether the flags name a session by its name, so that one request finds or makes it.
func (f *runFlags) namesSession() bool {
	return (f.session != "" || f.node != "" || len(f.where) > 0) && !isID(string(f.session), "s-")
}

// sessionOptions finds or makes the session that the flags name.
func (f *runFlags) sessionOptions() *client.SessionOptions {
	return &client.SessionOptions{Name: cmp.Or(string(f.session), "default"), IfExists: "return", Node: f.node, Where: f.where}
}

// cancelTimeout is how long a second signal waits for the cancel request of the first one: timeout(1) sends two signals at once.
const cancelTimeout = time.Second

// cancelNoticeDelay is how long the command may take to end after Ctrl-C before we tell the user at the terminal that we wait. Most
// commands end at once.
const cancelNoticeDelay = 300 * time.Millisecond

// onInterrupt cancels the command at the first INT, TERM or HUP, and ends the program at the second. The returned channel receives the
// first signal.
func onInterrupt(ctx context.Context, s *client.Command) <-chan syscall.Signal {
	first := make(chan syscall.Signal, 1)
	signals := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // ignored under nohup, or by a shell's `&`
			signal.Notify(signals, sig)
		}
	}
	go func() { // lives as long as the program
		sig := (<-signals).(syscall.Signal)
		first <- sig
		cancelled := make(chan struct{}) // closed when the gateway has answered
		go func() {                      // in a goroutine, because the second signal must not wait for ever
			defer close(cancelled)
			if err := s.Kill(ctx); err != nil && !errors.Is(err, client.ErrClosed) { // closed: the command ended before the answer came
				cmdline.PrintError(os.Stderr, fmt.Errorf("cancel: %w", err))
			}
		}()
		var tell <-chan time.Time
		if sig == syscall.SIGINT && isatty.IsTerminal(os.Stderr.Fd()) { // only for a person at a terminal: scripts that read stderr get nothing more
			tell = time.After(cancelNoticeDelay)
		}
		for second := false; !second; {
			select {
			case <-tell:
				fmt.Fprint(os.Stderr, "\ntrl: cancelling; Ctrl-C again does not wait\n")
			case s := <-signals:
				sig, second = s.(syscall.Signal), true
			}
		}
		select {
		case <-cancelled:
		case <-time.After(cancelTimeout):
		}
		os.Exit(int(cmdline.ExitBySignal(sig)))
	}()
	return first
}

// stdinWanted says whether stdin has input to pass on. A pipe, a socket and a file with unread bytes have. So may a file of size 0, such as
// those in /proc and /sys. A terminal, /dev/null (1:3) and a closed descriptor have none.
func stdinWanted() bool {
	var st unix.Stat_t
	if unix.Fstat(0, &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK:
		return true
	case unix.S_IFREG:
		at, err := unix.Seek(0, 0, io.SeekCurrent)
		return err != nil || at < st.Size || st.Size == 0
	case unix.S_IFCHR:
		_, err := unix.IoctlGetTermios(0, unix.TCGETS)
		return err != nil && st.Rdev != unix.Mkdev(1, 3)
	}
	return false
}

// passInput copies stdin to the command. It is no error if the command ends without reading everything.
func passInput(ctx context.Context, s *client.Command) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := os.Stdin.Read(buf)
		if e := s.Write(ctx, buf[:n]); e != nil {
			return ignoreStdinClosed(e)
		}
		if err != nil {
			if e := s.CloseStdin(ctx); e != nil {
				return ignoreStdinClosed(e)
			}
			if !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}
	}
}

// ignoreStdinClosed returns nil for errors which say that the command accepts no more input.
func ignoreStdinClosed(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) && (e.Code == protocol.StdinClosed || e.Code == protocol.ExecNotFound || e.Code == protocol.SessionTerminated) {
		return nil
	}
	return err
}

// collect prints the document that exec.run would have answered: beginning and end of each stream, with its total size.
func collect(ctx context.Context, s *client.Command, w io.Writer) (*client.ExecResult, error) {
	r, err := s.Result(ctx)
	if err != nil {
		return nil, err
	}
	d := protocol.ExecResult{ExecExit: r.ExecExit, Truncated: r.Truncated, Omitted: r.Omitted}
	d.Stdout, d.StdoutEncoding = protocol.EncodeBytes([]byte(r.Stdout))
	d.Stderr, d.StderrEncoding = protocol.EncodeBytes([]byte(r.Stderr))
	return r, cmdline.PrintJSON(w, d)
}
