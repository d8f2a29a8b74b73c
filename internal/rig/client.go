package rig

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/testkit"
)

// Client is one WebSocket connection. It keeps frames until a test takes them.
type Client struct {
	T    testing.TB
	Ws   *websocket.Conn
	pace func(bytes int) // called after each frame, before the next is read; may be nil

	Mu     sync.Mutex
	next   int           // guarded by Mu; id of the last request
	Came   []*Frame      // guarded by Mu; frames that nobody has taken
	Err    error         // guarded by Mu; why reading ended
	Change chan struct{} // guarded by Mu; closed at the next change
	Done   chan struct{} // closed when reading has ended
}

// NewClient reads from ws until the test ends.
func NewClient(t testing.TB, ws *websocket.Conn) *Client { return newClient(t, ws, nil) }

func newClient(t testing.TB, ws *websocket.Conn, pace func(bytes int)) *Client {
	c := &Client{T: t, Ws: ws, pace: pace, Change: make(chan struct{}), Done: make(chan struct{})}
	go c.read() // keeps what comes; ends with the connection; Close waits for it
	t.Cleanup(c.Close)
	return c
}

func (c *Client) read() {
	defer close(c.Done)
	for {
		kind, b, err := c.Ws.Read(context.Background())
		f := &Frame{Size: len(b)}
		switch {
		case err == nil && kind == websocket.MessageBinary:
			f.Event, f.Data = "binary", binaryData(b)
		case err == nil:
			err = json.Unmarshal(b, f)
		}
		c.Mu.Lock()
		if err != nil {
			c.Err = err
		} else {
			c.Came = append(c.Came, f)
		}
		close(c.Change)
		c.Change = make(chan struct{})
		c.Mu.Unlock()
		if err != nil {
			return
		}
		if c.pace != nil {
			c.pace(len(b))
		}
	}
}

// binaryData is a binary frame, as the data of an event.
func binaryData(b []byte) Object {
	no, n := binary.Uvarint(b[1:])
	offset, m := binary.Uvarint(b[1+n:])
	return Object{"kind": float64(b[0]), "stream_no": float64(no), "offset": float64(offset), "data": string(b[1+n+m:])}
}

// InputFrame makes a binary frame with input, by hand: kind 4, and 0x44 at its end.
func InputFrame(kind byte, no, offset int, data string) []byte {
	b := binary.AppendUvarint([]byte{kind}, uint64(no))
	return append(binary.AppendUvarint(b, uint64(offset)), data...)
}

// SendBinary sends a binary frame.
func (c *Client) SendBinary(b []byte) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := c.Ws.Write(ctx, websocket.MessageBinary, b); err != nil {
		c.T.Fatal(err)
	}
}

// Close ends the connection without a close frame.
func (c *Client) Close() {
	c.Ws.CloseNow()
	<-c.Done
}

// CloseStatus waits for the end of the connection and returns its close code.
func (c *Client) CloseStatus() websocket.StatusCode {
	c.T.Helper()
	select {
	case <-c.Done:
	case <-time.After(testkit.Patience):
		c.T.Fatal("the connection is still open")
	}
	c.Mu.Lock()
	defer c.Mu.Unlock()
	return websocket.CloseStatus(c.Err)
}

// Await takes the first frame that fits, and waits for it.
func (c *Client) Await(what string, fits func(*Frame) bool) *Frame {
	c.T.Helper()
	return c.awaitFor(testkit.Patience, what, fits)
}

func (c *Client) awaitFor(d time.Duration, what string, fits func(*Frame) bool) *Frame {
	c.T.Helper()
	timeout := time.After(d)
	for {
		c.Mu.Lock()
		for i := range c.Came {
			if f := c.Came[i]; fits(f) {
				c.Came = append(c.Came[:i:i], c.Came[i+1:]...)
				c.Mu.Unlock()
				return f
			}
		}
		err, change := c.Err, c.Change
		c.Mu.Unlock()
		if err != nil {
			c.T.Fatalf("%s: connection ended: %v", what, err)
		}
		select {
		case <-change:
		case <-timeout:
			c.T.Fatalf("%s: did not come", what)
		}
	}
}

// Event takes the first event with this name.
func (c *Client) Event(name string) Object {
	c.T.Helper()
	return c.Await(name, func(f *Frame) bool { return f.Event == name }).Data
}

// Seen returns the events with this name that have come and that nobody has taken.
func (c *Client) Seen(name string) (all []*Frame) {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, f := range c.Came {
		if f.Event == name {
			all = append(all, f)
		}
	}
	return all
}

// SendText sends a frame unchanged.
func (c *Client) SendText(text string) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if err := c.Ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
		c.T.Fatal(err)
	}
}

// Begin sends a request and returns its id, for Answer.
func (c *Client) Begin(method string, params Object) int {
	c.T.Helper()
	c.Mu.Lock()
	c.next++
	id := c.next
	c.Mu.Unlock()
	if params == nil {
		params = Object{}
	}
	b, err := json.Marshal(Object{"id": id, "method": method, "params": params})
	if err != nil {
		c.T.Fatal(err)
	}
	c.SendText(string(b))
	return id
}

