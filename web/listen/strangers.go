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
	// How long a stranger may stay, and how many there may be at a time.
	StrangerLifetime = 10 * time.Second
	MaxStrangers     = 1024
)

// LimitStrangers makes a listener whose connections are Sockets with the limit that slowLimit gives at the moment, and which bounds strangers.
// expelled counts those that had to go.
func LimitStrangers(l net.Listener, slowLimit func() time.Duration, expelled prometheus.Counter) *StrangerListener {
	return &StrangerListener{Listener: l, slowLimit: slowLimit, lifetime: StrangerLifetime, maxStrangers: MaxStrangers, expelled: expelled}
}

type socketKey struct{}

// ConnContext is http.Server's for connections of LimitStrangers: MarkAuthenticated finds the connection by it.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, socketKey{}, transport.SocketOf(c))
}

// MarkAuthenticated takes a request's connection off the strangers: it has shown who it is.
func MarkAuthenticated(r *http.Request) {
	if s, ok := r.Context().Value(socketKey{}).(*transport.Socket); ok {
		s.LeaveStrangers()
	}
}

// StrangerListener is a listener that bounds how many strangers, clients that have not shown who they are, may be connected at once, and for how long:
// from the first byte of TLS to the last of an answer. Where there are more, the one that has been a stranger for longest goes, unheard: it
// had its time, while a client with a token needs but milliseconds. Whoever holds connections open without a word thus keeps nobody else out.
type StrangerListener struct {
	net.Listener
	slowLimit    func() time.Duration // of a connection to come
	lifetime     time.Duration        // of a stranger
	maxStrangers int
	expelled     prometheus.Counter // strangers that had to go

	mu        sync.Mutex
	strangers list.List // of *Socket, the oldest first; guarded by mu
}

// Count is how many strangers are connected.
func (g *StrangerListener) Count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.strangers.Len()
}

// Accept waits for the next connection, which is a *Socket.
func (g *StrangerListener) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	expel := time.AfterFunc(g.lifetime, func() { c.Close() }) // whoever reads or writes it notices
	var place *list.Element                                   // guarded by mu
	s := transport.NewSocket(c, g.slowLimit(), func() {
		expel.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.strangers.Remove(place) // does nothing when it is out already
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
		oldest.Conn.Close() // who serves it reads that, and closes it too
	}
	return s, nil
}
