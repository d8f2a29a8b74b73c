package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/spf13/cobra"

	"trl/client"
	"trl/internal/cmdline"
	"trl/protocol"
)

func newLogs() *cobra.Command {
	var (
		t      *target
		follow bool
		offset int64
	)
	cmd := &cobra.Command{
		Use: "logs [ID]", Short: "Print the output of a command or a background process",
		Long: `Print the kept output of a command (exec id) or a background process (process id). For a session (id or name), print that of its
running command, or of its latest one. Stdout and stderr go to stdout and stderr.
Without an ID trl uses your session "default", as trl run does; trl history and trl ps list the ids.

Messages on stderr show where output is no longer kept.

With --json it prints one document (for a command at most 1 MiB of each stream, with beginning and end, and what is left out). With -f as well it prints one line per piece of output, and a last line with the result.`,
		Args: cmdline.MaybeOneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if offset < 0 {
				return cmdline.UsageErrorWithHint(fmt.Errorf("--offset %d", offset), "want 0 or more")
			}
			ctx := cmd.Context()
			c, err := t.dial(ctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			id, err := streamOf(ctx, c, sessionOf(args))
			if err != nil {
				return hintSession(err, args)
			}
			if follow {
				return addHint(t.follow(cmd, c, id, offset))
			}
			return addHint(t.print(cmd, c, id, offset))
		},
	}
	t = connection(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until it ends")
	cmd.Flags().Int64Var(&offset, "offset", 0, "begin at this byte of the stream, stdout and stderr counted together")
	cmd.ValidArgsFunction = completeIDs(t, execID, processID)
	return cmd
}

// streamOf returns the id of the work whose output is meant: arg itself if it is an id, otherwise the running or latest command of the
// session arg.
func streamOf(ctx context.Context, c *client.Client, arg string) (string, error) {
	if kindOf(arg) != sessionID {
		return arg, nil
	}
	var all protocol.Execs
	if err := c.Call(ctx, "exec.list", sessionRef(arg), &all); err != nil {
		return "", err
	}
	for _, e := range slices.Backward(all.Execs) {
		if e.State != "queued" {
			return e.ExecID, nil
		}
	}
	return "", cmdline.WithHint(fmt.Errorf("session %s has run no command, or it ended too long ago", arg), "name a process by its id: `trl ps %s` lists them", arg)
}

// outputReader reads the output of a command or of a background process.
type outputReader interface {
	Next(context.Context) (client.Event, error)
}

// openOutput reads the output of work from offset on. The caller calls leave in the end.
func openOutput(ctx context.Context, c *client.Client, id string, offset int64) (r outputReader, leave func(), err error) {
	if kindOf(id) == processID {
		p, err := c.GetProcess(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		logs, err := p.StreamLogs(ctx, offset)
		if err != nil {
			return nil, nil, err
		}
		return logs, logs.Close, nil
	}
	cmd, err := c.AttachCommand(ctx, id, offset)
	if err != nil {
		return nil, nil, err
	}
	return cmd, cmd.Detach, nil
}

// follow prints output until its command or process has ended. Its exit code is not ours, because we only watched.
func (t *target) follow(cmd *cobra.Command, c *client.Client, id string, offset int64) error {
	ctx := cmd.Context()
	r, leave, err := openOutput(ctx, c, id, offset)
	if err != nil {
		return err
	}
	defer leave()
	for {
		e, err := next(ctx, r)
		switch {
		case err != nil:
			return err
		case e.Type == client.EventExit && t.json:
			return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"exit": e.Process})
		case e.Type == client.EventComplete && t.json:
			return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"exit": e.Exit})
		case e.Type == client.EventExit, e.Type == client.EventComplete:
			return nil
		}
		if err := t.printOutput(cmd, e); err != nil {
			return err
		}
	}
}

// next returns the next event. A command whose result is unknown has ended as well.
func next(ctx context.Context, r outputReader) (client.Event, error) {
	e, err := r.Next(ctx)
	if unknown, ok := errors.AsType[*client.OutcomeUnknownError](err); ok {
		return client.Event{Type: client.EventComplete, Exit: &unknown.Exit}, nil
	}
	return e, err
}

// printOutput prints an event if it is output or a gap.
func (t *target) printOutput(cmd *cobra.Command, e client.Event) (err error) {
	switch e.Type {
	case client.EventGap:
		if t.json {
			return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"gap": protocol.GapRange{From: e.From, To: e.Offset}})
		}
		return gapNote(cmd.ErrOrStderr(), e.From, e.Offset)
	case client.EventStdout, client.EventStderr:
		if t.json {
			return cmdline.PrintLine(cmd.OutOrStdout(), chunkOf(e))
		}
		w := cmd.OutOrStdout()
		if e.Type == client.EventStderr {
			w = cmd.ErrOrStderr()
		}
		_, err = w.Write(e.Data)
	}
	return err
}

