package web

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/pool"
	"trl/protocol"
)

// reason says why a client's connection ended: a closed list, the same in the log and as a metric's label.
type reason string

const (
	byClient   reason = "client"   // it closed, or is gone
	tooSlow    reason = "slow"     // it took nothing for SlowClient
	silent     reason = "silent"   // not even a pong for PeerSilence
	stalled    reason = "stalled"  // it began a message and did not finish it
	tooBig     reason = "too_big"  // a message above MaxFrame
	flood      reason = "policy"   // pings or fragments without end
	malformed  reason = "protocol" // not what RFC 6455 allows
	tooMany    reason = "full"     // there is no place for it; never of one that was served
	byShutdown reason = "shutdown" // ours
	unshared   reason = "unshared" // the share link that it came with has ended
	outdated   reason = "auth"     // what it was let in with has expired, or was revoked
	broken     reason = "internal" // a panic in what it asked for
)

// closeReasons is every reason that a served connection can end for.
var closeReasons = []reason{byClient, tooSlow, silent, stalled, tooBig, flood, malformed, byShutdown, unshared, outdated, broken}

// The transports, by name: the label of trl_connections and trl_bytes_out_total.
const (
	overWebSocket = "websocket"
	overUnix      = "unix"
)

// transport is one client's connection, seen as messages.
type transport interface {
	name() string
	// read returns the next message, valid until the next read. An error that is a *protocol.Error is to be answered; after any but
	// REQUEST_TOO_LARGE reading goes on. errHalfClosed: the client will send no more and still listens.
	read() ([]byte, error)
	// beforeLarge is called once: f is to be called before more than keepBuffer of a message is read, and may fail.
	beforeLarge(f func() error)
	// tend keeps the connection alive, and ends it when the peer is not; it returns when c has ended.
	tend(c *conn)
	// hungUp returns when the client that has half-closed is gone altogether.
	hungUp()
	// farewell tells the client why its connection ends, within a second or so, and makes read fail.
	farewell(reason)
	// close releases everything; idempotent.
	close()
}

var (
	errHalfClosed = errors.New("client will send no more")
	errLater      = errors.New("the answer comes from elsewhere")
	errGone       = errors.New("client is gone")
)

// conn is one client. Its life is serve: one goroutine reads and applies requests in order; what has to wait, waits in goroutines of
// its own, which end with ctx. Sessions and commands outlive it.
type conn struct {
	srv      *Server
	t        transport
	out      *outbox
	who      Principal
	grant    *Grant
	log      zerolog.Logger
	bytesOut prometheus.Counter
	binary   bool   // set once before serve; output goes in binary frames
	remote   string // set once before serve; the peer's address
	id       string // set once in connected; names it in the audit log

	patience time.Duration // SlowClient, as it was when the connection began

	ctx      context.Context // ends when the client is gone
	cancel   context.CancelFunc
	work     sync.WaitGroup // the goroutines that answer and stream
	active   atomic.Int64   // how many those are
	idle     chan struct{}  // one token: there were none for a moment
	wg       sync.WaitGroup // the others, but the reading one
	inFlight atomic.Int64   // requests received and not answered
	asked    atomic.Bool    // it subscribed to something: events may be sent unasked

	ending sync.Once
	reason reason // set once in ending

	mu       sync.Mutex
	lanes    map[string]*lane         // guarded by mu; see lane
	subs     map[string]*subscription // guarded by mu; by stream id: one per stream
	reserved int                      // guarded by mu; streams of terminals that are being opened
	streamNo uint64                   // guarded by mu; of the subscription made last
	watches  map[string]*watch        // guarded by mu; by session id
	recent   []*call                  // guarded by mu; the last exec.run and exec.stream requests, for exec.cancel by request_id
	account  *account                 // set once in serve; its principal's
	large    func()                   // owned by the reading goroutine; gives back what readLarge took
	oldest   int                      // guarded by mu; where recent is overwritten next
	visits   map[string]bool          // guarded by mu; sessions and recordings of other principals that an admin used
	own      []*pool.Session          // guarded by mu; sessions that end with this connection
}

func newConn(s *Server, t transport, out *outbox, g *Grant) *conn {
	c := &conn{
		srv: s, t: t, out: out, who: g.Principal, grant: g, remote: t.name(),
		log:      s.log.With().Str("transport", t.name()).Str("principal", g.Subject).Logger(),
		idle:     make(chan struct{}, 1),
		patience: s.now.Load().slowClient,
		bytesOut: s.m.BytesOut.WithLabelValues(t.name()),
		lanes:    map[string]*lane{}, subs: map[string]*subscription{}, watches: map[string]*watch{}, visits: map[string]bool{},
	}
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	t.beforeLarge(c.readLarge)
	return c
}

