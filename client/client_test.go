package client

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"trl/internal/testkit"
	"trl/protocol"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testkit.Quick { // the examples need a gateway
		_ = flag.Set("test.skip", "^Example")
	}
	testkit.Main(m)
}

// soon bounds what a test waits for; far beyond what any of it takes on a busy machine.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// inOne is a session whose id need not be asked for.
func inOne(c *Client) *Session { return &Session{c: c, id: "s-1"} }

// read is Next without the EventStart.
func read(c *Command) func(context.Context) (Event, error) {
	c.started = true
	return c.Next
}

// feedful is more events than a reader of a test takes.
const feedful = 8

// peer is the server's end of one connection, played by a test.
type peer struct {
	t *testing.T
	c *websocket.Conn
	n int // which connection it is, from 1
}

type message struct {
	ID     uint64         `json:"id"`
	Method string         `json:"method"`
	Params map[string]any `json:"params"`
}

// take reads one request, and false when the client has gone.
func (p *peer) take() (q message, ok bool) {
	_, b, err := p.c.Read(context.Background())
	if err != nil {
		return q, false
	}
	if err := json.Unmarshal(b, &q); err != nil {
		p.t.Errorf("request %s: %v", b, err)
	}
	return q, true
}

func (p *peer) send(format string, args ...any) {
	_ = p.c.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...))
}

func (p *peer) ok(q message, data string) { p.send(`{"id":%d,"ok":true,"data":%s}`, q.ID, data) }

func (p *peer) output(offset int, text string) {
	p.send(`{"event":"exec.output","data":{"stream_id":"st-1","exec_id":"x-1","offset":%d,"stream":"stdout","data":%q}}`, offset, text)
}

func (p *peer) exit(code int) {
	p.send(`{"event":"exec.exit","data":{"exec_id":"x-1","stream_id":"st-1","exit_code":%d}}`, code)
}

// greet answers the Client's first request, which asks for the epoch.
func (p *peer) greet() bool {
	q, ok := p.take()
	if ok && q.Method != "system.ping" {
		p.t.Errorf("first request %+v", q)
	}
	p.ok(q, `{"epoch":"e-1"}`)
	return ok
}

// drain reads until the client has gone: somebody must, or its Close waits for the handshake.
func (p *peer) drain() {
	for {
		if _, ok := p.take(); !ok {
			return
		}
	}
}

// listen serves connections by play, one after the other or at once.
func listen(t *testing.T, play func(*peer)) string {
	var n atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"trl.v1"}})
		if err != nil {
			return
		}
		defer c.CloseNow()
		p := &peer{t, c, int(n.Add(1))}
		if p.greet() {
			play(p)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func dial(t *testing.T, o Options) *Client {
	c, err := Connect(soon(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestAnswersFindTheirCallers(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		first, _ := p.take()
		second, _ := p.take()
		p.ok(second, `{"method":"`+second.Method+`"}`)
		p.send(`{"id":%d,"ok":false,"error":{"code":"SESSION_NOT_FOUND","message":"no such session","details":{"a":1}}}`, first.ID)
		p.drain()
	})})
	failed := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		close(begun)
		failed <- c.Call(soon(t), "one", nil, nil)
	}()
	<-begun
	var got struct {
		Method string `json:"method"`
	}
	err := c.Call(soon(t), "two", map[string]int{"x": 1}, &got)
	other := <-failed
	// Which of the two the peer saw first is chance.
	if err != nil {
		err, other = other, err
	} else if got.Method != "two" {
		t.Errorf("answer of %q", got.Method)
	}
	var e *protocol.Error
	if err == nil && other == nil || err != nil && other != nil {
		t.Fatalf("want one failure: %v, %v", err, other)
	}
	if !errors.As(errors.Join(err, other), &e) || e.Code != protocol.SessionNotFound || e.Details["a"] != 1.0 {
		t.Errorf("failure %v", e)
	}
}

func TestCallEndsWithItsContext(t *testing.T) {
	c := dial(t, Options{URL: listen(t, (*peer).drain)})
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(20*time.Millisecond, func() { cancel(enough) })
	if err := c.Call(ctx, "never", nil, nil); !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if err := c.link.lost(); err != nil {
		t.Fatalf("the connection did not outlive the call: %v", err)
	}
}

