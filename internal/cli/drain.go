package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
)

func NewDrain() *cobra.Command {
	var (
		t    *target
		wait time.Duration
		undo bool
	)
	cmd := &cobra.Command{
		Use: "drain", Short: "Make a running gateway refuse new sessions, and end with the last one",
		Long: `Make a running gateway refuse new sessions, and end when the last session has ended. Live sessions go on, and clients may come back
to them. /readyz answers 503, and a new session gets SHUTTING_DOWN.

The command returns when the gateway has ended. With --wait that is after this time at the latest: sessions that still live then end
as after SIGTERM. If you interrupt the command, the gateway continues the drain; --undo ends the drain.

The gateway has ended when nobody listens any more at its address on this machine, or at its Unix socket. If the connection is lost
for another reason, the command tries for 45 s to connect again, and then fails.

With --json it prints the gateway's answer, one line each time that it asks a gateway.`,
		Example: "  trl drain --wait 10m\n  trl drain --undo",
		Args:    cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if undo {
				var now protocol.Drained
				err := t.call(cmd.Context(), "system.drain", protocol.Drain{Undo: true}, &now)
				if err != nil || !t.json {
					return err
				}
				return cmdline.PrintLine(cmd.OutOrStdout(), now)
			}
			bound := time.Duration(-1)
			if cmd.Flags().Changed("wait") {
				bound = max(0, wait)
			}
			return drain(cmd.Context(), t, bound, func(now protocol.Drained) {
				if t.json {
					_ = cmdline.PrintLine(cmd.OutOrStdout(), now) // if printing fails, the drain continues
					return
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "trl: draining, %d sessions live\n", now.ActiveSessions)
			})
		},
	}
	t = connection(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "at most so long (default: as long as it takes)")
	cmd.Flags().BoolVar(&undo, "undo", false, "take new sessions again")
	return cmd
}

// pollInterval is how often drain asks for the number of live sessions.
const pollInterval = 500 * time.Millisecond

// redialTimeout is how long drain tries to reach the gateway again: as long as other clients after a lost connection.
const redialTimeout = 45 * time.Second

// drain asks the gateway to drain and waits until it has ended. A gateway that replaces it, after a crash or an upgrade, does not know of
// the drain, so drain asks again.
func drain(ctx context.Context, t *target, bound time.Duration, say func(protocol.Drained)) error {
	o, err := t.resolve()
	if err != nil {
		return err
	}
	start := time.Now()
	heard := start // the latest time at which the gateway answered
	for first := true; ; first = false {
		ctx, lost := context.WithCancel(ctx)
		defer lost() // runs only a few times: once for each lost connection and each attempt
		c, err := dial(ctx, o, func(error) { lost() })
		if err != nil {
			var refused *protocol.Error
			switch {
			case first, errors.As(err, &refused):
				return err
			case hasEnded(err):
				return nil
			case time.Since(heard) > redialTimeout:
				return fmt.Errorf("it is unknown whether the gateway has ended: %w", err)
			}
			time.Sleep(pollInterval)
			continue
		}
		q := protocol.Drain{}
		if bound >= 0 {
			left := protocol.Seconds(max(0, bound-time.Since(start)).Seconds())
			q.Wait = &left
		}
		err = watchDrain(ctx, c, q, say)
		c.Close()
		heard = time.Now()
		var refused *protocol.Error
		switch {
		case errors.As(err, &refused) && refused.Code != protocol.ShuttingDown && refused.Code != protocol.InternalError:
			return addHint(err)
		case errors.Is(err, errDrainUndone):
			return err
		}
	}
}

// hasEnded says whether err proves that the gateway has ended: nothing listens at an address of this machine. For another machine a refused
// connection proves nothing, because a proxy may have refused it.
func hasEnded(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "dial" || !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ENOENT) {
		return false
	}
	switch a := op.Addr.(type) {
	case *net.UnixAddr:
		return true
	case *net.TCPAddr:
		ours, _ := net.InterfaceAddrs() // on an error only the loopback counts as ours
		return a.IP.IsLoopback() || slices.ContainsFunc(ours, func(n net.Addr) bool { p, ok := n.(*net.IPNet); return ok && p.IP.Equal(a.IP) })
	}
	return false
}

var errDrainUndone = errors.New("somebody undid the drain")

// watchDrain starts the drain on c and returns when the connection ends or somebody undoes the drain.
func watchDrain(ctx context.Context, c *client.Client, q protocol.Drain, say func(protocol.Drained)) error {
	var now protocol.Drained
	if err := c.Call(ctx, "system.drain", q, &now); err != nil {
		return err
	}
	say(now)
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for range look.C {
		var stats protocol.Stats
		if err := c.Call(ctx, "system.stats", nil, &stats); err != nil {
			return err
		}
		if !stats.Draining {
			return errDrainUndone
		}
	}
	return nil
}