// serve is the connection's whole life. The order of its end: no more is read; ctx ends, and with it every wait, pump and watch, whose
// readers let go of their commands; the socket is closed, which frees who was writing; then the goroutines are waited for.
func (c *conn) serve() {
	c.srv.m.ClientConnections.WithLabelValues(c.t.name()).Inc()
	defer c.srv.m.ClientConnections.WithLabelValues(c.t.name()).Dec()
	c.log.Debug().Msg("client connected")
	began := time.Now()
	c.connected()
	var leave func()
	c.account, leave = c.srv.account(c.grant)
	defer leave()
	c.wg.Go(func() { c.survive("keepalive", func() { c.t.tend(c) }) }) // pings; ends with ctx; waited for below
	over := outdated
	if sh := c.grant.share; sh != nil {
		over = unshared
		sh.Join()
		defer sh.Leave()
		c.wg.Go(func() { c.endWith(sh) }) // waits for the link's end; ends with ctx; waited for below
	}
	defer c.grant.watch(func() { c.end(over) })()

	c.survive("requests", func() { c.end(c.readLoop()) })
	c.readDone()
	c.t.close()
	c.work.Wait()
	c.wg.Wait()

	c.disconnected(began)
	c.srv.m.ClientsClosed.WithLabelValues(string(c.reason)).Inc()
	if c.reason == tooSlow {
		c.srv.m.SlowClientsDropped.Inc()
	}
	level := zerolog.InfoLevel // somebody will ask why
	if c.reason == byClient || c.reason == byShutdown {
		level = zerolog.DebugLevel
	}
	c.log.WithLevel(level).Str("reason", string(c.reason)).Msg("client disconnected")
	if c.reason != byShutdown { // then the pool ends them all, for its own reason
		for _, s := range c.own {
			s.Disconnected()
		}
	}
}

func (c *conn) readLoop() reason {
	for {
		c.readDone()
		msg, err := c.t.read()
		if err == nil {
			c.handle(msg)
			continue
		}
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			c.refuse(nil, e)
			if e.Code == protocol.RequestTooLarge {
				return tooBig
			}
			continue
		}
		if err == errHalfClosed {
			c.finish()
			return byClient
		}
		return reasonOf(err)
	}
}

// finish lets a client that has closed its sending side have all that it asked for.
func (c *conn) finish() {
	done, gone := make(chan struct{}), make(chan struct{})
	c.wg.Go(func() { c.work.Wait(); close(done) }) // waits for answers and streams; those end with ctx at the latest; serve waits for it
	c.wg.Go(func() { c.t.hungUp(); close(gone) })  // waits for the client to be gone; ends with the socket at the latest; serve waits for it
	select {
	case <-done:
	case <-gone:
	case <-c.ctx.Done():
	}
}

// end begins the end of the connection, from any goroutine but one that holds the outbox; the first reason counts.
func (c *conn) end(why reason) {
	c.ending.Do(func() {
		c.reason = why
		c.cancel()
		c.t.farewell(why)
	})
}

// sent looks at how a write went.
func (c *conn) sent(err error) {
	switch {
	case err == nil, err == errClosing:
	case errors.Is(err, errSlow):
		c.end(tooSlow)
	default:
		c.end(byClient)
	}
}

// refuse answers a request that was not taken up. It is the reading goroutine's, which waits here when the client floods us: that is all
// the pressure needed.
func (c *conn) refuse(id jsontext.Value, e *protocol.Error) {
	c.sent(c.out.send(func(dst []byte) []byte { return protocol.AppendFailure(dst, id, e) }))
}

// event sends a notification and reports whether the client is still there.
func (c *conn) event(name string, data any) bool {
	err := c.out.send(func(dst []byte) []byte {
		msg, err := protocol.AppendEvent(dst, name, data)
		if err != nil {
			c.log.Error().Err(err).Str("event", name).Msg("event cannot be encoded")
			msg, _ = protocol.AppendEvent(dst, name, nil)
		}
		return msg
	})
	c.sent(err)
	return err == nil
}

// spawn runs f on a goroutine that serve waits for: it ends soon after ctx. what names it in the log.
func (c *conn) spawn(what string, f func()) {
	c.active.Add(1)
	c.work.Go(func() {
		c.survive(what, f)
		if c.active.Add(-1) == 0 {
			select {
			case c.idle <- struct{}{}:
			default:
			}
		}
	})
}

// quiet returns when nothing is left to answer or to stream, or when ctx is done. Shutdown's alone.
func (c *conn) quiet(ctx context.Context) {
	for c.active.Load() > 0 {
		select {
		case <-c.idle:
		case <-ctx.Done():
			return
		}
	}
}

// caught turns a panic into an error: one request's bug must not end everybody's sessions.
func (c *conn) caught(method string, err *error) {
	if v := recover(); v != nil {
		c.panicked(method, v)
		*err = protocol.Errorf(protocol.InternalError, "internal error")
	}
}

// survive runs f. A panic in f ends this connection, whose client may dial again and go on, and nothing else.
func (c *conn) survive(what string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.panicked(what, v)
			c.end(broken)
		}
	}()
	f()
}

func (c *conn) panicked(what string, v any) {
	c.log.Error().Str("method", what).Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request panicked")
}

// reasonOf reads a transport's error. What the network does (resets, timeouts, vanished peers) is the client going away.
func reasonOf(err error) reason {
	if errors.Is(err, websocket.ErrMessageTooBig) {
		return tooBig
	}
	if errors.Is(err, errPieces) {
		return flood
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return stalled
	}
	_, network := errors.AsType[*net.OpError](err)
	_, system := errors.AsType[syscall.Errno](err)
	if network || system || websocket.CloseStatus(err) != -1 ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, context.Canceled) {
		return byClient
	}
	return malformed
}
