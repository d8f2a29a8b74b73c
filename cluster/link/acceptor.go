package link

import (
	"bufio"
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"trl/protocol"
)

// maxStrangers is how many connections may be in their handshake. If there are more, the oldest is closed: an honest one takes milliseconds.
const maxStrangers = 256

// AcceptorOptions are what an Acceptor needs.
type AcceptorOptions struct {
	Self        Node
	URL         string // as the directory tells it to other nodes; its scheme decides whether links use TLS
	Credentials *Credentials
	Insecure    bool // as in DialerOptions
	Limits      Limits
	// Peer returns an error if the directory knows the dialer's epoch or name otherwise. nil: only the credentials count.
	Peer func(from Node) error
	// Admit may refuse a link after all checks, best with a *protocol.Error, which the dialer gets. nil: none is refused.
	Admit func(ctx context.Context, from Node, h *Hello) error
	// Serve has the link until it returns. ctx ends when the acceptor ends; the link then closes by itself.
	Serve func(ctx context.Context, h *Hello, c *Conn)
	// Refused is told of every refused handshake; it must not wait. nil: nobody is told.
	Refused func(remote string, err error)

	versions Versions // ours, but for a test
}

// Acceptor takes links.
type Acceptor struct {
	o   AcceptorOptions
	tls bool

	mu        sync.Mutex
	strangers list.List // of *socket, the oldest first; guarded by mu
	links     sync.WaitGroup
	closing   bool // guarded by mu: no link may begin any more
}

// NewAcceptor checks the options.
func NewAcceptor(o AcceptorOptions) (*Acceptor, error) {
	u, err := canonicalURL(o.URL)
	if err != nil {
		return nil, err
	}
	if err := o.Self.check(); err != nil {
		return nil, err
	}
	if u.Scheme == "ws" && o.Credentials.secret == nil {
		return nil, fmt.Errorf("%s: %w", u, ErrInsecure)
	}
	o.URL, o.Limits, o.versions = u.String(), o.Limits.withDefaults(), cmp.Or(o.versions, ours)
	return &Acceptor{o: o, tls: u.Scheme == "wss"}, nil
}

type socketKey struct{}

// CheckListener returns ErrInsecure if links over a listener would not be encrypted although they may leave this machine.
func (a *Acceptor) CheckListener(l net.Listener) error {
	if addr, ok := l.Addr().(*net.TCPAddr); !a.tls && !a.o.Insecure && !(ok && addr.IP.IsLoopback()) {
		return fmt.Errorf("%s: %w", l.Addr(), ErrInsecure)
	}
	return nil
}

// Serve accepts links on l until ctx ends or l fails, and returns when all of them have ended. It closes l. It is called once.
func (a *Acceptor) Serve(ctx context.Context, l net.Listener) error {
	defer l.Close()
	if err := a.CheckListener(l); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from := net.Listener(&strangers{l, a})
	if a.tls {
		from = tls.NewListener(from, a.o.Credentials.acceptTLS(a.refused))
	}
	s := &http.Server{
		Handler: http.HandlerFunc(a.handle), ReadHeaderTimeout: a.o.Limits.Handshake, MaxHeaderBytes: 8 << 10, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, socketKey{}, c) },
	}
	s.SetKeepAlivesEnabled(false)
	defer context.AfterFunc(ctx, func() { s.Close() })()
	err := s.Serve(from)
	stopped := ctx.Err() != nil
	cancel()
	a.mu.Lock()
	a.closing = true
	a.mu.Unlock()
	s.Close()
	a.links.Wait()
	if stopped {
		return nil
	}
	return err
}

func (a *Acceptor) refused(remote string, err error) {
	if a.o.Refused != nil {
		a.o.Refused(remote, err)
	}
}

// strangers is a listener whose connections have a bounded time for their handshake, and of which only so many may be in it.
type strangers struct {
	net.Listener
	a *Acceptor
}

func (l *strangers) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	a := l.a
	var place *list.Element // guarded by a.mu
	late := time.AfterFunc(a.o.Limits.Handshake, func() { raw.Close() })
	s := newSocket(raw, a.o.Limits.Stall, func() {
		late.Stop()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.strangers.Remove(place) // has no effect if it has been removed already
	})
	a.mu.Lock()
	place = a.strangers.PushBack(s)
	var oldest *socket
	if a.strangers.Len() > maxStrangers {
		oldest = a.strangers.Remove(a.strangers.Front()).(*socket)
	}
	a.mu.Unlock()
	if oldest != nil {
		oldest.Conn.Close() // the goroutine that serves it gets an error, and closes it, too
	}
	return s, nil
}

