package natsrig

import (
	"net"
	"strconv"
	"sync"
	"testing"
)

// Proxy stands before a server. It can cut connections, and hold bytes back without closing anything, as a partition does.
type Proxy struct {
	Port int

	listener net.Listener
	to       string
	done     sync.WaitGroup

	mu     sync.Mutex
	cond   *sync.Cond            // of held and closed
	held   direction             // guarded by mu
	closed bool                  // guarded by mu
	open   map[net.Conn]struct{} // guarded by mu
}

// direction says whose bytes are held back.
type direction struct{ fromClients, fromServer bool }

// NewProxy starts a proxy before the server. It ends with the test.
func NewProxy(t testing.TB, s *Server) *Proxy {
	t.Helper()
	return newProxy(t, s.Port)
}

func newProxy(t testing.TB, port int) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Port: l.Addr().(*net.TCPAddr).Port, listener: l, to: "127.0.0.1:" + strconv.Itoa(port), open: map[net.Conn]struct{}{}}
	p.cond = sync.NewCond(&p.mu)
	p.done.Go(func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() { p.relay(c) })
		}
	})
	t.Cleanup(p.close)
	return p
}

// URL is where clients connect.
func (p *Proxy) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(p.Port) }

func (p *Proxy) relay(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer up.Close()
	if !p.add(c, up) {
		return
	}
	defer p.remove(c, up)
	var both sync.WaitGroup
	both.Go(func() { p.copy(up, c, func() bool { return p.held.fromClients }) })
	p.copy(c, up, func() bool { return p.held.fromServer })
	both.Wait()
}

func (p *Proxy) copy(to, from net.Conn, held func() bool) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for held() && !p.closed {
			p.cond.Wait()
		}
		p.mu.Unlock()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (p *Proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.open[c] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) remove(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.open, c)
	}
}

// Hold holds all bytes back until Release. Connections stay open, and new ones are accepted.
func (p *Proxy) Hold() { p.hold(direction{true, true}) }

// HoldAnswers holds back only what the server sends.
func (p *Proxy) HoldAnswers() { p.hold(direction{fromServer: true}) }

// Release lets the bytes that were held back through.
func (p *Proxy) Release() { p.hold(direction{}) }

func (p *Proxy) hold(held direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = held
	p.cond.Broadcast()
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}

func (p *Proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.cond.Broadcast()
	p.mu.Unlock()
	p.Cut()
	p.done.Wait()
}
