package transport

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// slowPeer is a connection whose peer makes room for some bytes now and then, and for no more.
type slowPeer struct {
	net.Conn
	room     []time.Duration // when there is room for a byte
	deadline time.Time
}

func (c *slowPeer) SetWriteDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *slowPeer) Write(p []byte) (n int, err error) {
	began := time.Now()
	for len(c.room) > 0 && n < len(p) && began.Add(c.room[0]).Before(c.deadline) {
		time.Sleep(c.room[0])
		n, c.room, began = n+1, c.room[1:], time.Now()
	}
	if n == len(p) {
		return n, nil
	}
	if len(c.room) > 0 {
		c.room[0] -= time.Until(c.deadline)
	}
	time.Sleep(time.Until(c.deadline))
	return n, os.ErrDeadlineExceeded
}

// TestPatienceIsFromTheLastByte: not from when a write began, whose first bytes may have gone to the kernel alone.
func TestPatienceIsFromTheLastByte(t *testing.T) {
	const second = time.Second
	for name, c := range map[string]struct {
		room  []time.Duration // between one byte and the next
		total time.Duration
	}{
		"at once, then nothing":    {[]time.Duration{0, 0, 0}, 0},
		"now and then, never long": {[]time.Duration{0, 29 * second, 29 * second, 5 * second}, 63 * second},
		"nothing at all":           {nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &Socket{Conn: &slowPeer{room: c.room}, slowLimit: 30 * second}
			began := time.Now()
			n, err := s.Write(make([]byte, 10))
			late := time.Since(began) - c.total - s.slowLimit
			if n != len(c.room) || !errors.Is(err, errSlow) || late < 0 || late > s.slowLimit/4 {
				t.Errorf("%s: %d bytes, %v, %v later than it should", name, n, err, late)
			}
		})
	}
}
