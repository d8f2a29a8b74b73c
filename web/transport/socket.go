package transport

import (
	"crypto/tls"
	"errors"
	"math"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// errSlow says that a client took nothing for its slowLimit.
var errSlow = errors.New("client takes nothing")

// Socket is an accepted connection, below TLS and HTTP. It knows what the layers above cannot see: whether the peer still
// takes what is written to it.
type Socket struct {
	net.Conn
	slowLimit time.Duration // set once: how long a write may wait without the peer taking a byte
	onLeave   func()        // set once: called when it is no stranger's any more, perhaps more than once

	deadlineFixed atomic.Bool // slowLimit counts no more: the deadline that setFinalDeadline set stands
	lastTaken     atomicTime  // when the peer last made room for a write that had to wait
}

// NewSocket makes a Socket of an accepted connection. A write fails when the peer takes nothing for slowLimit. onLeave is called when the client
// has shown who it is, and when the connection is closed.
func NewSocket(c net.Conn, slowLimit time.Duration, onLeave func()) *Socket {
	return &Socket{Conn: c, slowLimit: slowLimit, onLeave: onLeave}
}

// LeaveStrangers notes that the client has shown who it is.
func (s *Socket) LeaveStrangers() { s.onLeave() }

// An atomicTime is set by one goroutine and read by another. It goes by the clock that nobody sets: a client is not silent because
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
func (s *Socket) Write(p []byte) (n int, err error) {
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
func (s *Socket) setFinalDeadline(d time.Duration) {
	s.deadlineFixed.Store(true)
	s.SetDeadline(time.Now().Add(d))
}

// Close closes the connection.
func (s *Socket) Close() error {
	s.onLeave()
	return s.Conn.Close()
}

// SocketOf finds our part of a connection that net/http hands out.
func SocketOf(c net.Conn) *Socket {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*Socket)
}
