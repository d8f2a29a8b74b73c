// Package web is the HTTP edge: auth, upgrade, dispatch of messages to the pool, pumps, health, the terminal page.
package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"trl/metrics"
	"trl/pool"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/listen"
	"trl/web/transport"
)

// Config is the edge's. The zero value of a bound means its default. Some of it may be replaced: Reload.
type Config struct {
	listen.Config
	Sockets *listen.Sockets // already bound, whatever Config says; nil: Listen binds

	Origins []string // scheme://host[:port] of pages beside our own that may connect
	// Who may come in over HTTP, unless AuthNone; at least one of these.
	Tokens      Tokens
	JWT         *JWT
	OIDC        *OIDCConfig
	ClientCerts *ClientCertsConfig
	LoginsFile  string // file in which those who logged in to the page are kept; empty: in memory

	Hosts          []string       // names and addresses that we go by, beside those that we know of ourselves
	TrustedProxies []netip.Prefix // who may tell by X-Forwarded-… for whom it asks

	MaxFrame            int64         // bytes of an inbound message, 4 MiB
	MaxInFlight         int           // requests of one connection, 128: more than can wait in a session
	MaxConns            int           // clients in all, 1,024
	MaxConnsOfPrincipal int           // clients of one principal, and guests of one; 0: seven eighths of all, of an admin all, and of guests' places
	MaxGuests           int           // clients of one share link, 16
	PingEvery           time.Duration // 20 s: below the 60 s after which proxies close what is idle
	PeerSilence         time.Duration // 45 s: two pings and some
	SlowClient          time.Duration // 30 s

	Version      string
	Trace        func(Trace)           // told of every request that was answered; it must not wait. nil: nobody asks
	Audit        *audit.Log            // who did what; nil: nobody keeps that
	Capabilities protocol.Capabilities // what system.capabilities tells beside what web and the pool know: default shell, isolation, limits

	stall time.Duration // stallLimit; tests shorten it
}

const (
	// profileTimeout is for a profile of some minutes (?seconds=).
	profileTimeout = 5 * time.Minute
	// Time for a TLS handshake, and to send the headers of a request, the whole of it, and to take the answer.
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	answerTimeout  = 30 * time.Second
	// retryAfter is in how many seconds a client that found no place shall come again.
	retryAfter = "2"
	// shutdownNotice is what clients get between server.shutdown and the close, for results that are about to come.
	shutdownNotice = 700 * time.Millisecond
)