// handle is the life of a link at its owner.
func (a *Acceptor) handle(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	if a.closing {
		a.mu.Unlock()
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	a.links.Add(1)
	a.mu.Unlock()
	defer a.links.Done()
	switch {
	case r.URL.Path != Path || r.URL.RawQuery != "":
		http.Error(w, "no such page", http.StatusNotFound)
		return
	case r.Header.Get("Origin") != "": // a browser
		http.Error(w, "links are for nodes", http.StatusForbidden)
		return
	case !slices.Contains(r.Header.Values("Sec-WebSocket-Protocol"), Subprotocol):
		http.Error(w, "want the subprotocol "+Subprotocol, http.StatusBadRequest)
		return
	}
	binding, err := bindingOf(r.TLS)
	if err != nil {
		http.Error(w, "no keying material", http.StatusBadRequest)
		return
	}
	c, err := a.upgrade(w, r)
	if err != nil {
		a.refused(r.RemoteAddr, err)
		return
	}
	defer c.Drop()
	stop := context.AfterFunc(r.Context(), c.Drop)
	h, version, from, err := a.shake(r, c, binding)
	if err != nil {
		a.refused(r.RemoteAddr, err)
		c.Close(int(websocket.StatusPolicyViolation), "handshake")
		return
	}
	stop()
	c.wire.sock.onClose() // it is no stranger any more
	ended := make(chan struct{})
	c.begin(r.Context(), from, version, a.o.Limits, func() { c.Close(BrokenCode, "node is shutting down") }, func() { close(ended) })
	for h != nil {
		a.o.Serve(r.Context(), h, c)
		if !h.Keep || c.isOver() {
			break
		}
		h = a.next(r.Context(), r.RemoteAddr, c)
	}
	c.Drop()
	c.reading.Wait()
	<-ended
}

// upgrade makes a WebSocket of a request.
func (a *Acceptor) upgrade(w http.ResponseWriter, r *http.Request) (*Conn, error) {
	h := &hijacker{ResponseWriter: w, w: &wire{silence: a.o.Limits.Silence}}
	ws, err := websocket.Accept(h, r, &websocket.AcceptOptions{
		Subprotocols:   []string{Subprotocol},
		OnPingReceived: func(context.Context, []byte) bool { return false }, // as in the dialer's upgrade
	})
	if err != nil {
		return nil, err
	}
	return newConn(ws, h.w), nil
}

// hijacker puts a wire between the library and the connection.
type hijacker struct {
	http.ResponseWriter
	w *wire
}

func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.SetDeadline(time.Time{})
	h.w.Conn = c
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	h.w.sock = c.(*socket)
	return h.w, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(h.w, 256)), nil // a close frame is at most 127 bytes
}

// shake is the acceptor's half of the handshake.
func (a *Acceptor) shake(r *http.Request, c *Conn, binding []byte) (*Hello, int, Node, error) {
	t := &transcript{reply: reply{Versions: a.o.versions, From: a.o.Self, Nonce: newNonce()}, binding: binding}
	c.transcript = t
	fail := func(err error) (*Hello, int, Node, error) { return nil, 0, t.opening.From, err }
	if err := c.receive(&t.opening); err != nil {
		return fail(err)
	}
	o, secret := &t.opening, a.o.Credentials.key()
	if len(o.Nonce) != nonceSize || o.From.check() != nil || o.Want.check() != nil || len(o.URL) > maxURL {
		return fail(ErrHandshake)
	}
	version, bad := a.checkOpening(o, r.TLS)
	if bad != nil {
		var err error
		if t.reply.Refusal, err = json.Marshal(refusalOf(bad)); err != nil {
			return fail(err)
		}
	}
	t.reply.Proof = t.proof(secret, "acceptor", t.reply.Refusal)
	if err := c.say(&t.reply); err != nil {
		return fail(cmp.Or(bad, err))
	}
	if bad != nil {
		return fail(bad)
	}
	h, err := a.takeHello(r.Context(), c)
	if err != nil {
		return fail(err)
	}
	return h, version, o.From, nil
}

// takeHello takes a Hello, and answers it.
func (a *Acceptor) takeHello(ctx context.Context, c *Conn) (*Hello, error) {
	said := assertion{}
	if err := c.receive(&said); err != nil {
		return nil, err
	}
	c.hellos++
	h, t := &Hello{}, c.transcript
	err := t.check(a.o.Credentials.key(), proofRole(c.hellos), said.Hello, said.Proof)
	if err == nil && json.Unmarshal(said.Hello, h) != nil {
		err = ErrHandshake
	}
	if err == nil {
		err = h.Check()
	}
	if err == nil && a.o.Admit != nil {
		err = a.o.Admit(ctx, t.opening.From, h)
	}
	if err != nil {
		_ = c.say(&welcome{refusalOf(err)}) // the dialer may be gone
		return nil, err
	}
	return h, c.say(&welcome{})
}

// checkOpening checks everything that can be known before the dialer has proved anything.
func (a *Acceptor) checkOpening(o *opening, s *tls.ConnectionState) (version int, err error) {
	version, ok := common(a.o.versions, o.Versions)
	switch self := a.o.Self; {
	case !ok:
		return 0, &VersionError{a.o.versions, o.Versions}
	case o.From.Name == self.Name, o.From.Epoch == self.Epoch:
		return 0, fmt.Errorf("%w: %s, epoch %s", ErrSelf, o.From.Name, o.From.Epoch)
	case o.Want != self:
		return 0, &EpochError{o.Want, self}
	case o.URL != a.o.URL:
		return 0, fmt.Errorf("%w: %s", ErrURL, a.o.URL)
	}
	if a.o.Credentials.pair != nil {
		if s == nil {
			return 0, ErrUntrusted
		}
		if err := checkNode(*s, o.From.Name); err != nil {
			return 0, err
		}
	}
	if a.o.Peer != nil {
		if err := a.o.Peer(o.From); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrPeer, err)
		}
	}
	return version, nil
}

// isAboutHello reports whether a refusal is about the Hello and not about the node that sends it.
func isAboutHello(err error) bool {
	_, hello := errors.AsType[*HelloError](err)
	_, request := errors.AsType[*protocol.Error](err)
	return hello || request
}
