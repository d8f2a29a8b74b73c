package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"trl/client"
	"trl/protocol"
)

func newDrain() *cobra.Command {
	var (
		t    *target
		wait time.Duration
		undo bool
	)
	cmd := &cobra.Command{
		Use: "drain", Short: "Let a running gateway take no new sessions, and end when none lives any more",
		Long: `Let a running gateway take no new sessions, and end when none lives any more. Sessions that live go on as before, and clients
may come back to them; /readyz is 503 from now on, and a new session is refused with SHUTTING_DOWN.

It returns when the gateway has ended. With --wait that is after so long at the latest: what still lives then is ended as by
SIGTERM. The gateway goes on draining when this command is interrupted; --undo takes it back.`,
		Example: "  trl drain --wait 10m\n  trl drain --undo",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if undo {
				return t.call(cmd.Context(), "system.drain", protocol.Drain{Undo: true}, nil)
			}
			bound := time.Duration(-1)
			if cmd.Flags().Changed("wait") {
				bound = max(0, wait)
			}
			return drain(cmd.Context(), t, bound, cmd.ErrOrStderr())
		},
	}
	t = connection(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "at most so long (default: as long as it takes)")
	cmd.Flags().BoolVar(&undo, "undo", false, "take new sessions again")
	return cmd
}

// lookEvery is how often drain asks how far it is.
const lookEvery = 500 * time.Millisecond

// drain asks for it and stays until the gateway is gone. One that dies or is upgraded meanwhile does not know of the drain any more,
// so the next one is asked again.
func drain(ctx context.Context, t *target, bound time.Duration, w io.Writer) error {
	begun := time.Now()
	for first := true; ; first = false {
		ctx, lost := context.WithCancel(ctx)
		defer lost() // few times: once for each gateway that dies
		c, err := t.dial(ctx, func(error) { lost() })
		if err != nil {
			if first {
				return err
			}
			return nil // nobody is there any more
		}
		q := protocol.Drain{}
		if bound >= 0 {
			left := protocol.Seconds(max(0, bound-time.Since(begun)).Seconds())
			q.Wait = &left
		}
		err = watchDrain(ctx, c, q, w)
		c.Close()
		var refused *protocol.Error
		switch {
		case errors.As(err, &refused) && refused.Code != protocol.ShuttingDown && refused.Code != protocol.InternalError:
			return hint(err)
		case errors.Is(err, errUndone):
			return err
		}
	}
}

var errUndone = errors.New("somebody took the drain back")

// watchDrain returns when the connection ends, or the drain.
func watchDrain(ctx context.Context, c *client.Client, q protocol.Drain, w io.Writer) error {
	var now protocol.Drained
	if err := c.Call(ctx, "system.drain", q, &now); err != nil {
		return err
	}
	fmt.Fprintf(w, "trl: draining, %d sessions live\n", now.ActiveSessions)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for range look.C {
		var stats protocol.Stats
		if err := c.Call(ctx, "system.stats", nil, &stats); err != nil {
			return err
		}
		if !stats.Draining {
			return errUndone
		}
	}
	return nil
}
