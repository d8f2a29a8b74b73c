package client

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/protocol"
)

// gate serves connections as listen does while open is true, and cuts the others off before they are WebSockets, as a
// balancer without its backend does.
func gate(t *testing.T, open *atomic.Bool, play func(*peer)) string {
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !open.Load() {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
			return
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		play(&peer{t, c, int(n.Add(1))})
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// unixServer plays one side of each connection to the socket it returns.
func unixServer(t *testing.T, play func(net.Conn, *bufio.Reader)) string {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			play(c, bufio.NewReader(c))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-served })
	return path
}

func TestLossIsNoEnd(t *testing.T) {
	var open atomic.Bool
	open.Store(true)
	c := dial(t, Options{Patience: 100 * time.Millisecond, URL: gate(t, &open, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "begin")
		open.Store(false)
	})})
	s, err := c.Start(soon(t), protocol.Exec{Command: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays so
		if exit, err := s.Copy(soon(t), io.Discard, io.Discard); !errors.Is(err, ErrLost) || errors.Is(err, io.EOF) {
			t.Errorf("exit %+v, %v", exit, err)
		}
	}
	if _, err := Dial(soon(t), c.o); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestLossOfACallIsTyped(t *testing.T) {
	c := dial(t, Options{Unix: unixServer(t, func(c net.Conn, r *bufio.Reader) { r.ReadSlice('\n') })})
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrLost) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	c.Close()
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