func chunkOf(e client.Event) protocol.Chunk {
	text, encoding := protocol.EncodeBytes(e.Data)
	return protocol.Chunk{Offset: e.Offset, Stream: string(e.Type), Data: text, Encoding: encoding}
}

func gapNote(w io.Writer, from, to int64) error {
	_, err := fmt.Fprintf(w, "trl: bytes %d to %d are no longer kept\n", from, to)
	return err
}

// print prints the output that exists now.
func (t *target) print(cmd *cobra.Command, c *client.Client, id string, offset int64) error {
	ctx := cmd.Context()
	if t.json && kindOf(id) != processID {
		r, err := execResult(ctx, c, id, offset)
		if err != nil {
			return err
		}
		return cmdline.PrintJSON(cmd.OutOrStdout(), r)
	}
	size, stream, err := printedSize(ctx, c, id, offset)
	if err != nil {
		return err
	}
	all, eof, err := t.readUpTo(ctx, c, id, offset, size)
	if err != nil {
		return err
	}
	if t.json {
		return cmdline.PrintJSON(cmd.OutOrStdout(), logsDocument(stream, offset, all, eof))
	}
	for _, e := range all {
		if err := t.printOutput(cmd, e); err != nil {
			return err
		}
	}
	return nil
}

func execResult(ctx context.Context, c *client.Client, id string, offset int64) (r protocol.ExecResult, err error) {
	now := 0.0
	err = c.Call(ctx, "exec.wait", protocol.ExecWait{ExecID: id, Offset: &offset, YieldMS: &now}, &r)
	return r, err
}

// printedSize returns the id and the present size of a stream. The size is MaxInt64 if the stream has ended, so that all of it is read. It
// may be less than offset.
func printedSize(ctx context.Context, c *client.Client, id string, offset int64) (size int64, stream string, err error) {
	if kindOf(id) != processID {
		r, err := execResult(ctx, c, id, offset)
		if size = math.MaxInt64; r.Running && r.NextOffset != nil {
			size = *r.NextOffset
		}
		return size, r.StreamID, err
	}
	var of protocol.ProcessInfo
	err = c.Call(ctx, "process.info", protocol.ProcessRef{ProcessID: id}, &of)
	if size = of.OutputBytes; of.State == "exited" {
		size = math.MaxInt64
	}
	return size, of.StreamID, err
}

// readUpTo reads a stream up to size; without that bound, a program that keeps printing would keep us reading. It reads everything before
// it returns, because a slow reader of our output must not slow down the program. The gateway's retention bounds the amount.
func (t *target) readUpTo(ctx context.Context, c *client.Client, id string, offset, size int64) (all []client.Event, eof bool, err error) {
	if offset >= size {
		return nil, false, nil
	}
	r, leave, err := openOutput(ctx, c, id, offset)
	if err != nil {
		return nil, false, err
	}
	defer leave()
	for offset < size {
		e, err := next(ctx, r)
		switch {
		case err != nil:
			return nil, false, err
		case e.Type == client.EventComplete, e.Type == client.EventExit:
			return all, true, nil
		case e.Type == client.EventStart:
			continue
		}
		all = append(all, e)
		offset = e.Offset + int64(len(e.Data))
		if e.Type == client.EventGap && offset >= size { // the gateway has dropped everything up to size; nothing more can be dropped unread, because we read from here on
			if size, _, err = printedSize(ctx, c, id, offset); err != nil {
				return nil, false, err
			}
		}
	}
	return all, false, nil
}

// logs is the answer of process.logs with all gaps.
type logs struct {
	protocol.Logs
	Gaps []protocol.GapRange `json:"gaps,omitzero"` // all gaps; Gap is the first one
}

func logsDocument(stream string, offset int64, all []client.Event, eof bool) logs {
	d := logs{Logs: protocol.Logs{StreamID: stream, Chunks: []protocol.Chunk{}, NextOffset: offset, EOF: eof}}
	for _, e := range all {
		d.NextOffset = e.Offset + int64(len(e.Data))
		if e.Type == client.EventGap {
			d.Gaps = append(d.Gaps, protocol.GapRange{From: e.From, To: e.Offset})
			d.Gap = &d.Gaps[0]
			continue
		}
		d.Chunks = append(d.Chunks, chunkOf(e))
	}
	return d
}