func TestCloseEndsWaitingCallsAndIsIdempotent(t *testing.T) {
	c := dial(t, Options{URL: listen(t, (*peer).drain)})
	done := make(chan error, 1)
	go func() { done <- c.Call(soon(t), "never", nil, nil) }()
	time.AfterFunc(10*time.Millisecond, func() { c.Close() })
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	c.Close()
	if err := c.Call(soon(t), "any", nil, nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestCloseDoesNotWaitForAStreamNobodyReads(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		for i := range 10 * feedful {
			p.output(i, "x")
		}
		p.drain()
	})})
	s, err := inOne(c).ExecStream(context.Background(), "yes", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(s)(soon(t)); err != nil {
		t.Fatal(err)
	}
	c.Close() // goleak and the test's own deadline are the judges
}

// TestStreamGoesOnWhereItWas: dropped between two chunks, in the middle of the answer, and replayed from too early an offset.
func TestStreamGoesOnWhereItWas(t *testing.T) {
	for _, code := range []websocket.StatusCode{1001, 1011, 1012, 1013, 1014, 1006} {
		t.Run(fmt.Sprint(int(code)), func(t *testing.T) {
			t.Parallel()
			var lost atomic.Int32
			drop := func(p *peer) {
				if code == 1006 {
					p.c.CloseNow()
					return
				}
				p.c.Close(code, "drop")
			}
			c := dial(t, Options{OnLost: func(error) { lost.Add(1) }, URL: listen(t, func(p *peer) {
				q, _ := p.take()
				switch p.n {
				case 1: // accepted, but the answer is lost
					if q.Method != "exec.stream" || q.Params["request_key"] == nil {
						t.Errorf("first request %+v", q)
					}
					drop(p)
				case 2:
					if q.Method != "exec.stream" {
						t.Errorf("second request %+v", q)
					}
					p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
					p.output(0, "one ")
					p.output(4, "two ")
					drop(p)
				case 3:
					if q.Method != "exec.attach" || q.Params["offset"] != 8.0 || q.Params["exec_id"] != "x-1" {
						t.Errorf("third request %+v", q)
					}
					p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":4}`)
					p.output(4, "two three ") // from before: must not be seen twice
					p.send(`{"event":"stream.gap","data":{"stream_id":"st-1","from":14,"to":20}}`)
					p.output(20, "end")
					p.exit(7)
					p.drain()
				}
			})})
			s, err := inOne(c).ExecStream(context.Background(), "x", nil)
			if err != nil {
				t.Fatal(err)
			}
			var text strings.Builder
			for {
				k, err := read(s)(soon(t))
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if k.Type == EventGap {
					fmt.Fprintf(&text, "[%d]", k.Offset-k.From)
				}
				text.Write(k.Data)
			}
			if text.String() != "one two three [6]end" || s.result.ExitCode != 7 || lost.Load() != 2 {
				t.Errorf("got %q, exit %v, lost %d times", &text, s.result.ExitCode, lost.Load())
			}
		})
	}
}

func TestNoSecondConnectionAfterARefusal(t *testing.T) {
	for _, code := range []websocket.StatusCode{1000, 1008, 1009, 4401, 4403} {
		t.Run(fmt.Sprint(int(code)), func(t *testing.T) {
			t.Parallel()
			c := dial(t, Options{URL: listen(t, func(p *peer) {
				if p.n > 1 {
					t.Error("connected again")
				}
				p.take()
				p.c.Close(code, "go away")
			})})
			_, err := inOne(c).ExecStream(context.Background(), "x", nil)
			if websocket.CloseStatus(err) != code {
				t.Error(err)
			}
		})
	}
}

