package listen

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
	"time"
	"trl/web/transport"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// How long a stranger may stay connected, and how many strangers there may be at a time.
	StrangerLifetime = 10 * time.Second
	MaxStrangers     = 1024
)

// LimitStrangers returns a listener that bounds strangers. Its connections are Sockets with the limit that slowLimit returns at that moment. expelled
// counts the strangers that were closed.
func LimitStrangers(l net.Listener, slowLimit func() time.Duration, expelled prometheus.Counter) *StrangerListener {
	return &StrangerListener{Listener: l, slowLimit: slowLimit, lifetime: StrangerLifetime, maxStrangers: MaxStrangers, expelled: expelled}
}

type socketKey struct{}

// ConnContext is the ConnContext of an http.Server on such a listener. MarkAuthenticated finds the connection by it.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, socketKey{}, transport.SocketOf(c))
}

// SocketOf returns the connection of a request.
func SocketOf(r *http.Request) *transport.Socket {
	s, _ := r.Context().Value(socketKey{}).(*transport.Socket)
	return s
}

// MarkAuthenticated records that the client of a request has authenticated, so that its connection is no stranger's any more.
func MarkAuthenticated(r *http.Request) {
	if s := SocketOf(r); s != nil {
		s.LeaveStrangers()
	}
}

// StrangerListener bounds how many strangers, clients that have not authenticated, may be connected at once, and for how long: from the first byte of
// TLS to the last of an answer. If there are more, it closes the oldest stranger, without an answer: that one had its time, and a client with a token
// needs only milliseconds. Connections that are held open without a request therefore keep nobody out.
type StrangerListener struct {
	net.Listener
	slowLimit    func() time.Duration // of later connections
	lifetime     time.Duration        // how long a stranger may stay
	maxStrangers int
	expelled     prometheus.Counter // strangers that were closed

	mu        sync.Mutex
	strangers list.List // of *Socket, the oldest first; guarded by mu
}

// Count returns how many strangers are connected.
func (g *StrangerListener) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strangers.Len()
}

// Accept waits for the next connection and returns it as a *Socket.
func (g *StrangerListener) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	expel := time.AfterFunc(g.lifetime, func() { c.Close() }) // the goroutine that reads or writes it notices
	var place *list.Element                                   // guarded by mu
	s := transport.NewSocket(c, g.slowLimit(), func() {
		expel.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.strangers.Remove(place) // has no effect if it has been removed already
	})
	g.mu.Lock()
	place = g.strangers.PushBack(s)
	var oldest *transport.Socket
	if g.strangers.Len() > g.maxStrangers {
		oldest = g.strangers.Remove(g.strangers.Front()).(*transport.Socket)
	}
	g.mu.Unlock()
	if oldest != nil {
		g.expelled.Inc()
		oldest.Conn.Close() // the goroutine that serves it gets an error, and closes it, too
	}
	return s, nil
}
