package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

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

	// Session is the name, or the id, of the Client's own session. It is made when it is first used; "" means "default".
	Session string

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

	// AwaitSuccessor makes Connect try again, until its context ends, while the gateway answers that it is shutting down. An upgrade starts the next
	// gateway within seconds; a gateway that stops soon refuses connections. Connect also tries again, maxCutDials times, after a gateway that accepted
	// the connection and ended before it answered.
	AwaitSuccessor bool

	// Tests use shorter times.
	attempt time.Duration // how long one dial of a lost connection may take; 0 means dialAttempt
	silence time.Duration // until a silent peer counts as gone; 0 means peerSilence
}

// dialAttempt allows for a slow network and a machine that swaps. It leaves Patience for other attempts if a peer accepts and stays silent.
const dialAttempt = 10 * time.Second

const defaultPatience = 45 * time.Second

// Client is a connection to a gateway that is made again when it is lost. Several goroutines may use its methods. As a Session it is the session that
// Options.Session names; to Close the Client ends no session.
type Client struct {
	Session

	o       Options
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	running sync.WaitGroup // redial; Close waits for it

	mu      sync.Mutex
	link    *link         // guarded by mu; never nil after Connect
	closed  bool          // guarded by mu
	dialing *dialing      // guarded by mu; nil: nobody dials
	until   time.Time     // guarded by mu; when our patience with the server ends, since a connection was last useful; zero: no connection was lost
	wait    time.Duration // guarded by mu; before the next dial
	refused error         // guarded by mu; the server refused a dial, and would refuse the next one

	watcher  *Watcher             // guarded by mu; for which this is a sibling
	followed map[string]bool      // guarded by mu; by id: processes whose output is read over this connection
	logs     map[*stream]struct{} // guarded by mu; outputs of processes that are read, over this connection or another
	siblings map[*Client]struct{} // guarded by mu; connections for watchers and further readers, which end with this one
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
	// maxCutDials is how often Connect tries again after a connection that was cut before the answer. The next gateway has the same listening socket, so
	// its first answer comes with the next dial; a server that always cuts connections shall still be reported soon.
	maxCutDials = 5
)

// Connect connects. It reports an absent gateway at once, and waits only in the case of AwaitSuccessor.
func Connect(ctx context.Context, o Options) (*Client, error) {
	o.Patience = cmp.Or(o.Patience, defaultPatience)
	c := &Client{o: o, followed: map[string]bool{}, logs: map[*stream]struct{}{}, siblings: map[*Client]struct{}{}}
	c.Session = Session{c: c, name: cmp.Or(o.Session, defaultSession), own: true}
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
	l := newLink(t, c.tell)
	if err := l.greet(ctx); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// greet asks for the server's epoch. Something else than trl might listen at the address.
func (l *link) greet(ctx context.Context) error {
	var pong protocol.Pong
	err := l.call(ctx, "system.ping", nil, &pong, nil)
	if why := l.lost(); err != nil && why != nil {
		return why
	}
	if err != nil {
		return err
	}
	l.epoch = pong.Epoch
	l.mu.Lock()
	l.wasUseful = false // this answer is not yet of use to anybody
	l.mu.Unlock()
	return nil
}

// tell passes an event on to the watcher, and to the caller if it belongs to none of our streams. The link's reader calls it.
func (c *Client) tell(e protocol.Event, own bool) {
	c.mu.Lock()
	w := c.watcher
	c.mu.Unlock()
	if w != nil {
		w.offer(e)
	}
	if !own && c.o.OnEvent != nil {
		c.o.OnEvent(e)
	}
}

// Close says goodbye and returns when no goroutine of the Client runs any more. It is idempotent.
func (c *Client) Close() error {
	c.mu.Lock()
	l := c.link
	c.closed = true
	siblings := slices.Collect(maps.Keys(c.siblings))
	c.mu.Unlock()
	c.cancel()
	for _, s := range siblings {
		s.Close()
	}
	l.close()
	c.running.Wait()
	return nil
}

// connected returns a live connection. It replaces a lost one if the loss was temporary.
func (c *Client) connected(ctx context.Context) (*link, error) {
	c.mu.Lock()
	l, d := c.link, c.dialing
	why := l.lost()
	var err error
	switch {
	case c.closed:
		err = ErrClosed
	case why == nil:
		c.mu.Unlock()
		return l, nil
	case c.refused != nil:
		err = c.refused
	case !temporary(why):
		err = unsent(why)
	}
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	anew := !l.lossNoted
	if anew {
		l.lossNoted = true
		if !c.noteLossLocked(l) {
			c.mu.Unlock()
			return nil, unsent(why)
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
		if !temporary(err) && !isAbsent(err) || !time.Now().Before(until) {
			return nil, unsent(fmt.Errorf("%v; and then: %w", l.lost(), err))
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
	if refusal, ok := errors.AsType[*protocol.Error](err); ok && !temporary(refusal) && !isAbsent(refusal) {
		c.refused = err
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

func unsent(why error) error { return &ConnectionLostError{OutcomeUnsent, why} }

// outcome corrects what an error says of a request that was sent before over another connection.
func (c *Client) outcome(err error, wasSent bool) error {
	if lost, ok := errors.AsType[*ConnectionLostError](err); ok && wasSent {
		return &ConnectionLostError{OutcomeUnknown, lost.cause}
	}
	return err
}
