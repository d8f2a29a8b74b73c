// Package rpc serves the clients of a gateway: it reads their requests, calls the pool, and sends answers, events and streams. A server hands each
// connection to Clients. Code in this process that acts for a client dials Visit.Connect and needs no socket. A conn is one connection, a call is
// one request, a subscription is one stream.
package rpc

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc/bounds"
	"trl/web/rpc/move"
	"trl/web/transport"
)

// Config does not change while a gateway serves.
type Config struct {
	MaxInFlight         int           // how many requests of one connection may be in flight
	MaxConns            int           // how many clients there may be in all
	MaxConnsOfPrincipal int           // how many clients of one principal, and how many guests of one. 0: seven eighths of all, or of the places for guests; for an admin all
	MaxGuests           int           // how many clients of one share link
	PingEvery           time.Duration // told by system.capabilities
	PeerSilence         time.Duration // told by system.capabilities
	Version             string
	Trace               func(Trace) // called after every answer; it must not wait. nil: no tracing
	Audit               *audit.Log  // nil: there is no audit log
	Drains              drains
	Cluster             Cluster
}

// LiveConfig may be replaced while the gateway serves.
type LiveConfig struct {
	MaxFrame     int64         // of connections to come
	SlowClient   time.Duration // of connections to come
	Capabilities protocol.Capabilities
}

// drains starts and stops a drain of the gateway.
type drains interface {
	Drain(most time.Duration, forGood, move bool)
	Undrain() error
	Draining() bool
}

// Clients are the connections of a gateway, with what they share.
type Clients struct {
	config     Config
	live       func() *LiveConfig
	pool       *pool.Pool
	auth       *auth.Checker
	m          *metrics.Metrics
	log        zerolog.Logger
	startedAt  time.Time
	Moves      *move.Mover // of sessions to and from other nodes; set once
	moved      move.Places
	moveWait   time.Duration // set once; maxMoveWait, or less in tests
	gatherWait time.Duration // set once; gatherTimeout, or more in tests

	ctx    context.Context // for work that clients started and that may outlive them; ends in Close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // connections, and goroutines of runDetached

	usages bounds.Usages
	places bounds.Conns

	mu     sync.Mutex
	conns  map[*conn]struct{} // guarded by mu
	admins map[string]int     // guarded by mu; how many connections each subject has as an admin
	closed bool               // guarded by mu; no connection may join any more
}

// ShutdownNotice is the time between server.shutdown and the close. Clients get results in it that are about to come.
const ShutdownNotice = 700 * time.Millisecond

// New returns Clients without a connection.
func New(c Config, live func() *LiveConfig, p *pool.Pool, checker *auth.Checker, m *metrics.Metrics, log zerolog.Logger) *Clients {
	cs := &Clients{
		config: c, live: live, pool: p, auth: checker, m: m, log: log, startedAt: time.Now(), usages: bounds.Usages{Total: bounds.New()}, moved: move.Places{Max: move.MaxMoved}, moveWait: maxMoveWait, gatherWait: gatherTimeout,
		conns: map[*conn]struct{}{}, admins: map[string]int{},
	}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	cs.places = bounds.Conns{Max: c.MaxConns, OfPrincipal: c.MaxConnsOfPrincipal, OfShare: c.MaxGuests, Refused: m.ClientsRefused}
	cs.Moves = move.New(p, c.Cluster.Nodes, c.Audit, m, log)
	if p != nil {
		p.ExemptFromReserve(cs.isAdmin)
	}
	metrics.AtZero(m.ClientConnections, transport.WebSocketName, transport.UnixName, transport.HTTPName, transport.InProcessName, transport.LinkName)
	metrics.AtZero(m.BytesOut, transport.WebSocketName, transport.UnixName, transport.HTTPName, transport.InProcessName, transport.LinkName)
	metrics.AtZero(m.ClientsClosed, transport.CloseReasons...)
	metrics.AtZero(m.ClientsRefused, bounds.Groups...)
	return cs
}

// Admit gives a client a place until leave is called, or returns the limit that has been reached.
func (cs *Clients) Admit(g *auth.Grant) (leave func(), full *bounds.ConnLimit) {
	return cs.places.Admit(g)
}

// isAdmin reports whether this subject is connected as an admin.
func (cs *Clients) isAdmin(subject string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.admins[subject] > 0
}

func (cs *Clients) each(f func(*conn)) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.conns {
		f(c)
	}
}

// Serve serves one connection until it ends. addr is the client's address, if it has one; remote names the client in the audit log.
func (cs *Clients) Serve(t transport.Conn, g *auth.Grant, addr netip.Addr, remote string) {
	c := newConn(cs, t, g)
	c.remote = remote
	if addr.IsValid() {
		c.log = c.log.With().Stringer("addr", addr).Logger()
	}
	leave, ok := cs.join(c)
	if !ok {
		c.end(transport.ReasonShutdown)
		c.transport.Close()
		return
	}
	defer leave()
	c.serve()
}

// join counts a connection among the clients until leave is called. It returns false if no connection may join any more.
func (cs *Clients) join(c *conn) (leave func(), ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.closed {
		return nil, false
	}
	cs.conns[c] = struct{}{}
	cs.tasks.Add(1)
	admin := c.principal.Role == auth.Admin && c.grant.Share == nil
	if admin {
		cs.admins[c.principal.Subject]++
	}
	return func() {
		cs.mu.Lock()
		delete(cs.conns, c)
		if admin {
			if cs.admins[c.principal.Subject]--; cs.admins[c.principal.Subject] == 0 {
				delete(cs.admins, c.principal.Subject)
			}
		}
		cs.mu.Unlock()
		cs.tasks.Done()
	}, true
}

// Refuse sends an error to a client that will not be served, and ends its connection.
func (cs *Clients) Refuse(t transport.Conn, g *auth.Grant, e *protocol.Error, why transport.CloseReason) {
	c := newConn(cs, t, g)
	c.refuseRequest(nil, e)
	c.end(why)
}

// Leave tells every client that the gateway is shutting down, and ends the connections. Each connection ends when emptied is closed and its events
// and answers have been sent; all end when soon is over. Afterwards no connection may join.
func (cs *Clients) Leave(soon context.Context, emptied <-chan struct{}) {
	var leaving sync.WaitGroup
	cs.each(func(c *conn) {
		told := make(chan struct{})
		leaving.Go(func() { // tells the client; if the client reads nothing, this ends with the connection, below
			defer close(told)
			if c.transport.Name() == transport.WebSocketName || c.subscribed.Load() { // clients on a Unix socket get no event that they did not ask for
				c.sendEvent("server.shutdown", &protocol.ServerShutdown{In: protocol.Seconds(ShutdownNotice.Seconds())})
			}
		})
		leaving.Go(func() { // ends the connection, after the notice
			for _, before := range []<-chan struct{}{told, emptied} {
				select {
				case <-before:
				case <-soon.Done():
				}
			}
			c.awaitQuiet(soon) // answers and events about the end of the sessions go first
			c.end(transport.ReasonShutdown)
		})
	})
	select {
	case <-emptied:
	case <-soon.Done():
	}
	cs.mu.Lock()
	cs.closed = true
	cs.mu.Unlock()
	leaving.Wait()
	cs.each(func(c *conn) { leaving.Go(func() { c.end(transport.ReasonShutdown) }) }) // connections that joined meanwhile
	leaving.Wait()
}

// Close cancels work that clients started and that outlived them. It returns when all of it has ended.
func (cs *Clients) Close() {
	cs.cancel()
	cs.Moves.Close()
	cs.tasks.Wait()
}
