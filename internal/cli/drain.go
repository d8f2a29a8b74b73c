package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
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
		q    protocol.Drain
		wait time.Duration
	)
	cmd := &cobra.Command{
		Use: "drain", Short: "Make a running gateway refuse new sessions, and end with the last one",
		Long: `Make a running gateway refuse new sessions, and end when the last session has ended. Live sessions go on, and clients may come back
to them. /readyz answers 503, and a new session gets SHUTTING_DOWN.

The command returns when the gateway has ended. With --wait that is after this time at the latest: sessions that still live then end
as after SIGTERM. If you interrupt the command, the gateway continues the drain; --undo ends the drain.

The gateway has ended when nobody listens any more at its address on this machine, or at its Unix socket. If the connection is lost
for another reason, the command tries for 45 s to connect again, and then fails.

With --node it drains another node of the cluster, through any gateway. New sessions go to the other nodes. The node has ended when the
gateway knows it no longer.

With --move it moves its idle sessions to other nodes of the cluster, and the others as soon as they become idle. Clients go on using them,
where they are. What cannot go along (a running command, a process, a terminal, a job, a share link) keeps its session until it ends, or until the
time is over. The command says what is left, and why. A session that no node takes stays, and is tried again. --undo ends the moves; sessions that
have moved stay where they are.

With --json it prints the gateway's answer, one line each time that it asks a gateway.`,
		Example: "  trl drain --wait 10m\n  trl drain --node n2 --move\n  trl drain --undo",
		Args:    cmdline.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.Undo {
				var now protocol.Drained
				err := t.call(cmd.Context(), "system.drain", q, &now)
				if err != nil || !t.json {
					return err
				}
				return cmdline.PrintLine(cmd.OutOrStdout(), now)
			}
			var said string
			d := drain{node: q.Node, bound: -1, move: q.Move, say: func(now protocol.Drained) {
				if t.json {
					_ = cmdline.PrintLine(cmd.OutOrStdout(), now) // if printing fails, the drain continues
					return
				}
				who := ""
				if now.Node != "" {
					who = "node " + now.Node + " is "
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "trl: %sdraining, %d sessions live\n", who, now.ActiveSessions)
			}, sayMoves: func(now protocol.Drained) {
				text := movesText(now.Moves)
				if text == said {
					return
				}
				if said = text; t.json {
					_ = cmdline.PrintLine(cmd.OutOrStdout(), now) // as above
					return
				}
				fmt.Fprintf(cmd.ErrOrStderr(), "trl: %s\n", text)
			}}
			if cmd.Flags().Changed("wait") {
				d.bound = max(0, wait)
			}
			return d.run(cmd.Context(), t)
		},
	}
	t = connection(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "at most so long (default: as long as it takes)")
	cmd.Flags().StringVar(&q.Node, "node", "", "drain this `node` of the cluster (default: the one that the gateway is)")
	cmd.Flags().BoolVar(&q.Move, "move", false, "move its sessions to other nodes of the cluster, each when it is idle")
	cmd.Flags().BoolVar(&q.Undo, "undo", false, "take new sessions again")
	return cmd
}

