package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/coder/websocket"

	"trl/protocol"
)

// transport carries whole frames. One goroutine reads, another one writes; a third may call close, which unblocks both. Its errors are never io.EOF.
type transport interface {
	read() ([]byte, error) // valid until the next read
	write(frame []byte) error
	close()
}

const (
	// An answer may hold twice the server's largest max_output_bytes (64 MiB per stream by default), and JSON writes a control character in six bytes.
	// A larger frame is an error, not an answer.
	maxFrame = 1 << 30
	// The server pings every 20 s. A server that is silent for longer than two pings is gone, though TCP does not know it yet.
	peerSilence = 45 * time.Second
)

// webSocket is the transport over a WebSocket, subprotocol trl.v1.
type webSocket struct {
	conn   *websocket.Conn
	ctx    context.Context // ends with close; coder/websocket drops a connection whose read context ends
	cancel context.CancelFunc
	clock  *silenceTimer
	buf    bytes.Buffer // owned by the reader
}

// silenceTimer drops a connection that brings no byte for a while. It runs only while read waits, so that a slow caller of ours does not look like a
// silent peer.
type silenceTimer struct {
	timer *time.Timer
	limit time.Duration
}

// heard restarts the timer, unless it is stopped or has fired.
func (s *silenceTimer) heard() {
	if s.timer.Stop() {
		s.timer.Reset(s.limit)
	}
}

// heardConn reports each byte that comes: a large answer on a slow line, with pings behind it, is not silence.
type heardConn struct {
	net.Conn
	clock *silenceTimer
}

func (c heardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.clock.heard()
	}
	return n, err
}

// dialWebSocket connects. If we know the reason of a refusal, the error is a *protocol.Error.
func dialWebSocket(ctx context.Context, o Options) (transport, error) {
	u, err := endpoint(o.URL)
	if err != nil {
		return nil, err
	}
	w := &webSocket{clock: &silenceTimer{limit: cmp.Or(o.silence, peerSilence)}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.clock.timer = time.AfterFunc(w.clock.limit, w.cancel)
	w.clock.timer.Stop()
	// A transport of our own, so that nothing of a refused dial is left behind.
	hc := &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return heardConn{c, w.clock}, nil
	}}
	d := &websocket.DialOptions{
		Subprotocols: []string{"trl.v1"},
		HTTPHeader:   http.Header{},
		HTTPClient:   &http.Client{Transport: hc},
	}
	if o.Token != "" {
		d.HTTPHeader.Set("Authorization", "Bearer "+o.Token)
	}
	if o.Origin != "" {
		d.HTTPHeader.Set("Origin", o.Origin)
	}
	conn, resp, err := websocket.Dial(ctx, u, d)
	hc.CloseIdleConnections()
	if err != nil {
		if resp != nil {
			return nil, refusal(resp, err)
		}
		if inner := (*url.Error)(nil); errors.As(err, &inner) {
			err = inner.Err // it describes the address; the errors around it describe our libraries
		}
		return nil, withoutEOF(err)
	}
	conn.SetReadLimit(maxFrame)
	w.conn = conn
	return w, nil
}

// endpoint turns an address as people type it (http://host:port, with or without a path) into the address of the WebSocket.
func endpoint(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return "", fmt.Errorf("server address: %w", err)
	}
	switch u.Scheme {
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	case "ws", "wss":
	default:
		return "", fmt.Errorf("server address %q: want http://HOST:PORT or https://HOST:PORT", raw)
	}
	if u.Host == "" {
		return "", fmt.Errorf("server address %q: no host in it", raw)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/ws"
	}
	u.Fragment, u.RawQuery, u.User = "", "", nil // the server refuses a token in an address; do not send one by accident
	return u.String(), nil
}

// refusal translates the HTTP status of a failed upgrade.
func refusal(resp *http.Response, err error) error {
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return protocol.Errorf(protocol.AuthFailed, "the server does not know this token: %w", err)
	case http.StatusForbidden, http.StatusMisdirectedRequest:
		return protocol.Errorf(protocol.Forbidden, "the server refuses this client: %w", err)
	case http.StatusNotFound, http.StatusOK, http.StatusUpgradeRequired:
		return protocol.Errorf(protocol.NotSupported, "no trl gateway at this address: %w", err)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return fullServerError(resp, err)
	}
	return err
}

// fullServerError recognises by the gateway's own words why it has no room for us; a balancer uses the same two status codes with other words.
func fullServerError(resp *http.Response, err error) error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	why := cmp.Or(strings.TrimSpace(string(b)), strings.ToLower(http.StatusText(resp.StatusCode)))
	switch {
	case strings.HasPrefix(why, "shutting down"):
		return protocol.Errorf(protocol.ShuttingDown, "the server is shutting down: %w", err)
	case strings.HasPrefix(why, "too many wrong tokens"):
		return protocol.Errorf(protocol.RateLimited, "%s: %w", why, err)
	case strings.HasPrefix(why, "too many connections"), resp.StatusCode == http.StatusTooManyRequests:
		return protocol.Errorf(protocol.LimitExceeded, "%s: %w", why, err)
	}
	return fmt.Errorf("%s: %w", why, err)
}

var errCutOff = errors.New("cut off")

// withoutEOF reserves io.EOF for the end of a Stream: a connection that ends without a close frame is an error.
func withoutEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return errCutOff
	}
	return err
}

func (w *webSocket) read() ([]byte, error) {
	w.clock.timer.Reset(w.clock.limit)
	defer w.clock.timer.Stop()
	kind, r, err := w.conn.Reader(w.ctx)
	if err != nil {
		return nil, w.ended(err)
	}
	w.buf.Reset()
	if _, err := w.buf.ReadFrom(r); err != nil {
		return nil, w.ended(err)
	}
	if kind != websocket.MessageText {
		return nil, errors.New("binary frame on trl.v1")
	}
	return w.buf.Bytes(), nil
}

// ended says in a few words how the connection ended.
func (w *webSocket) ended(err error) error {
	var bye websocket.CloseError
	switch {
	case errors.As(err, &bye):
		return fmt.Errorf("closed by the server: %w", bye)
	case w.ctx.Err() != nil:
		return errors.New("the server has been silent for too long") // or we closed, which was recorded before
	}
	return withoutEOF(err)
}

func (w *webSocket) write(frame []byte) error {
	return withoutEOF(w.conn.Write(w.ctx, websocket.MessageText, frame))
}

func (w *webSocket) close() {
	// The handshake waits at most 5 s for the peer's answer (coder/websocket); the reader is still there to receive it.
	_ = w.conn.Close(websocket.StatusNormalClosure, "")
	w.clock.timer.Stop()
	w.cancel()
}

// lines is the transport over a Unix socket, or inside the gateway's process, with one JSON object per line.
type lines struct {
	conn net.Conn
	r    *bufio.Reader // owned by the reader
	buf  []byte        // owned by the reader
}

func dialUnix(ctx context.Context, path string) (transport, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return newLines(conn), nil
}

func newLines(conn net.Conn) *lines {
	return &lines{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
}

func (l *lines) read() ([]byte, error) {
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.buf = append(l.buf, part...)
		switch {
		case err == nil:
			return l.buf, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, withoutEOF(err)
		case len(l.buf) > maxFrame:
			return nil, errors.New("line without end")
		}
	}
}

func (l *lines) write(frame []byte) error {
	_, err := l.conn.Write(append(frame, '\n'))
	return err
}

func (l *lines) close() { _ = l.conn.Close() }
