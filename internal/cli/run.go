package cli

import (
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
	"trl/runtime/journal"
)

type runFlags struct {
	*target
	session cmdline.NonEmpty
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
	q, err := f.request(args)
	if err != nil {
		return err
	}
	c, err := f.dial(ctx, func(why error) {
		fmt.Fprintf(os.Stderr, "trl: connection lost (%s), connecting again\n", cmdline.Printable(why.Error()))
	})
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := f.start(ctx, c, q)
	if err != nil {
		return addHint(err)
	}
	defer s.Close()

	interrupted := onInterrupt(ctx, s)
	var input chan error
	if q.InteractiveStdin {
		input = make(chan error, 1)
		// This goroutine passes on stdin. It ends at EOF or when the command accepts no more input. Nobody waits for it, because a read
		// from a pipe cannot be cancelled; it ends with the program at the latest.
		go func() {
			err := passInput(ctx, func() (*client.Client, error) { return f.dial(ctx, nil) }, s.ID())
			input <- err
			if err != nil { // otherwise the command would wait for the rest for ever
				_ = s.Cancel(ctx)
			}
		}()
	}
	var exit protocol.ExecExit
	if f.json {
		exit, err = collect(ctx, s, cmd.OutOrStdout())
	} else {
		exit, err = s.Copy(ctx, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	if err != nil {
		// Close first: the answer to Cancel would wait behind output that nobody reads.
		s.Close()
		stop, cancel := context.WithTimeout(ctx, 10*time.Second) // nobody reads our output, so the command need not go on
		defer cancel()
		_ = s.Cancel(stop)
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
	return execExit(exit)
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

// request makes the request from flags and arguments.
func (f *runFlags) request(args []string) (protocol.Exec, error) {
	q := protocol.Exec{Command: args[0], WorkingDir: f.cwd, InteractiveStdin: stdinWanted(), Record: f.record}
	if len(args) > 1 {
		words := make([]string, len(args))
		for i, a := range args {
			words[i] = quote(a)
		}
		q.Command = strings.Join(words, " ")
	}
	if f.session != "" {
		q.SessionRef = sessionRef(string(f.session))
	}
	if f.timeout < 0 {
		return q, cmdline.WithHint(fmt.Errorf("--timeout %s", f.timeout), "want a time such as 90s or 10m")
	}
	if f.timeout > 0 {
		s := protocol.Seconds(f.timeout.Seconds())
		q.Timeout = &s
	}
	q.Env = f.variables()
	return q, nil
}

// variables are the variables of --env; nil if there are none.
func (f *runFlags) variables() protocol.Env {
	var env protocol.Env
	for _, kv := range f.env {
		k, v, set := strings.Cut(kv, "=")
		if !set {
			if v, set = os.LookupEnv(k); !set {
				continue
			}
		}
		if env == nil {
			env = protocol.Env{}
		}
		env[k] = &v
	}
	return env
}

// start starts the command. If its named session does not exist, start creates it.
func (f *runFlags) start(ctx context.Context, c *client.Client, q protocol.Exec) (s *client.Stream, err error) {
	err = inSession(ctx, c, q.Session, func() error {
		s, err = c.Start(ctx, q)
		return err
	})
	return s, err
}

// inSession calls begin. If the named session does not exist, it creates the session and calls begin again.
func inSession(ctx context.Context, c *client.Client, name string, begin func() error) error {
	err := begin()
	var e *protocol.Error
	if name == "" || !errors.As(err, &e) || e.Code != protocol.SessionNotFound && e.Code != protocol.SessionTerminated {
		return err
	}
	if err := c.Call(ctx, "session.create", protocol.SessionCreate{Name: name, IfExists: "return"}, nil); err != nil {
		return err
	}
	return begin()
}

// cancelTimeout is how long a second signal waits for the cancel request of the first one: timeout(1) sends two signals at once.
const cancelTimeout = time.Second

// cancelNoticeDelay is how long the command may take to end after Ctrl-C before we tell the user at the terminal that we wait. Most
// commands end at once.
const cancelNoticeDelay = 300 * time.Millisecond

// onInterrupt cancels the command at the first INT, TERM or HUP, and ends the program at the second. The returned channel receives the
// first signal.
func onInterrupt(ctx context.Context, s *client.Stream) <-chan syscall.Signal {
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
			if err := s.Cancel(ctx); err != nil && !errors.Is(err, client.ErrClosed) { // closed: the command ended before the answer came
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

// passInput copies stdin to the command. It uses another connection, because output that nobody reads blocks the first one. It is no error
// if the command ends without reading everything.
func passInput(ctx context.Context, dial func() (*client.Client, error), execID string) error {
	buf := make([]byte, 64<<10)
	var s *client.Stream // nil: nothing has been read yet
	for {
		n, err := os.Stdin.Read(buf)
		if n > 0 || err != nil {
			if s == nil {
				c, e := dial()
				if e != nil {
					return e
				}
				defer c.Close()
				s = c.Command(execID)
			}
			if e := s.Input(ctx, buf[:n], err != nil); e != nil {
				return ignoreStdinClosed(e)
			}
		}
		if err != nil {
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

// collectBytes is how much of each stream run --json keeps: the default of exec.run.
const collectBytes = 1 << 20

// collect prints the document that exec.run would have answered: beginning and end of each stream, with its total size.
func collect(ctx context.Context, s *client.Stream, w io.Writer) (protocol.ExecExit, error) {
	stdout, stderr := journal.NewHeadTail(collectBytes), journal.NewHeadTail(collectBytes)
	exit, err := s.Copy(ctx, headTailWriter{stdout}, headTailWriter{stderr})
	if err != nil {
		return exit, err
	}
	r := protocol.ExecResult{ExecExit: exit}
	r.Stdout, r.StdoutEncoding, r.Omitted.Stdout = headTailText(stdout)
	r.Stderr, r.StderrEncoding, r.Omitted.Stderr = headTailText(stderr)
	r.Truncated = r.Omitted.Stdout != nil || r.Omitted.Stderr != nil
	return exit, cmdline.PrintJSON(w, r)
}

func headTailText(e *journal.HeadTail) (text, encoding string, left *protocol.Omitted) {
	kept, _, at, omitted := e.Bytes()
	text, encoding = protocol.EncodeBytes(kept)
	if omitted > 0 {
		left = &protocol.Omitted{At: at, Bytes: omitted}
	}
	return text, encoding, left
}

// headTailWriter makes a HeadTail an io.Writer.
type headTailWriter struct{ *journal.HeadTail }

func (s headTailWriter) Write(p []byte) (int, error) { s.HeadTail.Write(p); return len(p), nil }

// quote quotes a word for every POSIX shell.
func quote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
