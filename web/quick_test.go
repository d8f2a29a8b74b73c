package web

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// both is one connection of the kernel's, with ours at one end.
func both(t *testing.T, network, addr string) (ours, peer net.Conn) {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); peer.Close() })
	if ours = quick(c); ours == c {
		t.Fatal("a socket, and not taken for one")
	}
	return ours, peer
}

// A quick connection does what net's does, waits where that waits, and fails as it fails.
func TestQuickConn(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": t.TempDir() + "/socket"} {
		t.Run(network, func(t *testing.T) {
			ours, peer := both(t, network, addr)
			much := bytes.Repeat([]byte("0123456789abcdef"), 1<<22) // more than any buffer of the kernel's: both wait
			wrote := make(chan error, 1)
			go func() {
				n, err := ours.Write(much)
				if err == nil && n != len(much) {
					err = io.ErrShortWrite
				}
				wrote <- err
			}()
			got := make([]byte, len(much))
			if _, err := io.ReadFull(peer, got); err != nil || !bytes.Equal(got, much) {
				t.Errorf("not what was written: %v", err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			go func() { _, err := peer.Write(much); wrote <- err }()
			clear(got)
			if _, err := io.ReadFull(ours, got); err != nil || !bytes.Equal(got, much) {
				t.Errorf("not what was sent: %v", err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}

			fails := func(op string, err, want error) {
				t.Helper()
				var fault *net.OpError
				if !errors.Is(err, want) || !errors.As(err, &fault) || fault.Op != op {
					t.Errorf("%s: %v, want %v", op, err, want)
				}
			}
			ours.SetDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := ours.Read(got)
			fails("read", err, os.ErrDeadlineExceeded)
			ours.SetDeadline(time.Now().Add(50 * time.Millisecond))
			n, err := ours.Write(much)
			fails("write", err, os.ErrDeadlineExceeded)
			if n == 0 || n == len(much) {
				t.Errorf("%d of %d written, and nobody reads", n, len(much))
			}
			ours.SetDeadline(time.Time{})
			if _, err := io.ReadFull(peer, got[:n]); err != nil || !bytes.Equal(got[:n], much[:n]) {
				t.Errorf("what it says is written: %v", err)
			}

			peer.Close()
			if n, err := ours.Read(got); n != 0 || err != io.EOF {
				t.Errorf("the peer is gone: %d %v", n, err)
			}
			for err = nil; err == nil; { // TCP learns it by the answer to the first
				_, err = ours.Write([]byte("x"))
			}
			fails("write", err, err)
			ours.Close()
			_, err = ours.Read(got)
			fails("read", err, net.ErrClosed)
			_, err = ours.Write(got[:1])
			fails("write", err, net.ErrClosed)
		})
	}
}

// Who reads is woken by who closes.
func TestQuickConnClosed(t *testing.T) {
	ours, _ := both(t, "tcp", "127.0.0.1:0")
	read := make(chan error, 1)
	go func() { _, err := ours.Read(make([]byte, 1)); read <- err }()
	ours.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestQuickConnAllocatesNothing(t *testing.T) {
	ours, peer := both(t, "tcp", "127.0.0.1:0")
	there, err := peer.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	buf := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ours.Write(buf); err != nil {
			t.Error(err)
		}
		if _, err := there.Read(buf); err != nil {
			t.Error(err)
		}
		if _, err := there.Write(buf[:1]); err != nil {
			t.Error(err)
		}
		if _, err := ours.Read(buf); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
