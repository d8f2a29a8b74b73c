package rpc

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/cluster/link"
	"trl/pool"
	"trl/protocol"
	"trl/web/auth"
	"trl/web/rpc/bounds"
	"trl/web/rpc/recent"
	"trl/web/transport"
)

// errClientGone means that there is no client left to answer.
var errClientGone = errors.New("client is gone")

// conn is one client. serve is its life: one goroutine reads requests and applies them in order. Work that has to wait has goroutines of its own,
// which end with ctx. Sessions and commands outlive the connection.
type conn struct {
	srv       *Clients
	transport transport.Conn
	request   *transport.HTTP // the transport, if the connection is one HTTP request; else nil
	out       *transport.Outbox
	principal auth.Principal
	grant     *auth.Grant
	log       zerolog.Logger
	bytesOut  prometheus.Counter
	binary    bool   // set once before serve; output is sent in binary frames
	remote    string // set once before serve; the peer's address
	id        string // set once in connected; names it in the audit log

	slowLimit time.Duration // LiveConfig.SlowClient when the connection began

	ctx        context.Context // ends when the client is gone
	cancel     context.CancelFunc
	inFlight   *atomic.Int64 // requests received and not answered; HTTP requests share the counter of their principal
	subscribed atomic.Bool   // the client has subscribed to something, so it may get events that it did not ask for
	connTasks

	endOnce sync.Once
	reason  transport.CloseReason // set once in end

	usage        *bounds.Usage // set once in serve; the usage of its principal
	releaseLarge func()        // owned by the reading goroutine; undoes beginLargeRead

	relays *relays // set once; nil: every session is on this node

	mu           sync.Mutex
	connRequests // guarded by mu
	connStreams  // guarded by mu
}

// connTasks are the goroutines of a connection.
type connTasks struct {
	tasks     sync.WaitGroup // goroutines that answer or stream
	taskCount atomic.Int64   // how many are in tasks
	tasksIdle chan struct{}  // holds a token after taskCount has been 0
	helpers   sync.WaitGroup // all other goroutines, except the reading one
}

// connRequests is what a connection keeps of its requests.
type connRequests struct {
	queues  map[string]*requestQueue // requests that wait for one another, see requestQueue
	recent  recent.Last[*call]       // the last exec.run and exec.stream requests, for exec.cancel by request_id
	usedIDs recent.IDs               // sessions and recordings of other principals that an admin used
}

// connStreams is what a connection follows, and which sessions end with it.
type connStreams struct {
	subs     map[string]*subscription // by stream id: one per stream
	numbered map[uint64]*subscription // the same by number, with those that have been replaced
	reserved int                      // places for the streams of terminals that are being opened
	inputs   bool                     // set once before serve; binary frames with input are taken
	streamNo uint64                   // the number of the latest subscription
	stride   uint64                   // the difference between two stream numbers; set once
	watches  map[string]*watch        // by session id

	boundSessions []*pool.Session // sessions that end with this connection
}

func newConn(s *Clients, t transport.Conn, g *auth.Grant) *conn {
	c := &conn{
		srv: s, transport: t, out: t.Outbox(), principal: g.Principal, grant: g, remote: t.Name(), binary: t.IsBinary(),
		log:       s.log.With().Str("transport", t.Name()).Str("principal", g.Subject).Logger(),
		slowLimit: s.live().SlowClient,
		bytesOut:  s.m.BytesOut.WithLabelValues(t.Name()),
		inFlight:  new(atomic.Int64),

		connTasks:    connTasks{tasksIdle: make(chan struct{}, 1)},
		connRequests: connRequests{queues: map[string]*requestQueue{}},
		connStreams:  connStreams{subs: map[string]*subscription{}, numbered: map[uint64]*subscription{}, inputs: t.TakesInput(), stride: 1, watches: map[string]*watch{}},
	}
	if nodes := s.config.Cluster.Nodes; nodes != nil && t.Name() != transport.LinkName { // a client of another node only uses sessions of this one
		c.relays, c.stride = newRelays(nodes, s.pool.Epoch()), link.Stride
	}
	c.request, _ = t.(*transport.HTTP)
	c.ctx, c.cancel = context.WithCancel(s.ctx)
	t.BeforeLarge(c.beginLargeRead)
	return c
}