func TestPatienceEnds(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	const patience = 3 * time.Second // an attempt takes no longer; on a busy machine it would end before the refusal
	url := listen(t, func(p *peer) { p.take() })
	c := dial(t, Options{URL: url, Patience: patience})
	c.o.URL = "http://127.0.0.1:1" // nobody there when it comes back
	start := time.Now()
	_, err := inOne(c).ExecStream(context.Background(), "x", nil)
	var op *net.OpError
	if !errors.As(err, &op) || time.Since(start) < patience {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
}

func TestSilenceCountsOnlyWhileReading(t *testing.T) {
	fired := make(chan struct{})
	clock := &silenceTimer{limit: 50 * time.Millisecond, timer: time.AfterFunc(time.Hour, func() { close(fired) })} // not before it is stopped
	clock.timer.Stop()
	select {
	case <-fired:
		t.Fatal("the clock runs while nobody reads")
	case <-time.After(100 * time.Millisecond):
	}
	clock.heard() // what comes while nobody reads must not start it either
	if clock.timer.Stop() {
		t.Fatal("a byte started the clock")
	}
}

// TestASlowAnswerIsNoSilence: it takes longer than a silence may last, but no byte of it does.
func TestASlowAnswerIsNoSilence(t *testing.T) {
	testkit.TakesLong(t)
	t.Parallel()
	const silence = 5 * time.Second // longer than a busy machine holds us up
	text := strings.Repeat("x", 30)
	server, err := url.Parse(listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `"`+text+`"`)
		p.drain()
	}))
	if err != nil {
		t.Fatal(err)
	}
	line, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answering := make(chan struct{})
	served := make(chan struct{})
	defer func() { line.Close(); <-served }()
	go func() { // passes on what the server says, from the answer on byte by byte
		defer close(served)
		down, err := line.Accept()
		if err != nil {
			return
		}
		defer down.Close()
		up, err := net.Dial("tcp", server.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		go func() { io.Copy(up, down); up.Close() }()
		b := make([]byte, 4<<10)
		for {
			n, err := up.Read(b)
			if err != nil {
				return
			}
			piece := n
			select {
			case <-answering:
				piece = 1
			default:
			}
			for at := 0; at < n; at += piece {
				time.Sleep(silence / 20)
				if _, err := down.Write(b[at : at+piece]); err != nil {
					return
				}
			}
		}
	}()
	c := dial(t, Options{URL: "http://" + line.Addr().String(), silence: silence})
	close(answering)
	var got string
	if err := c.Call(soon(t), "x", nil, &got); err != nil || got != text {
		t.Errorf("%q, %v", got, err)
	}
	c.Close()
}

// TestASlowReaderStopsTheReader: what is not read stays in the kernel and in the server, not in us.
func TestASlowReaderStopsTheReader(t *testing.T) {
	var sent atomic.Int64
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, `{"exec_id":"x-1","stream_id":"st-1","offset":0}`)
		block := strings.Repeat("x", 32<<10)
		for i := range 768 {
			p.output(i*len(block), block)
			sent.Add(1)
		}
		p.exit(0)
		p.drain()
	})})
	s, err := inOne(c).ExecStream(context.Background(), "yes", nil)
	if err != nil {
		t.Fatal(err)
	}
	// Until the sender makes no progress for a while: sockets hold some MiB, we feedful chunks.
	for last := int64(-1); sent.Load() != last; time.Sleep(300 * time.Millisecond) {
		last = sent.Load()
	}
	if n := sent.Load(); n == 768 {
		t.Fatal("24 MiB went somewhere")
	}
	var total int64
	for {
		k, err := read(s)(soon(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		total += int64(len(k.Data))
	}
	if total != 768*32<<10 {
		t.Errorf("%d bytes", total)
	}
}

func TestEventsWithoutAStreamGoToTheCallback(t *testing.T) {
	events := make(chan protocol.Event, 4)
	c := dial(t, Options{OnEvent: func(e protocol.Event) { events <- e }, URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.ok(q, "{}")
		p.send(`{"event":"session.state","data":{"to":"IDLE"}}`)
		p.drain()
	})})
	if err := c.Call(soon(t), "session.watch", nil, nil); err != nil {
		t.Fatal(err)
	}
	if e := <-events; e.Name != "session.state" || !strings.Contains(fmt.Sprint(e.Data), "IDLE") {
		t.Errorf("%+v", e)
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		long := strings.Repeat("é", 200<<10) // longer than any buffer on the way
		requests := bufio.NewReader(c)
		for _, answer := range []string{`{"epoch":"e-1"}`, `{"text":"` + long + `"}`} {
			request, _ := requests.ReadString('\n') // an answer that comes before its request is nobody's
			var q struct{ ID jsontext.Value }
			if json.Unmarshal([]byte(request), &q, json.MatchCaseInsensitiveNames(true)) != nil {
				return
			}
			fmt.Fprintf(c, `{"id":%s,"ok":true,"data":%s}`+"\n", q.ID, answer)
		}
		io.Copy(io.Discard, requests)
	}()
	c := dial(t, Options{Unix: path})
	var got struct {
		Text string `json:"text"`
	}
	if err := c.Call(soon(t), "x", nil, &got); err != nil || len(got.Text) != 400<<10 {
		t.Errorf("%d bytes, %v", len(got.Text), err)
	}
	c.Close()
	<-served
}

func TestRefusedUpgradesAreTyped(t *testing.T) {
	for status, code := range map[int]protocol.Code{401: protocol.AuthFailed, 403: protocol.Forbidden, 404: protocol.NotSupported} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
		_, err := Connect(soon(t), Options{URL: srv.URL})
		srv.Close()
		var e *protocol.Error
		if !errors.As(err, &e) || e.Code != code || temporary(err) {
			t.Errorf("%d: %v", status, err)
		}
	}
}
