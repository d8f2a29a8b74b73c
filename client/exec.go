package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

const (
	// largestStdin is the most input that is sent with the request; more goes in pieces while the command runs.
	largestStdin = 256 << 10
	// defaultOutput is how much of each stream a result holds: the server's default.
	defaultOutput = 1 << 20
	// endingTime is how long a command may take to end after its context: the server's grace between TERM and KILL, and a second.
	endingTime = 6 * time.Second
)

// ExecOptions changes how a command runs. All fields are optional.
type ExecOptions struct {
	Cwd      string            // for this command only
	Env      map[string]string // for this command only
	UnsetEnv []string          // variables that this command does not have

	Timeout         time.Duration // then the command is ended, and its result has TimedOut; less than 0: no limit, also if the session has one
	NoOutputTimeout time.Duration // after so long without output the command is ended

	Stdin     io.Reader // the command's input, of any size
	OpenStdin bool      // ExecStream: the input comes with Write and CloseStdin

	MaxOutputBytes int64 // the most that a result holds of each stream, beginning and end; 0 means 1 MiB
	Clean          bool  // Exec: the text as a terminal would have shown it, without escape sequences
	Check          bool  // a failed command is a *CommandError

	WhenBusy   string                           // while another command runs: "queue" (the default) or "reject"
	RequestKey string                           // a name under which the server runs the request once; "" means a random one
	OnOutput   func(stream string, data []byte) // Exec: gets the output of "stdout" and "stderr" as it comes
	Record     bool
}

// ExecResult is how a command ended, with its output.
type ExecResult struct {
	protocol.ExecExit

	Command        string
	ExitCode       int    // 128+N if signal N ended the command
	Success        bool   // ExitCode is 0
	Stdout, Stderr string // the exact bytes, also where they are not UTF-8
	Truncated      bool   // some output is missing
	Omitted        protocol.OmittedStreams
}

// Duration is how long the command ran.
func (r *ExecResult) Duration() time.Duration { return time.Duration(r.DurationMS) * time.Millisecond }

// resultOf makes a result of the wire's account of the end. It is an error if the server does not know the end, or if the command never ran.
func resultOf(command string, exit *protocol.ExecExit) (*ExecResult, error) {
	if e := exit.Error; exit.ExitCode == nil && e != nil {
		if e.Code == protocol.InternalError || e.Code == protocol.SessionLost {
			return nil, &OutcomeUnknownError{*exit}
		}
		return nil, e
	}
	r := &ExecResult{ExecExit: *exit, Command: command, ExitCode: -1}
	if exit.ExitCode != nil {
		r.ExitCode = *exit.ExitCode
	}
	r.Success = r.ExitCode == 0
	return r, nil
}

// begin returns o, or the defaults, and the input that is known before the command starts. It fails if ctx has ended.
func (o *ExecOptions) begin(ctx context.Context) (_ *ExecOptions, stdin []byte, more io.Reader, err error) {
	if o == nil {
		o = &ExecOptions{}
	}
	if ctx.Err() != nil {
		return nil, nil, nil, context.Cause(ctx)
	}
	stdin, more, err = readStdin(o.Stdin)
	return o, stdin, more, err
}

// Exec runs a command in the session's shell and returns how it ended; a command that fails is a result, too. If the connection is lost meanwhile it is
// made again, and the command still runs once. When ctx ends, Exec ends the command and returns the cause.
func (s *Session) Exec(ctx context.Context, command string, o *ExecOptions) (*ExecResult, error) {
	o, stdin, more, err := o.begin(ctx)
	if err != nil {
		return nil, err
	}
	if o.OnOutput != nil || more != nil {
		return s.follow(ctx, command, o, stdin, more)
	}
	q := o.params(command, stdin)
	q.Clean = o.Clean
	if o.MaxOutputBytes != 0 {
		q.MaxOutputBytes = &o.MaxOutputBytes
	}
	var answer protocol.ExecResult
	err = s.use(ctx, func(ref protocol.SessionRef) error {
		q.SessionRef = ref
		return s.c.run(ctx, q, &answer)
	})
	if err != nil {
		return nil, err
	}
	r, err := resultOf(command, &answer.ExecExit)
	if err != nil {
		return nil, err
	}
	out, bad := protocol.DecodeBytes(answer.Stdout, answer.StdoutEncoding)
	errOut, bad2 := protocol.DecodeBytes(answer.Stderr, answer.StderrEncoding)
	if bad = cmp.Or(bad, bad2); bad != nil {
		return nil, bad
	}
	r.Stdout, r.Stderr, r.Truncated, r.Omitted = string(out), string(errOut), answer.Truncated, answer.Omitted
	return r.check(o.Check)
}