// movesText says how far the moves are: how many sessions are left for the same reason, and some of them.
func movesText(m *protocol.DrainMoves) string {
	var reasons []string
	left := map[string][]string{}
	for _, u := range m.Unmoved {
		why := "because of its " + u.Reason
		if u.Message != "" {
			why = "because " + u.Message
		}
		if left[why] == nil {
			reasons = append(reasons, why)
		}
		left[why] = append(left[why], u.SessionID)
	}
	text := fmt.Sprintf("%d sessions moved", m.Moved)
	for _, why := range reasons {
		ids, more := left[why], ""
		if n := len(ids) - maxNamed; n > 0 {
			ids, more = ids[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		text += fmt.Sprintf("; %s%s stays %s", strings.Join(ids, ", "), more, why)
	}
	return text
}

// maxNamed is how many sessions a line names that stay for the same reason.
const maxNamed = 3

// pollInterval is how often drain asks for the number of live sessions.
const pollInterval = 500 * time.Millisecond

// redialTimeout is how long drain tries to reach the gateway again: as long as other clients after a lost connection.
const redialTimeout = 45 * time.Second

// drain is a drain that the command waits for.
type drain struct {
	node  string        // the node to drain; "": the one that the gateway is
	bound time.Duration // how long the drain may take; below 0: as long as it takes
	move  bool          // move the sessions
	say   func(protocol.Drained)

	sayMoves func(protocol.Drained) // how far the moves are
	epoch    string                 // of the node, once the drain has begun: a node that starts again under its name is another one
}

// run asks the gateway to drain and waits until the node has ended. A gateway that replaces it, after a crash or an upgrade, does not know of
// the drain, so run asks again.
func (d *drain) run(ctx context.Context, t *target) error {
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
			case d.node == "" && hasEnded(err):
				return nil
			case time.Since(heard) > redialTimeout:
				return fmt.Errorf("it is unknown whether the gateway has ended: %w", err)
			}
			time.Sleep(pollInterval)
			continue
		}
		q := protocol.Drain{Node: d.node, Move: d.move}
		if d.bound >= 0 {
			left := protocol.Seconds(max(0, d.bound-time.Since(start)).Seconds())
			q.Wait = &left
		}
		err = d.watch(ctx, c, q)
		c.Close()
		var refused *protocol.Error
		switch isRefused := errors.As(err, &refused); {
		case err == nil:
			return nil
		case isRefused && refused.Code == protocol.NodeUnreachable && !first && time.Since(heard) < redialTimeout:
			time.Sleep(pollInterval)
			continue
		case isRefused && refused.Code != protocol.ShuttingDown && refused.Code != protocol.InternalError:
			return addHint(err)
		case errors.Is(err, errDrainUndone):
			return err
		}
		heard = time.Now()
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

// watch starts the drain on c. It returns nil when another node has ended, and an error when the connection ends or somebody undoes the drain.
func (d *drain) watch(ctx context.Context, c *client.Client, q protocol.Drain) error {
	again := d.epoch != ""
	if d.node != "" {
		named, err := d.find(ctx, c)
		if err != nil || again && named != nil && named.Epoch != d.epoch { // it has ended, and starts again
			return err
		}
	}
	var now protocol.Drained
	if err := c.Call(ctx, "system.drain", q, &now); err != nil {
		if refused, ok := errors.AsType[*protocol.Error](err); again && ok && refused.Code == protocol.InvalidParams { // there is no such node
			return nil
		}
		return err
	}
	d.say(now)
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	for seen := false; ; <-look.C {
		if d.node == "" || d.move {
			var stats protocol.Stats
			err := c.Call(ctx, "system.stats", protocol.SystemStats{Node: now.Node}, &stats)
			if err == nil && stats.Moves != nil {
				d.sayMoves(protocol.Drained{Node: now.Node, Draining: stats.Draining, ActiveSessions: stats.ActiveSessions, Moves: stats.Moves})
			}
			switch {
			case d.node != "": // whether it has ended, and drains, the nodes say
			case err != nil:
				return err
			case !stats.Draining:
				return errDrainUndone
			default:
				continue
			}
		}
		named, err := d.find(ctx, c)
		switch {
		case err != nil:
			return err
		case named == nil || named.Epoch != d.epoch:
			return nil
		case named.Draining:
			seen = true // the gateway hears of it within a second
		case seen:
			return errDrainUndone
		}
	}
}

// find returns the node to drain as the gateway knows it, or another one with its name; nil: there is none. It remembers the epoch.
func (d *drain) find(ctx context.Context, c *client.Client) (named *protocol.Node, err error) {
	var all protocol.Nodes
	if err := c.Call(ctx, "system.nodes", nil, &all); err != nil {
		return nil, err
	}
	for i, n := range all.Nodes {
		if n.Node == d.node && (named == nil || n.Epoch == d.epoch) {
			named = &all.Nodes[i]
		}
	}
	if named != nil && d.epoch == "" {
		d.epoch = named.Epoch
	}
	return named, nil
}
