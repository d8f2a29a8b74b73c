package peer

import (
	"bytes"
	"context"
	"io"
	"strconv"
	"sync"

	"github.com/coder/websocket"
)

// floor is bench's own server: a bash on a bare PTY or on pipes behind a WebSocket, and nothing else. It is the least that any peer does.
type floor struct {
	cannot
	address string

	mu   sync.Mutex
	once *websocket.Conn // guarded by mu; for Once, kept as the others keep theirs
}

func (f *floor) open(ctx context.Context, path string) (Stream, error) {
	c, err := dial(ctx, "ws://"+f.address+path)
	if err != nil {
		return nil, err
	}
	ended := func(kind websocket.MessageType, b []byte) ([]byte, error) {
		if kind != websocket.MessageBinary {
			return nil, io.EOF
		}
		return b, nil
	}
	return &messages{ctx: ctx, c: c, kind: websocket.MessageBinary, open: ended}, nil
}

func (f *floor) Terminal(ctx context.Context) (Stream, error) { return f.open(ctx, "/prompt") }
func (f *floor) Shell(ctx context.Context) (Stream, error)    { return f.open(ctx, "/shell") }

func (f *floor) Follow(ctx context.Context, command string, as Encoding) (int, error) {
	if as != Binary {
		return 0, ErrCannot
	}
	s, err := f.Shell(ctx)
	return followShell(s, err, command)
}

// Once sends the command as a message. The last line of the answer is the exit code.
func (f *floor) Once(ctx context.Context, command string) (r Result, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.once == nil {
		if f.once, err = dial(ctx, "ws://"+f.address+"/once"); err != nil {
			return r, err
		}
	}
	var b []byte
	if err = f.once.Write(ctx, websocket.MessageText, []byte(command)); err == nil {
		_, b, err = f.once.Read(ctx)
	}
	if err != nil {
		f.once.CloseNow()
		f.once = nil
		return r, err
	}
	i := bytes.LastIndexByte(b, '\n')
	r.Output = string(b[:max(i, 0)])
	r.Code, err = strconv.Atoi(string(b[i+1:]))
	return r, err
}
