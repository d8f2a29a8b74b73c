package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
	"trl/protocol"
)

// gate serves connections as listen does until it is shut, and cuts those that come later off before they are WebSockets, as
// a balancer without its backend does.
type gate struct {
	url  string
	shut atomic.Bool
	cut  atomic.Int32 // how many
}

func newGate(t *testing.T, play func(*gate, *peer)) *gate {
	var n atomic.Int32
	g := &gate{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.shut.Load() {
			g.cut.Add(1)
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
		p := &peer{t, c, int(n.Add(1))}
		if p.greet() {
			play(g, p)
		}
	}))
	t.Cleanup(srv.Close)
	g.url = srv.URL
	return g
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
			r := bufio.NewReader(c)
			if _, err := r.ReadSlice('\n'); err == nil { // the Client asks for the epoch first
				io.WriteString(c, `{"id":1,"ok":true,"data":{"epoch":"e-1"}}`+"\n")
				play(c, r)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-served })
	return path
}

func TestLossIsNoEnd(t *testing.T) {
	g := newGate(t, func(g *gate, p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(0, "begin")
		g.shut.Store(true)
	})
	c := dial(t, Options{Patience: 100 * time.Millisecond, URL: g.url})
	s, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays so
		if exit, err := s.Copy(soon(t), io.Discard, io.Discard); !errors.Is(err, ErrConnectionLost) || errors.Is(err, io.EOF) {
			t.Errorf("exit %+v, %v", exit, err)
		}
	}
	if _, err := Connect(soon(t), c.o); err == nil || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestLossOfACallIsTyped(t *testing.T) {
	c := dial(t, Options{Unix: unixServer(t, func(c net.Conn, r *bufio.Reader) { r.ReadSlice('\n') })})
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrConnectionLost) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	c.Close()
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// silent accepts connections and says nothing on them; met gets one token for each.
func silent(t *testing.T) (url string, met chan struct{}) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	met = make(chan struct{}, 100)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			met <- struct{}{}
		}
	}()
	t.Cleanup(func() { l.Close(); <-served })
	return "http://" + l.Addr().String(), met
}

func TestCloseEndsDialling(t *testing.T) {
	drop := make(chan struct{})
	c := dial(t, Options{Patience: time.Hour, URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		<-drop
	})})
	s, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	url, met := silent(t)
	c.o.URL = url
	close(drop)
	ended := make(chan error, 2)
	go func() { _, err := read(s)(soon(t)); ended <- err }()
	<-met
	go func() { ended <- c.Call(soon(t), "x", nil, nil) }()
	c.Close()
	for range 2 {
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
}

