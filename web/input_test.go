package web

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
)

// TestOddRequests: requests with unusual JSON around their params, on a WebSocket and on a Unix socket.
func TestOddRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	g := start(t, func(c *Config) { c.Unix = path })
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	c := g.Dial()
	local, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	local.SetDeadline(time.Now().Add(patience))
	lines := bufio.NewReader(local)
	for text, want := range map[string]string{
		`{"id":"q","id":"r","method":"system.ping"}`:                       `"q" INVALID_REQUEST`,
		`{"id":"q","method":"system.ping","method":"session.list"}`:        `"q" INVALID_REQUEST`,
		`{"id":"q","method":"system.ping","params":{},"params":{}}`:        `"q" INVALID_REQUEST`,
		`{"id":"q","method":"system.ping","x":` + deep(5000) + `}`:         `"q" INVALID_REQUEST`,
		`{"id":"q","x":` + deep(100_000) + `,"method":"system.ping"}`:      `"q" INVALID_REQUEST`,
		`{"x":` + deep(100_000) + `,"id":"q","method":"system.ping"}`:      `null INVALID_REQUEST`, // nobody reads on behind that
		`{"id":` + deep(65) + `,"method":"system.ping"}`:                   `null INVALID_REQUEST`,
		`{"id":{},"method":"system.ping"}`:                                 `null INVALID_REQUEST`,
		`{"id":true,"method":"system.ping"}`:                               `null INVALID_REQUEST`,
		`{"id":"\ud800","method":"system.ping"}`:                           `null INVALID_REQUEST`,
		`{"id":"a\u0000b","method":"no"}`:                                  `"a\u0000b" UNKNOWN_METHOD`,
		`{"id":1e400,"method":"no"}`:                                       `1e400 UNKNOWN_METHOD`,
		`{"id":-0,"method":"no"}`:                                          `-0 UNKNOWN_METHOD`,
		`{"id":123456789012345678901234567890.5,"method":"no"}`:            `123456789012345678901234567890.5 UNKNOWN_METHOD`,
		`{"id":01,"method":"no"}`:                                          `0 INVALID_REQUEST`,
		`{"id":+1,"method":"no"}`:                                          `null INVALID_REQUEST`,
		`{"id":.5,"method":"no"}`:                                          `null INVALID_REQUEST`,
		`{"id":NaN,"method":"no"}`:                                         `null INVALID_REQUEST`,
		`{"id":0x1,"method":"no"}`:                                         `0 INVALID_REQUEST`, // that much of it was read
		`{'id':1,"method":"no"}`:                                           `null INVALID_REQUEST`,
		`{"id":"q","method":"no",}`:                                        `"q" INVALID_REQUEST`,
		`{"id":"q","method":"no"`:                                          `"q" INVALID_REQUEST`,
		`{"id":"q","method":"no"}}`:                                        `"q" INVALID_REQUEST`,
		`{"id":"q","method":"no"}{"id":"r","method":"no"}`:                 `"q" INVALID_REQUEST`,
		`{"id":"q","method":"no"} // why`:                                  `"q" INVALID_REQUEST`,
		"\xef\xbb\xbf" + `{"id":"q","method":"no"}`:                        `null INVALID_REQUEST`, // a byte order mark
		`{"id":"q","method":"system.ping` + "\x01" + `"}`:                  `"q" INVALID_REQUEST`,
		`{"id":"q","method":"System.Ping"}`:                                `"q" UNKNOWN_METHOD`,
		`{"id":"q","method":"system.ping "}`:                               `"q" UNKNOWN_METHOD`,
		`{"id":"q","method":"system.ping\u0000"}`:                          `"q" UNKNOWN_METHOD`,
		`{"id":"q","method":"__proto__"}`:                                  `"q" UNKNOWN_METHOD`,
		`{"id":"q","method":""}`:                                           `"q" INVALID_REQUEST`,
		`{"id":"q","method":["system.ping"]}`:                              `"q" INVALID_REQUEST`,
		`{"id":"q","method":"` + strings.Repeat("x", 1<<20) + `"}`:         `"q" UNKNOWN_METHOD`,
		`{"id":"` + strings.Repeat("i", 254) + `","method":"no"}`:          `"` + strings.Repeat("i", 254) + `" UNKNOWN_METHOD`,
		`{"id":"` + strings.Repeat("i", 255) + `","method":"no"}`:          `null INVALID_REQUEST`,
		`{"ID":"q","method":"system.ping"}`:                                `null INVALID_REQUEST`,
		`{"jsonrpc":"2.0","id":"q","method":"system.ping"}`:                `"q" INVALID_REQUEST`,
		`[{"id":"q","method":"system.ping"}]`:                              `null INVALID_REQUEST`,
		`{` + strings.Repeat(`"a":1,`, 100_000) + `"id":"q","method":"x"}`: `"q" INVALID_REQUEST`,
		`5`: `null INVALID_REQUEST`, `null`: `null INVALID_REQUEST`, `{}`: `null INVALID_REQUEST`, "\x00": `null INVALID_REQUEST`,
		strings.Repeat("[", 1_000_000): `null INVALID_REQUEST`, strings.Repeat(`{"a":`, 500_000): `null INVALID_REQUEST`,
	} {
		said := func(line []byte) string {
			var f struct {
				ID    json.RawMessage
				OK    bool
				Error struct{ Code string }
			}
			if err := json.Unmarshal(line, &f); err != nil || f.OK {
				return string(line)
			}
			return string(f.ID) + " " + f.Error.Code
		}
		io.WriteString(local, text+"\n")
		line, err := lines.ReadBytes('\n')
		if got := said(line); got != want || err != nil || len(line) > 2000 {
			t.Errorf("Unix, %.100q: %.200s, want %s (%v)", text, got, want, err)
		}
		if strings.Contains(text, "1e400") { // no float64 of the test's client
			continue
		}
		c.SendText(text)
		f := c.Await("a failure", func(f *rig.Frame) bool { return f.Event == "" })
		if _, code, _ := strings.Cut(want, " "); f.Code() != code || f.Size > 2000 {
			t.Errorf("WebSocket, %.100q: %+v, want %s", text, f.Error, want)
		}
	}
	c.Call("system.ping", nil)
}
