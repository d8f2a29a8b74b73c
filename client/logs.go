package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strings"
	"time"

	"trl/protocol"
)

// Logs is the output of a process up to now.
type Logs struct {
	Stdout, Stderr string
	NextOffset     int64              // where the output goes on
	Gap            *protocol.GapRange // bytes that the server no longer has
}

// GetLogs returns the output that exists now.
func (p *Process) GetLogs(ctx context.Context) (*Logs, error) {
	if err := p.Refresh(ctx); err != nil {
		return nil, err
	}
	var (
		all         Logs
		out, errOut strings.Builder
	)
	for end := p.Info().OutputBytes; ; { // the process may print faster than we ask
		var logs protocol.Logs
		if err := p.c.Call(ctx, "process.logs", protocol.ProcessLogs{ProcessID: p.ID(), Offset: all.NextOffset}, &logs); err != nil {
			return nil, err
		}
		if g := logs.Gap; g != nil && all.Gap != nil {
			all.Gap.To = g.To
		} else if g != nil {
			all.Gap = g
		}
		for _, k := range logs.Chunks {
			data, err := protocol.DecodeBytes(k.Data, k.Encoding)
			if err != nil {
				return nil, err
			}
			if k.Stream == "stderr" {
				errOut.Write(data)
			} else {
				out.Write(data)
			}
		}
		all.NextOffset = logs.NextOffset
		if all.NextOffset >= end || len(logs.Chunks) == 0 {
			all.Stdout, all.Stderr = out.String(), errOut.String()
			return &all, nil
		}
	}
}

// LogReader is the output of a process as it comes, and then its end. One goroutine reads it.
type LogReader struct {
	p *Process
	s *stream
}

// StreamLogs reads the output from an offset on, also what was written before. ctx bounds the attach. Several readers of one process have a connection
// each.
func (p *Process) StreamLogs(ctx context.Context, since int64) (*LogReader, error) {
	c, err := p.c.forLogs(ctx, p.ID())
	if err != nil {
		return nil, err
	}
	r := &LogReader{p: p, s: &stream{c: c, kind: "process", id: p.ID(), offset: since}}
	r.s.reopen = func(ctx context.Context, l *link, s *stream, to *feed) error {
		var logs protocol.Logs
		q := protocol.ProcessLogs{ProcessID: s.id, Offset: s.offset, Follow: true, OnSlow: "block", WindowBytes: windowBytes}
		if err := l.call(ctx, "process.logs", q, &logs, to); err != nil {
			return err
		}
		return s.replay(&logs)
	}
	if err := r.s.open(ctx); err != nil {
		p.c.logsDone(r.s)
		return nil, err
	}
	p.c.logsOpen(r.s)
	return r, nil
}

// Next returns the next event: output, gaps, then EventExit; and io.EOF after it. ctx bounds the wait.
func (r *LogReader) Next(ctx context.Context) (Event, error) {
	e, err := r.s.next(ctx)
	if e.Type == EventExit {
		r.p.set(*e.Process)
	}
	return e, err
}

// Events is Next as a sequence, up to the last event or an error. To break out of it is to Close.
func (r *LogReader) Events(ctx context.Context) iter.Seq2[Event, error] {
	return iterate(ctx, r.Next, r.Close)
}

// Offset is the offset after the last byte that was read. Only the reading goroutine may call it.
func (r *LogReader) Offset() int64 { return r.s.offset }

// Close stops reading. The process goes on. It is idempotent.
func (r *LogReader) Close() {
	r.s.leave(ErrClosed)
	r.p.c.logsDone(r.s)
}

// The server sends an output once per connection. Further readers of the same process therefore have a connection of their own, a sibling; so have
// watchers.

// forLogs returns the connection for another reader of a process's output.
func (c *Client) forLogs(ctx context.Context, id string) (*Client, error) {
	c.mu.Lock()
	taken := c.followed[id]
	if !taken {
		c.followed[id] = true
	}
	c.mu.Unlock()
	if !taken {
		return c, nil
	}
	return c.sibling(ctx)
}

// sibling makes another connection to the same gateway, which ends with c at the latest. drop ends it before.
func (c *Client) sibling(ctx context.Context) (*Client, error) {
	if _, err := c.connected(ctx); err != nil { // the gateway may be away for a moment
		return nil, err
	}
	o := c.o
	o.OnEvent, o.OnLost, o.AwaitSuccessor = nil, nil, true
	sibling, err := Connect(ctx, o)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.siblings[sibling] = struct{}{}
	}
	c.mu.Unlock()
	if closed {
		sibling.Close()
		return nil, ErrClosed
	}
	return sibling, nil
}

