package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"trl/protocol"
)

// Command is a command whose output comes as it is written. One goroutine reads it, by Next, Events, Copy or Result; other goroutines may use Write,
// CloseStdin, Kill and Signal.
//
// Output that nobody reads waits: at most 1 MiB of it in this program, the rest at the server, and then the command waits. A Client has one reader of a
// command; a second one takes its place, and the first gets ErrDisplaced. Two Clients may both read it.
type Command struct {
	s       *stream
	ctx     context.Context // ends the command
	command string
	check   bool

	aborted   chan struct{} // closed when the command has been ended because ctx has
	stopAbort func() bool
	in        input
	inputErr  chan error // holds why the input could not be written, if it could not

	// owned by the reader
	started        bool
	stdout, stderr collector
	gap            bool
	exit           *protocol.ExecExit
	result         *ExecResult
	failure        error // of the end
}

// ExecStream starts a command and returns when the server has accepted it. If the answer is lost it asks again, and the command still runs once. When ctx
// ends, the command is ended, and its reader gets the cause.
func (s *Session) ExecStream(ctx context.Context, command string, o *ExecOptions) (*Command, error) {
	o, stdin, more, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	return s.stream(ctx, command, o, stdin, more)
}

func (s *Session) stream(ctx context.Context, command string, o *ExecOptions, stdin []byte, more io.Reader) (*Command, error) {
	q := o.params(command, stdin)
	q.InteractiveStdin = o.OpenStdin || more != nil
	q.OnSlow, q.WindowBytes = "block", windowBytes
	c := s.c.newCommand(ctx, "", o.MaxOutputBytes)
	c.command, c.check = command, o.Check
	// The request goes on when ctx ends, because its answer says which command must be ended.
	cancel, waiting, done := cancelWith(ctx)
	defer done()
	c.s.reopen = func(ctx context.Context, l *link, t *stream, to *feed) error {
		if t.id != "" {
			return attach(ctx, l, t, to)
		}
		params, err := encodeParams("exec.stream", protocol.ExecStream(q))
		if err != nil {
			return err
		}
		var opened protocol.StreamOpened
		if err := l.exchange(ctx, request{method: "exec.stream", params: params, cancel: cancel}, &opened, to); err != nil {
			return err
		}
		t.id, t.offset = opened.ExecID, opened.Offset
		c.in.begin(int64(len(stdin)))
		return nil
	}
	err := s.use(waiting, func(ref protocol.SessionRef) error {
		q.SessionRef = ref
		return c.s.open(waiting)
	})
	if ctx.Err() != nil {
		if err == nil {
			c.abort()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.stopAbort = context.AfterFunc(ctx, c.abort)
	if more != nil {
		go c.passInput(more) // ends with the input, or with the command
	}
	return c, nil
}

// AttachCommand reads the output of a command from offset on. The command may have ended. ctx bounds the attach, and does not end the command.
func (s *Session) AttachCommand(ctx context.Context, execID string, offset int64) (*Command, error) {
	cmd := s.c.newCommand(context.Background(), execID, 0)
	cmd.s.offset = offset
	cmd.s.reopen = attach
	return cmd, cmd.s.open(ctx)
}

func (c *Client) newCommand(ctx context.Context, id string, most int64) *Command {
	if most == 0 {
		most = defaultOutput
	}
	return &Command{
		s: &stream{c: c, kind: "exec", id: id}, ctx: ctx, aborted: make(chan struct{}), stopAbort: func() bool { return true }, inputErr: make(chan error, 1),
		stdout: collector{most: most}, stderr: collector{most: most},
	}
}

func attach(ctx context.Context, l *link, s *stream, to *feed) error {
	// block: this is the only reader of the output, and it must not skip output because it is slow.
	return l.call(ctx, "exec.attach", protocol.ExecAttach{ExecID: s.id, Offset: s.offset, OnSlow: "block", WindowBytes: windowBytes}, nil, to)
}

// ID returns the command's exec_id.
func (c *Command) ID() string { return c.s.id }

// Offset is the offset after the last byte that was read. AttachCommand goes on there. Only the reading goroutine may call it.
func (c *Command) Offset() int64 { return c.s.offset }

// Exit is the end as it is on the wire, also if the command's result is unknown; nil before the end. Only the reading goroutine may call it.
func (c *Command) Exit() *protocol.ExecExit { return c.exit }

// Next returns the next event: EventStart, then output and gaps, then EventComplete; and io.EOF after it. ctx bounds the wait and does not end the
// command. Every byte comes once and in order.
func (c *Command) Next(ctx context.Context) (Event, error) {
	if !c.started {
		c.started = true
		return Event{Type: EventStart, Command: c.command, ExecID: c.s.id, Offset: c.s.offset}, nil
	}
	if c.ctx.Err() != nil && c.result == nil {
		return Event{}, c.afterAbort(ctx)
	}
	if c.failure != nil {
		return Event{}, c.failure
	}
	waiting, stop := both(ctx, c.ctx)
	defer stop()
	e, err := c.s.next(waiting)
	if err != nil && c.ctx.Err() != nil && ctx.Err() == nil {
		return Event{}, c.afterAbort(ctx)
	}
	if err != nil {
		return Event{}, err
	}
	switch e.Type {
	case EventStdout:
		c.stdout.add(e.Data)
	case EventStderr:
		c.stderr.add(e.Data)
	case EventGap:
		c.gap = true
	case EventComplete:
		c.stopAbort()
		c.exit = e.Exit
		if c.result, c.failure = c.complete(e.Exit); c.failure != nil {
			return Event{}, c.failure
		}
		e.Result = c.result
	}
	return e, nil
}

// both returns a context that ends with the first of the two.
func both(ctx, other context.Context) (context.Context, context.CancelFunc) {
	if other.Done() == nil || ctx == other {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

func (c *Command) complete(exit *protocol.ExecExit) (*ExecResult, error) {
	select {
	case err := <-c.inputErr: // the command got only a part of its input
		return nil, err
	default:
	}
	r, err := resultOf(c.command, exit)
	if err != nil {
		return nil, err
	}
	r.Stdout, r.Omitted.Stdout = c.stdout.text()
	r.Stderr, r.Omitted.Stderr = c.stderr.text()
	r.Truncated = c.gap || r.Omitted.Stdout != nil || r.Omitted.Stderr != nil
	return r.check(c.check)
}

// Events is Next as a sequence, up to the last event or an error. To break out of it is to Detach.
func (c *Command) Events() iter.Seq2[Event, error] {
	return iterate(context.Background(), c.Next, c.Detach)
}

// Result reads the output that is left and returns how the command ended. ctx bounds the wait and does not end the command.
func (c *Command) Result(ctx context.Context) (*ExecResult, error) {
	for c.result == nil {
		if _, err := c.Next(ctx); err != nil {
			return nil, err
		}
	}
	return c.result, nil
}

// Copy writes the output to two writers as it comes and returns how the command ended. Bytes that the server had to drop do not stop it; it reports them
// at the end as an ErrGap.
func (c *Command) Copy(ctx context.Context, stdout, stderr io.Writer) (*ExecResult, error) {
	var lost int64
	for {
		e, err := c.Next(ctx)
		switch {
		case errors.Is(err, io.EOF) && lost > 0:
			return c.result, fmt.Errorf("%d bytes of output: %w", lost, ErrGap)
		case errors.Is(err, io.EOF):
			return c.result, nil
		case err != nil:
			return nil, err
		}
		w := stdout
		switch e.Type {
		case EventGap:
			lost += e.Offset - e.From
			continue
		case EventStderr:
			w = stderr
		case EventStdout:
		default:
			continue
		}
		if _, err := w.Write(e.Data); err != nil {
			return nil, err
		}
	}
}

// Kill ends the command and everything that it started: TERM, the server's grace time, KILL; and returns when it has ended.
func (c *Command) Kill(ctx context.Context) error {
	c.s.pause()
	return c.s.c.Call(ctx, "exec.cancel", protocol.ExecCancel{ExecID: c.s.id}, nil)
}

// Signal sends one signal, such as "INT", to the command's processes.
func (c *Command) Signal(ctx context.Context, name string) error {
	return c.s.c.Call(ctx, "exec.cancel", protocol.ExecCancel{ExecID: c.s.id, Signal: name}, nil)
}

// abort ends the command because its context has ended.
func (c *Command) abort() {
	defer close(c.aborted)
	ctx, cancel := context.WithTimeout(c.s.c.ctx, endingTime)
	defer cancel()
	_ = c.Kill(ctx)
	c.s.leave(ErrClosed)
}

// afterAbort waits until the command has been ended, and returns why.
func (c *Command) afterAbort(ctx context.Context) error {
	select {
	case <-c.aborted:
		return context.Cause(c.ctx)
	case <-ctx.Done():
		return context.Cause(c.ctx)
	}
}

// Write writes to the input of a command that was started with OpenStdin. It waits while the command does not read, so a large input needs no memory.
// After CloseStdin or the command's end it fails with STDIN_CLOSED. Two large inputs at the same time may mix.
func (c *Command) Write(ctx context.Context, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	return c.input(ctx, p, false)
}

// CloseStdin ends the input. It does not matter if it has ended already, as after the command's end.
func (c *Command) CloseStdin(ctx context.Context) error { return ignoreClosed(c.input(ctx, nil, true)) }

func (c *Command) input(ctx context.Context, p []byte, eof bool) error {
	return c.in.write(ctx, c.s.c, "exec.input", p, eof, func(text, encoding string, eof bool, offset *int64) any {
		return protocol.ExecInput{ExecID: c.s.id, Data: text, Encoding: encoding, EOF: eof, Offset: offset}
	})
}

// passInput writes an input that is too large for the request. A command may end before it has read everything. If a part of the input may be missing, or
// may have come twice, the command must not go on.
func (c *Command) passInput(from io.Reader) {
	ctx, stop := both(c.s.c.ctx, c.ctx)
	defer stop()
	buf := make([]byte, inputPiece)
	for {
		n, err := from.Read(buf)
		eof := errors.Is(err, io.EOF)
		if n > 0 || eof {
			if failed := c.input(ctx, buf[:n], eof); failed != nil {
				err = failed
			}
		}
		switch {
		case eof && err == io.EOF:
			return
		case CodeOf(err) == protocol.StdinClosed, CodeOf(err) == protocol.ExecNotFound:
			return
		case err != nil:
			c.inputErr <- fmt.Errorf("input: %w", err)
			_ = c.Kill(ctx)
			return
		}
	}
}

// Detach stops reading: it drops later output and asks the server to send no more. The command goes on, and ctx of ExecStream no longer ends it. It is
// idempotent and does not wait.
func (c *Command) Detach() {
	c.stopAbort()
	c.s.leave(ErrClosed)
}

// collector keeps the beginning and the end of what is written to it, as the server does for exec.run.
type collector struct {
	most       int64
	head, tail []byte
	dropped    int64
}

func (k *collector) add(p []byte) {
	half := int(k.most / 2)
	if n := min(half-len(k.head), len(p)); n > 0 {
		k.head = append(k.head, p[:n]...)
		p = p[n:]
	}
	rest := int(k.most) - half
	k.tail = append(k.tail, p...)
	if excess := len(k.tail) - rest; excess > 0 && (excess > rest || excess > inputPiece) { // seldom, because it moves the tail
		k.tail = append(k.tail[:0], k.tail[excess:]...)
		k.dropped += int64(excess)
	}
}

func (k *collector) text() (string, *protocol.Omitted) {
	if excess := len(k.tail) - int(k.most-k.most/2); excess > 0 {
		k.tail = k.tail[excess:]
		k.dropped += int64(excess)
	}
	text := string(k.head) + string(k.tail)
	if k.dropped == 0 {
		return text, nil
	}
	return text, &protocol.Omitted{At: int64(len(k.head)), Bytes: k.dropped}
}
