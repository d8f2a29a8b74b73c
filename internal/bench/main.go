// Command bench measures a built trl beside the floors of docs/PERFORMANCE.md: a bare bash on a pipe, a bare WebSocket
// echo in a process of its own, a bare pipe copied into WebSocket messages, a bare PTY behind a WebSocket. Floor and product take turns in one run, so
// that what disturbs one disturbs the other; medians and their ratios are printed, never asserted.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

var (
	trl    = flag.String("trl", "bin/trl", "the gateway to measure")
	rounds = flag.Int("rounds", 2000, "requests of each kind")
	stream = flag.Int("mib", 64, "MiB to stream")
	idle   = flag.Int("idle", 200, "idle sessions beside the measured one")
	only   = flag.Bool("terminals", false, "measure only terminals")
	other  = flag.Bool("gotty", false, "measure terminals beside gotty, too, which is built for it")
	ctx    = context.Background()
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "echo" {
		echo()
		return
	}
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	self := must(os.Executable())
	floor := start(self, "echo")
	defer floor.stop()
	dir := must(os.MkdirTemp("", "trl-bench-"))
	defer os.RemoveAll(dir)
	gw := gateway(dir)
	defer gw.stop()
	fmt.Printf("%-34s %12s %12s %8s\n", "", "floor", "trl", "ratio")
	if *only {
		terminals(floor.addr, gw.addr)
		if *other {
			besideGotty(gw.addr)
		}
		return nil
	}
	wsEcho, c := dial(floor.addr+"/echo"), dial(gw.addr+"/v1/ws")
	for _, shell := range []string{"/bin/bash", "/bin/sh"} {
		sh := bare(shell)
		id := session(c, shell)
		line := []byte(`{"id":1,"method":"exec.run","params":{"session_id":"` + id + `","command":":"}}`)
		f, o := turns(*rounds, func() { sh.ask(); talk(wsEcho, line) }, func() { ok(talk(c, line)) })
		row("exec.run : "+shell, f, o)
		for range *idle {
			session(c, shell)
		}
		_, many := turns(*rounds, func() { sh.ask(); talk(wsEcho, line) }, func() { ok(talk(c, line)) })
		row(fmt.Sprintf("  the same beside %d idle sessions", *idle), o, many)
		sh.stop()
	}
	create := []byte(`{"id":1,"method":"session.create","params":{}}`)
	destroy := func(answer []byte) {
		ok(talk(c, []byte(`{"id":2,"method":"session.destroy","params":{"session_id":"`+sessionID(answer)+`","force":true}}`)))
	}
	var last []byte
	f, o := turns(min(*rounds, 200), func() { talk(wsEcho, create) }, func() { last = ok(talk(c, create)) }, func() { destroy(last); time.Sleep(30 * time.Millisecond) })
	row("session.create, warm / echo", f, o)
	cold := []byte(`{"id":1,"method":"session.create","params":{"shell":"/bin/bash"}}`)
	f, o = turns(min(*rounds, 200), func() { s := bare("/bin/bash"); s.ask(); s.stop() }, func() { last = ok(talk(c, cold)) }, func() { destroy(last) })
	row("session.create, cold bash / spawn", f, o)

	n, followed := *stream<<20, session(c, "/bin/bash")
	fs, ts := turns(5, func() { pump(wsEcho, n) }, func() { follow(c, followed, n) })
	rates(n, fs, ts)
	terminals(floor.addr, gw.addr)
	if *other {
		besideGotty(gw.addr)
	}
	return beside(c)
}

// beside measures what the keeper, and output that outlives the gateway, cost: the same without, in one process.
func beside(c *websocket.Conn) error {
	dir := must(os.MkdirTemp("", "trl-bench-"))
	defer os.RemoveAll(dir)
	gw := gateway(dir, "--single-process")
	defer gw.stop()
	alone := dial(gw.addr + "/v1/ws")
	fmt.Printf("\n%-34s %12s %12s %8s\n", "beside --single-process", "single", "keeper", "ratio")
	for _, shell := range []string{"/bin/bash", "/bin/sh"} {
		ask := func(c *websocket.Conn) func() {
			line := []byte(`{"id":1,"method":"exec.run","params":{"session_id":"` + session(c, shell) + `","command":":"}}`)
			return func() { ok(talk(c, line)) }
		}
		f, o := turns(*rounds, ask(alone), ask(c))
		row("exec.run : "+shell, f, o)
	}
	for _, kind := range []string{"warm", "cold"} {
		params := "{}"
		if kind == "cold" {
			params = `{"shell":"/bin/bash"}`
		}
		var made [2][]byte
		create := func(c *websocket.Conn, made *[]byte) func() {
			return func() { *made = ok(talk(c, []byte(`{"id":1,"method":"session.create","params":`+params+`}`))) }
		}
		destroy := func(c *websocket.Conn, made *[]byte) func() {
			return func() {
				ok(talk(c, []byte(`{"id":2,"method":"session.destroy","params":{"session_id":"`+sessionID(*made)+`","force":true}}`)))
			}
		}
		f, o := turns(min(*rounds, 200), create(alone, &made[0]), create(c, &made[1]), destroy(alone, &made[0]), destroy(c, &made[1]),
			func() { time.Sleep(30 * time.Millisecond) }) // for the next warm shell
		row("session.create, "+kind, f, o)
	}
	n, f, o := *stream<<20, session(alone, "/bin/bash"), session(c, "/bin/bash")
	fs, ts := turns(5, func() { follow(alone, f, n) }, func() { follow(c, o, n) })
	rates(n, fs, ts)
	return nil
}

