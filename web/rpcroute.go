package web

import (
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"

	"trl/protocol"
	"trl/web/auth"
	"trl/web/listen"
	"trl/web/rpc"
	"trl/web/transport"
)

// serveRPC serves POST /v1/rpc.
func (s *Server) serveRPC(w http.ResponseWriter, r *http.Request) {
	allowOrigin(w, r)
	if e := checkMediaType(r); e != nil {
		rpc.RefuseHTTP(w, http.StatusBadRequest, e)
		return
	}
	r.Header.Del("Sec-WebSocket-Protocol") // tickets open WebSockets only
	g, no := s.auth.AuthorizeRequest(r)
	if no != nil {
		if no.NoCredential() {
			s.auditRefusal(r, "token")
		}
		status, words := no.Answer(w.Header())
		rpc.RefuseHTTP(w, status, no.Fault(words))
		return
	}
	s.answerRPC(w, r, g, r.RemoteAddr)
}

// serveLocalRPC serves POST /v1/rpc on the Unix socket, where the kernel says who the client is.
func (s *Server) serveLocalRPC(w http.ResponseWriter, r *http.Request) {
	if e := checkMediaType(r); e != nil {
		rpc.RefuseHTTP(w, http.StatusBadRequest, e)
		return
	}
	who, err := auth.PeerPrincipal(listen.SocketOf(r))
	if err != nil {
		rpc.RefuseHTTP(w, http.StatusForbidden, protocol.AsError(err))
		return
	}
	s.answerRPC(w, r, &auth.Grant{Principal: who}, transport.UnixName)
}

func (s *Server) answerRPC(w http.ResponseWriter, r *http.Request, g *auth.Grant, remote string) {
	if s.stopping.Load() {
		rpc.RefuseHTTP(w, http.StatusServiceUnavailable, protocol.Errorf(protocol.ShuttingDown, "the server is shutting down"))
		return
	}
	s.keepConnection(w)
	s.clients.ServeHTTP(w, r, listen.SocketOf(r), g, remote, s.transportLimits())
}

// keepConnection lets a client that has authenticated keep its connection for its next request, if there is room among the idle connections.
func (s *Server) keepConnection(w http.ResponseWriter) {
	if s.idle.count() < s.cfg.MaxConns {
		w.Header().Del("Connection") // the guard sets it for strangers
	}
}

// checkMediaType refuses what a page of another site could send without a preflight.
func checkMediaType(r *http.Request) *protocol.Error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return protocol.Errorf(protocol.InvalidRequest, "the request needs Content-Type: application/json")
	}
	return nil
}

// allowOrigin lets a page of another origin read the answer. The guard has looked at the origin.
func allowOrigin(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "Retry-After")
	}
}

// serveDocument serves a description of the protocol. It is no secret.
func serveDocument(kind string, text func() []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.Write(text())
	}
}

// preflightRPC tells a browser what pages of other origins may send. Cookies are not among it.
func preflightRPC(w http.ResponseWriter, r *http.Request) {
	allowOrigin(w, r)
	h := w.Header()
	h.Set("Access-Control-Allow-Methods", http.MethodPost)
	h.Set("Access-Control-Allow-Headers", strings.Join([]string{"Authorization", "Content-Type", "Accept"}, ", "))
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

// idleConns counts the connections on which clients keep for their next request. The others have a place among the clients.
type idleConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{} // guarded by mu
}

// note is an http.Server's ConnState.
func (i *idleConns) note(c net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if state != http.StateIdle {
		delete(i.conns, c)
		return
	}
	if i.conns == nil {
		i.conns = map[net.Conn]struct{}{}
	}
	i.conns[c] = struct{}{}
}

func (i *idleConns) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.conns)
}
