package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"trl/client"
	"trl/protocol"
)

func newLogs() *cobra.Command {
	var (
		t      *target
		follow bool
		offset int64
	)
	cmd := &cobra.Command{
		Use: "logs ID", Short: "Print the output of a command or a background process",
		Long: `Print what is kept of the output of a command (exec id) or a background process (process id); of a session (id or name),
that of the command it is running. Stdout and stderr go to stdout and stderr.

With --json one document, or with -f one line per piece of output and a last one that says how it ended.`,
		Args: oneArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if offset < 0 {
				return refuse(fmt.Errorf("--offset %d", offset), "want 0 or more")
			}
			ctx := cmd.Context()
			c, err := t.dial(ctx, nil)
			if err != nil {
				return err
			}
			defer c.Close()
			id, err := streamOf(ctx, c, args[0])
			if err != nil {
				return hint(err)
			}
			if follow {
				return hint(t.follow(cmd, c, id, offset))
			}
			return hint(t.print(cmd, c, id, offset))
		},
	}
	t = connection(cmd)
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes, until it ends")
	cmd.Flags().Int64Var(&offset, "offset", 0, "begin at this byte of the stream, stdout and stderr counted together")
	cmd.ValidArgsFunction = completeSessions(t)
	return cmd
}

// streamOf finds whose output is meant: the id itself, or the command that the session runs.
func streamOf(ctx context.Context, c *client.Client, arg string) (string, error) {
	if kindOf(arg) != sessionID {
		return arg, nil
	}
	var info protocol.SessionInfo
	if err := c.Call(ctx, "session.info", sessionRef(arg), &info); err != nil {
		return "", err
	}
	if info.CurrentExec == nil {
		return "", refuse(fmt.Errorf("session %s runs no command", arg), "name a command or process by its id; `trl ps %s` lists processes", arg)
	}
	return info.CurrentExec.ID, nil
}

// follow prints output until its command or process has ended. How that ended is not our exit code: we only watched.
func (t *target) follow(cmd *cobra.Command, c *client.Client, id string, offset int64) error {
	ctx := cmd.Context()
	open := c.Attach
	if kindOf(id) == processID {
		open = c.Follow
	}
	s, err := open(ctx, id, offset)
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
				return printLine(cmd.OutOrStdout(), map[string]any{"exit": s.Process()})
			}
			return printLine(cmd.OutOrStdout(), map[string]any{"exit": s.Exit()})
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
		return printLine(cmd.OutOrStdout(), map[string]any{"gap": protocol.GapRange{From: k.Offset - k.Gap, To: k.Offset}})
	case t.json:
		text, encoding := protocol.EncodeBytes(k.Data)
		return printLine(cmd.OutOrStdout(), protocol.Chunk{Offset: k.Offset, Stream: k.Stream, Data: text, Encoding: encoding})
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

// print prints what there is now.
func (t *target) print(cmd *cobra.Command, c *client.Client, id string, offset int64) error {
	ctx := cmd.Context()
	if kindOf(id) == processID {
		logs, err := allLogs(ctx, c, id, offset)
		if err != nil {
			return err
		}
		if t.json {
			return printJSON(cmd.OutOrStdout(), logs)
		}
		if logs.Gap != nil {
			if err := gapNote(cmd.ErrOrStderr(), logs.Gap.From, logs.Gap.To); err != nil {
				return err
			}
		}
		for _, k := range logs.Chunks {
			p, e := protocol.DecodeBytes(k.Data, k.Encoding)
			if e != nil {
				return e
			}
			if err := t.printChunk(cmd, client.Chunk{Offset: k.Offset, Stream: k.Stream, Data: p}); err != nil {
				return err
			}
		}
		return nil
	}
	var r protocol.ExecResult
	now := 0.0
	if err := c.Call(ctx, "exec.wait", protocol.ExecWait{ExecID: id, Offset: &offset, YieldMS: &now}, &r); err != nil {
		return err
	}
	if t.json {
		return printJSON(cmd.OutOrStdout(), r)
	}
	for _, part := range []struct {
		w              io.Writer
		text, encoding string
	}{{cmd.OutOrStdout(), r.Stdout, r.StdoutEncoding}, {cmd.ErrOrStderr(), r.Stderr, r.StderrEncoding}} {
		p, e := protocol.DecodeBytes(part.text, part.encoding)
		if e != nil {
			return e
		}
		if _, err := part.w.Write(p); err != nil {
			return err
		}
	}
	if r.Truncated {
		_, err := fmt.Fprintln(cmd.ErrOrStderr(), "trl: a part of the output is no longer kept; use --json to see which")
		return err
	}
	return nil
}

// allLogs asks until the answer has what was there when we began: a process that prints all the time would have no end.
func allLogs(ctx context.Context, c *client.Client, id string, offset int64) (all protocol.Logs, err error) {
	var info protocol.ProcessInfo
	if err := c.Call(ctx, "process.info", protocol.ProcessRef{ProcessID: id}, &info); err != nil {
		return all, err
	}
	all.Chunks, all.NextOffset = []protocol.Chunk{}, offset
	for {
		var part protocol.Logs
		if err := c.Call(ctx, "process.logs", protocol.ProcessLogs{ProcessID: id, Offset: all.NextOffset}, &part); err != nil {
			return all, err
		}
		if all.Gap == nil {
			all.Gap = part.Gap
		}
		all.StreamID, all.EOF = part.StreamID, part.EOF
		all.Chunks = append(all.Chunks, part.Chunks...)
		done := part.NextOffset == all.NextOffset || part.NextOffset >= info.OutputBytes
		all.NextOffset = part.NextOffset
		if done || part.EOF {
			return all, nil
		}
	}
}
