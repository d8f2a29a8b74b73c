package main

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// proxy stands between the clients and a gateway. It can cut connections, and counts what it brings to the clients.
type proxy struct {
	net.Listener
	to      string
	brought atomic.Int64 // bytes to the clients

	mu     sync.Mutex
	open   map[net.Conn]struct{} // guarded by mu; the clients' ends
	latest net.Conn              // guarded by mu; the client's end of the newest connection
	closed bool                  // guarded by mu; a new connection is reset at once
}

func newProxy(to string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{Listener: l, to: to, open: map[net.Conn]struct{}{}}
	go func() { // accepts; ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.relay(c) // ends with the connection
		}
	}()
	return p, nil
}

func (p *proxy) relay(c net.Conn) {
	defer c.Close()
	p.mu.Lock()
	closed := p.closed
	p.open[c] = struct{}{}
	p.latest = c
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.open, c)
		p.mu.Unlock()
	}()
	if closed {
		reset(c)
		return
	}
	up, err := net.Dial("tcp", p.to)
	if err != nil {
		reset(c)
		return
	}
	defer up.Close()
	done := make(chan struct{}, 2)
	go p.pipe(up, c, nil, done)
	go p.pipe(c, up, &p.brought, done)
	<-done
}

// pipe copies until either side ends.
func (p *proxy) pipe(to, from net.Conn, count *atomic.Int64, done chan<- struct{}) {
	defer func() { done <- struct{}{} }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
			if count != nil {
				count.Add(int64(n))
			}
		}
		if err != nil {
			return
		}
	}
}

// cut resets every connection. With stay it lets none through until mend.
func (p *proxy) cut(stay bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = stay
	for c := range p.open {
		reset(c)
	}
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = false
}

func (p *proxy) close() {
	p.Listener.Close()
	p.cut(true)
}

// end ends the newest connection as a server does, with a close frame. Nothing else may be on its way to the client.
func (p *proxy) end(code uint16) error {
	p.mu.Lock()
	c := p.latest
	p.mu.Unlock()
	if c == nil {
		return errors.New("no connection")
	}
	if _, err := c.Write(binary.BigEndian.AppendUint16([]byte{0x88, 2}, code)); err != nil {
		return err
	}
	_ = c.(*net.TCPConn).CloseWrite() // the client may have been faster
	return nil
}

func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// settle waits until the clients have been brought nothing for a second, and says how many bytes they have been brought in all.
func (p *proxy) settle() (any, error) {
	last, since := p.brought.Load(), time.Now()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if n := p.brought.Load(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) >= time.Second {
			return map[string]int64{"brought": last}, nil
		}
	}
	return nil, errors.New("the gateway goes on sending")
}
