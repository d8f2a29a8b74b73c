package link

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// firstRetry and lastRetry are how long a node that could not be dialled is left alone, at first and at most. Jitter takes up to half off.
	firstRetry = time.Second
	lastRetry  = 8 * time.Second
	// maxParallel is how many dials to one node may be under way.
	maxParallel = 32
	// forgetAfter is how long a node is remembered that nobody dials any more.
	forgetAfter = 5 * time.Minute
)

// Peer is a node as the directory knows it.
type Peer struct {
	Node
	URL string // wss://HOST:PORT, or ws://HOST:PORT
}

// DialerOptions are what a Dialer needs.
type DialerOptions struct {
	Self        Node
	Credentials *Credentials
	Insecure    bool // allow ws:// beyond loopback, for a network that encrypts itself
	Limits      Limits
	// OnReach is told when a node can no longer be dialled, with the cause, and when it can be again, with nil. It must not wait. nil: nobody is told.
	OnReach func(to Node, cause error)

	versions Versions // ours, but for a test
}

// Dialer dials links. Each link belongs to one connection of a client at a time; some are kept idle between two clients (see reuse.go). A Dialer remembers
// which nodes could not be dialled, so that requests to them fail at once.
type Dialer struct {
	o     DialerOptions
	ctx   context.Context // ends in Close: the end of all links
	stop  context.CancelFunc
	links sync.WaitGroup

	idleTime time.Duration // idleTime, but for a test

	mu     sync.Mutex
	nodes  map[Node]*dialled // guarded by mu
	idle   idle              // guarded by mu
	closed bool              // guarded by mu: no link may begin any more
}

// dialled is what a Dialer remembers of a node.
type dialled struct {
	places chan struct{} // a token for each dial under way
	users  int           // how many dials wait or are under way
	used   time.Time     // when the last dial began
	fails  int           // how many dials have failed one after the other
	until  time.Time     // no dial before this time
	cause  error         // why the last one failed; nil: it did not
}

// NewDialer returns a Dialer whose links end with ctx, or with Close.
func NewDialer(ctx context.Context, o DialerOptions) (*Dialer, error) {
	if err := o.Self.check(); err != nil {
		return nil, err
	}
	o.Limits, o.versions = o.Limits.withDefaults(), cmp.Or(o.versions, ours)
	d := &Dialer{o: o, nodes: map[Node]*dialled{}, idleTime: idleTime}
	d.ctx, d.stop = context.WithCancel(ctx)
	return d, nil
}

// Close ends all links, and returns when they have ended.
func (d *Dialer) Close() {
	d.mu.Lock()
	d.closed = true
	for _, all := range d.idle.byPeer {
		for _, l := range all {
			l.expiry.Stop()
		}
	}
	d.idle = idle{}
	d.mu.Unlock()
	d.stop()
	d.links.Wait()
}

// Dial makes a link to a node; ctx bounds only the dialling. If the node cannot be reached, or refuses this node, the error is an *UnreachableError.
// It comes at once, without a packet, as long as the last failed dial is recent. A *HelloError or a *protocol.Error is about h, not about the node.
func (d *Dialer) Dial(ctx context.Context, to Peer, h *Hello) (*Conn, error) {
	if err := h.Check(); err != nil {
		return nil, err
	}
	u, err := canonicalURL(to.URL)
	if err != nil {
		return nil, err
	}
	if err := d.checkEncrypted(u); err != nil {
		return nil, err
	}
	to.URL = u.String()
	if c, err := d.takeIdle(ctx, to, h); c != nil || err != nil {
		return c, err
	}
	n, err := d.enter(ctx, to.Node)
	if err != nil {
		return nil, err
	}
	defer d.leave(n)
	if left, cause := d.pause(n); left > 0 { // others may have failed while this one waited
		return nil, &UnreachableError{to.Node, left, cause}
	}
	c, err := d.dial(ctx, u, to, h)
	return c, d.note(ctx, n, to.Node, err)
}

// DialRetry is Dial, repeated as long as the node is unreachable and ctx lasts. It waits 0.5 to 8 s between two dials, with jitter.
func (d *Dialer) DialRetry(ctx context.Context, to Peer, h *Hello) (*Conn, error) {
	for {
		c, err := d.Dial(ctx, to, h)
		gone, ok := errors.AsType[*UnreachableError](err)
		if !ok {
			return c, err
		}
		wait := time.NewTimer(gone.RetryAfter)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return nil, err
		case <-d.ctx.Done():
			wait.Stop()
			return nil, ErrClosed
		}
	}
}

// Unreachable returns the error that Dial would return without a packet, or nil if it would dial.
func (d *Dialer) Unreachable(to Node) *UnreachableError {
	d.mu.Lock()
	n := d.nodes[to]
	d.mu.Unlock()
	if n == nil {
		return nil
	}
	if left, cause := d.pause(n); left > 0 {
		return &UnreachableError{to, left, cause}
	}
	return nil
}

// enter takes one of the places for dials to a node.
func (d *Dialer) enter(ctx context.Context, to Node) (*dialled, error) {
	d.mu.Lock()
	n := d.nodes[to]
	if n == nil {
		d.forgetLocked()
		n = &dialled{places: make(chan struct{}, maxParallel)}
		d.nodes[to] = n
	}
	n.users++
	n.used = time.Now()
	d.mu.Unlock()
	select {
	case n.places <- struct{}{}:
		return n, nil
	case <-ctx.Done():
	case <-d.ctx.Done():
	}
	d.mu.Lock()
	n.users--
	d.mu.Unlock()
	return nil, cmp.Or(ctx.Err(), ErrClosed)
}

