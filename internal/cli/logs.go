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

func openStream(ctx context.Context, c *client.Client, id string, offset int64) (*client.Stream, error) {
	if kindOf(id) == processID {
		return c.Follow(ctx, id, offset)
	}
	return c.Attach(ctx, id, offset)
}

// follow prints output until its command or process has ended. Its exit code is not ours, because we only watched.
func (t *target) follow(cmd *cobra.Command, c *client.Client, id string, offset int64) error {
	ctx := cmd.Context()
	s, err := openStream(ctx, c, id, offset)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		k, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			if !t.json {
				return nil
			}
			if kindOf(id) == processID {
				return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"exit": s.Process()})
			}
			return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"exit": s.Exit()})
		}
		if err != nil {
			return err
		}
		if err := t.printChunk(cmd, k); err != nil {
			return err
		}
	}
}

func (t *target) printChunk(cmd *cobra.Command, k client.Chunk) error {
	switch {
	case t.json && k.Gap > 0:
		return cmdline.PrintLine(cmd.OutOrStdout(), map[string]any{"gap": protocol.GapRange{From: k.Offset - k.Gap, To: k.Offset}})
	case t.json:
		text, encoding := protocol.EncodeBytes(k.Data)
		return cmdline.PrintLine(cmd.OutOrStdout(), protocol.Chunk{Offset: k.Offset, Stream: k.Stream, Data: text, Encoding: encoding})
	case k.Gap > 0:
		return gapNote(cmd.ErrOrStderr(), k.Offset-k.Gap, k.Offset)
	case k.Stream == "stderr":
		_, err := cmd.ErrOrStderr().Write(k.Data)
		return err
	}
	_, err := cmd.OutOrStdout().Write(k.Data)
	return err
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
	for _, k := range all {
		if err := t.printChunk(cmd, k); err != nil {
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
func (t *target) readUpTo(ctx context.Context, c *client.Client, id string, offset, size int64) (all []client.Chunk, eof bool, err error) {
	if offset >= size {
		return nil, false, nil
	}
	s, err := openStream(ctx, c, id, offset)
	if err != nil {
		return nil, false, err
	}
	defer s.Close()
	for offset < size {
		k, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return all, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		all = append(all, k)
		offset = k.Offset + int64(len(k.Data))
		if k.Gap > 0 && offset >= size { // the gateway has dropped everything up to size; nothing more can be dropped unread, because we read from here on
			if size, err = t.printedSizeNow(ctx, id, offset); err != nil {
				return nil, false, err
			}
		}
	}
	return all, false, nil
}

// printedSizeNow asks on another connection: on the stream's connection the answer would wait behind the stream's data.
func (t *target) printedSizeNow(ctx context.Context, id string, offset int64) (size int64, err error) {
	c, err := t.dial(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	size, _, err = printedSize(ctx, c, id, offset)
	return size, err
}

// logs is the answer of process.logs with all gaps.
type logs struct {
	protocol.Logs
	Gaps []protocol.GapRange `json:"gaps,omitzero"` // all gaps; Gap is the first one
}

func logsDocument(stream string, offset int64, all []client.Chunk, eof bool) logs {
	d := logs{Logs: protocol.Logs{StreamID: stream, Chunks: []protocol.Chunk{}, NextOffset: offset, EOF: eof}}
	for _, k := range all {
		d.NextOffset = k.Offset + int64(len(k.Data))
		if k.Gap > 0 {
			d.Gaps = append(d.Gaps, protocol.GapRange{From: k.Offset - k.Gap, To: k.Offset})
			d.Gap = &d.Gaps[0]
			continue
		}
		text, encoding := protocol.EncodeBytes(k.Data)
		d.Chunks = append(d.Chunks, protocol.Chunk{Offset: k.Offset, Stream: k.Stream, Data: text, Encoding: encoding})
	}
	return d
}
