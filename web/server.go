// Package web is the HTTP edge of a gateway: listeners, the guard that every request passes, routes, the pages and their logins, health, drain and
// reload. Package rpc serves the clients that it lets in.
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

	"trl/internal/mcp"
	"trl/metrics"
	"trl/pool"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/listen"
	"trl/web/rpc"
	"trl/web/rpc/bounds"
	"trl/web/transport"
)

// Config configures a Server. The zero value of a bound means its default. Reload may replace some of it.
type Config struct {
	listen.Config
	Sockets *listen.Sockets // sockets that are bound already, whatever Config says; nil: Listen binds

	Origins []string // scheme://host[:port] of other pages that may connect
	// Credentials that are accepted over HTTP; at least one kind, unless AuthNone.
	Tokens      auth.Tokens
	JWT         *auth.JWT
	OIDC        *auth.OIDCConfig
	ClientCerts *auth.ClientCertsConfig
	LoginsFile  string // the file that keeps the logins of browsers; empty: in memory

	Hosts          []string       // further names and addresses of the gateway
	TrustedProxies []netip.Prefix // proxies whose X-Forwarded-… headers count

	MaxFrame            int64         // bytes of a message from a client, 4 MiB
	MaxInFlight         int           // requests of one connection that may be in flight, 128: more than may wait in a session
	MaxConns            int           // clients in all, 1,024
	MaxConnsOfPrincipal int           // clients of one principal, and guests of one; 0: seven eighths of all, or of the places for guests; for an admin all
	MaxGuests           int           // clients of one share link, 16
	PingEvery           time.Duration // 20 s: below the 60 s after which proxies close an idle connection
	PeerSilence         time.Duration // 45 s: two pings and some
	SlowClient          time.Duration // 30 s

	Version      string
	Trace        func(rpc.Trace)       // called after every answer; it must not wait. nil: no tracing
	Audit        *audit.Log            // nil: there is no audit log
	Cluster      rpc.Cluster           // which node this is, and the others
	Capabilities protocol.Capabilities // what system.capabilities says and web and the pool do not know: default shell, isolation, limits

	stall time.Duration // transport.StallLimit; tests shorten it
}

const (
	// profileTimeout allows a profile of some minutes (?seconds=).
	profileTimeout = 5 * time.Minute
	// How long a TLS handshake or the headers of a request, a whole request, and reading the answer may take.
	headerTimeout  = 5 * time.Second
	requestTimeout = 10 * time.Second
	answerTimeout  = 30 * time.Second
	// idleTimeout is how long a client that has authenticated may keep a connection for its next request. It is above the 60 to 90 s after which proxies
	// and clients close theirs, so that no request meets a connection that the gateway closes at that moment.
	idleTimeout = 2 * time.Minute
	// retryAfter is after how many seconds a client that found no place should try again.
	retryAfter = "2"
)