// serve is the connection's whole life. It ends in this order: reading stops; ctx ends, and with it every wait, pump and watch, whose readers no
// longer hold up their commands; the socket is closed, which frees goroutines that are writing; then serve waits for the goroutines.
func (c *conn) serve() {
	c.srv.m.ClientConnections.WithLabelValues(c.transport.Name()).Inc()
	defer c.srv.m.ClientConnections.WithLabelValues(c.transport.Name()).Dec()
	c.log.Debug().Msg("client connected")
	began := time.Now()
	c.auditConnect()
	var leave func()
	c.usage, leave = c.srv.usages.Of(c.grant)
	defer leave()
	if c.request != nil {
		c.inFlight = &c.usage.HTTPInFlight
	}
	c.helpers.Go(func() { c.containPanic("keepalive", func() { c.transport.KeepAlive(c.ctx, c.end, c.checkSent) }) }) // pings; ends with ctx; waited for below
	over := transport.ReasonAuthOver
	if sh := c.grant.Share; sh != nil {
		over = transport.ReasonUnshared
		sh.Join()
		defer sh.Leave()
		c.helpers.Go(func() { c.endWithShare(sh) }) // waits for the link's end; ends with ctx; waited for below
	}
	if far := c.grant.Elsewhere; far != nil {
		over = transport.ReasonUnshared
		c.relayTo(far.Epoch) // it also tells of the end of the share link
	}
	defer c.grant.OnExpiry(func() { c.end(over) })()

	c.containPanic("requests", func() { c.end(c.readLoop()) })
	c.endLargeRead()
	c.transport.Close()
	c.tasks.Wait()
	c.helpers.Wait()

	c.auditDisconnect(began)
	c.srv.m.ClientsClosed.WithLabelValues(string(c.reason)).Inc()
	if c.reason == transport.ReasonSlow {
		c.srv.m.SlowClientsDropped.Inc()
	}
	level := zerolog.InfoLevel // an operator may want to know why
	if c.reason == transport.ReasonClient || c.reason == transport.ReasonShutdown {
		level = zerolog.DebugLevel
	}
	c.log.WithLevel(level).Str("reason", string(c.reason)).Msg("client disconnected")
	if c.reason != transport.ReasonShutdown { // at a shutdown the pool ends all sessions itself
		for _, s := range c.boundSessions {
			s.UnbindConn()
		}
	}
}

func (c *conn) readLoop() transport.CloseReason {
	for {
		c.endLargeRead()
		msg, err := c.transport.Read()
		if err == nil {
			c.handle(msg)
			continue
		}
		if err == transport.ErrBinary {
			c.takeFrame(msg)
			continue
		}
		if e, ok := errors.AsType[*protocol.Error](err); ok {
			c.refuseRequest(nil, e)
			if e.Code == protocol.RequestTooLarge {
				return transport.ReasonTooBig
			}
			continue
		}
		if err == transport.ErrHalfClosed {
			c.finishHalfClosed()
			return transport.ReasonClient
		}
		return transport.ReasonOf(err)
	}
}

// finishHalfClosed waits until a client that has closed its sending side has got all answers and streams, or has gone.
func (c *conn) finishHalfClosed() {
	done, gone := make(chan struct{}), make(chan struct{})
	c.helpers.Go(func() { // waits for answers and streams, also those of other nodes; all end with ctx at the latest; serve waits for it
		defer close(done)
		c.tasks.Wait()
		c.finishRelays()
	})
	c.helpers.Go(func() { c.transport.AwaitHangup(); close(gone) }) // waits for the client to be gone; ends with the socket at the latest; serve waits for it
	select {
	case <-done:
	case <-gone:
	case <-c.ctx.Done():
	}
}

