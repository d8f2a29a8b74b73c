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
	cmd.Flags().SetInterspersed(false) // what follows the command belongs to it
	f.target = connection(cmd)
	cmd.Flags().VarP(&f.session, "session", "s", "run in this session (`name` or id)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end the command after so long")
	f.addEnvFlags(cmd, "run the command", "command")
	cmd.Flags().BoolVar(&f.record, "record", false, "record what it prints (see trl recordings)")
	_ = cmd.RegisterFlagCompletionFunc("session", completeSessions(f.target))
	return cmd
}

// addEnvFlags adds the flags for what a command or process begins with.
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
		// Passes stdin on. Ends at its EOF or when the command takes no more; nobody waits for it, because a read from a
		// pipe cannot be given up: it ends with the program.
		go func() {
			err := passInput(ctx, func() (*client.Client, error) { return f.dial(ctx, nil) }, s.ID())
			input <- err
			if err != nil { // the command would wait for the rest for ever
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
		// First, for the answer to Cancel comes behind the output that nobody takes.
		s.Close()
		stop, cancel := context.WithTimeout(ctx, 10*time.Second) // our output has nowhere to go: neither has the command's
		defer cancel()
		_ = s.Cancel(stop)
		return addHint(err)
	}
	select {
	case sig := <-interrupted:
		return cmdline.ExitBySignal(sig)
	case err := <-input:
		if err != nil {
			return fmt.Errorf("pass on stdin: %w", err) // the command has seen only a part, so its result is worth nothing
		}
	default:
	}
	return execExit(exit)
}

// execExit is how the command's end becomes ours.
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

// exitCodeOf makes the exit code of what ran in a session ours.
func exitCodeOf(code *int) error {
	switch {
	case code == nil:
		return errors.New("how it ended is not known")
	case *code != 0:
		return cmdline.ExitCode(*code)
	}
	return nil
}

// request is what the flags and words ask for.
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

// variables are those of --env, nil when there is none.
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

// start starts the command, making the named session when there is none.
func (f *runFlags) start(ctx context.Context, c *client.Client, q protocol.Exec) (s *client.Stream, err error) {
	err = inSession(ctx, c, q.Session, func() error {
		s, err = c.Start(ctx, q)
		return err
	})
	return s, err
}

// inSession begins something in a named session. Where there is none, it makes the session and calls begin again.
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

// cancelTimeout is what a second signal leaves the first one to tell the gateway: timeout(1) sends two at once.
const cancelTimeout = time.Second

// cancelNoticeDelay is how long a command may take to end after Ctrl-C before somebody at a terminal wonders; most end at once.
const cancelNoticeDelay = 300 * time.Millisecond

// onInterrupt cancels the command at the first INT, TERM or HUP, and ends the program at the second. The channel it returns
// holds the first one.
func onInterrupt(ctx context.Context, s *client.Stream) <-chan syscall.Signal {
	first := make(chan syscall.Signal, 1)
	signals := make(chan os.Signal, 2)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(sig) { // nohup, or a shell's `&`
			signal.Notify(signals, sig)
		}
	}
	go func() { // lives as long as the program
		sig := (<-signals).(syscall.Signal)
		first <- sig
		cancelled := make(chan struct{}) // closed when the gateway has answered
		go func() {                      // the second signal must not wait for ever
			defer close(cancelled)
			if err := s.Cancel(ctx); err != nil {
				cmdline.PrintError(os.Stderr, fmt.Errorf("cancel: %w", err))
			}
		}()
		var tell <-chan time.Time
		if sig == syscall.SIGINT && isatty.IsTerminal(os.Stderr.Fd()) { // a person waits; what a script reads stays as it is
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

// stdinWanted says whether there is input to pass on: a pipe, a socket, a file with something in it, or one of no size, as those of
// /proc and /sys are; not a terminal, not /dev/null (1:3), not a closed descriptor.
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

// passInput copies stdin to the command, over a connection of its own, since output that nobody reads holds up the other one. That
// a command ends without reading all of it is its right.
func passInput(ctx context.Context, dial func() (*client.Client, error), execID string) error {
	buf := make([]byte, 64<<10)
	var s *client.Stream // nil: there was nothing to pass on yet
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

// ignoreStdinClosed is nil for the errors that mean the command wants no more input.
func ignoreStdinClosed(err error) error {
	var e *protocol.Error
	if errors.As(err, &e) && (e.Code == protocol.StdinClosed || e.Code == protocol.ExecNotFound || e.Code == protocol.SessionTerminated) {
		return nil
	}
	return err
}

// collectBytes is what run --json keeps of each stream; exec.run's default.
const collectBytes = 1 << 20

// collect prints the document that exec.run would have answered: head and tail of each stream, with true totals.
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

// headTailWriter lets an Ends be written to like any writer.
type headTailWriter struct{ *journal.HeadTail }

func (s headTailWriter) Write(p []byte) (int, error) { s.HeadTail.Write(p); return len(p), nil }

// quote writes a word so that any POSIX shell reads it back as it is.
func quote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@%"
	if word != "" && strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