func (c *Client) drop(sibling *Client) {
	c.mu.Lock()
	delete(c.siblings, sibling)
	c.mu.Unlock()
	sibling.Close()
}

func (c *Client) logsOpen(s *stream) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[s] = struct{}{}
}

// logsDone gives up a reader's claim to a connection.
func (c *Client) logsDone(s *stream) {
	c.mu.Lock()
	delete(c.logs, s)
	if s.c == c && !s.released {
		delete(c.followed, s.id)
	}
	s.released = true
	c.mu.Unlock()
	if s.c != c {
		c.drop(s.c)
	}
}

// pauseLogs has the readers of a process's output let go of it.
func (c *Client) pauseLogs(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.logs {
		if s.id == id {
			s.pause()
		}
	}
}

// WaitLogOptions changes WaitForLog. All fields are optional.
type WaitLogOptions struct {
	Stream  string        // "stdout" or "stderr"; "" means both
	Timeout time.Duration // then the wait is a *ProcessReadyTimeoutError
}

// LogMatch is the line that WaitForLog has found.
type LogMatch struct {
	Line   string
	Groups []string // what the parentheses of the pattern matched
}

// lineSettles is for how long nothing must come until a line counts that has no end yet.
const lineSettles = 100 * time.Millisecond

var errSettled = errors.New("nothing came")

// WaitForLog waits until a line of the output matches. Lines that were written before count. If the process ends before, the error is a
// *ProcessExitedBeforeReadyError. Neither an error nor the end of ctx ends the process.
func (p *Process) WaitForLog(ctx context.Context, pattern *regexp.Regexp, o *WaitLogOptions) (*LogMatch, error) {
	if o == nil {
		o = &WaitLogOptions{}
	}
	condition := fmt.Sprintf("output %q", pattern)
	waiting := ctx
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeoutCause(ctx, o.Timeout, &ProcessReadyTimeoutError{p.ID(), condition})
		defer cancel()
	}
	r, err := p.StreamLogs(waiting, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	found := lineSearch{pattern: pattern}
	for {
		next, stop := waiting, func() {}
		if found.changed {
			next, stop = withTimeout(waiting, lineSettles, errSettled)
		}
		e, err := r.Next(next)
		stop()
		switch {
		case err == errSettled:
		case errors.Is(err, io.EOF):
			return nil, &ProcessExitedBeforeReadyError{p.ID(), condition, exitCode(p.Info().ExitCode), found.tail}
		case err != nil:
			return nil, err
		case (e.Type == EventStdout || e.Type == EventStderr) && (o.Stream == "" || o.Stream == string(e.Type)):
			found.add(e.Type, e.Data)
		}
		if m := found.take(err == errSettled || e.Type == EventExit); m != nil {
			return m, nil
		}
	}
}

func withTimeout(ctx context.Context, d time.Duration, why error) (context.Context, func()) {
	ctx, cancel := context.WithTimeoutCause(ctx, d, why)
	return ctx, cancel
}

// lineSearch looks for a pattern in the lines of an output.
type lineSearch struct {
	pattern *regexp.Regexp
	open    [2]string // stdout's and stderr's line that has no end yet
	changed bool      // an open line, since it was looked at
	whole   []string
	tail    string // the last lines that were looked at
}

func (l *lineSearch) add(from EventType, data []byte) {
	open := &l.open[0]
	if from == EventStderr {
		open = &l.open[1]
	}
	all := strings.Split(*open+string(data), "\n")
	l.whole = append(l.whole, all[:len(all)-1]...)
	*open = all[len(all)-1]
	l.changed = true
}

const tailBytes = 2000

// take returns the first line that matches, of the open lines only if nothing more comes.
func (l *lineSearch) take(settled bool) *LogMatch {
	all := l.whole
	l.whole = nil
	if settled {
		all = append(all, l.open[:]...)
		l.changed = false
	}
	for _, line := range all {
		line = strings.TrimSuffix(line, "\r")
		if l.tail += line + "\n"; len(l.tail) > tailBytes {
			l.tail = l.tail[len(l.tail)-tailBytes:]
		}
		if m := l.pattern.FindStringSubmatch(line); m != nil {
			return &LogMatch{Line: line, Groups: m[1:]}
		}
	}
	return nil
}
