package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"trl/internal/cmdline"
	"trl/protocol"
)

func newKill() *cobra.Command {
	var (
		t     *target
		sig   string
		force bool
	)
	cmd := &cobra.Command{
		Use: "kill ID", Short: "End a session, a command, a background process or a terminal",
		Long: `End a session (id or name), a command (exec id), a background process (process id) or a terminal (its id; HUP first): TERM to everything in it, a grace
time, then KILL. The command returns when nothing is left. --force skips the grace time.

With --signal only that signal is sent, to the processes of the command or the background process; for a session, to those of its
running command.

Only with --signal you may leave out the ID: the signal then goes to the command of your session "default".`,
		Args: cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if sig != "" && force {
				return cmdline.UsageErrorWithHint(errors.New("--signal and --force exclude each other"), "--force ends it by KILL; --signal sends one signal and does not wait")
			}
			if len(args) == 0 && sig == "" { // an empty unquoted variable in a script must not end a session
				return cmdline.UsageErrorWithHint(errors.New("which session, command, process or terminal?"), "name it: `trl kill %s` ends the session %s", defaultSession, defaultSession)
			}
			raw, err := kill(cmd.Context(), t, sessionOf(args), sig, force)
			if err != nil {
				return hintSession(err, args)
			}
			if t.json {
				return cmdline.PrintJSON(cmd.OutOrStdout(), raw)
			}
			return nil
		},
	}
	t = connection(cmd)
	cmd.Flags().StringVar(&sig, "signal", "", "send this signal (`name`, with or without SIG, in any case)")
	cmdline.MarkChoice(cmd.Flags(), "signal", protocol.SignalNames()...)
	cmd.Flags().BoolVar(&force, "force", false, "KILL at once")
	cmd.ValidArgsFunction = completeIDs(t, execID, processID, terminalID)
	return cmd
}

func kill(ctx context.Context, t *target, id, sig string, force bool) (raw jsontext.Value, err error) {
	if sig != "" {
		if _, e := protocol.ParseSignal(sig); e != nil {
			return nil, cmdline.UsageErrorWithHint(fmt.Errorf("--signal %s: no such signal", sig), "use a name such as INT, TERM or USR1")
		}
	}
	var grace *protocol.Seconds
	if force {
		grace = new(protocol.Seconds)
	}
	switch kindOf(id) {
	case execID:
		err = cancel(ctx, t, protocol.ExecCancel{ExecID: id, Signal: sig, KillGrace: grace}, &raw)
	case terminalID:
		if sig != "" {
			return nil, cmdline.UsageErrorWithHint(errors.New("--signal is not for terminals"), "type the key instead, or end it without --signal")
		}
		err = t.call(ctx, "term.close", protocol.TermClose{TermID: id, KillGrace: grace}, &raw)
	case processID:
		err = t.call(ctx, "process.kill", protocol.ProcessKill{ProcessID: id, Signal: sig, KillGrace: grace}, &raw)
	default:
		if sig != "" {
			err = cancel(ctx, t, protocol.ExecCancel{SessionRef: sessionRef(id), Signal: sig}, &raw)
		} else {
			err = t.call(ctx, "session.destroy", protocol.SessionDestroy{SessionRef: sessionRef(id), Force: force}, &raw)
		}
	}
	return raw, err
}

// cancel calls exec.cancel. It returns an error if no process got the signal.
func cancel(ctx context.Context, t *target, q protocol.ExecCancel, raw *jsontext.Value) error {
	if err := t.call(ctx, "exec.cancel", q, raw); err != nil || q.Signal == "" {
		return err
	}
	var a protocol.ExecCancelled
	if err := json.Unmarshal(*raw, &a); err != nil || a.Cancelled {
		return err
	}
	why := map[string]string{
		"":                     "no command runs",
		protocol.SignalEnded:   "the command has ended",
		protocol.SignalIgnored: "the shell itself is at work, and ignores it",
		protocol.SignalTrapped: "the shell itself is at work, and has a trap for INT; without --signal the command is ended",
	}[a.Reason]
	return fmt.Errorf("no process got the signal: %s", why)
}
