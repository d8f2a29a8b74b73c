package link

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"trl/internal/testkit"
)

var (
	gateway = Node{"n1", "epochone"}
	owner   = Node{"n2", "epochtwo"}
)

// aHello is a Hello with every field.
func aHello() *Hello {
	return &Hello{
		Principal: "issuer#alice", Role: "user", Terms: Terms{60_000, 3, 4, 5.5}, Credential: "c0ffee", Share: "trlshare_x",
		Client: netip.MustParseAddr("2001:db8::1"), Transport: "websocket", Binary: true, LogPrefix: "n1-17",
	}
}

// mode is a way in which nodes know each other.
type mode struct {
	name, scheme string
	cred         func(t testing.TB, node Node) *Credentials
}

func modes(t testing.TB) []mode {
	secret, ca := secretFile(t, strings.Repeat("s", minSecret)), newCA(t)
	both := func(t testing.TB, node Node, secret string) *Credentials {
		f := ca.issue(t, node.Name)
		f.Secret = secret
		return credentials(t, f)
	}
	return []mode{
		{"secret", "ws", func(t testing.TB, _ Node) *Credentials { return credentials(t, Files{Secret: secret}) }},
		{"secret in TLS", "wss", func(t testing.TB, _ Node) *Credentials { return credentials(t, Files{Secret: secret}) }},
		{"certificates", "wss", func(t testing.TB, n Node) *Credentials { return both(t, n, "") }},
		{"both", "wss", func(t testing.TB, n Node) *Credentials { return both(t, n, secret) }},
	}
}

func credentials(t testing.TB, f Files) *Credentials {
	t.Helper()
	c, err := OpenCredentials(f, func(err error) { t.Logf("credentials: %v", err) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func secretFile(t testing.TB, text string) string {
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// certificateAuthority makes certificates for tests.
type certificateAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newCA(t testing.TB) *certificateAuthority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	as := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "cluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(time.Hour),
	}
	der, err2 := x509.CreateCertificate(rand.Reader, as, as, key.Public(), key)
	cert, err3 := x509.ParseCertificate(der)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	return &certificateAuthority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue makes a certificate with these names.
func (ca *certificateAuthority) issue(t testing.TB, names ...string) Files {
	dir := t.TempDir()
	f := Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	ca.write(t, f, time.Hour, names...)
	return f
}

func (ca *certificateAuthority) write(t testing.TB, f Files, valid time.Duration, names ...string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	der, err2 := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: names, NotAfter: time.Now().Add(valid),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, ca.cert, key.Public(), ca.key)
	raw, err3 := x509.MarshalECPrivateKey(key)
	err4 := os.WriteFile(f.CA, ca.pem, 0o600)
	err5 := os.WriteFile(f.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	err6 := os.WriteFile(f.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), 0o600)
	if err := errors.Join(err, err2, err3, err4, err5, err6); err != nil {
		t.Fatal(err)
	}
}

// rig is an acceptor on loopback, a dialer, and a proxy between them.
type rig struct {
	t        testing.TB
	dialer   *Dialer
	to       Peer
	proxy    *proxy
	accepted chan *Conn     // every link that the acceptor has accepted; Serve returns when the link is over
	refused  *refusedErrors // what the acceptor refused
	stop     func()         // ends the acceptor, and waits
	hellos   chan *Hello
}

// refusedErrors collects what an acceptor refuses.
type refusedErrors struct {
	mu  sync.Mutex
	all []error
}

func (r *refusedErrors) add(_ string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, err)
}

// wait waits for a refusal that is one of want.
func (r *refusedErrors) wait(t testing.TB, is func(error) bool) {
	t.Helper()
	testkit.Eventually(t, "a refusal of the right kind", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, err := range r.all {
			if is(err) {
				return true
			}
		}
		return false
	})
}

// newRig starts a rig. change may change the options before.
func newRig(t testing.TB, m mode, l Limits, change func(*DialerOptions, *AcceptorOptions)) *rig {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Handshake = cmp.Or(l.Handshake, testkit.Patience)
	r := &rig{t: t, accepted: make(chan *Conn, 100), hellos: make(chan *Hello, 100), refused: &refusedErrors{}, proxy: newProxy(t, listener.Addr().String())}
	url := m.scheme + "://" + r.proxy.addr
	if _, ok := t.(*testing.B); ok { // nothing between that costs time
		url = m.scheme + "://" + listener.Addr().String()
	}
	ao := AcceptorOptions{
		Self: owner, URL: url, Credentials: m.cred(t, owner), Limits: l, Refused: r.refused.add,
		Serve: func(_ context.Context, h *Hello, c *Conn) {
			r.hellos <- h
			r.accepted <- c
			<-c.Over()
		},
	}
	do := DialerOptions{Self: gateway, Credentials: m.cred(t, gateway), Limits: l}
	if change != nil {
		change(&do, &ao)
	}
	a, err := NewAcceptor(ao)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, listener) }() // ends with stop
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("acceptor: %v", err)
		}
	})
	r.to = Peer{ao.Self, ao.URL}
	if r.dialer, err = NewDialer(context.Background(), do); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.dialer.Close(); r.stop(); r.proxy.close() })
	return r
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	t.Cleanup(cancel)
	return ctx
}

// link dials a link and returns both ends.
func (r *rig) link() (dialled, accepted *Conn) {
	r.t.Helper()
	c, err := r.dialer.Dial(within(r.t), r.to, aHello())
	if err != nil {
		r.t.Fatal(err)
	}
	return c, <-r.accepted
}

// proxy is a TCP proxy that can delay, hold up and cut what passes.
type proxy struct {
	addr, to string
	l        net.Listener
	tasks    sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	hole  chan struct{} // not nil: nothing passes until it is closed
	delay time.Duration // of each piece that passes
}

func newProxy(t testing.TB, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), to: to, l: l, conns: map[net.Conn]bool{}}
	p.tasks.Go(func() { // ends with close
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.tasks.Go(func() { p.pass(c) })
		}
	})
	return p
}

func (p *proxy) pass(c net.Conn) {
	defer c.Close()
	d, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer d.Close()
	for _, c := range []net.Conn{c, d} { // little room, so that a slow reader stops a sender soon
		_ = c.(*net.TCPConn).SetReadBuffer(32 << 10)
		_ = c.(*net.TCPConn).SetWriteBuffer(32 << 10)
	}
	p.mu.Lock()
	p.conns[c], p.conns[d] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { p.copy(d, c) })
	both.Go(func() { p.copy(c, d) })
	both.Wait()
}

func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		hole, delay := p.hole, p.delay
		p.mu.Unlock()
		time.Sleep(delay)
		if hole != nil {
			<-hole
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// swallow lets nothing through from now on.
func (p *proxy) swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hole = make(chan struct{})
}

// cut closes all connections that pass, with a reset.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hole != nil {
		close(p.hole)
		p.hole = nil
	}
	for c := range p.conns {
		_ = c.(*net.TCPConn).SetLinger(0)
		c.Close()
	}
	p.conns = map[net.Conn]bool{}
}

func (p *proxy) close() {
	p.l.Close()
	p.cut()
	p.tasks.Wait()
}

// echo sends back every message until the link is over.
func echo(c *Conn) {
	for {
		kind, p, err := c.Read()
		if err != nil || c.Send(kind, p) != nil {
			return
		}
	}
}

// openFiles counts the descriptors of this process.
func openFiles(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc")
	}
	return len(names)
}
