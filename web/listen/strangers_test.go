package listen

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
	"trl/internal/testkit"
	"trl/web/transport"

	"github.com/prometheus/client_golang/prometheus"
)

// TestGateExpels: a stranger's time is over whatever he does; who has shown who he is stays.
func TestGateExpels(t *testing.T) {
	testkit.TakesLong(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limits := 0 // each connection is asked for its own
	g := &StrangerListener{Listener: inner, slowLimit: func() time.Duration { limits++; return patience }, lifetime: 5 * time.Second, maxStrangers: 10}
	defer g.Close()
	dial := func() (net.Conn, *transport.Socket) {
		t.Helper()
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); s.Close() })
		return c, s.(*transport.Socket)
	}
	known, itsSocket := dial()
	itsSocket.LeaveStrangers()
	stranger, his := dial() // later, and gone earlier
	if limits != 2 {
		t.Errorf("two connections looked %d times how long a write may wait", limits)
	}
	for _, c := range []net.Conn{stranger, his} {
		c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("the stranger is still there: %v", err)
		}
	}
	if _, err := known.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	itsSocket.SetReadDeadline(time.Now().Add(patience))
	if _, err := itsSocket.Read(make([]byte, 1)); err != nil {
		t.Errorf("who is known was shown out: %v", err)
	}
}

func TestStrangersAreBounded(t *testing.T) { // K13
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &StrangerListener{Listener: inner, slowLimit: func() time.Duration { return patience }, lifetime: patience, maxStrangers: 2, expelled: prometheus.NewCounter(prometheus.CounterOpts{Name: "pushed"})}
	defer g.Close()
	join := func() (peer net.Conn, sock *transport.Socket) {
		t.Helper()
		peer, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { peer.Close() })
		peer.SetDeadline(time.Now().Add(patience))
		c, err := g.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return peer, c.(*transport.Socket)
	}
	ended := func(peer net.Conn) bool {
		peer.SetReadDeadline(time.Now().Add(patience))
		_, err := peer.Read(make([]byte, 1))
		return errors.Is(err, io.EOF)
	}
	stays := func(peer net.Conn, sock *transport.Socket) bool {
		sock.Write([]byte("x"))
		_, err := peer.Read(make([]byte, 1))
		return err == nil
	}
	one, _ := join()
	two, second := join()
	three, third := join()
	if !ended(one) || !stays(two, second) || !stays(three, third) {
		t.Fatal("not the oldest made room for the third")
	}
	second.LeaveStrangers() // showed its token: it is none of them any more
	second.LeaveStrangers()
	four, fourth := join()
	five, fifth := join()
	if !stays(two, second) || !ended(three) || !stays(four, fourth) || !stays(five, fifth) {
		t.Fatal("not the oldest stranger made room for the fifth connection")
	}
	for _, c := range []net.Conn{third, second, fourth, fifth} {
		c.Close()
	}
	if n := g.strangers.Len(); n != 0 {
		t.Fatalf("%d strangers left", n)
	}
}
