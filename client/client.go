// Package client is the Go client for our CLI and for our users.
//
// A Client keeps one connection to a gateway. Call sends any request of the protocol; Run, Start, Attach and Follow do the same with Go types. The
// goroutine that asked for a Stream reads it at its own pace: the command waits until its output is read, and nothing accumulates in between. All
// streams and answers share the connection, so a Stream that nobody reads blocks the others, too. Use another Client if that matters.
//
// When the connection is lost (server restart, network), a Stream connects again for a while and continues at its next byte. A Call in flight is not
// repeated, because only its caller knows whether it may be. Start and OpenTerminal repeat their request with its request_key, and never against a
// gateway of another epoch, which would run the command again: that one answers SESSION_LOST. The default session, too, stays the one that the Client
// used first.
//
// Errors: a *protocol.Error is the server's answer, ErrLost means that there is no connection, ErrClosed that Close was called. A server without room
// for a connection answers LIMIT_EXCEEDED. It answers RATE_LIMITED if too many wrong tokens came from our address, and SHUTTING_DOWN when it ends.
// After any of these a lost connection is still dialled again. Only Next returns io.EOF, after the last piece of a Stream.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/protocol"
)

// Options says where the gateway is and who we are. URL, Unix or Dial is required; Dial takes precedence, then Unix.
type Options struct {
	URL  string // http://HOST:PORT, https://…, or the ws:// address itself
	Unix string // path of the gateway's Unix socket; the peer's uid is the principal
	// Dial makes each connection; it carries one JSON object per line, both ways. It is for code in the gateway's own process.
	Dial   func(context.Context) (net.Conn, error)
	Token  string // bearer token
	Origin string // sent as Origin when not empty; only browsers need one

	// OnEvent gets the events that belong to no Stream (session.watch, server.shutdown), in order; Data is a jsontext.Value. The connection's reader
	// calls it. OnEvent must not call the Client, and nothing else is read while it runs.
	OnEvent func(protocol.Event)
	// OnLost is called once per lost connection, with the reason, before the Client dials again. It may Close the Client and must not call anything
	// else of it.
	OnLost func(error)
	// Patience is how long the Client dials for a lost connection, counted from the moment when a caller first missed it; 0 means 45 s. A new
	// connection that brings nothing before it is lost, too, does not restart this time. After it, each caller that needs a connection makes one
	// attempt. Use at least 30 s: a gateway that is replaced by a new version, or a laptop that wakes up, needs seconds.
	Patience time.Duration

	// AwaitSuccessor makes Dial try again, until its context ends, while the gateway answers that it is shutting down. An upgrade starts the next
	// gateway within seconds; a gateway that stops soon refuses connections. Dial also tries again, maxCutDials times, after a gateway that accepted
	// the connection and ended before it answered.
	AwaitSuccessor bool

	// Tests use shorter times.
	attempt time.Duration // how long one dial of a lost connection may take; 0 means dialAttempt
	silence time.Duration // until a silent peer counts as gone; 0 means peerSilence
}

// dialAttempt allows for a slow network and a machine that swaps. It leaves Patience for other attempts if a peer accepts and stays silent.
const dialAttempt = 10 * time.Second

var (
	// ErrLost means that the connection was lost and could not be made again, or not yet. The result of a request in flight is unknown. The error that
	// wraps it says why.
	ErrLost = errors.New("connection lost")
	// ErrClosed means that Close was called on the Client or the Stream.
	ErrClosed = errors.New("client is closed")
)

const defaultPatience = 45 * time.Second

// Client is a connection to a gateway that is made again when it is lost. Several goroutines may use its methods.
type Client struct {
	o       Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // redial; Close waits for it

	mu      sync.Mutex
	link    *link         // guarded by mu; never nil after Dial
	closed  bool          // guarded by mu
	dialing *dialing      // guarded by mu; nil: nobody dials
	until   time.Time     // guarded by mu; when our patience with the server ends, since a connection was last useful; zero: no connection was lost
	wait    time.Duration // guarded by mu; before the next dial

	defaultSession string // guarded by mu; id of the session of requests that name none; "": not asked for yet
}

// dialing is an attempt to make the next connection. All callers that need one wait for the same attempt.
type dialing struct {
	done chan struct{} // closed when it has ended
	link *link         // set before done is closed
	err  error         // set before done is closed
}

const (
	// successorPause is the pause between two dials of a gateway that is shutting down. The next one takes over within tenths of a second.
	successorPause = 100 * time.Millisecond
	// maxCutDials is how often Dial tries again after a connection that was cut before the answer. The next gateway has the same listening socket, so
	// its first answer comes with the next dial; a server that always cuts connections shall still be reported soon.
	maxCutDials = 5
)

