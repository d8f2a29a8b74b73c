package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
)

func newStart() *cobra.Command {
	var f runFlags
	var name string
	cmd := &cobra.Command{
		Use:   "start [flags] -- COMMAND…",
		Short: "Start a background process in a session, and print its id",
		Long: `Start a background process with the state of a session: its directory, variables and functions. The session stays free for
commands. trl prints the process's id. The process ends with its session, or by trl kill ID.

A single word is shell text; several words are a command and its arguments, passed on exactly. Its stdin is empty.
trl makes a session that does not exist yet. ` + defaultHelp,
		Example: `  trl start --session web -- python3 -m http.server 8000
  trl wait --port 8000 web
  trl logs -f ID`,
		Args: wantCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			command, o, err := f.request(args)
			if err != nil {
				return cmdline.NewUsageError(err)
			}
			ctx := cmd.Context()
			c, err := f.dial(ctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			var p *client.Process
			err = f.inSession(ctx, c, func(in *client.Session) error {
				p, err = in.StartProcess(ctx, command, &client.ProcessOptions{Name: name, Env: o.Env, Cwd: o.Cwd, Timeout: o.Timeout})
				return err
			})
			if err != nil {
				return addHint(err)
			}
			info := p.Info()
			if f.json {
				return cmdline.PrintJSON(cmd.OutOrStdout(), protocol.ProcessStarted{
					ProcessID: info.ProcessID, Pid: info.Pid, StreamID: info.StreamID, StateLost: info.StateLost,
				})
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), info.ProcessID)
			return err
		},
	}
	f.addTo(cmd, connection(cmd), "start it in this session (`name` or id)")
	cmd.Flags().StringVar(&name, "name", "", "a label, shown by trl ps")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end the process after so long")
	f.addEnvFlags(cmd, "start it", "process")
	return cmd
}

func newWait() *cobra.Command {
	var (
		t       *target
		until   protocol.Until
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "wait [PROCESS|SESSION]",
		Short: "Wait until a background process listens, prints, answers, or has ended",
		Long: `Wait for a background process (its id), or for the latest one of a session (id or name), until it listens on a port, has printed
a text, answers an HTTP request, or has ended. Without another flag trl waits for its end.
` + defaultHelp + `

The exit code of a wait for the end is the process's; 128+n when signal n ended it. Of the others it is 0, and 1 where the process ended
before: its last output is then on stderr. 124 when --timeout is over; 125 when trl itself could not do it.`,
		Example: `  trl wait --port 8000 --timeout 30s
  trl wait --output 'listening on' web
  trl wait --exit ID`,
		Args: cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			given := 0
			for _, flag := range []string{"port", "output", "http", "exit"} {
				if cmd.Flags().Changed(flag) {
					given++
				}
			}
			switch {
			case given > 1:
				return cmdline.WithHint(errors.New("--port, --output, --http and --exit exclude each other"), "wait once for each")
			case given == 0:
				until.Exit = true
			case until == protocol.Until{}, timeout < 0:
				return cmdline.WithHint(errors.New("nothing to wait for"), "see `trl wait --help`")
			}
			ctx := cmd.Context()
			c, err := t.dial(ctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			id, err := processOf(ctx, c, args)
			if err != nil {
				return hintSession(err, args)
			}
			raw, r, err := waitFor(ctx, c, id, until, timeout)
			if err != nil {
				return addHint(err)
			}
			if t.json {
				if err := cmdline.PrintJSON(cmd.OutOrStdout(), raw); err != nil {
					return err
				}
			}
			said := cmd.ErrOrStderr()
			if t.json {
				said = io.Discard
			}
			return waitExit(said, id, until, timeout, r)
		},
	}
	t = connection(cmd)
	f := cmd.Flags()
	f.IntVar(&until.Port, "port", 0, "until connections to this TCP `port` are accepted")
	f.StringVar(&until.Host, "host", "", "with --port: at this `address` of the gateway's machine (default 127.0.0.1)")
	f.StringVar(&until.Output, "output", "", "until a line that it has printed matches this `regex` (RE2)")
	f.StringVar(&until.HTTP, "http", "", "until this `URL` answers with 2xx or 3xx")
	f.BoolVar(&until.Exit, "exit", false, "until it has ended")
	f.DurationVar(&timeout, "timeout", 0, "wait so long at most")
	cmd.ValidArgsFunction = completeIDs(t, processID)
	return cmd
}

// processOf returns the id of a process: the argument itself if it is an id, otherwise the latest process of the session.
func processOf(ctx context.Context, c *client.Client, args []string) (string, error) {
	of := sessionOf(args)
	switch kindOf(of) {
	case processID:
		return of, nil
	case sessionID:
	default:
		return "", cmdline.WithHint(fmt.Errorf("%s is not a process", of), "`trl ps` lists processes; `trl logs -f ID` follows a command to its end")
	}
	var all protocol.Processes
	if err := c.Call(ctx, "process.list", sessionRef(of), &all); err != nil {
		return "", err
	}
	var last protocol.ProcessInfo
	for _, p := range all.Processes {
		if !p.StartedAt.Before(last.StartedAt) {
			last = p
		}
	}
	if last.ProcessID == "" {
		return "", cmdline.WithHint(fmt.Errorf("session %s has no background process", of), "start one with `trl start --session %s -- COMMAND`", of)
	}
	return last.ProcessID, nil
}

// waitFor calls process.wait until the condition is met, the process has ended or the time is over.
func waitFor(ctx context.Context, c *client.Client, id string, until protocol.Until, timeout time.Duration) (raw jsontext.Value, r protocol.WaitResult, err error) {
	for end := time.Now().Add(timeout); ; {
		q := protocol.ProcessWait{ProcessID: id, Until: until}
		if timeout > 0 {
			left := protocol.Seconds(max(0, time.Until(end)).Seconds())
			q.Timeout = &left
		}
		err = c.Call(ctx, "process.wait", q, &raw)
		if err == nil {
			err = json.Unmarshal(raw, &r)
		}
		if err != nil || r.Met || r.ExitCode != nil || timeout > 0 { // without a timeout we ask again, because the gateway bounds each wait
			return raw, r, err
		}
	}
}

// waitExit turns the result of a wait into our exit code.
func waitExit(said io.Writer, id string, until protocol.Until, timeout time.Duration, r protocol.WaitResult) error {
	switch {
	case r.Met && until.Exit:
		return exitCodeOf(r.ExitCode)
	case r.Met:
		return nil
	case r.ExitCode == nil:
		fmt.Fprintf(said, "trl: %s: not within %v\n", id, timeout)
		return cmdline.ExitCode(cmdline.ExitTimeout)
	}
	fmt.Fprintf(said, "trl: %s ended before: %s\n", id, stateWords("exited", r.Signal, r.ExitCode))
	if r.Tail != "" {
		fmt.Fprintln(said, r.Tail)
	}
	return cmdline.ExitCode(1)
}
