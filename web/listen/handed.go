package listen

import (
	"net"
	"sync"
)

// Handed is a listener of connections that another listener has accepted.
type Handed struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewHanded returns a listener with the address of the other one.
func NewHanded(addr net.Addr) *Handed {
	return &Handed{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Hand makes c the next connection that Accept returns. It closes c if the listener is closed.
func (h *Handed) Hand(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		c.Close()
	}
}

// Accept waits for the next connection.
func (h *Handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept fail.
func (h *Handed) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr is the other listener's.
func (h *Handed) Addr() net.Addr { return h.addr }