// setDefaults sets the fields that are zero to their defaults.
func (c *Config) setDefaults() {
	orDefault(&c.MaxFrame, 4<<20)
	orDefault(&c.MaxInFlight, rpc.MaxInFlight)
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

// Server serves one gateway. Call New, Listen, Serve and Shutdown once each, in this order.
type Server struct {
	cfg Config
	*drainer
	pool    *pool.Pool
	auth    *auth.Checker
	clients *rpc.Clients
	mcp     *mcp.HTTP
	m       *metrics.Metrics
	log     zerolog.Logger

	mainHandler    http.Handler
	unixHandler    http.Handler
	metricsHandler http.Handler // for MetricsListen
	adminHandler   http.Handler // for AdminListen
	hostNames      map[string]bool

	listeners []listening     // set once in Listen
	sockets   *listen.Sockets // set once in Listen
	addr      net.Addr        // set once in Listen
	unixHTTP  *listen.Handed  // set once in Listen; connections to the Unix socket whose client speaks HTTP
	linkHTTP  *listen.Handed  // links of other nodes that carry HTTP
	others    *otherNodes     // nil: there are none
	idle      idleConns

	live atomic.Pointer[liveConfig]
	cert atomic.Pointer[listen.Certificate] // set in Listen, replaced by Reload; nil without TLS

	stopping atomic.Bool
	once     sync.Once // for shutdown
}

// listening is one listener with the functions that serve and stop it.
type listening struct {
	net.Listener
	serve func(net.Listener) error
	stop  func(context.Context) // stops accepting, and waits for requests that are being answered
}

// New makes a Server. Listen and Serve start it.
func New(cfg Config, p *pool.Pool, m *metrics.Metrics, g prometheus.Gatherer, log zerolog.Logger) *Server {
	cfg.setDefaults()
	s := &Server{cfg: cfg, drainer: newDrainer(p, log), pool: p, m: m, log: log, hostNames: cfg.hostNames()}
	s.live.Store(cfg.liveConfig())
	var others auth.Others
	if cfg.Cluster.Nodes != nil {
		s.others = newOtherNodes(cfg.Cluster.Nodes)
		others = s.others
	}
	s.auth = auth.New(auth.Config{
		Others: others,
		None:   cfg.AuthNone, Tokens: cfg.Tokens, JWT: cfg.JWT, OIDC: cfg.OIDC, ClientCerts: cfg.ClientCerts, LoginsFile: cfg.LoginsFile, Refused: s.auditRefusal,
		GuestElsewhere: func(ctx context.Context, token string) (*auth.Grant, *protocol.Error) {
			return s.clients.GuestElsewhere(ctx, token)
		},
	}, p, m, log)
	s.clients = rpc.New(rpc.Config{
		MaxInFlight: cfg.MaxInFlight, MaxConns: cfg.MaxConns, MaxConnsOfPrincipal: cfg.MaxConnsOfPrincipal, MaxGuests: cfg.MaxGuests,
		PingEvery: cfg.PingEvery, PeerSilence: cfg.PeerSilence, Version: cfg.Version, Trace: cfg.Trace, Audit: cfg.Audit, Drains: s.drainer,
		Cluster: cfg.Cluster,
	}, func() *rpc.LiveConfig { return &s.live.Load().clients }, p, s.auth, m, log)
	s.mover = s.clients.Moves

	s.mcp = mcp.NewHTTP(cfg.MaxFrame)
	if cfg.Cluster.Nodes != nil {
		s.linkHTTP = listen.NewHanded(nil)
	}

	scrape := metrics.Handler(g)
	mux, private := http.NewServeMux(), http.NewServeMux()
	for _, m := range []*http.ServeMux{mux, private} {
		m.HandleFunc("GET /v1/ws", s.serveWebSocket)
		m.HandleFunc("POST /v1/rpc", s.serveRPC)
		for _, o := range ownedRoutes {
			m.HandleFunc(o.pattern, s.serveOwned(o))
		}
		m.HandleFunc("POST /v1/tickets", s.auth.ServeTicket)
		m.HandleFunc("POST /logout", s.logout)
		if cfg.MetricsListen == "" {
			m.Handle("GET /metrics", s.requirePrincipal(scrape))
		}
	}
	private.HandleFunc("GET /{$}", s.serveLoginState)
	mux.Handle(auth.LoginPrefix+"{login}/", stripLoginPath(private))
	mux.HandleFunc(mcpPath, s.serveMCP)
	mux.HandleFunc("OPTIONS /v1/rpc", preflightRPC)
	local := http.NewServeMux()
	local.HandleFunc("POST /v1/rpc", s.serveLocalRPC)
	for _, m := range []*http.ServeMux{mux, local} {
		m.HandleFunc("GET /v1/schema", serveDocument("application/schema+json", protocol.Schema))
		m.HandleFunc("GET /v1/openapi.json", serveDocument("application/json", protocol.OpenAPI))
		m.HandleFunc("GET /v1/asyncapi.json", serveDocument("application/json", protocol.AsyncAPI))
	}
	s.unixHandler = local
	mux.HandleFunc("GET /v1/sdk.js", serveSDK)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.HandleFunc("GET /login", s.showLogin)
	mux.HandleFunc("POST /login", s.login)
	if cfg.OIDC != nil {
		mux.HandleFunc("GET "+auth.OIDCPath, s.auth.BeginOIDC)
		mux.HandleFunc("GET "+mcpMetadataPath, s.serveMCPMetadata)
		mux.HandleFunc("GET "+auth.CallbackPath, s.finishOIDC)
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

// Listen binds every address, or returns an error and binds none.
func (s *Server) Listen() (err error) {
	defer func() {
		if err != nil {
			s.stopListening(context.Background())
			s.auth.Close()
		}
	}()
	if err = s.auth.Open(); err != nil {
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
		s.unixHTTP = listen.NewHanded(l.Addr())
		s.addHTTP(s.unixHTTP, s.httpServer(s.unixHandler, l.Addr(), answerTimeout))
	}
	if s.linkHTTP != nil {
		s.addHTTP(s.linkHTTP, s.newLinkHTTP())
	}
	return nil
}

func (s *Server) boundStrangers(l net.Listener) net.Listener {
	return listen.LimitStrangers(l, func() time.Duration { return s.live.Load().clients.SlowClient }, s.m.ClientsRefused.WithLabelValues(bounds.GroupStrangers))
}

func (s *Server) listenHTTP(l net.Listener, h http.Handler, guarded bool, answer time.Duration) error {
	if guarded && !s.auth.Accepts() {
		l.Close()
		return errors.New("no tokens to authenticate with")
	}
	srv := s.httpServer(h, l.Addr(), answer)
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
	s.addHTTP(gated, srv)
	return nil
}

// httpServer returns the server of a listener at this address.
func (s *Server) httpServer(h http.Handler, at net.Addr, answer time.Duration) *http.Server {
	srv := &http.Server{
		Handler:           s.guard(h, at),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      answer,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    32 << 10,

		DisableGeneralOptionsHandler: true, // it would answer OPTIONS * before the guard
		ErrorLog:                     stdlog.New(debugLog{s.log}, "", 0),
		ConnContext:                  listen.ConnContext,
		ConnState:                    s.idle.note,
		Protocols:                    new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true) // a WebSocket is an HTTP/1.1 upgrade; nothing here would gain from HTTP/2
	return srv
}

func (s *Server) addHTTP(l net.Listener, srv *http.Server) {
	s.listeners = append(s.listeners, listening{l, srv.Serve, func(ctx context.Context) {
		if srv.Shutdown(ctx) != nil {
			srv.Close()
		}
		l.Close() // srv.Shutdown closes only listeners that srv.Serve was called with
	}})
}

// debugLog writes net/http's messages into the log: failed TLS handshakes and the like. No person has to act on them.
type debugLog struct{ log zerolog.Logger }

func (d debugLog) Write(p []byte) (int, error) {
	d.log.Debug().Bytes("text", p[:max(0, len(p)-1)]).Msg("http")
	return len(p), nil
}

// Addr returns the address of the HTTP listener, with the real port, or "" without one.
func (s *Server) Addr() string {
	if s.addr == nil {
		return ""
	}
	return s.addr.String()
}

// URL returns Addr with its scheme.
func (s *Server) URL() string {
	if s.cfg.TLS() {
		return "https://" + s.Addr()
	}
	return "http://" + s.Addr()
}

// Serve serves clients until Shutdown, and then returns nil. If a listener fails, it returns that error.
func (s *Server) Serve() error {
	s.clients.Moves.Resume()
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
		s.sockets.Unlink() // before the listeners close
	}
	for _, l := range s.listeners {
		l.stop(ctx)
	}
}

// Shutdown ends the server and the pool: clients are told, sessions end, connections are closed with 1012, and no goroutine is left when it returns.
// ctx bounds the time for the sessions; clients cannot extend it.
func (s *Server) Shutdown(ctx context.Context) (err error) {
	s.once.Do(func() { err = s.shutdown(ctx, s.pool.Close) })
	return err
}

// HandOver is Shutdown without the end of the sessions: another gateway takes them over, and clients shall come back.
func (s *Server) HandOver(ctx context.Context) {
	s.once.Do(func() { _ = s.shutdown(ctx, func(context.Context) error { return nil }) })
}

func (s *Server) shutdown(ctx context.Context, end func(context.Context) error) error {
	s.stopping.Store(true) // from now on /readyz reports it, and connections are refused
	soon, cancel := context.WithTimeout(ctx, rpc.ShutdownNotice)
	defer cancel()
	emptied := make(chan struct{})
	var err error // the pool's error; read after emptied
	go func() {   // ends every session; bounded by ctx; waited for below
		defer close(emptied)
		err = end(ctx)
	}()
	s.clients.Leave(soon, emptied)
	s.drainer.refuse()
	brief, cancel := context.WithTimeout(ctx, transport.CloseTimeout)
	defer cancel()
	s.stopListening(brief)
	<-emptied
	s.drainer.close()
	s.clients.Close()
	if cert := s.cert.Load(); cert != nil {
		cert.Close()
	}
	s.auth.Close()
	s.others.close()
	return err
}

// guard checks every request before its route. The request that it passes on is the one that the client made, see clientRequest.
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
		head.Set("Connection", "close") // one request per connection keeps a stranger's connection short; an upgrade overwrites this
		switch {
		case tcp && !s.hostAllowed(r.Host, loopback): // a page cannot reach a Unix socket, whatever its name
			s.auditRefusal(r, "host")
			auth.Refuse(w, http.StatusMisdirectedRequest, "this server has another name; its operator adds one with --host")
		case !originAllowed(r, s.live.Load().origins):
			s.auditRefusal(r, "origin")
			auth.Refuse(w, http.StatusForbidden, "this origin is not allowed")
		case tokenInQuery(r):
			s.auditRefusal(r, "token_in_url")
			auth.Refuse(w, http.StatusBadRequest, "tokens are not accepted in URLs")
		case r.ContentLength != 0 && r.Method != http.MethodPost: // a body behind an upgrade would be read as frames
			auth.Refuse(w, http.StatusBadRequest, "only a POST may have a body")
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// requirePrincipal passes only requests of principals.
func (s *Server) requirePrincipal(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g, no := s.auth.Authenticate(r)
		if no != nil {
			auth.Deny(w, no)
			return
		}
		if s.auth.AdmitRequest(w, g) {
			defer g.EndRequest()
			h.ServeHTTP(w, r)
		}
	})
}

func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	if s.stopping.Load() {
		auth.Refuse(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	if s.Draining() {
		auth.Refuse(w, http.StatusServiceUnavailable, "draining: no new sessions")
		return
	}
	if err := s.cfg.Audit.Admit(); err != nil {
		auth.Refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	fmt.Fprintln(w, "ready")
	if nodes := s.cfg.Cluster.Nodes; nodes != nil && nodes.Degraded() && r.URL.Query().Has("verbose") {
		fmt.Fprintln(w, "degraded: the cluster's directory does not answer")
	}
}

func (s *Server) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	g, no := s.auth.Authorize(r)
	if no != nil {
		if no.NoCredential() { // other refusals have their entry already
			s.auditRefusal(r, "token")
		}
		auth.Deny(w, no)
		return
	}
	if s.stopping.Load() {
		auth.Refuse(w, http.StatusServiceUnavailable, "shutting down")
		return
	}
	leave, full := s.clients.Admit(g)
	if full != nil {
		w.Header().Set("Retry-After", retryAfter)
		auth.Refuse(w, full.Status, full.String())
		return
	}
	t, err := transport.AcceptWebSocket(w, r, s.transportLimits())
	if err != nil {
		leave()
		s.log.Debug().Err(err).Msg("upgrade refused")
		return
	}
	go s.serveUpgraded(t, g, leave, auth.ClientAddr(r), r.RemoteAddr) // serves one connection and ends with it; Shutdown waits for it in clients.Close
}

// serveUpgraded serves a WebSocket after its handler has returned, so that net/http keeps neither the request nor its buffers for the connection's life.
func (s *Server) serveUpgraded(t *transport.WebSocket, g *auth.Grant, leave func(), from netip.Addr, remote string) {
	defer s.containPanic(t)
	defer leave()
	s.clients.Serve(t, g, from, remote)
}

// containPanic does for a connection what net/http does for its own. It is deferred.
func (s *Server) containPanic(c interface{ Close() }) {
	if v := recover(); v != nil {
		s.log.Error().Interface("panic", v).Bytes("stack", debug.Stack()).Msg("connection panicked")
		c.Close()
	}
}

func (s *Server) transportLimits() transport.Limits {
	return transport.Limits{MaxFrame: s.live.Load().clients.MaxFrame, Stall: s.cfg.stall, PingEvery: s.cfg.PingEvery, PeerSilence: s.cfg.PeerSilence}
}

func (s *Server) serveUnix(l net.Listener) error {
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			s.log.Warn().Err(err).Msg("accept on the Unix socket") // EMFILE is temporary
			time.Sleep(50 * time.Millisecond)
			continue
		}
		go s.serveLocal(c.(*transport.Socket)) // serves one connection and ends with it; Shutdown waits for it in clients.Close
	}
}

func (s *Server) serveLocal(sock *transport.Socket) {
	t := transport.NewUnixSocket(sock, s.transportLimits())
	defer s.containPanic(t)
	who, err := auth.PeerPrincipal(sock)
	g := &auth.Grant{Principal: who}
	if err != nil || s.stopping.Load() {
		e := protocol.Errorf(protocol.ShuttingDown, "the server is shutting down")
		if err != nil {
			e = protocol.AsError(err)
			s.cfg.Audit.AppendStranger(audit.Entry{Action: audit.ActionRefused, Outcome: string(e.Code), Remote: t.Name(), Reason: "user"})
		}
		s.clients.Refuse(t, g, e, transport.ReasonShutdown)
		return
	}
	sock.LeaveStrangers()
	leave, full := s.clients.Admit(g)
	if full != nil {
		s.clients.Refuse(t, g, full.Fault(), transport.ReasonFull)
		return
	}
	s.clients.Serve(t, g, netip.Addr{}, t.Name())
	leave()
	if c := t.HTTP(); c != nil {
		s.unixHTTP.Hand(c)
	}
}