// gateway starts the product.
func gateway(dir string, flags ...string) *child {
	return start(*trl, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth", "none", "--state-dir", dir, "--max-sessions", "2000", "--log-level", "error"}, flags...)...)
}

func rates(n int, floor, own time.Duration) {
	fmt.Printf("%-34s %8.0f MB/s %7.0f MB/s %8.2f\n", fmt.Sprintf("exec.stream %d MiB of text", n>>20), rate(n, floor), rate(n, own), rate(n, own)/rate(n, floor))
}

func rate(n int, d time.Duration) float64 { return float64(n) / 1e6 / d.Seconds() }

func row(name string, floor, own time.Duration) {
	fmt.Printf("%-34s %9.1f µs %9.1f µs %8.2f\n", name, float64(floor.Nanoseconds())/1e3, float64(own.Nanoseconds())/1e3, float64(own)/float64(floor))
}

// turns measures a and b n times by turns and returns their medians; after is not measured.
func turns(n int, a, b func(), after ...func()) (time.Duration, time.Duration) {
	var as, bs []time.Duration
	for range n {
		t0 := time.Now()
		a()
		t1 := time.Now()
		b()
		t2 := time.Now()
		as, bs = append(as, t1.Sub(t0)), append(bs, t2.Sub(t1))
		for _, f := range after {
			f()
		}
	}
	slices.Sort(as)
	slices.Sort(bs)
	return as[n/2], bs[n/2]
}

// child is a server of ours or the gateway: the address is the last word of its first line.
type child struct {
	cmd  *exec.Cmd
	addr string
}

func start(path string, args ...string) *child {
	cmd := exec.Command(path, args...)
	cmd.Stderr = os.Stderr
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	line := must(bufio.NewReader(out).ReadString('\n'))
	f := strings.Fields(line)
	return &child{cmd, strings.Replace(f[len(f)-1], "http", "ws", 1)}
}

func (c *child) stop() { _ = c.cmd.Process.Signal(syscall.SIGTERM); _ = c.cmd.Wait() }

// shell is a bare one: a line in, a line out.
type shell struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func bare(path string) *shell {
	cmd := exec.Command(path)
	s := &shell{cmd: cmd, in: must(cmd.StdinPipe())}
	s.out = bufio.NewReader(must(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return s
}

func (s *shell) ask() {
	_, _ = io.WriteString(s.in, ":; echo $?\n")
	must(s.out.ReadString('\n'))
}

func (s *shell) stop() { s.in.Close(); _ = s.cmd.Wait() }

func dial(url string) *websocket.Conn {
	c, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		panic(err)
	}
	c.SetReadLimit(1 << 30)
	return c
}

func talk(c *websocket.Conn, m []byte) []byte {
	if err := c.Write(ctx, websocket.MessageText, m); err != nil {
		panic(err)
	}
	_, b, err := c.Read(ctx)
	if err != nil {
		panic(err)
	}
	return b
}

func ok(answer []byte) []byte {
	if !strings.Contains(string(answer), `"ok":true`) {
		panic(string(answer))
	}
	return answer
}

func sessionID(answer []byte) string {
	var m struct {
		Data struct {
			ID string `json:"session_id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer, &m); err != nil {
		panic(err)
	}
	return m.Data.ID
}

func session(c *websocket.Conn, shell string) string {
	return sessionID(ok(talk(c, []byte(`{"id":1,"method":"session.create","params":{"shell":"`+shell+`"}}`))))
}

// text is the stream: lines, as a build prints them.
func text(n int) string {
	return fmt.Sprintf("yes 'the quick brown fox jumps over the lazy dog' | head -c %d", n)
}

// pump asks the echo server for n bytes copied from a pipe in messages of 32 KiB.
func pump(c *websocket.Conn, n int) {
	if err := c.Write(ctx, websocket.MessageText, []byte("pump "+strconv.Itoa(n))); err != nil {
		panic(err)
	}
	for n > 0 {
		_, b, err := c.Read(ctx)
		if err != nil {
			panic(err)
		}
		n -= len(b)
	}
}

// follow streams n bytes through the gateway until exec.exit.
func follow(c *websocket.Conn, session string, n int) {
	m, _ := json.Marshal(map[string]any{"id": 1, "method": "exec.stream", "params": map[string]any{"session_id": session, "command": text(n)}})
	b := ok(talk(c, m))
	got := 0
	for !strings.HasPrefix(string(b), `{"event":"exec.exit"`) {
		var err error
		if _, b, err = c.Read(ctx); err != nil {
			panic(err)
		}
		got += len(b)
	}
	if got < n {
		panic(fmt.Sprintf("%d bytes of %d", got, n))
	}
}

// echo is the floor's server.
func echo() {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	fmt.Println("http://" + l.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("/pty", echoPTY)
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		for {
			t, b, err := c.Read(ctx)
			if err != nil {
				return
			}
			if n, found := strings.CutPrefix(string(b), "pump "); found {
				if copyPipe(c, must(strconv.Atoi(n))) != nil {
					return
				}
				continue
			}
			if c.Write(ctx, t, b) != nil {
				return
			}
		}
	})
	if err := http.Serve(l, mux); !errors.Is(err, http.ErrServerClosed) {
		panic(err)
	}
}

func copyPipe(c *websocket.Conn, n int) error {
	cmd := exec.Command("/bin/bash", "-c", text(n))
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	buf := make([]byte, 32<<10)
	for {
		n, err := out.Read(buf)
		if n > 0 {
			if err := c.Write(ctx, websocket.MessageText, buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return nil
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
