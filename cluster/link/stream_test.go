package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trl/internal/testkit"
)

// handedStreams is a listener whose connections are the streams of links.
type handedStreams struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *handedStreams) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *handedStreams) Close() error   { return nil }
func (l *handedStreams) Addr() net.Addr { return nil }

// httpOverLinks starts an HTTP server behind a rig, and returns a client that reaches it over links.
func httpOverLinks(t *testing.T, m mode, h http.Handler) *http.Client {
	t.Helper()
	l := &handedStreams{make(chan net.Conn), make(chan struct{})}
	s := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { s.Serve(l) }) // ends with the test
	r := newRig(t, m, Limits{}, func(_ *DialerOptions, o *AcceptorOptions) {
		o.Serve = func(_ context.Context, _ *Hello, c *Conn) { l.conns <- NewStream(c); <-c.Over() }
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := r.dialer.Dial(ctx, r.to, aHello())
		if err != nil {
			return nil, err
		}
		return NewStream(c), nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		close(l.closed)
		s.Close()
		serving.Wait()
	})
	return &http.Client{Transport: transport}
}

func TestHTTPOverALink(t *testing.T) {
	t.Parallel()
	big := bytes.Repeat([]byte("0123456789abcdef"), 300<<10/16) // more than one piece
	mux := http.NewServeMux()
	mux.HandleFunc("GET /big", func(w http.ResponseWriter, _ *http.Request) { w.Write(big) })
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
	})
	mux.HandleFunc("GET /broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Write(big)
		panic(http.ErrAbortHandler)
	})
	for _, m := range modes(t) {
		t.Run(m.name, func(t *testing.T) {
			c := httpOverLinks(t, m, mux)
			get := func(path string) ([]byte, error) {
				res, err := c.Get("http://node" + path)
				if err != nil {
					return nil, err
				}
				defer res.Body.Close()
				return io.ReadAll(res.Body)
			}
			for range 2 { // the second request takes the same link
				if text, err := get("/big"); err != nil || !bytes.Equal(text, big) {
					t.Errorf("%d bytes of %d, %v", len(text), len(big), err)
				}
			}
			res, err := c.Post("http://node/echo", "text/plain", bytes.NewReader(big))
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(res.Body); err != nil || !bytes.Equal(text, big) {
				t.Errorf("%d bytes of %d came back, %v", len(text), len(big), err)
			}
			res.Body.Close()
			if text, err := get("/broken"); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("a response that broke off: %d bytes, %v", len(text), err)
			}
		})
	}
}

// A client that reads slowly makes the handler wait, and one that goes ends it.
func TestStreamWaitsForItsReader(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	gone := make(chan error, 1)
	c := httpOverLinks(t, modes(t)[0], http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		piece := []byte(strings.Repeat("x", 256<<10))
		for range 4096 { // 1 GiB
			n, err := w.Write(piece)
			sent.Add(int64(n))
			if err != nil {
				<-r.Context().Done()
				gone <- err
				return
			}
		}
		gone <- nil
	}))
	ctx, cancel := context.WithCancel(within(t))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://node/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	before := int64(0)
	testkit.Eventually(t, "the handler waits", func() bool {
		before = sent.Load()
		time.Sleep(200 * time.Millisecond)
		return before > 0 && before == sent.Load()
	})
	if _, err := io.CopyN(io.Discard, res.Body, 64<<20); err != nil {
		t.Fatal(err)
	}
	if sent.Load() == before {
		t.Error("the handler did not go on")
	}
	cancel()
	select {
	case err := <-gone:
		if err == nil {
			t.Error("1 GiB was sent to a client that has gone")
		}
	case <-within(t).Done():
		t.Error("the handler goes on after its client has gone")
	}
}