func (r *ExecResult) check(wanted bool) (*ExecResult, error) {
	if wanted && !r.Success {
		return nil, &CommandError{r}
	}
	return r, nil
}

// params makes the request without its session.
func (o *ExecOptions) params(command string, stdin []byte) protocol.Exec {
	q := protocol.Exec{
		Command: command, WorkingDir: o.Cwd, Env: environment(o.Env, o.UnsetEnv), Timeout: seconds(o.Timeout), NoOutputTimeout: seconds(o.NoOutputTimeout),
		WhenBusy: o.WhenBusy, RequestKey: cmp.Or(o.RequestKey, rand.Text()), Record: o.Record,
	}
	if stdin != nil {
		text, encoding := protocol.EncodeBytes(stdin)
		q.Stdin, q.StdinEncoding = &text, encoding
	}
	return q
}

// readStdin reads the input if it is small, and otherwise returns all of it as a reader.
func readStdin(from io.Reader) (all []byte, more io.Reader, err error) {
	if from == nil {
		return nil, nil, nil
	}
	all, err = io.ReadAll(io.LimitReader(from, largestStdin+1))
	if err != nil {
		return nil, nil, err
	}
	if len(all) > largestStdin {
		return nil, io.MultiReader(bytes.NewReader(all), from), nil
	}
	return all, nil, nil
}

// run is exec.run. It ends the command when ctx ends, over as many connections as the request needs.
func (c *Client) run(ctx context.Context, q protocol.Exec, into *protocol.ExecResult) error {
	params, err := encodeParams("exec.run", protocol.ExecRun(q))
	if err != nil {
		return err
	}
	cancel, waiting, done := cancelWith(ctx)
	defer done()
	err = c.send(waiting, request{method: "exec.run", params: params, repeat: repeatOf("exec.run", params), cancel: cancel}, into)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// canceller has the server cancel a request when the context of its command ends, by the request's id on each connection that carries it.
type canceller struct {
	ctx context.Context // of the command

	mu    sync.Mutex
	begun bool   // guarded by mu; the request is being sent, or was
	ended bool   // guarded by mu; the context has ended first: nothing may be sent
	link  *link  // guarded by mu; nil: not sent yet
	id    uint64 // guarded by mu; of the request on link
}

// cancelWith makes a canceller for one request, and the context in which to wait for the answer. That context ends with ctx if nothing was sent, and
// otherwise endingTime later, so that the command has ended when the caller goes on.
func cancelWith(ctx context.Context) (r *canceller, waiting context.Context, done func()) {
	r = &canceller{ctx: ctx}
	waiting, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	after := context.AfterFunc(ctx, func() {
		if r.cancel() {
			time.AfterFunc(endingTime, func() { stop(context.Cause(ctx)) })
		} else {
			stop(context.Cause(ctx))
		}
	})
	return r, waiting, func() { after(); stop(nil) }
}

// sending returns an error if the request must not be sent any more.
func (r *canceller) sending() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return context.Cause(r.ctx)
	}
	r.begun = true
	return nil
}

func (r *canceller) sent(l *link, id uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.link, r.id = l, id
	r.mu.Unlock()
	if r.ctx.Err() != nil {
		r.cancel()
	}
}

// cancel returns false if nothing was sent.
func (r *canceller) cancel() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = !r.begun
	if r.link != nil {
		r.link.post("exec.cancel", protocol.ExecCancel{RequestID: jsontext.Value(strconv.FormatUint(r.id, 10))})
	}
	return r.begun
}

// follow is Exec with output, or input, that goes in pieces.
func (s *Session) follow(ctx context.Context, command string, o *ExecOptions, stdin []byte, more io.Reader) (*ExecResult, error) {
	c, err := s.stream(ctx, command, o, stdin, more)
	if err != nil {
		return nil, err
	}
	defer c.Detach()
	for {
		e, err := c.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return c.result, nil
		case err != nil:
			return nil, err
		case o.OnOutput != nil && (e.Type == EventStdout || e.Type == EventStderr):
			o.OnOutput(string(e.Type), e.Data)
		}
	}
}