func TestOnLostMayClose(t *testing.T) {
	g := newGate(t, func(g *gate, p *peer) { g.shut.Store(true) })
	var c *Client
	c = dial(t, Options{URL: g.url, OnLost: func(error) { c.Close() }})
	if _, err := inOne(c).ExecStream(context.Background(), "x", nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestALossIsOne: however many miss the connection, it is told once, they hear the same of it, and who comes when patience
// has ended does not have it anew.
func TestALossIsOne(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	g := newGate(t, func(g *gate, p *peer) { g.shut.Store(true) })
	var lost atomic.Int32
	c := dial(t, Options{Patience: 5 * time.Second, URL: g.url, OnLost: func(error) { lost.Add(1) }}) // all six miss it within this
	<-c.link.closing
	ended := make(chan error)
	for range 6 {
		go func() { ended <- c.Call(soon(t), "x", nil, nil) }()
	}
	first := <-ended
	for range 5 {
		if err := <-ended; err != first || !errors.Is(err, ErrConnectionLost) {
			t.Errorf("%v, and %v", err, first)
		}
	}
	before := g.cut.Load()
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrConnectionLost) {
		t.Error(err)
	}
	if n := g.cut.Load() - before; n != 1 || lost.Load() != 1 {
		t.Errorf("%d attempts when patience had ended; told %d times", n, lost.Load())
	}
	g.shut.Store(false)
	if err := c.Call(soon(t), "x", nil, nil); !errors.Is(err, ErrConnectionLost) { // the peer takes it and goes
		t.Error(err)
	}
	if n := g.cut.Load() - before; n != 1 {
		t.Error("did not connect when the server was back")
	}
}

// TestPatienceEndsWithAServerThatAcceptsAndDrops: also when it answers that it will send the stream.
func TestPatienceEndsWithAServerThatAcceptsAndDrops(t *testing.T) {
	for _, answers := range []bool{false, true} {
		c := dial(t, Options{Patience: 500 * time.Millisecond, URL: listen(t, func(p *peer) {
			if q, _ := p.take(); answers {
				p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
			}
		})})
		s, err := inOne(c).ExecStream(context.Background(), "x", nil)
		if err == nil {
			_, err = read(s)(soon(t))
		}
		if !errors.Is(err, ErrConnectionLost) {
			t.Errorf("answers %v: %v", answers, err)
		}
	}
}

// TestUnreachableNodeIsWaitedFor: a request for a node that cannot be reached is sent again, whatever it is, until our patience is over.
func TestUnreachableNodeIsWaitedFor(t *testing.T) {
	refusals := 2
	c := dial(t, Options{Patience: 10 * time.Second, URL: listen(t, func(p *peer) {
		for q, ok := p.take(); ok; q, ok = p.take() {
			switch {
			case q.Method == "lost" || refusals > 0:
				refusals--
				p.send(`{"id":%d,"ok":false,"error":{"code":"NODE_UNREACHABLE","message":"gone","details":{"node":"n2","retry_after_ms":1}}}`, q.ID)
			case q.Method == "exec.stream":
				p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
				p.exit(7)
			default:
				p.ok(q, `{}`)
			}
		}
	})})
	if err := c.Call(soon(t), "session.rename", nil, nil); err != nil || refusals != 0 {
		t.Errorf("%v, %d refusals left", err, refusals)
	}
	refusals = 2
	cmd, err := inOne(c).ExecStream(soon(t), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if e, err := read(cmd)(soon(t)); err != nil || !e.ends() {
		t.Errorf("%+v %v", e, err)
	}
	c.o.Patience = 200 * time.Millisecond
	if e, ok := errors.AsType[*Error](c.Call(soon(t), "lost", nil, nil)); !ok || e.Code != "NODE_UNREACHABLE" {
		t.Errorf("%+v", e)
	}
	c.o.Patience = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Call(ctx, "lost", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// TestPatienceBeginsAnewWithAConnectionOfUse: a dozen that bring a byte each take longer than one patience.
func TestPatienceBeginsAnewWithAConnectionOfUse(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	const connections = 16 // with a quarter of a second between them
	c := dial(t, Options{Patience: 3 * time.Second, URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		p.output(p.n-1, "x")
		if p.n == connections {
			p.exit(0)
			p.drain()
		}
	})})
	s, err := inOne(c).ExecStream(context.Background(), "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := s.Copy(soon(t), &out, io.Discard); err != nil || out.Len() != connections {
		t.Errorf("%q, %v", &out, err)
	}
}

// TestAnErrorWithoutAnIDIsWhyTheConnectionEnds: so a full server says it on the Unix socket.
func TestAnErrorWithoutAnIDIsWhyTheConnectionEnds(t *testing.T) {
	c := dial(t, Options{Patience: 300 * time.Millisecond, Unix: unixServer(t, func(c net.Conn, r *bufio.Reader) {
		io.WriteString(c, `{"id":null,"ok":false,"error":{"code":"LIMIT_EXCEEDED","message":"too many connections"}}`+"\n")
	})})
	full := func(err error) {
		t.Helper()
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != protocol.LimitExceeded || !errors.Is(err, ErrConnectionLost) {
			t.Error(err)
		}
	}
	full(c.Call(soon(t), "x", nil, nil))
	_, err := inOne(c).ExecStream(context.Background(), "x", nil)
	full(err)
}

func TestASilentPeerIsOneAttemptOfMany(t *testing.T) {
	c := dial(t, Options{Patience: time.Hour, attempt: 50 * time.Millisecond, URL: listen(t, func(p *peer) { p.take() })})
	url, met := silent(t)
	c.o.URL = url
	ended := make(chan error, 1)
	go func() { _, err := inOne(c).ExecStream(context.Background(), "x", nil); ended <- err }()
	for n := range 3 {
		select {
		case <-met:
		case err := <-ended:
			t.Fatalf("after %d attempts: %v", n, err)
		}
	}
	c.Close()
	<-ended
}

func TestWhyThereIsNoPlaceIsTyped(t *testing.T) {
	for _, x := range []struct {
		status int
		why    string
		code   protocol.Code
	}{
		{429, "too many connections: 2 of principal\n", protocol.LimitExceeded},
		{503, "too many connections: 3 of all\n", protocol.LimitExceeded},
		{429, "", protocol.LimitExceeded},
		{429, "too many wrong tokens came from this address\n", protocol.RateLimited},
		{503, "shutting down\n", protocol.ShuttingDown},
		{503, "<html>no healthy upstream", ""},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(x.status)
			io.WriteString(w, x.why)
		}))
		c, err := Connect(soon(t), Options{URL: srv.URL})
		if err == nil {
			c.Close()
			t.Fatal("connected")
		}
		var e *protocol.Error
		if errors.As(err, &e) != (x.code != "") || e != nil && e.Code != x.code || !temporary(err) || !strings.Contains(err.Error(), strings.TrimSpace(x.why)) {
			t.Errorf("%d %q: %v", x.status, x.why, err)
		}
		if _, err = (&Client{o: Options{URL: srv.URL}}).Recording(soon(t), "r-1", false); errors.As(err, &e) && e.Code != x.code {
			t.Errorf("%d %q: %v", x.status, x.why, err)
		}
		srv.Close()
	}
}