// Answer takes the answer to the request with this id: a number of Begin's, or what a test sent itself.
func (c *Client) Answer(id any) *Frame {
	c.T.Helper()
	if n, ok := id.(int); ok {
		id = float64(n)
	}
	return c.Await(fmt.Sprintf("answer %v", id), func(f *Frame) bool { return f.Event == "" && f.ID == id })
}

// Try sends a request and returns its answer, which may be a refusal. Call is for requests that must succeed. At a node that owns no session (StartOther)
// a request that was not carried out, because the session's node was not there, is sent again, as all our clients do.
func (c *Client) Try(method string, params Object) *Frame {
	c.T.Helper()
	for end := time.Now().Add(testkit.Patience); ; time.Sleep(20 * time.Millisecond) {
		f := c.Answer(c.Begin(method, params))
		if StartOther == nil || f.Code() != "NODE_UNREACHABLE" || time.Now().After(end) {
			return f
		}
	}
}

func (c *Client) Call(method string, params Object) Object {
	c.T.Helper()
	f := c.Try(method, params)
	if !f.OK {
		c.T.Fatalf("%s: %+v", method, f.Error)
	}
	return f.Data
}

// Session creates a session and returns its id.
func (c *Client) Session(more ...Object) string {
	c.T.Helper()
	return c.Call("session.create", With(more...)).Str("session_id")
}

// Limits returns the limits in all that this machine can enforce.
func (c *Client) Limits(all Object) Object {
	can, limits := fmt.Sprint(c.Call("system.capabilities", nil)["session_limits"]), Object{}
	for name, value := range all {
		if strings.Contains(can, name) {
			limits[name] = value
		}
	}
	return limits
}

// LimitOne makes and ends a session with limits. The first such session opens what all later ones use, a directory for each controller.
func (c *Client) LimitOne(limits Object) {
	c.Call("session.destroy", Object{"session_id": c.Session(Object{"limits": limits}), "force": true})
}

func (c *Client) Run(session, command string, more ...Object) Object {
	c.T.Helper()
	return c.Call("exec.run", With(Object{"session_id": session, "command": command}, With(more...)))
}

func (c *Client) Stream(session, command string, more ...Object) Object {
	c.T.Helper()
	return c.Call("exec.stream", With(Object{"session_id": session, "command": command}, With(more...)))
}

// Info is session.info; State is the state in its answer.
func (c *Client) Info(session string) Object {
	c.T.Helper()
	return c.Call("session.info", Object{"session_id": session})
}

func (c *Client) State(session string) string {
	c.T.Helper()
	return c.Info(session).Str("state")
}

// Output takes the events of a stream up to its exit. It returns the bytes, which must follow each other from offset on, and the exit.
func (c *Client) Output(stream string, offset int) (string, Object) {
	c.T.Helper()
	var b []byte
	for {
		f := c.Await("output of "+stream, func(f *Frame) bool {
			return f.Data.Str("stream_id") == stream && (strings.HasSuffix(f.Event, ".output") || strings.HasSuffix(f.Event, ".exit") || f.Event == "stream.gap")
		})
		switch {
		case strings.HasSuffix(f.Event, ".exit"):
			return string(b), f.Data
		case f.Event == "stream.gap":
			c.T.Fatalf("gap: %v", f.Data)
		case f.Data.Num("offset") != offset+len(b):
			c.T.Fatalf("offset %d, want %d", f.Data.Num("offset"), offset+len(b))
		}
		b = append(b, f.Data.Text("data", "encoding")...)
	}
}

// Open opens a connection from which nobody reads. Its receive buffer is small, so that the gateway notices that soon.
func (g *Server) Open(t testing.TB, o *websocket.DialOptions) (*websocket.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	if o == nil {
		o = &websocket.DialOptions{}
	}
	if o.Subprotocols == nil {
		o.Subprotocols = []string{"trl.v1"}
	}
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetReadBuffer(64 << 10)
			}
			return conn, err
		}}}
	}
	ws, _, err := websocket.Dial(ctx, "ws://"+g.Addr+"/v1/ws", o) //nolint:bodyclose // the connection is the body
	if err == nil {
		ws.SetReadLimit(-1)
		t.Cleanup(func() { ws.CloseNow() })
	}
	return ws, err
}

func (g *Server) Dial(t testing.TB) *Client {
	t.Helper()
	return g.DialPaced(t, nil)
}

// DialBinary returns a client that gets output in binary frames, as events with the name binary.
func (g *Server) DialBinary(t testing.TB) *Client {
	t.Helper()
	ws, err := g.Open(t, &websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}})
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, ws, nil)
}

// DialPaced returns a client that calls pace before it reads the next frame.
func (g *Server) DialPaced(t testing.TB, pace func(bytes int)) *Client {
	t.Helper()
	ws, err := g.Open(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, ws, pace)
}
