package peer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

// web keeps one connection for each of as many sessions as bench uses at a time.
var web = &http.Client{Transport: &http.Transport{
	DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
	MaxIdleConnsPerHost: 256,
	DisableCompression:  true,
}}

// dial opens a WebSocket. Its messages may be of any size.
func dial(ctx context.Context, url string, protocols ...string) (*websocket.Conn, error) {
	c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: protocols, HTTPClient: web})
	if err != nil {
		return nil, err
	}
	c.SetReadLimit(-1)
	return c, nil
}

// messages is a stream of WebSocket messages.
type messages struct {
	ctx  context.Context
	c    *websocket.Conn
	kind websocket.MessageType // of input
	wrap func(p []byte) []byte // makes a message of input; nil: the bytes themselves
	// open returns the output in a message, nothing if it has none, and io.EOF if it says that the program has ended. nil: all of it is output.
	open func(kind websocket.MessageType, message []byte) ([]byte, error)
	end  func() error  // ends the program, after the connection; may be nil
	idle chan struct{} // nil, or closed when the goroutine of Idle has ended
}

func (m *messages) Write(p []byte) error {
	if m.wrap != nil {
		p = m.wrap(p)
	}
	return m.c.Write(m.ctx, m.kind, p)
}

func (m *messages) Read() ([]byte, error) {
	for {
		kind, b, err := m.c.Read(m.ctx)
		if err == nil && m.open != nil {
			b, err = m.open(kind, b)
		}
		if err != nil || len(b) > 0 {
			return b, err
		}
	}
}

// Idle answers the peer's pings until Close. There are no Reads any more.
func (m *messages) Idle() {
	m.idle = make(chan struct{})
	go func() { // ends with the connection, in Close
		defer close(m.idle)
		for {
			if _, _, err := m.c.Read(m.ctx); err != nil {
				return
			}
		}
	}()
}

func (m *messages) Close() error {
	m.c.CloseNow()
	if m.idle != nil {
		<-m.idle
	}
	if m.end == nil {
		return nil
	}
	return m.end()
}

// tagged makes a function that puts a byte before input.
func tagged(tag byte) func(p []byte) []byte {
	return func(p []byte) []byte { return append([]byte{tag}, p...) }
}

// request sends a request over HTTP. The caller closes the response's body. A status from 400 on is an error.
func request(ctx context.Context, method, url, content string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if content != "" {
		r.Header.Set("Content-Type", content)
	}
	r.Header.Set("Connect-Protocol-Version", "1") // envd alone looks at it
	answer, err := web.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 400 {
		defer answer.Body.Close()
		why, _ := io.ReadAll(io.LimitReader(answer.Body, 500))
		return nil, fmt.Errorf("%s %s: %s: %s", method, r.URL.Path, answer.Status, bytes.TrimSpace(why))
	}
	return answer, nil
}

// call sends JSON and decodes the answer into into, which may be nil.
func call(ctx context.Context, method, url string, params, into any) error {
	var body []byte
	if params != nil {
		var err error
		if body, err = json.Marshal(params); err != nil {
			return err
		}
	}
	answer, err := request(ctx, method, url, "application/json", body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body) // to the end, so that the connection is used again
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, url, err)
	}
	return nil
}

// longestEvent is the longest line of events that we read.
const longestEvent = 64 << 20

// errStop says that nothing after an event is of interest.
var errStop = errors.New("stop")

// events calls each for every event of an answer that is a stream of lines of JSON, with or without the prefix of server-sent events. It reads to the
// end, so that the connection is used again, or until each returns an error. errStop is not an error of events.
func events(ctx context.Context, url string, params any, each func(event []byte) error) error {
	body, err := json.Marshal(params)
	if err != nil {
		return err
	}
	answer, err := request(ctx, http.MethodPost, url, "application/json", body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(make([]byte, 64<<10), longestEvent)
	for lines.Scan() {
		event := bytes.TrimSpace(bytes.TrimPrefix(lines.Bytes(), []byte("data:")))
		if len(event) == 0 || event[0] != '{' {
			continue
		}
		switch err := each(event); {
		case err == errStop:
			return nil
		case err != nil:
			return err
		}
	}
	return lines.Err()
}

// CloseIdle closes the connections that are kept for later requests, so that no peer counts them among its descriptors.
func CloseIdle() { web.CloseIdleConnections() }