// beginLargeRead waits until a message above transport.KeepBuffer may be read. endLargeRead undoes it.
func (c *conn) beginLargeRead() error {
	if c.releaseLarge != nil {
		return nil
	}
	release, err := c.usage.ReserveReading(c.ctx, c.srv.live().MaxFrame)
	c.releaseLarge = release
	return err
}

func (c *conn) endLargeRead() {
	if c.releaseLarge != nil {
		c.releaseLarge()
		c.releaseLarge = nil
	}
}

// end starts to end the connection. Any goroutine may call it that does not hold the Outbox. The first reason counts.
func (c *conn) end(why transport.CloseReason) {
	c.endOnce.Do(func() {
		c.reason = why
		c.cancel()
		c.transport.SendClose(why)
	})
}

// checkSent ends the connection if a write has failed.
func (c *conn) checkSent(err error) {
	if why, failed := transport.WriteFailure(err); failed {
		c.end(why)
	}
}

// refuseRequest answers a request that was not accepted. Only the reading goroutine calls it. If a client floods the server, that goroutine waits
// here, which is enough back-pressure.
func (c *conn) refuseRequest(id jsontext.Value, e *protocol.Error) {
	if c.request != nil {
		c.request.SetFault(e.Code)
		if id == nil {
			id = protocol.NoID
		}
	}
	c.checkSent(c.out.Send(func(dst []byte) []byte { return protocol.AppendFailure(dst, id, e) }))
}

// sendEvent sends an event and reports whether the client is still there.
func (c *conn) sendEvent(name string, data any) bool {
	err := c.out.Send(func(dst []byte) []byte {
		msg, err := protocol.AppendEvent(dst, name, data)
		if err != nil {
			c.log.Error().Err(err).Str("event", name).Msg("event cannot be encoded")
			msg, _ = protocol.AppendEvent(dst, name, nil)
		}
		return msg
	})
	c.checkSent(err)
	return err == nil
}

// spawn runs f in a goroutine that serve waits for; f must end soon after ctx. what names it in the log.
func (c *conn) spawn(what string, f func()) {
	c.beginTask()
	go func() {
		defer c.endTask()
		c.containPanic(what, f)
	}()
}

// beginTask counts something that serve waits for, until endTask. It returns true.
func (c *conn) beginTask() bool {
	c.taskCount.Add(1)
	c.tasks.Add(1)
	return true
}

func (c *conn) endTask() {
	if c.taskCount.Add(-1) == 0 {
		select {
		case c.tasksIdle <- struct{}{}:
		default:
		}
	}
	c.tasks.Done()
}

// awaitQuiet returns when the connection has nothing left to answer or to stream, or when ctx is done. Only Leave calls it.
func (c *conn) awaitQuiet(ctx context.Context) {
	for c.taskCount.Load() > 0 {
		select {
		case <-c.tasksIdle:
		case <-ctx.Done():
			return
		}
	}
}

// recoverPanic turns a panic into an error, so that a bug in one request does not end all sessions.
func (c *conn) recoverPanic(method string, err *error) {
	if v := recover(); v != nil {
		c.logPanic(method, v)
		*err = protocol.Errorf(protocol.InternalError, "internal error")
	}
}

// containPanic runs f. A panic in f ends only this connection; its client may dial again.
func (c *conn) containPanic(what string, f func()) {
	defer func() {
		if v := recover(); v != nil {
			c.logPanic(what, v)
			c.end(transport.ReasonPanic)
		}
	}()
	f()
}

func (c *conn) logPanic(what string, v any) {
	c.log.Error().Str("method", what).Interface("panic", v).Bytes("stack", debug.Stack()).Msg("request panicked")
}
