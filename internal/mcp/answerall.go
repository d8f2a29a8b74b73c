package mcp

import (
	"context"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// answerTimeout is how long requests that were read may take to be answered after the end of the input. It is above maxYield, so every call of a tool has
// its answer by then.
const answerTimeout = time.Minute

// answerAll is a Transport that reports the end of its input only when every request that it has read is answered, or after a timeout. The SDK cancels all
// calls at the end of the input, and does not write their answers.
type answerAll struct {
	sdk.Transport
	timeout time.Duration
}

func (t answerAll) Connect(ctx context.Context) (sdk.Connection, error) {
	c, err := t.Transport.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &answeringConn{Connection: c, timeout: t.timeout, open: map[jsonrpc.ID]struct{}{}, answered: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// answeringConn is a connection of answerAll.
type answeringConn struct {
	sdk.Connection
	timeout time.Duration

	mu   sync.Mutex
	open map[jsonrpc.ID]struct{} // guarded by mu; requests that have no answer yet

	answered  chan struct{} // has an element when open has become smaller
	closed    chan struct{} // closed by Close
	closeOnce sync.Once
}

func (c *answeringConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	m, err := c.Connection.Read(ctx)
	if err != nil {
		c.awaitAnswers(ctx)
		return nil, err
	}
	// A subscription has no answer before the client ends it.
	if q, ok := m.(*jsonrpc.Request); ok && q.IsCall() && q.Method != "subscriptions/listen" {
		c.mu.Lock()
		c.open[q.ID] = struct{}{}
		c.mu.Unlock()
	}
	return m, nil
}

func (c *answeringConn) Write(ctx context.Context, m jsonrpc.Message) error {
	err := c.Connection.Write(ctx, m)
	if a, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.open, a.ID)
		c.mu.Unlock()
		select {
		case c.answered <- struct{}{}:
		default:
		}
	}
	return err
}

func (c *answeringConn) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return c.Connection.Close()
}

// awaitAnswers returns when no request is open, after the timeout, and when the connection is closed.
func (c *answeringConn) awaitAnswers(ctx context.Context) {
	late := time.NewTimer(c.timeout)
	defer late.Stop()
	for {
		c.mu.Lock()
		open := len(c.open)
		c.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-c.answered:
		case <-late.C:
			return
		case <-c.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}