// Dial connects. It reports an absent gateway at once, and waits only in the case of AwaitSuccessor.
func Dial(ctx context.Context, o Options) (*Client, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	c := &Client{o: o}
	l, err := c.dial(ctx)
	cut := 0
	for o.AwaitSuccessor && (isShuttingDown(err) || wasCut(err) && cut < maxCutDials) && sleep(ctx, successorPause) == nil {
		if wasCut(err) {
			cut++
		}
		l, err = c.dial(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.link = l
	return c, nil
}

func (c *Client) dial(ctx context.Context) (*link, error) {
	var (
		t   transport
		err error
	)
	switch {
	case c.o.Dial != nil:
		var conn net.Conn
		if conn, err = c.o.Dial(ctx); err == nil {
			t = newLines(conn)
		}
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

// Close says goodbye and returns when no goroutine of the Client runs any more. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	l := c.link
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	l.close()
	c.running.Wait()
	return nil
}

// connected returns a live connection. It replaces a lost one if the loss was temporary.
func (c *Client) connected(ctx context.Context) (*link, error) {
	c.mu.Lock()
	l, d, closed := c.link, c.dialing, c.closed
	why := l.lost()
	if closed || why == nil || !temporary(why) {
		c.mu.Unlock()
		if closed {
			return nil, ErrClosed
		}
		if why == nil {
			return l, nil
		}
		return nil, l.lostError()
	}
	anew := !l.lossNoted
	if anew {
		l.lossNoted = true
		if !c.noteLossLocked(l) {
			c.mu.Unlock()
			return nil, l.lostError()
		}
	}
	first := d == nil
	if first {
		d = &dialing{done: make(chan struct{})}
		c.dialing = d
	}
	c.mu.Unlock()
	if first {
		if anew && c.o.OnLost != nil {
			c.o.OnLost(why)
		}
		c.dialAgain(d, l)
	}
	select {
	case <-d.done:
		return d.link, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.ctx.Done():
		return nil, ErrClosed
	}
}

// minRedialPause is the shortest pause before a dial after a server accepted a connection and dropped it at once, to spare a server in trouble.
const minRedialPause = 250 * time.Millisecond

// noteLossLocked starts the time of our patience with the loss of l, or continues the time of an earlier loss if l was not useful. It returns false if
// no time is left. mu is held.
func (c *Client) noteLossLocked(l *link) bool {
	lived, useful := l.lifetime()
	switch {
	case !c.until.IsZero() && !useful && lived < c.o.Patience:
		c.wait = min(max(2*c.wait, minRedialPause), maxPause)
		return time.Now().Before(c.until)
	case lived < time.Second:
		c.wait = minRedialPause
	default:
		c.wait = 0
	}
	c.until = time.Now().Add(c.o.Patience)
	return true
}

// dialAgain starts to dial for the connection after l, unless the Client has been closed.
func (c *Client) dialAgain(d *dialing, l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.running.Add(1)
	until, wait := c.until, c.wait
	go func() { // dials; ends with a connection, with our patience or with Close, which waits for it
		defer c.running.Done()
		l.close()
		next, err := c.redial(l, until, wait)
		c.install(d, next, err)
	}()
}

const maxPause = 4 * time.Second

// redial dials until the given time, at least once. Its pauses double from 50 ms to 4 s, and each is shortened by a random amount, so that clients do
// not come back at the same moment.
func (c *Client) redial(l *link, until time.Time, wait time.Duration) (*link, error) {
	_ = sleep(c.ctx, min(wait, time.Until(until)))
	for pause := max(wait, 50*time.Millisecond); ; pause = min(2*pause, maxPause) {
		attempt, cancel := context.WithTimeout(c.ctx, min(cmp.Or(c.o.attempt, dialAttempt), c.o.Patience))
		next, err := c.dial(attempt)
		late := attempt.Err()
		cancel()
		switch {
		case err == nil:
			return next, nil
		case c.ctx.Err() != nil:
			return nil, ErrClosed
		case late != nil:
			err = errors.New("the server does not answer") // instead of the caller's deadline, whose errors have the same names
		}
		if !temporary(err) || !time.Now().Before(until) {
			return nil, fmt.Errorf("%w (%v): %w", ErrLost, l.lost(), err)
		}
		_ = sleep(c.ctx, min(pause/2+rand.N(pause/2), time.Until(until)))
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

// install makes l the current connection and tells the waiting callers. If the Client was closed meanwhile, it ends l.
func (c *Client) install(d *dialing, l *link, err error) {
	c.mu.Lock()
	closed := c.closed
	if !closed && err == nil {
		c.link = l
	}
	c.dialing = nil
	c.mu.Unlock()
	if closed && err == nil {
		l.close()
		err = ErrClosed
	}
	d.link, d.err = l, err
	close(d.done)
}

// Call sends a request and decodes the answer's data into into, which may be nil. If the server could not carry out the request, the error is a
// *protocol.Error; with any other error the answer is unknown.
func (c *Client) Call(ctx context.Context, method string, params, into any) error {
	l, err := c.connected(ctx)
	if err != nil {
		return err
	}
	return l.call(ctx, method, params, into, nil)
}

// call is one request and its answer on this connection. If there is a feed, it gets the stream that the answer names.
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

// Run runs a command and returns its result: exit code, output, and whether output was cut. It is not repeated.
func (c *Client) Run(ctx context.Context, q protocol.Exec) (r protocol.ExecResult, err error) {
	l, err := c.connected(ctx)
	if err != nil {
		return r, err
	}
	ask := func(ref protocol.SessionRef) error {
		q.SessionRef = ref
		return l.call(ctx, "exec.run", q, &r, nil)
	}
	if q.Session != "" { // a second request would only find out the id of a name
		return r, ask(q.SessionRef)
	}
	return r, c.inSession(ctx, l, q.SessionRef, ask)
}
