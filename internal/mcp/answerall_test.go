package mcp

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestEndOfInputWaitsForAnswers, but not for ever, and not for an answer that the client has to end.
func TestEndOfInputWaitsForAnswers(t *testing.T) {
	const call, listen, note = `{"jsonrpc":"2.0","id":1,"method":"tools/call"}`, `{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen"}`, `{"jsonrpc":"2.0","method":"x"}`
	for _, c := range []struct {
		name    string
		input   string
		timeout time.Duration
		answer  bool
	}{
		{"it is answered", call, time.Hour, true},
		{"it is never answered", call, time.Millisecond, false},
		{"nothing has an answer", listen + "\n" + note, time.Hour, false},
	} {
		in, out := io.Pipe()
		read, answers := io.Pipe()
		conn, err := answerAll{&sdk.IOTransport{Reader: in, Writer: answers}, c.timeout}.Connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		go func() { // ends with the pipe
			io.WriteString(out, c.input+"\n")
			out.Close()
		}()
		ended := make(chan error)
		requests := make(chan *jsonrpc.Request, 3)
		go func() { // ends with the connection
			for {
				m, err := conn.Read(t.Context())
				if err != nil {
					ended <- err
					return
				}
				requests <- m.(*jsonrpc.Request)
			}
		}()
		if c.answer {
			q := <-requests
			select {
			case err := <-ended:
				t.Fatalf("%s: the end came before the answer: %v", c.name, err)
			case <-time.After(50 * time.Millisecond): // it may only be too early
			}
			go func() { // ends with the answer
				if err := conn.Write(t.Context(), &jsonrpc.Response{ID: q.ID, Result: []byte(`{}`)}); err != nil {
					t.Error(err)
				}
			}()
			read.Read(make([]byte, 1000))
		}
		if err := <-ended; !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", c.name, err)
		}
		conn.Close()
	}
}

func TestPagesEndWithLinesOrCharacters(t *testing.T) {
	for _, c := range []struct {
		from int64
		most int
		text string
		want string
	}{
		{0, 10, "ab\ncd\nefgh\n", "ab\ncd\n"}, {6, 10, "ab\ncd\nefgh\n", "efgh\n"}, {0, 12, "ab\ncd\nefgh\n", "ab\ncd\nefgh\n"},
		{0, 3, "aéé", "aé"}, {0, 4, "aéé", "aé"}, {0, 5, "aéé", "aéé"}, {100, 5, "ab", ""}, {0, 2, "\xff\xff\xff", "\xff\xff"},
	} {
		p := page{from: c.from, most: c.most}
		for i := range len(c.text) {
			if _, err := p.Write([]byte(c.text[i : i+1])); err != nil && !errors.Is(err, errPageFull) {
				t.Fatal(err)
			}
		}
		if text, next := p.take(); text != c.want || next != c.from+int64(len(c.want)) {
			t.Errorf("%q from %d: %q, next %d", c.text, c.from, text, next)
		}
	}
}
