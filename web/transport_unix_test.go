package web

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// local is a gateway that listens only on a Unix socket.
func startLocal(t *testing.T, change ...func(*Config)) (*server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trl.sock")
	return start(t, append(change, func(c *Config) { c.Listen, c.Unix, c.AuthNone = "", path, false })...), path
}

type lineConn struct {
	*net.UnixConn
	t *testing.T
	r *bufio.Reader
}

func dialLocal(t *testing.T, path string) lineConn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return lineConn{c.(*net.UnixConn), t, bufio.NewReader(c)}
}

func (c lineConn) line() *rig.Frame {
	c.t.Helper()
	text, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("%q %v", text, err)
	}
	f := &rig.Frame{}
	if err := json.Unmarshal([]byte(text), f); err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c lineConn) end() {
	c.t.Helper()
	if text, err := c.r.ReadString('\n'); err == nil || text != "" {
		c.t.Fatalf("also came %q", text)
	}
}

// TestClawCoreClients: each request gets one line of answer, in the shapes that clients of the claw-core runtime send.
func TestClawCoreClients(t *testing.T) {
	_, path := startLocal(t)
	for _, half := range []bool{true, false} {
		c := dialLocal(t, path)
		fmt.Fprint(c, `{"id":"1","method":"session.list","params":{}}`+"\n")
		if half {
			c.CloseWrite()
		}
		text, err := c.r.ReadString('\n')
		if err != nil || text != `{"id":"1","ok":true,"data":{"sessions":[]}}`+"\n" {
			t.Fatalf("%q %v", text, err)
		}
		if half {
			c.end()
		}
	}
	c := dialLocal(t, path)
	fmt.Fprint(c, `{"id":"2","method":"exec.run","params":{"command":"sleep 0.2; cd /usr; pwd"}}`) // no line feed, and no more to come
	c.CloseWrite()
	if f := c.line(); f.ID != "2" || f.Data.Str("stdout") != "/usr\n" {
		t.Fatalf("%+v", f)
	}
	c.end()
}

// TestLastLineIsAnswered: the time limit for a line does not limit its command.
func TestLastLineIsAnswered(t *testing.T) {
	const stall = time.Second
	_, path := startLocal(t, func(c *Config) { c.stall = stall })
	for _, end := range []string{"", "\n"} {
		c := dialLocal(t, path)
		fmt.Fprint(c, `{"id":1,"method":"exec.run","params":{"command":"sleep 2; echo done"}}`+end)
		c.CloseWrite()
		if f := c.line(); f.Data.Str("stdout") != "done\n" {
			t.Fatalf("with %q at the end: %+v", end, f)
		}
		c.end()
	}
}

func TestNothingUnaskedOnUnix(t *testing.T) {
	g, path := startLocal(t)
	plain, watching := dialLocal(t, path), dialLocal(t, path)
	fmt.Fprintln(plain, `{"id":1,"method":"session.create","params":{"name":"s"}}`)
	if f := plain.line(); !f.OK || f.Data.Str("state") != "IDLE" {
		t.Fatalf("%+v", f)
	}
	fmt.Fprintln(watching, `{"id":1,"method":"session.watch","params":{"session":"s"}}`)
	watching.line()
	fmt.Fprintln(plain, `{"id":2,"method":"exec.run","params":{"session":"s","command":"echo x"}}`)
	if f := plain.line(); f.Data.Str("stdout") != "x\n" {
		t.Fatalf("%+v", f)
	}
	g.stop()
	plain.end()
	told := false
	for !told {
		told = watching.line().Event == "server.shutdown"
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("the file of the socket is left")
	}
}

func TestStreamAfterHalfClose(t *testing.T) {
	g, path := startLocal(t)
	c := dialLocal(t, path)
	proceed := filepath.Join(t.TempDir(), "go")
	fmt.Fprintf(c, `{"id":1,"method":"exec.stream","params":{"command":"echo one; until [ -e %s ]; do sleep 0.05; done; echo two"}}`+"\n", proceed)
	c.CloseWrite()
	var names []string
	for n := range 4 {
		f := c.line()
		names = append(names, f.Event+f.Data.Str("data"))
		if n == 1 {
			if err := os.WriteFile(proceed, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := strings.Join(names, ","); got != ",exec.outputone\n,exec.outputtwo\n,exec.exit" {
		t.Fatalf("%q", got)
	}
	c.end()

	c = dialLocal(t, path)
	fmt.Fprintln(c, `{"id":1,"method":"exec.stream","params":{"command":"sleep 300"}}`)
	c.line()
	c.CloseWrite()
	c.Close() // gone altogether: nobody waits for the sleep
	testkit.Eventually(t, "its connection is gone", func() bool { return g.Metric("trl_connections") == 0 })
}

func TestTooLongLine(t *testing.T) {
	_, path := startLocal(t, func(c *Config) { c.MaxFrame = 1 << 20 })
	c := dialLocal(t, path)
	go func() {
		junk := make([]byte, 64<<10)
		for i := range junk {
			junk[i] = 'x'
		}
		for range 64 {
			if _, err := c.Write(junk); err != nil {
				return
			}
		}
	}()
	if f := c.line(); f.ID != nil || f.Code() != "REQUEST_TOO_LARGE" {
		t.Fatalf("%+v", f)
	}
	c.end()
}

func TestPeerIsItsUser(t *testing.T) {
	_, path := startLocal(t)
	c := dialLocal(t, path)
	fmt.Fprintln(c, `{"id":1,"method":"session.create"}`)
	c.line()
	d := dialLocal(t, path)
	fmt.Fprintln(d, `{"id":1,"method":"session.list"}`)
	if f := d.line(); len(f.Data["sessions"].([]any)) != 1 {
		t.Fatalf("%+v", f)
	}
}

// TestLongAnswers: answers that are larger than a buffer arrive complete, over a WebSocket and as a line, with each kind of text.
func TestLongAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	g := start(t, func(c *Config) { c.Unix = path })
	c := g.Dial()
	local, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	lines := bufio.NewReader(local)
	for name, x := range map[string]struct {
		command, encoding string
		want              []byte
	}{
		"controls": {"head -c 1000001 /dev/zero | tr '\\0' '\\1'", "utf-8", bytes.Repeat([]byte{1}, 1000001)},
		"bytes":    {"head -c 1000001 /dev/zero | tr '\\0' '\\377'", "base64", bytes.Repeat([]byte{0xff}, 1000001)},
		"letters":  {"yes ä | tr -d '\\n' | head -c 1000000", "utf-8", []byte(strings.Repeat("ä", 500_000))},
		"moved":    {"printf x; yes 世 | tr -d '\\n' | head -c 999999", "utf-8", []byte("x" + strings.Repeat("世", 333_333))},
	} {
		t.Run(name, func(t *testing.T) {
			params := object{"command": x.command, "max_output_bytes": 2 << 20}
			got := c.Call("exec.run", params)
			b, _ := json.Marshal(object{"id": 1, "method": "exec.run", "params": params})
			local.Write(append(b, '\n'))
			line, err := lines.ReadBytes('\n')
			var f rig.Frame
			if err != nil || json.Unmarshal(line, &f) != nil {
				t.Fatal(err)
			}
			for _, r := range []object{got, f.Data} {
				if r.Str("stdout_encoding") != x.encoding || r.Stdout() != string(x.want) || r["truncated"] != false {
					t.Errorf("%d bytes of %s", len(r.Str("stdout")), r.Str("stdout_encoding"))
				}
			}
		})
	}
	c.Call("system.ping", nil)
}
