package client

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"trl/protocol"
)

// TestInputFitsTheServer: whose frames hold 4 MiB, and whose buffer, before a command that reads, 1 MiB.
func TestInputFitsTheServer(t *testing.T) {
	const size = 4<<20 + 1
	for name, input := range map[string]func(context.Context, *Client, []byte) error{
		"exec.input": func(ctx context.Context, c *Client, p []byte) error {
			return (&Command{s: &stream{c: c, id: "x-1"}}).input(ctx, p, true)
		},
		"term.input": func(ctx context.Context, c *Client, p []byte) error {
			return (&Terminal{s: &stream{c: c, id: "t-1"}}).Write(ctx, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var (
				mu  sync.Mutex
				got bytes.Buffer // guarded by mu
			)
			c := dial(t, Options{URL: listen(t, func(p *peer) {
				p.c.SetReadLimit(4 << 20)
				full := false
				for {
					q, ok := p.take()
					if !ok {
						return
					}
					data, _ := q.Params["data"].(string)
					encoding, _ := q.Params["encoding"].(string)
					b, err := protocol.DecodeBytes(data, encoding)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					eof, _ := q.Params["eof"].(bool)
					full = !full
					switch {
					case full || len(b) > 1<<20: // every second time there is no room
						mu.Unlock()
						p.send(`{"id":%d,"ok":false,"error":{"code":"LIMIT_EXCEEDED","message":"full","details":{"limit":"stdin"}}}`, q.ID)
						continue
					case eof != (q.Method == "exec.input" && got.Len()+len(b) == size):
						t.Errorf("EOF %v after %d bytes", eof, got.Len()+len(b))
					}
					got.Write(b)
					mu.Unlock()
					p.ok(q, "{}")
				}
			})})
			want := []byte(strings.Repeat("input ", size/6+1)[:size])
			if err := input(soon(t), c, want); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%d bytes of %d", got.Len(), size)
			}
		})
	}
}

// TestRefusedInputIsNotRepeated: only that stdin is full passes by itself.
func TestRefusedInputIsNotRepeated(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		q, _ := p.take()
		p.send(`{"id":%d,"ok":false,"error":{"code":"LIMIT_EXCEEDED","message":"long","details":{"limit":"line"}}}`, q.ID)
		if _, ok := p.take(); ok {
			t.Error("asked again")
		}
	})})
	if err := (&Command{s: &stream{c: c, id: "x-1"}}).Write(soon(t), []byte("x")); err == nil {
		t.Error("no error")
	}
}
