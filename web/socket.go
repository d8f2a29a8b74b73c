package web

import (
	"container/list"
	"crypto/tls"
	"errors"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// errSlow ends a client that took nothing for Config.SlowClient.
var errSlow = errors.New("client takes nothing")

// socket is an accepted connection, below TLS and HTTP. It knows what the layers above cannot see: whether the peer still
// takes what is written to it.
type socket struct {
	net.Conn
	patience time.Duration // set once: how long a write may wait without the peer taking a byte
	known    func()        // set once: takes it off the gate's count of strangers; idempotent

	hurried atomic.Bool // no more patience: the deadline that hurry set stands
	tookAt  moment      // when the peer last made room for a write that had to wait
}

// A moment is set by one goroutine and read by another. It goes by the clock that nobody sets: a client is not silent because
// the machine's time was put right. The zero moment is none.
type moment struct{ after atomic.Int64 } // nanoseconds since began

var began = time.Now()

func (m *moment) set(at time.Time) { m.after.Store(max(1, int64(at.Sub(began)))) }

func (m *moment) clear() { m.after.Store(0) }

// never is how long ago no moment was.
const never = time.Duration(math.MaxInt64)

// ago is how long before now it was.
func (m *moment) ago(now time.Time) time.Duration {
	if after := m.after.Load(); after != 0 {
		return now.Sub(began) - time.Duration(after)
	}
	return never
}

// waited tells a write that had to wait for the peer from one that only copied into the kernel's buffer.
const waited = 20 * time.Millisecond

// glances is how many times in its patience a write looks whether the peer has taken something: how long after the last byte it gives up is
// known to an eighth.
const glances = 8

// Write gives up when the peer takes nothing for as long as patience lasts; while it takes anything at all, it goes on.
func (s *socket) Write(p []byte) (n int, err error) {
	took := time.Now() // or when the write began
	for start := took; ; start = time.Now() {
		if !s.hurried.Load() {
			s.SetWriteDeadline(start.Add(s.patience / glances))
			if s.hurried.Load() { // hurry came between, and its deadline was lost
				s.SetWriteDeadline(start)
			}
		}
		m, err := s.Conn.Write(p[n:])
		n += m
		now := time.Now()
		if m > 0 {
			if now.Sub(took) > waited {
				s.tookAt.set(now)
			}
			took = now
		}
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case s.hurried.Load():
			return n, err
		case now.Sub(took) >= s.patience:
			return n, errSlow
		}
	}
}

// hurry bounds all reading and writing from now on: what is not through by then fails.
func (s *socket) hurry(d time.Duration) {
	s.hurried.Store(true)
	s.SetDeadline(time.Now().Add(d))
}

func (s *socket) Close() error {
	s.known()
	return s.Conn.Close()
}

// socketOf finds our part of a connection that net/http hands out.
func socketOf(c net.Conn) *socket {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*socket)
}

// gate is a listener that bounds how many strangers, clients that have not shown who they are, may be connected at once, and for how long:
// from the first byte of TLS to the last of an answer. Where there are more, the one that has been a stranger for longest goes, unheard: it
// had its time, while a client with a token needs but milliseconds. Whoever holds connections open without a word thus keeps nobody else out.
type gate struct {
	net.Listener
	patience func() time.Duration // of a connection to come
	life     time.Duration        // of a stranger
	most     int
	pushed   prometheus.Counter // strangers that had to go

	mu        sync.Mutex
	strangers list.List // of *socket, the oldest first; guarded by mu
}

func (g *gate) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: c, patience: g.patience()}
	expel := time.AfterFunc(g.life, func() { c.Close() }) // whoever reads or writes it notices
	g.mu.Lock()
	place := g.strangers.PushBack(s)
	s.known = func() {
		expel.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.strangers.Remove(place) // does nothing when it is out already
	}
	var oldest *socket
	if g.strangers.Len() > g.most {
		oldest = g.strangers.Remove(g.strangers.Front()).(*socket)
	}
	g.mu.Unlock()
	if oldest != nil {
		g.pushed.Inc()
		oldest.Conn.Close() // who serves it reads that, and closes it too
	}
	return s, nil
}
