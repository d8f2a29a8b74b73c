package web

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"trl/cluster/link"
	"trl/pool/ids"
	"trl/protocol"
	"trl/web/audit"
	"trl/web/auth"
	"trl/web/rpc/cluster"
	"trl/web/transport"
)

// An ownedRoute is a route for things that one node has, which the id in its pattern names. Every node serves it. A node that has not got the thing
// checks the client's credential and passes the request over a link to the one that has it. That node judges what the client may do there.
type ownedRoute struct {
	pattern string // has {id}
	kind    byte   // of the id, see pool/ids
	serve   func(s *Server, w http.ResponseWriter, r *http.Request, g *auth.Grant)
	// kept reports whether this node has a thing of an earlier epoch. nil: things of this kind end with their epoch.
	kept func(s *Server, g *auth.Grant, id string) bool
}

var recordingRoute = ownedRoute{"GET /v1/recordings/{id}", 'r', (*Server).serveRecording, (*Server).hasRecording}

// ownedRoutes are the routes of which nodes may pass on requests to this one.
var ownedRoutes = []ownedRoute{recordingRoute}

// serveOwned serves a route for clients.
func (s *Server) serveOwned(o ownedRoute) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		g, no := s.auth.Authenticate(r) // the client is no stranger from here on, so a large answer may take long
		if no != nil {
			auth.Deny(w, no)
			return
		}
		if !s.auth.AdmitRequest(w, g) {
			return
		}
		defer g.EndRequest()
		switch at, e := s.ownerOf(r, g, o, r.PathValue("id")); {
		case e != nil:
			refuseFault(w, e)
		case at != nil:
			at.serve(w, r)
		default:
			o.serve(s, w, r, g)
		}
	}
}

// refuseFault answers a request that its node cannot carry out.
func refuseFault(w http.ResponseWriter, e *protocol.Error) {
	status := e.Code.Status()
	switch e.Code {
	case protocol.SessionLost: // the node is gone, with all that it had
		status = http.StatusNotFound
	case protocol.LimitExceeded: // no place for the link
		status = http.StatusServiceUnavailable
	}
	transport.SetFaultHeader(w.Header(), status)
	auth.Refuse(w, status, e.Message)
}

// maxAskedForOld is how many nodes are asked at the same time for a thing of an earlier epoch, and oldTimeout how long they have to answer.
const (
	maxAskedForOld = 64
	oldTimeout     = time.Second
)

// ownerOf returns the other node that has the thing with an id; nil: this one serves the request.
func (s *Server) ownerOf(r *http.Request, g *auth.Grant, o ownedRoute, id string) (*elsewhere, *protocol.Error) {
	nodes := s.cfg.Cluster.Nodes
	epoch, ok := ids.EpochOf(o.kind, id)
	if nodes == nil || !ok || epoch == s.pool.Epoch() {
		return nil, nil
	}
	at := &elsewhere{s: s, g: g, epoch: epoch, client: r}
	_, standing := nodes.Find(epoch)
	if standing == cluster.Known {
		return at, nil
	}
	if o.kept != nil {
		if o.kept(s, g, id) {
			return nil, nil
		}
		if at := at.search(strings.Replace(strings.TrimPrefix(o.pattern, "GET "), "{id}", id, 1)); at != nil {
			return at, nil
		}
	}
	if standing == cluster.MayLive {
		return nil, cluster.UnknownYet()
	}
	return nil, nil
}

// elsewhere is another node, as one client uses it over HTTP. Each request takes a link of its own.
type elsewhere struct {
	s      *Server
	g      *auth.Grant
	epoch  string
	client *http.Request // the client's request: whose address, and how long it waits
}

// search returns the node that answers a HEAD of a path with 200; nil: none.
func (e *elsewhere) search(path string) (found *elsewhere) {
	ctx, cancel := context.WithTimeout(e.client.Context(), oldTimeout)
	defer cancel()
	var asking sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, maxAskedForOld)
	for _, n := range e.s.cfg.Cluster.Nodes.All() {
		if n.Epoch == e.s.pool.Epoch() {
			continue
		}
		asking.Go(func() { // asks one node; ends with ctx; waited for below
			places <- struct{}{}
			defer func() { <-places }()
			at := &elsewhere{e.s, e.g, n.Epoch, e.client}
			res, err := at.get(ctx, http.MethodHead, path)
			if err != nil {
				return
			}
			res.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			if res.StatusCode == http.StatusOK {
				found = at
				cancel() // there is only one
			}
		})
	}
	asking.Wait()
	return found
}

// get makes a request of its own at the node. The caller closes the body.
func (e *elsewhere) get(ctx context.Context, method, path string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://node"+path, nil)
	if err != nil {
		return nil, err
	}
	return e.RoundTrip(r)
}

// RoundTrip is one HTTP request over a link of its own, which ends with the request's context or with the body of the response.
func (e *elsewhere) RoundTrip(r *http.Request) (*http.Response, error) {
	t := &http.Transport{
		// The transport's own context would not end with the request.
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return e.dial(r.Context()) },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 32 << 10,
	}
	return t.RoundTrip(r)
}