// TestConnectAwaitsASuccessor: a gateway that is shutting down, or ends before it answers, is dialled again, where that was asked for, and until the
// context ends.
func TestConnectAwaitsASuccessor(t *testing.T) {
	const cuts, refusals = 2, 2
	var dials atomic.Int32
	var alwaysCuts, successorServes atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := dials.Add(1)
		if alwaysCuts.Load() || successorServes.Load() && n <= cuts {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
			}
			return
		}
		if n <= cuts+refusals || !successorServes.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			io.WriteString(w, "shutting down\n")
			return
		}
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		p := &peer{t: t, c: c}
		p.greet()
		p.drain()
	}))
	defer srv.Close()
	ended, cancel := context.WithCancel(soon(t))
	cancel()
	for ctx, o := range map[context.Context]Options{soon(t): {URL: srv.URL}, ended: {URL: srv.URL, AwaitSuccessor: true}} {
		if c, err := Connect(ctx, o); err == nil {
			c.Close()
			t.Fatalf("%+v: connected", o)
		}
	}
	dials.Store(0)
	successorServes.Store(true)
	dial(t, Options{URL: srv.URL, AwaitSuccessor: true}).Close()
	if n := dials.Load(); n != cuts+refusals+1 {
		t.Errorf("%d dials, want %d", n, cuts+refusals+1)
	}
	alwaysCuts.Store(true)
	for o, want := range map[*Options]int32{{URL: srv.URL}: 1, {URL: srv.URL, AwaitSuccessor: true}: maxCutDials + 1} {
		dials.Store(0)
		if c, err := Connect(soon(t), *o); err == nil {
			c.Close()
			t.Fatalf("%+v: connected", o)
		}
		if n := dials.Load(); n != want {
			t.Errorf("%+v: %d dials of a server that cuts every connection, want %d", o, n, want)
		}
	}
}
