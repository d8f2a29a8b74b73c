package client

import (
	"bytes"
	"context"
	"errors"
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

// TestOlderServerKnowsNoOffsets: it refuses the first one, and then gets none.
func TestOlderServerKnowsNoOffsets(t *testing.T) {
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		asked := 0
		for q, ok := p.take(); ok; q, ok = p.take() {
			if asked++; q.Params["offset"] == nil {
				p.ok(q, "{}")
			} else if asked > 1 {
				t.Errorf("an offset again: %v", q.Params)
			} else {
				p.send(`{"id":%d,"ok":false,"error":{"code":"INVALID_PARAMS","message":"unknown","details":{"field":"offset"}}}`, q.ID)
			}
		}
	})})
	term := &Terminal{s: &stream{c: c, id: "t-1"}}
	term.in.begin(0)
	for range 2 {
		if err := term.Write(soon(t), []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOthersMayTypeMeanwhile: a piece that was refused because somebody else has typed is sent again. One whose answer was lost is not, if nobody knows
// what of it was taken.
func TestOthersMayTypeMeanwhile(t *testing.T) {
	mismatch := `{"id":%d,"ok":false,"error":{"code":"OFFSET_MISMATCH","message":"no","details":{"field":"offset","input_offset":%d}}}`
	c := dial(t, Options{URL: listen(t, func(p *peer) {
		for q, ok := p.take(); ok; q, ok = p.take() {
			at, _ := q.Params["offset"].(float64)
			switch data, _ := q.Params["data"].(string); {
			case data == "first" && at == 0:
				p.send(mismatch, q.ID, 7)
			case data == "first" && at == 7:
				p.ok(q, `{"input_offset":12}`)
			case data == "lost" && p.n == 1:
				p.c.CloseNow()
				return
			case data == "lost" && at == 12:
				p.send(mismatch, q.ID, 14) // two of its bytes were taken
			case data == "st" && at == 14:
				p.ok(q, `{"input_offset":16}`)
			case data == "gone" && p.n == 2:
				p.c.CloseNow()
				return
			case data == "gone":
				p.send(mismatch, q.ID, 30)
			default:
				t.Errorf("%q at %v", data, at)
			}
		}
	})})
	term := &Terminal{s: &stream{c: c, id: "t-1"}}
	term.in.begin(0)
	for _, text := range []string{"first", "lost"} {
		if err := term.Write(soon(t), []byte(text)); err != nil {
			t.Fatal(text, ": ", err)
		}
	}
	var lost *ConnectionLostError
	if err := term.Write(soon(t), []byte("gone")); !errors.As(err, &lost) || lost.Outcome != OutcomeUnknown {
		t.Error(err)
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