// setDefaults gives what is not set its default.
func (c *Config) setDefaults() {
	orDefault(&c.MaxFrame, 4<<20)
	orDefault(&c.MaxInFlight, maxInFlight)
	orDefault(&c.MaxConns, 1024)
	orDefault(&c.MaxGuests, 16)
	orDefault(&c.PingEvery, 20*time.Second)
	orDefault(&c.PeerSilence, 45*time.Second)
	orDefault(&c.SlowClient, 30*time.Second)
	orDefault(&c.stall, transport.StallLimit)
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Server is the edge of one gateway: New, Listen, Serve, Shutdown, each once and in this order.
type Server struct {
	cfg            Config
	pool           *pool.Pool
	m              *metrics.Metrics
	log            zerolog.Logger
	startedAt      time.Time
	mainHandler    http.Handler
	metricsHandler http.Handler // of MetricsListen
	adminHandler   http.Handler // of AdminListen

	hostNames map[string]bool // hostNames

	ctx    context.Context // of what clients began and what may outlive them; ends in Shutdown
	cancel context.CancelFunc

	listeners []listening     // set once in Listen
	sockets   *listen.Sockets // set once in Listen
	addr      net.Addr        // set once in Listen
	certs     *clientCerts    // nil: none are asked for

	live atomic.Pointer[liveConfig]
	cert atomic.Pointer[listen.Certificate] // set in Listen, replaced by Reload; nil without TLS

	chain      []authenticator // set once in New; the first that finds a credential decides
	bearer     *bearer
	logins     *logins
	tickets    *tickets
	oidc       *oidcLogin // nil: there is none
	throttle   throttle
	refusalLog refusalLog

	stopping    atomic.Bool
	drained     chan struct{} // closed when a drain is over
	drainedOnce sync.Once
	once        sync.Once // Shutdown

	mu         sync.Mutex
	conns      map[*conn]struct{} // guarded by mu
	connCounts map[connGroup]int  // guarded by mu; connections, from before the upgrade on
	admins     map[string]int     // guarded by mu; connections of each subject that came as an admin

	usages     map[string]*principalUsage // guarded by mu; of the principals that are connected
	totalUsage *principalUsage            // set once in New; of all clients together

	closed    bool           // guarded by mu; no connection may join any more
	stopDrain func()         // guarded by mu; ends the goroutine of a drain; nil: there is none
	forGood   bool           // guarded by mu; nobody may take the drain back
	connTasks sync.WaitGroup // connections
}

// listening is one listener with what serves it.
type listening struct {
	net.Listener
	serve func(net.Listener) error
	stop  func(context.Context) // stops accepting and waits for what is being answered
}

// New makes a server that does nothing yet.
func New(cfg Config, p *pool.Pool, m *metrics.Metrics, g prometheus.Gatherer, log zerolog.Logger) *Server {
	cfg.setDefaults()
	s := &Server{cfg: cfg, pool: p, m: m, log: log, startedAt: time.Now(), conns: map[*conn]struct{}{}, connCounts: map[connGroup]int{}, admins: map[string]int{},
		usages: map[string]*principalUsage{}, totalUsage: newPrincipalUsage(allReading, allAnswers), hostNames: cfg.hostNames(), drained: make(chan struct{})}
	s.live.Store(cfg.liveConfig())
	if p != nil {
		p.ExemptFromReserve(s.isAdmin)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.buildAuthChain()
	metrics.AtZero(m.ClientConnections, transport.WebSocketName, transport.UnixName)
	metrics.AtZero(m.BytesOut, transport.WebSocketName, transport.UnixName)
	metrics.AtZero(m.ClientsClosed, transport.CloseReasons...)
	metrics.AtZero(m.ClientsRefused, groupAll, groupPrincipal, groupGuests, groupShare, groupStrangers)

	scrape := metrics.Handler(g)
	mux, private := http.NewServeMux(), http.NewServeMux()
	for _, m := range []*http.ServeMux{mux, private} {
		m.HandleFunc("GET /v1/ws", s.serveWebSocket)
		m.HandleFunc("GET /v1/recordings/{id}", s.serveRecording)
		m.HandleFunc("POST /v1/tickets", s.serveTicket)
		m.HandleFunc("POST /logout", s.logout)
		if cfg.MetricsListen == "" {
			m.Handle("GET /metrics", s.requirePrincipal(scrape))
		}
	}
	private.HandleFunc("GET /{$}", s.serveLoginState)
	mux.Handle(loginPrefix+"{login}/", stripLoginPath(private))
	mux.HandleFunc("GET /v1/schema", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/schema+json")
		w.Write(protocol.Schema())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /login", s.showLogin)
	mux.HandleFunc("POST /login", s.login)
	if s.oidc != nil {
		mux.HandleFunc("GET "+oidcPath, s.beginOIDC)
		mux.HandleFunc("GET "+callbackPath, s.finishOIDC)
	}
	mux.HandleFunc("GET /{$}", s.serveHome)
	mux.HandleFunc("GET /share", s.serveSharePage)
	mux.HandleFunc("POST /share", s.serveShareState)
	mux.HandleFunc("GET /ui/", s.serveAsset)
	s.mainHandler = mux
	side := http.NewServeMux()
	side.Handle("GET /metrics", scrape)
	s.metricsHandler = side
	s.adminHandler = profiles(scrape)
	return s
}

// Listen binds every address, or none.
func (s *Server) Listen() (err error) {
	defer func() {
		if err != nil {
			s.stopListening(context.Background())
			s.closeCredentials()
		}
	}()
	if err = s.openCredentials(); err != nil {
		return err
	}
	sockets := s.cfg.Sockets
	if sockets == nil {
		if sockets, err = listen.Bind(s.cfg.Config); err != nil {
			return err
		}
	}
	s.sockets = sockets
	if sockets.HTTP != nil {
		s.addr = sockets.HTTP.Addr()
		if err = s.listenHTTP(sockets.HTTP, s.mainHandler, true, answerTimeout); err != nil {
			return err
		}
	}
	if sockets.Metrics != nil {
		if err = s.listenHTTP(sockets.Metrics, s.metricsHandler, false, answerTimeout); err != nil {
			return err
		}
	}
	if sockets.Admin != nil {
		if err = s.listenHTTP(sockets.Admin, s.adminHandler, false, profileTimeout); err != nil {
			return err
		}
	}
	if l := sockets.Unix; l != nil {
		s.listeners = append(s.listeners, listening{s.boundStrangers(l), s.serveUnix, func(context.Context) {
			l.Close()
		}})
	}
	return nil
}

func (s *Server) boundStrangers(l net.Listener) net.Listener {
	return listen.LimitStrangers(l, func() time.Duration { return s.live.Load().slowClient }, s.m.ClientsRefused.WithLabelValues(groupStrangers))
}

func (s *Server) listenHTTP(l net.Listener, h http.Handler, guarded bool, answer time.Duration) error {
	if guarded && !s.cfg.AuthNone && s.cfg.Tokens == nil && s.cfg.JWT == nil && s.cfg.OIDC == nil && s.cfg.ClientCerts == nil {
		l.Close()
		return errors.New("no tokens to authenticate with")
	}
	srv := &http.Server{
		Handler:           s.guard(h, l.Addr()),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answer,
		IdleTimeout:       headerTimeout,
		MaxHeaderBytes:    32 << 10,

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * before guard is asked
		ErrorLog:                     stdlog.New(debugLog{s.log}, "", 0),
		ConnContext:                  listen.ConnContext,
		Protocols:                    new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true) // a WebSocket is an HTTP/1.1 upgrade; nothing else here would gain by HTTP/2
	gated := s.boundStrangers(l)
	if guarded {
		config, err := s.tlsConfig()
		if err != nil {
			l.Close()
			return err
		}
		if config != nil {
			gated = tls.NewListener(gated, config)
		}
	}
	s.listeners = append(s.listeners, listening{gated, srv.Serve, func(ctx context.Context) {
		if srv.Shutdown(ctx) != nil {
			srv.Close()
		}
		gated.Close() // Shutdown closes only what Serve was called on
	}})
	return nil
}

// debugLog takes what net/http has to say: TLS handshakes that failed and the like, nothing that a person must act on.
type debugLog struct{ log zerolog.Logger }

func (d debugLog) Write(p []byte) (int, error) {
	d.log.Debug().Bytes("text", p[:max(0, len(p)-1)]).Msg("http")
	return len(p), nil
}

// Addr is where HTTP is served, with the real port; empty when it is not.
func (s *Server) Addr() string {
	if s.addr == nil {
		return ""
	}
	return s.addr.String()
}

// URL is Addr with its scheme.
func (s *Server) URL() string {
	if s.cfg.TLS() {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}

// Serve answers clients until Shutdown, then returns nil; or until a listener fails.
func (s *Server) Serve() error {
	failed := make(chan error, len(s.listeners))
	for _, l := range s.listeners {
		go func() { failed <- l.serve(l) }() // accepts; ends when the listener is closed; Serve waits for it
	}
	var first error
	for range s.listeners {
		err := <-failed
		if first == nil && err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			first = err
			s.stopListening(context.Background())
		}
	}
	return first
}

func (s *Server) stopListening(ctx context.Context) {
	if s.sockets != nil {
		s.sockets.Unlink() // before they close
	}
	for _, l := range s.listeners {
		l.stop(ctx)
	}
}

// Shutdown ends the server and the pool with it: clients are told, sessions end, connections are closed with 1012, and no goroutine
// is left when it returns. How long the sessions may take is ctx's to say; clients cannot make it longer.
func (s *Server) Shutdown(ctx context.Context) (err error) {
	s.once.Do(func() { err = s.shutdown(ctx, s.pool.Close) })
	return err
}

// HandOver is Shutdown without an end of the sessions: another gateway has them from here on, and clients shall come again.
func (s *Server) HandOver(ctx context.Context) {
	s.once.Do(func() { _ = s.shutdown(ctx, func(context.Context) error { return nil }) })
}

func (s *Server) shutdown(ctx context.Context, end func(context.Context) error) error {
	s.stopping.Store(true) // /readyz says so from now on, and connections are refused
	soon, cancel := context.WithTimeout(ctx, shutdownNotice)
	defer cancel()
	emptied := make(chan struct{})
	var err error // of the pool; read after emptied
	go func() {   // ends every session; bounded by ctx; waited for below
		defer close(emptied)
		err = end(ctx)
	}()
	var leaving sync.WaitGroup
	s.eachConn(func(c *conn) {
		told := make(chan struct{})
		leaving.Go(func() { // tells the client; one that takes nothing is told until its connection ends below
			defer close(told)
			if c.transport.Name() == transport.WebSocketName || c.subscribed.Load() { // nobody on a Unix socket gets what he did not ask for
				c.sendEvent("server.shutdown", &protocol.ServerShutdown{In: protocol.Seconds(shutdownNotice.Seconds())})
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
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	leaving.Wait()
	s.eachConn(func(c *conn) { leaving.Go(func() { c.end(transport.ReasonShutdown) }) }) // those that came in at the last moment
	leaving.Wait()
	brief, cancel := context.WithTimeout(ctx, transport.CloseTimeout)
	defer cancel()
	s.stopListening(brief)
	<-emptied
	s.cancel()
	s.connTasks.Wait()
	if cert := s.cert.Load(); cert != nil {
		cert.Close()
	}
	s.closeCredentials()
	return err
}

// isAdmin reports whether somebody of this name is connected as an admin.
func (s *Server) isAdmin(subject string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.admins[subject] > 0
}

func (s *Server) eachConn(f func(*conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		f(c)
	}
}

// serveConn serves one connection until it ends.
func (s *Server) serveConn(c *conn) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		c.end(transport.ReasonShutdown)
		c.transport.Close()
		return
	}
	s.conns[c] = struct{}{}
	s.connTasks.Add(1)
	admin := c.principal.Role == Admin && c.grant.share == nil
	if admin {
		s.admins[c.principal.Subject]++
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		if admin {
			if s.admins[c.principal.Subject]--; s.admins[c.principal.Subject] == 0 {
				delete(s.admins, c.principal.Subject)
			}
		}
		s.mu.Unlock()
		s.connTasks.Done()
	}()
	c.serve()
}

// guard is what every request passes, whatever its route. What it hands on is the request as the client made it.
func (s *Server) guard(h http.Handler, at net.Addr) http.Handler {
	_, tcp := at.(*net.TCPAddr)
	loopback := listen.IsLoopback(at)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = s.cfg.clientRequest(r)
		head := w.Header()
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Connection", "close") // one request each: a stranger's connection is short; an upgrade overwrites this
		switch {
		case tcp && !s.hostAllowed(r.Host, loopback): // no page gets to a Unix socket, whatever name it has
			s.auditRefusal(r, "host")
			refuse(w, http.StatusMisdirectedRequest, "this server has another name; its operator adds one with --host")
		case !originAllowed(r, s.live.Load().origins):
			s.auditRefusal(r, "origin")
			refuse(w, http.StatusForbidden, "this origin is not allowed")
		case tokenInQuery(r):
			s.auditRefusal(r, "token_in_url")
			refuse(w, http.StatusBadRequest, "tokens are not accepted in URLs")
		case r.ContentLength != 0 && r.Method != http.MethodPost: // what follows an upgrade is frames to us, and a body to whom asks for it
			refuse(w, http.StatusBadRequest, "this request has no body")
		default:
			h.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, status int, why string) {
	challenge(w.Header(), status)
	http.Error(w, why, status)
}

// challenge says in an answer's header what it wants, where that is credentials.
func challenge(h http.Header, status int) {
	if status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="trl"`)
	}
}

// requirePrincipal lets only principals pass.
func (s *Server) requirePrincipal(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, no := s.authenticate(r)
		if no != nil {
			deny(w, no)
			return
		}
		if s.admitRequest(w, g) {
			defer g.endRequest()
			h.ServeHTTP(w, r)
		}
	})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if s.stopping.Load() {
		refuse(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	if s.Draining() {
		refuse(w, http.StatusServiceUnavailable, "draining: no new sessions")
		return
	}
	if err := s.cfg.Audit.Admit(); err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	fmt.Fprintln(w, "ready")
}

func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	g, no := s.authorize(r)
	if no != nil {
		if no.outcome == missing { // everything else has been told
			s.auditRefusal(r, string(byToken))
		}
		deny(w, no)
		return
	}
	if s.stopping.Load() {
		refuse(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	leave, full := s.admitConn(g)
	if full != nil {
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, full.status, full.String())
		return
	}
	defer leave()
	t, err := transport.AcceptWebSocket(w, r, s.transportLimits())
	if err != nil {
		s.log.Debug().Err(err).Msg("upgrade refused")
		return
	}
	c := newConn(s, t, g)
	c.log = c.log.With().Stringer("addr", clientAddr(r)).Logger()
	c.remote = r.RemoteAddr
	c.binary = t.IsBinary()
	s.serveConn(c)
}

func (s *Server) transportLimits() transport.Limits {
	return transport.Limits{MaxFrame: s.live.Load().maxFrame, Stall: s.cfg.stall, PingEvery: s.cfg.PingEvery, PeerSilence: s.cfg.PeerSilence}
}

func (s *Server) serveUnix(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			s.log.Warn().Err(err).Msg("accept on the Unix socket") // EMFILE passes
			time.Sleep(50 * time.Millisecond)
			continue
		}
		go s.serveLocal(c.(*transport.Socket)) // serves one connection, ends with it; Shutdown waits for it through active
	}
}

func (s *Server) serveLocal(sock *transport.Socket) {
	defer func() { // as net/http does for the connections that it serves
		if v := recover(); v != nil {
			s.log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("connection panicked")
			sock.Close()
		}
	}()
	who, err := PeerPrincipal(sock)
	t := transport.NewUnixSocket(sock, s.transportLimits())
	c := newConn(s, t, &Grant{Principal: who})
	if err != nil || s.stopping.Load() {
		e := protocol.Errorf(protocol.ShuttingDown, "the server is shutting down")
		if err != nil {
			e = protocol.AsError(err)
			s.cfg.Audit.AppendStranger(audit.Entry{Action: audit.ActionRefused, Outcome: string(e.Code), Remote: t.Name(), Reason: "user"})
		}
		c.refuseRequest(nil, e)
		c.end(transport.ReasonShutdown)
		return
	}
	sock.LeaveStrangers()
	leave, full := s.admitConn(c.grant)
	if full != nil {
		c.refuseRequest(nil, protocol.Errorf(protocol.LimitExceeded, "%s", full).With("limit", full.limit))
		c.end(transport.ReasonFull)
		return
	}
	defer leave()
	s.serveConn(c)
}