func (d *Dialer) leave(n *dialled) {
	<-n.places
	d.mu.Lock()
	defer d.mu.Unlock()
	n.users--
}

// forgetLocked drops the nodes that nobody has dialled for a while. mu is held.
func (d *Dialer) forgetLocked() {
	for to, n := range d.nodes {
		if n.users == 0 && time.Since(n.used) > forgetAfter {
			delete(d.nodes, to)
		}
	}
}

// pause returns for how long no dial to a node is due, and why.
func (d *Dialer) pause(n *dialled) (time.Duration, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n.cause == nil {
		return 0, nil
	}
	return time.Until(n.until), n.cause
}

// note records how a dial to a node went, and returns the error for the caller.
func (d *Dialer) note(ctx context.Context, n *dialled, to Node, err error) error {
	d.mu.Lock()
	before := n.cause
	fault := d.noteLocked(ctx, n, to, err)
	now := n.cause
	d.mu.Unlock()
	if d.o.OnReach != nil && (before == nil) != (now == nil) {
		d.o.OnReach(to, now)
	}
	return fault
}

func (d *Dialer) noteLocked(ctx context.Context, n *dialled, to Node, err error) error {
	switch {
	case err == nil, isAboutHello(err):
		n.fails, n.cause = 0, nil
		return err
	case ctx.Err() != nil: // the caller gave up; that says nothing about the node
		return ctx.Err()
	case d.ctx.Err() != nil:
		return ErrClosed
	}
	if n.cause == nil || time.Now().After(n.until) { // one of several dials at the same time counts
		most := min(firstRetry<<min(n.fails, 10), lastRetry)
		n.until = time.Now().Add(most/2 + rand.N(most/2+1))
		n.fails++
	}
	n.cause = err
	return &UnreachableError{to, time.Until(n.until), err}
}

// checkEncrypted refuses a link that could be read on its way.
func (d *Dialer) checkEncrypted(u *url.URL) error {
	switch {
	case u.Scheme == "wss":
		return nil
	case d.o.Credentials.secret == nil, !d.o.Insecure && !isLoopback(u.Hostname()):
		return fmt.Errorf("%s: %w", u, ErrInsecure)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// dial makes a link. It connects and does TLS itself, and lets the library do the upgrade on that connection.
func (d *Dialer) dial(ctx context.Context, u *url.URL, to Peer, h *Hello) (_ *Conn, err error) {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil, ErrClosed
	}
	d.links.Add(1)
	d.mu.Unlock()
	defer func() {
		if err != nil {
			d.links.Done()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, d.o.Limits.Handshake)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()

	raw, err := new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, err
	}
	sock := newSocket(raw, d.o.Limits.Stall, func() {})
	defer func() {
		if err != nil {
			sock.Close()
		}
	}()
	w := &wire{Conn: sock, sock: sock, masks: true, silence: d.o.Limits.Silence}
	var binding []byte
	if u.Scheme == "wss" {
		t := tls.Client(sock, d.o.Credentials.dialTLS(to.Name))
		if err := t.HandshakeContext(ctx); err != nil {
			return nil, refusedCertificate(err)
		}
		s := t.ConnectionState()
		if binding, err = bindingOf(&s); err != nil {
			return nil, err
		}
		w.Conn = t
	}
	defer context.AfterFunc(ctx, func() { sock.Close() })() // the rest of the handshake
	c, err := upgrade(ctx, u, w)
	if err != nil {
		read, _ := w.errors()
		return nil, refusedCertificate(cmp.Or(read, err))
	}
	version, err := c.introduce(&d.o, to, h, binding)
	if err != nil {
		if read, _ := w.errors(); errors.Is(refusedCertificate(read), ErrUntrusted) {
			err = refusedCertificate(read)
		}
		c.Close(int(websocket.StatusPolicyViolation), "handshake")
		return nil, cmp.Or(ctx.Err(), err)
	}
	if h.Keep {
		c.keep = func() bool { return d.keepIdle(to, c) }
	}
	c.begin(d.ctx, to.Node, version, d.o.Limits, c.Drop, d.links.Done)
	return c, nil
}

// upgrade makes a WebSocket of a connection.
func upgrade(ctx context.Context, u *url.URL, w *wire) (*Conn, error) {
	t := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return w, nil },
		MaxResponseHeaderBytes: 8 << 10,
	}
	defer t.CloseIdleConnections()
	ws, _, err := websocket.Dial(ctx, "ws://"+u.Host+u.Path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, Subprotocols: []string{Subprotocol},
		OnPingReceived: func(context.Context, []byte) bool { return false }, // each end pings by itself, so no pong is needed
	})
	if err != nil {
		return nil, err
	}
	if ws.Subprotocol() != Subprotocol {
		_ = ws.CloseNow()
		return nil, ErrHandshake
	}
	return newConn(ws, w), nil
}

// refusedCertificate makes ErrUntrusted of a TLS alert about our certificate. TLS 1.3 reports it only when the dialer reads for the first time, and
// crypto/tls has no type for it.
func refusedCertificate(err error) error {
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" && strings.Contains(alert.Error(), "certificate") {
		return fmt.Errorf("refused: %w (%w)", ErrUntrusted, alert)
	}
	return err
}
