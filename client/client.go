// Package client is the Go client that our CLI and our users share.
//
// A Client keeps one connection to a gateway. Call sends any request of the protocol; Run, Start, Attach and Follow are
// the same with Go types. A Stream is read by whoever asked for it, at his pace: what he does not read the command has to
// wait for, and nothing piles up in between. All streams and answers share the connection, so a Stream that nobody reads
// holds up the others too; use another Client where that matters.
//
// When the connection is lost (server restart, network) a Stream connects again for a while and goes on at the byte where
// it was. A Call that was in flight is not repeated: only its caller knows whether it may be.
//
// Errors: a *protocol.Error is the server's answer, ErrLost that there is no connection, ErrClosed that Close was called.
// io.EOF comes from Next alone, after the last piece of a Stream.
package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// Options says where the gateway is and who we are. One of URL and Unix is needed; Unix wins.
type Options struct {
	URL    string // http://HOST:PORT, https://…, or the ws:// address itself
	Unix   string // path of the gateway's Unix socket; the peer's uid is the principal
	Token  string // bearer token
	Origin string // sent as Origin when not empty; only browsers need one

	// OnEvent gets the events that belong to no Stream (session.watch, server.shutdown), in order; Data is a jsontext.Value.
	// The reader of the connection calls it: it must not call the Client, and while it runs nothing else is read.
	OnEvent func(protocol.Event)
	// OnLost is told why a connection was lost before a Stream tries to connect again.
	OnLost func(error)
	// Patience is how long a lost connection is dialled for; 0 means 45 s. The rule is at least 30 s: a gateway that is
	// replaced by a new version, or a laptop that wakes up, needs seconds.
	Patience time.Duration
}

var (
	// ErrLost is for a connection that was lost and could not be made again, or not yet: what became of a request that was
	// in flight is not known. The error that wraps it says why.
	ErrLost = errors.New("connection lost")
	// ErrClosed is for what is asked of a Client, or of a Stream, after its Close.
	ErrClosed = errors.New("client is closed")
)

const defaultPatience = 45 * time.Second

// Client is a connection to a gateway, made again when it was lost. Its methods may be used by several goroutines.
type Client struct {
	o       Options
	dialing chan struct{} // holds a token while somebody dials: one dial at a time, and waiting for it heeds a context

	mu     sync.Mutex
	link   *link // guarded by mu; never nil after Dial
	closed bool  // guarded by mu
}

// Dial connects, once: a gateway that is not there is reported at once.
func Dial(ctx context.Context, o Options) (*Client, error) {
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	c := &Client{o: o, dialing: make(chan struct{}, 1)}
	l, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	c.link = l
	return c, nil
}

func (c *Client) dial(ctx context.Context) (*link, error) {
	var (
		t   transport
		err error
	)
	switch {
	case c.o.Unix != "":
		t, err = dialUnix(ctx, c.o.Unix)
	case c.o.URL != "":
		t, err = dialWebSocket(ctx, c.o)
	default:
		err = errors.New("no server address")
	}
	if err != nil {
		return nil, err
	}
	return newLink(t, c.o.OnEvent), nil
}

// Close says goodbye and returns when nothing of the Client runs any more. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	l := c.link
	c.closed = true
	c.mu.Unlock()
	l.close()
	return nil
}

// current returns the connection in use and whether it is alive.
func (c *Client) current() (l *link, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	return c.link, nil
}

// connected returns a live connection. A lost one is replaced when its end was a temporary one; that takes at most
// o.Patience, with pauses from 50 ms doubling to 4 s, each shortened by chance so that clients do not come back in step.
func (c *Client) connected(ctx context.Context) (*link, error) {
	l, err := c.current()
	if err != nil || l.lost() == nil {
		return l, err
	}
	select {
	case c.dialing <- struct{}{}:
		defer func() { <-c.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if l, err = c.current(); err != nil || l.lost() == nil {
		return l, err // somebody else was faster
	}
	why := l.lost()
	if !temporary(why) {
		return nil, l.broken()
	}
	if c.o.OnLost != nil {
		c.o.OnLost(why)
	}
	l.close()
	pause, deadline := 50*time.Millisecond, time.Now().Add(c.o.Patience)
	if time.Since(l.born) < time.Second {
		pause = 250 * time.Millisecond // accepted and dropped at once: do not hammer at a server in trouble
		deadline = deadline.Add(pause)
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
	for ; ; pause = min(2*pause, 4*time.Second) {
		attempt, cancel := context.WithDeadline(ctx, deadline)
		next, err := c.dial(attempt)
		cancel()
		if err == nil {
			return next, c.install(next)
		}
		if !temporary(err) || time.Now().Add(pause).After(deadline) {
			return nil, fmt.Errorf("%w (%v): %w", ErrLost, why, err)
		}
		if err := sleep(ctx, pause/2+rand.N(pause/2)); err != nil {
			return nil, err
		}
		if _, err := c.current(); err != nil {
			return nil, err // closed meanwhile
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// install makes l the connection in use, or ends it when the Client was closed meanwhile.
func (c *Client) install(l *link) error {
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.link = l
	}
	c.mu.Unlock()
	if closed {
		l.close()
		return ErrClosed
	}
	return nil
}

// Call sends a request and puts the answer's data into into, which may be nil. A request that the server could not carry
// out comes back as a *protocol.Error; any other error means that the answer is not known.
func (c *Client) Call(ctx context.Context, method string, params, into any) error {
	l, err := c.connected(ctx)
	if err != nil {
		return err
	}
	return l.call(ctx, method, params, into, nil)
}

// call is one request and its answer on this connection. With a feed, the stream that the answer names is delivered there.
func (l *link) call(ctx context.Context, method string, params, into any, to *feed) error {
	var raw jsontext.Value
	if params != nil {
		b, err := json.Marshal(params)
		if err != nil {
			return protocol.Errorf(protocol.InvalidParams, "%s: %w", method, err)
		}
		raw = b
	}
	id, pending, err := l.send(ctx, method, raw, to)
	if err != nil {
		return err
	}
	f, err := l.wait(ctx, id, pending)
	switch {
	case err != nil:
		return err
	case !f.OK && f.Error != nil:
		return f.Error
	case !f.OK:
		return fmt.Errorf("%s: failure without an error", method)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(f.Data, into); err != nil {
		return fmt.Errorf("%s: answer: %w", method, err)
	}
	return nil
}

// Run runs a command and returns its result: exit code, output, and whether it was cut.
func (c *Client) Run(ctx context.Context, q protocol.Exec) (r protocol.ExecResult, err error) {
	err = c.Call(ctx, "exec.run", q, &r)
	return r, err
}
