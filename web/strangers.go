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
	slowLimit      time.Duration // set once: how long a write may wait without the peer taking a byte
	leaveStrangers func()        // set once: takes it off the gate's count of strangers; idempotent

	deadlineFixed atomic.Bool // slowLimit counts no more: the deadline that setFinalDeadline set stands
	lastTaken     atomicTime  // when the peer last made room for a write that had to wait
}

// A atomicTime is set by one goroutine and read by another. It goes by the clock that nobody sets: a client is not silent because
// the machine's time was put right. The zero moment is none.
type atomicTime struct{ after atomic.Int64 } // nanoseconds since began

var clockBase = time.Now()

func (m *atomicTime) set(at time.Time) { m.after.Store(max(1, int64(at.Sub(clockBase)))) }

func (m *atomicTime) clear() { m.after.Store(0) }

// never is how long ago no moment was.
const never = time.Duration(math.MaxInt64)

// ago is how long before now it was.
func (m *atomicTime) ago(now time.Time) time.Duration {
	if after := m.after.Load(); after != 0 {
		return now.Sub(clockBase) - time.Duration(after)
	}
	return never
}

// minBlocked tells a write that had to wait for the peer from one that only copied into the kernel's buffer.
const minBlocked = 20 * time.Millisecond

// writeChecks is how many times in slowLimit a write looks whether the peer has taken something: how long after the last byte it gives up is
// known to an eighth.
const writeChecks = 8

// Write gives up when the peer takes nothing for slowLimit; while it takes anything at all, it goes on.
func (s *socket) Write(p []byte) (n int, err error) {
	took := time.Now() // or when the write began
	for start := took; ; start = time.Now() {
		if !s.deadlineFixed.Load() {
			s.SetWriteDeadline(start.Add(s.slowLimit / writeChecks))
			if s.deadlineFixed.Load() { // hurry came between, and its deadline was lost
				s.SetWriteDeadline(start)
			}
		}
		m, err := s.Conn.Write(p[n:])
		n += m
		now := time.Now()
		if m > 0 {
			if now.Sub(took) > minBlocked {
				s.lastTaken.set(now)
			}
			took = now
		}
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case s.deadlineFixed.Load():
			return n, err
		case now.Sub(took) >= s.slowLimit:
			return n, errSlow
		}
	}
}

// setFinalDeadline bounds all reading and writing from now on: what is not through by then fails.
func (s *socket) setFinalDeadline(d time.Duration) {
	s.deadlineFixed.Store(true)
	s.SetDeadline(time.Now().Add(d))
}

func (s *socket) Close() error {
	s.leaveStrangers()
	return s.Conn.Close()
}

// socketOf finds our part of a connection that net/http hands out.
func socketOf(c net.Conn) *socket {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*socket)
}

// strangerListener is a listener that bounds how many strangers, clients that have not shown who they are, may be connected at once, and for how long:
// from the first byte of TLS to the last of an answer. Where there are more, the one that has been a stranger for longest goes, unheard: it
// had its time, while a client with a token needs but milliseconds. Whoever holds connections open without a word thus keeps nobody else out.
type strangerListener struct {
	net.Listener
	slowLimit    func() time.Duration // of a connection to come
	lifetime     time.Duration        // of a stranger
	maxStrangers int
	expelled     prometheus.Counter // strangers that had to go

	mu        sync.Mutex
	strangers list.List // of *socket, the oldest first; guarded by mu
}

func (g *strangerListener) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: c, slowLimit: g.slowLimit()}
	expel := time.AfterFunc(g.lifetime, func() { c.Close() }) // whoever reads or writes it notices
	g.mu.Lock()
	place := g.strangers.PushBack(s)
	s.leaveStrangers = func() {
		expel.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.strangers.Remove(place) // does nothing when it is out already
	}
	var oldest *socket
	if g.strangers.Len() > g.maxStrangers {
		oldest = g.strangers.Remove(g.strangers.Front()).(*socket)
	}
	g.mu.Unlock()
	if oldest != nil {
		g.expelled.Inc()
		oldest.Conn.Close() // who serves it reads that, and closes it too
	}
	return s, nil
}
