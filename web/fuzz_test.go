package web

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"trl/internal/rig"
	"trl/internal/testkit/gateway"
	"trl/protocol"
)

// FuzzFrames sends any bytes after an upgrade, in pieces of any size, on a real socket of a real server. The server must answer with complete, allowed
// frames of valid JSON, end the connection after the client has ended its side, and go on. The client is a viewer, so that no request that the fuzzer
// finds runs a command.
func FuzzFrames(f *testing.F) {
	const limit = 4 << 10
	for _, c := range rawCases(limit) {
		if len(c.Send) < 1<<10 {
			f.Add(c.Send, uint8(0))
		}
	}
	for _, m := range protocol.Methods() {
		f.Add(rig.RawFrame(0x81, `{"id":1,"method":"`+m.Name+`","params":{"session_id":"s-x","exec_id":"x","process_id":"p","term_id":"t"}}`), uint8(7))
	}
	g := start(f, withTokens, func(c *Config) { c.MaxFrame = limit })
	f.Fuzz(func(t *testing.T, data []byte, piece uint8) {
		if len(data) > 16<<10 {
			t.Skip("more says nothing new")
		}
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		fmt.Fprintf(c, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n%s\r\n", g.Addr(), gateway.ViewToken, upgradeLines)
		r := bufio.NewReader(c)
		if resp, err := http.ReadResponse(r, nil); err != nil || resp.StatusCode != 101 {
			t.Fatalf("%v %v", resp, err)
		}
		go func() { // ends with the connection
			for rest := data; len(rest) > 0; {
				n := len(rest)
				if piece > 0 {
					n = min(n, int(piece))
				}
				if _, err := c.Write(rest[:n]); err != nil {
					break
				}
				rest = rest[n:]
			}
			c.(*net.TCPConn).CloseWrite()
		}()
		for closed := false; ; {
			head, err := r.Peek(2)
			if err != nil {
				if len(head) > 0 {
					t.Fatalf("half a header: %x", head)
				}
				break // the end, or a reset where we sent more than was read
			}
			op, payload, err := rig.ReadRaw(c, r).Next()
			switch {
			case err != nil:
				t.Fatalf("half a frame: %v", err)
			case closed:
				t.Fatalf("%x after a close", op)
			case op == textFrame && !jsontext.Value(payload).IsValid():
				t.Fatalf("no JSON: %q", payload)
			case op == pingFrame || op == pongFrame || op == closeFrame:
				if len(payload) > 125 || len(payload) == 1 && op == closeFrame {
					t.Fatalf("%x with %d bytes", op, len(payload))
				}
			case op != textFrame:
				t.Fatalf("frame %x", op)
			}
			closed = op == closeFrame
		}
		if log := g.Log.String(); strings.Contains(log, `"level":"error"`) {
			t.Fatal(log)
		}
		if n := g.Pool.Stats().ActiveSessions; n != 0 {
			t.Fatalf("%d sessions", n)
		}
	})
}

// FuzzHandshake: the server answers any bytes with at most one HTTP response, and never with an upgrade for a client without a token.
func FuzzHandshake(f *testing.F) {
	for _, text := range []string{
		"GET /v1/ws HTTP/1.1\r\nHost: localhost\r\n" + upgradeLines + "\r\n", "GET / HTTP/1.0\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n\r\ntoken=x",
		"GET /v1/ws?token=x HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Host: evil\r\nOrigin: null\r\n\r\n", "GET http://localhost/v1/schema HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		f.Add([]byte(text))
	}
	g := start(f, withTokens)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 16<<10 {
			t.Skip("more says nothing new")
		}
		c, err := net.Dial("tcp", g.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(patience))
		go func() { // ends with the connection
			c.Write(data)
			c.(*net.TCPConn).CloseWrite()
		}()
		said, _ := io.ReadAll(c) // an error is a reset, where more was sent than was read
		if len(said) > 0 && !bytes.HasPrefix(said, []byte("HTTP/1.")) {
			t.Fatalf("%q is answered %q", data, said)
		}
		if bytes.Contains(said, []byte(" 101 ")) && bytes.HasPrefix(said[9:], []byte("101")) {
			t.Fatalf("%q is let in", data)
		}
		if n := bytes.Count(said, []byte("\r\nX-Content-Type-Options: nosniff\r\n")); n > 1 {
			t.Fatalf("%q is answered %d times", data, n)
		}
		if log := g.Log.String(); strings.Contains(log, `"level":"error"`) {
			t.Fatal(log)
		}
	})
}
