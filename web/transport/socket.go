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

// errSlow means that a client read nothing for its slowLimit.
var errSlow = errors.New("client takes nothing")

// Socket is an accepted connection, below TLS and HTTP. It knows what the layers above cannot see: whether the peer still reads what is written.
type Socket struct {
	net.Conn
	slowLimit time.Duration // set once; how long a write may wait without the peer reading a byte
	onLeave   func()        // set once; called when the client is no stranger any more, perhaps more than once
	unread    []byte        // owned by whoever reads; bytes that come before those of Conn

	deadlineFixed atomic.Bool // setFinalDeadline has set a deadline, which replaces slowLimit
	lastTaken     atomicTime  // when the peer last made room for a write that waited
	wasSlow       atomic.Bool // a write has failed because the peer read nothing
}

// NewSocket returns the Socket of an accepted connection. A write fails when the peer reads nothing for slowLimit. onLeave is called when the client
// has authenticated and when the connection is closed.
func NewSocket(c net.Conn, slowLimit time.Duration, onLeave func()) *Socket {
	return &Socket{Conn: c, slowLimit: slowLimit, onLeave: onLeave}
}

// LeaveStrangers records that the client has authenticated.
func (s *Socket) LeaveStrangers() { s.onLeave() }

// Read reads first what was given back.
func (s *Socket) Read(p []byte) (int, error) {
	if len(s.unread) == 0 {
		return s.Conn.Read(p)
	}
	n := copy(p, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

// An atomicTime is set by one goroutine and read by another. It uses the monotonic clock, so that setting the machine's time makes no client look
// silent. The zero value means no moment.
type atomicTime struct{ after atomic.Int64 } // nanoseconds since began

var clockBase = time.Now()

func (m *atomicTime) set(at time.Time) { m.after.Store(max(1, int64(at.Sub(clockBase)))) }

func (m *atomicTime) clear() { m.after.Store(0) }

// never is the result of ago for no moment.
const never = time.Duration(math.MaxInt64)

// ago returns how long before now the moment was.
func (m *atomicTime) ago(now time.Time) time.Duration {
	if after := m.after.Load(); after != 0 {
		return now.Sub(clockBase) - time.Duration(after)
	}
	return never
}

// minBlocked separates a write that had to wait for the peer from one that only copied into the kernel's buffer.
const minBlocked = 20 * time.Millisecond

// writeChecks is how often, within slowLimit, a write checks whether the peer has read something. It therefore gives up at most an eighth of
// slowLimit late.
const writeChecks = 8

// Write fails when the peer reads nothing for slowLimit. As long as the peer reads anything, Write goes on.
func (s *Socket) Write(p []byte) (n int, err error) {
	took := time.Now() // at first, when the write began
	for start := took; ; start = time.Now() {
		if !s.deadlineFixed.Load() {
			s.SetWriteDeadline(start.Add(s.slowLimit / writeChecks))
			if s.deadlineFixed.Load() { // setFinalDeadline was called meanwhile, and its deadline has been overwritten
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
			s.wasSlow.Store(true)
			return n, errSlow
		}
	}
}

// setFinalDeadline bounds all later reading and writing; what is not complete by then fails.
func (s *Socket) setFinalDeadline(d time.Duration) {
	s.deadlineFixed.Store(true)
	s.SetDeadline(time.Now().Add(d))
}

// Close closes the connection.
func (s *Socket) Close() error {
	s.onLeave()
	return s.Conn.Close()
}

// SocketOf returns the Socket below a connection that net/http hands out.
func SocketOf(c net.Conn) *Socket {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	return c.(*Socket)
}
