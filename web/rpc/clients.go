// Package rpc serves the clients of a gateway: it reads their requests, calls the pool, and sends answers, events and streams. Clients are where
// a server hands over a connection; conn is one of them, call a request, subscription a stream.
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
	"trl/web/transport"
)

// Config is what does not change while a gateway serves.
type Config struct {
	MaxInFlight         int           // requests of one connection
	MaxConns            int           // clients in all
	MaxConnsOfPrincipal int           // clients of one principal, and guests of one; 0: seven eighths of all, of an admin all, and of guests' places
	MaxGuests           int           // clients of one share link
	PingEvery           time.Duration // told by system.capabilities
	PeerSilence         time.Duration // told by system.capabilities
	Version             string
	Trace               func(Trace) // told of every request that was answered; it must not wait. nil: nobody asks
	Audit               *audit.Log  // nil: nobody keeps that
	Drains              drains
}

// LiveConfig is what may be another one while the gateway serves.
type LiveConfig struct {
	MaxFrame     int64         // of connections to come
	SlowClient   time.Duration // of connections to come
	Capabilities protocol.Capabilities
}

// drains is who can let the gateway run empty.
type drains interface {
	Drain(most time.Duration, forGood bool)
	Undrain() error
	Draining() bool
}

// Clients are the connections of a gateway and what they share.
type Clients struct {
	config    Config
	live      func() *LiveConfig
	pool      *pool.Pool
	auth      *auth.Checker
	m         *metrics.Metrics
	log       zerolog.Logger
	startedAt time.Time

	ctx    context.Context // of what clients began and what may outlive them; ends in close
	cancel context.CancelFunc
	tasks  sync.WaitGroup // connections, and what runs detached from theirs

	totalUsage *principalUsage // set once; of all clients together

	mu         sync.Mutex
	conns      map[*conn]struct{}         // guarded by mu
	connCounts map[connGroup]int          // guarded by mu; connections, from before the upgrade on
	admins     map[string]int             // guarded by mu; connections of each subject that came as an admin
	usages     map[string]*principalUsage // guarded by mu; of the principals that are connected
	closed     bool                       // guarded by mu; no connection may join any more
}

// ShutdownNotice is what clients get between server.shutdown and the close, for results that are about to come.
const ShutdownNotice = 700 * time.Millisecond

// New makes none yet.
func New(c Config, live func() *LiveConfig, p *pool.Pool, checker *auth.Checker, m *metrics.Metrics, log zerolog.Logger) *Clients {
	cs := &Clients{
		config: c, live: live, pool: p, auth: checker, m: m, log: log, startedAt: time.Now(), totalUsage: newPrincipalUsage(allReading, allAnswers),
		conns: map[*conn]struct{}{}, connCounts: map[connGroup]int{}, admins: map[string]int{}, usages: map[string]*principalUsage{},
	}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	if p != nil {
		p.ExemptFromReserve(cs.isAdmin)
	}
	metrics.AtZero(m.ClientConnections, transport.WebSocketName, transport.UnixName)
	metrics.AtZero(m.BytesOut, transport.WebSocketName, transport.UnixName)
	metrics.AtZero(m.ClientsClosed, transport.CloseReasons...)
	metrics.AtZero(m.ClientsRefused, groupAll, groupPrincipal, groupGuests, groupShare, GroupStrangers)
	return cs
}

// isAdmin reports whether somebody of this name is connected as an admin.
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

// Serve serves one connection until it ends. The client is at addr, if that is an address, and remote says it in the audit log.
func (cs *Clients) Serve(t transport.Conn, g *auth.Grant, addr netip.Addr, remote string) {
	c := newConn(cs, t, g)
	c.remote = remote
	if addr.IsValid() {
		c.log = c.log.With().Stringer("addr", addr).Logger()
	}
	cs.mu.Lock()
	if cs.closed {
		cs.mu.Unlock()
		c.end(transport.ReasonShutdown)
		c.transport.Close()
		return
	}
	cs.conns[c] = struct{}{}
	cs.tasks.Add(1)
	admin := c.principal.Role == auth.Admin && c.grant.Share == nil
	if admin {
		cs.admins[c.principal.Subject]++
	}
	cs.mu.Unlock()
	defer func() {
		cs.mu.Lock()
		delete(cs.conns, c)
		if admin {
			if cs.admins[c.principal.Subject]--; cs.admins[c.principal.Subject] == 0 {
				delete(cs.admins, c.principal.Subject)
			}
		}
		cs.mu.Unlock()
		cs.tasks.Done()
	}()
	c.serve()
}

// Refuse tells a client that is not served why, and ends its connection.
func (cs *Clients) Refuse(t transport.Conn, g *auth.Grant, e *protocol.Error, why transport.CloseReason) {
	c := newConn(cs, t, g)
	c.refuseRequest(nil, e)
	c.end(why)
}

// Leave tells every client that the gateway goes, and ends the connections: each when emptied is closed and what that brought about has been
// sent, and all when soon is over. No connection may join after it.
func (cs *Clients) Leave(soon context.Context, emptied <-chan struct{}) {
	var leaving sync.WaitGroup
	cs.each(func(c *conn) {
		told := make(chan struct{})
		leaving.Go(func() { // tells the client; one that takes nothing is told until its connection ends below
			defer close(told)
			if c.transport.Name() == transport.WebSocketName || c.subscribed.Load() { // nobody on a Unix socket gets what he did not ask for
				c.sendEvent("server.shutdown", &protocol.ServerShutdown{In: protocol.Seconds(ShutdownNotice.Seconds())})
			}
		})
		leaving.Go(func() { // ends the connection, once told
			for _, before := range []<-chan struct{}{told, emptied} {
				select {
				case <-before:
				case <-soon.Done():
				}
			}
			c.awaitQuiet(soon) // what the end of the sessions brought about is told first
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
	cs.each(func(c *conn) { leaving.Go(func() { c.end(transport.ReasonShutdown) }) }) // those that came in at the last moment
	leaving.Wait()
}

// Close ends what clients began and what outlived them, and returns when all of it has ended.
func (cs *Clients) Close() {
	cs.cancel()
	cs.tasks.Wait()
}