func (e *elsewhere) dial(ctx context.Context) (net.Conn, error) {
	h, fault := cluster.HelloOf(e.g, transport.HTTPName, auth.ClientAddr(e.client))
	if fault != nil {
		return nil, fault
	}
	h.Carries, h.LogPrefix = link.ForHTTP, "c-"+rand.Text()[:16]
	l, fault := cluster.Dial(ctx, e.s.cfg.Cluster.Nodes, e.epoch, h)
	if fault != nil {
		return nil, fault
	}
	return link.NewStream(l), nil
}

// faultOf returns the error for the client whose request has failed on its way.
func (e *elsewhere) faultOf(err error) *protocol.Error {
	if fault, ok := errors.AsType[*protocol.Error](err); ok {
		return fault
	}
	n, _ := e.s.cfg.Cluster.Nodes.Find(e.epoch)
	return protocol.Errorf(protocol.NodeUnreachable, "the connection to node %s was lost", n.Node)
}

// auditHeader is the header of a response in which a node passes its audit entry on to the client's node, which writes the same entry.
const auditHeader = "Trl-Audit"

// appendAudit writes the entry that the node has passed on with a response.
func (e *elsewhere) appendAudit(res *http.Response) {
	text := res.Header.Get(auditHeader)
	res.Header.Del(auditHeader)
	var x audit.Entry
	if text == "" || json.Unmarshal([]byte(text), &x) != nil {
		return
	}
	n, _ := e.s.cfg.Cluster.Nodes.Find(e.epoch)
	x.Node, x.Principal, x.Role, x.Remote = n.Node, e.g.Subject, string(e.g.Role), e.client.RemoteAddr
	e.s.cfg.Audit.AppendBy(e.g.Subject, x)
}

// serve passes the client's request on, and the response back as it comes. A client that reads slowly makes the other node wait. When the client's
// credential ends, so does the response.
func (e *elsewhere) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer e.g.OnExpiry(cancel)()
	proxy := httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "http", Host: "node", Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
			p.Out.Host = "node"
			for _, name := range []string{"Authorization", "Cookie", "Sec-Websocket-Protocol", "Origin"} { // checked here, and of no use to the other node
				p.Out.Header.Del(name)
			}
		},
		Transport: e, FlushInterval: -1, ErrorLog: stdlog.New(io.Discard, "", 0),
		ModifyResponse: func(res *http.Response) error {
			e.appendAudit(res)
			for name := range w.Header() { // what the guard has set
				res.Header.Del(name)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			e.s.log.Debug().Err(err).Msg("request for another node has failed")
			refuseFault(w, e.faultOf(err))
		},
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// The other end: requests that other nodes pass on to this one.

// linkConn is the connection of a link that carries HTTP.
type linkConn struct {
	*link.Stream
	hello  *link.Hello
	grant  *auth.Grant   // of the client; nil: the node itself makes requests
	closed chan struct{} // closed by Close
	once   sync.Once
}

func (c *linkConn) Close() (err error) {
	c.once.Do(func() {
		err = c.Stream.Close()
		close(c.closed)
	})
	return err
}

type linkConnKey struct{}

type auditHeadKey struct{}

// newLinkHTTP returns the server of links that carry HTTP.
func (s *Server) newLinkHTTP() *http.Server {
	mux := http.NewServeMux()
	for _, o := range ownedRoutes {
		mux.HandleFunc(o.pattern, func(w http.ResponseWriter, r *http.Request) {
			c := r.Context().Value(linkConnKey{}).(*linkConn)
			if c.grant == nil {
				http.Error(w, "only for clients", http.StatusForbidden)
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), auditHeadKey{}, w.Header()))
			r.RemoteAddr = c.hello.Client.String()
			o.serve(s, w, r, c.grant)
		})
	}
	for pattern, answer := range s.auth.NodeRoutes() {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.Context().Value(linkConnKey{}).(*linkConn).grant != nil {
				http.Error(w, "only for nodes", http.StatusForbidden)
				return
			}
			answer(w, r)
		})
	}
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 32 << 10,
		DisableGeneralOptionsHandler: true, ErrorLog: stdlog.New(debugLog{s.log}, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, linkConnKey{}, c) },
	}
}

// AdmitLink returns the error for the client of another node that may not have a link here.
func (s *Server) AdmitLink(h *link.Hello) error {
	if h.Carries == link.ForNode {
		return nil
	}
	return s.clients.AdmitLink(h)
}

// ServeLink serves another node or the client of another node over its link, until the link is over.
func (s *Server) ServeLink(h *link.Hello, l *link.Conn) {
	if h.Carries == link.ForMessages || h.Carries == link.ForMove {
		s.clients.ServeLink(h, l)
		return
	}
	c := &linkConn{Stream: link.NewStream(l), hello: h, closed: make(chan struct{})}
	if h.Carries == link.ForHTTP {
		g, leave, err := s.clients.AdmitHTTP(h)
		if err != nil { // a place has been taken since AdmitLink
			c.Close()
			return
		}
		defer leave()
		defer g.OnExpiry(l.Drop)()
		c.grant = g
	}
	s.linkHTTP.Hand(c)
	<-c.closed
}
