package main

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/coder/websocket"

	"trl/protocol"
)

// child is one of our servers or the gateway. Its address is the last word of its first line.
type child struct {
	cmd  *exec.Cmd
	addr string // ws://…
	dir  string // removed after the child's end; "": none
}

// children are the running ones, for an interrupt.
var children struct {
	sync.Mutex
	all []*child // guarded by Mutex
}

// stopOnSignal makes an interrupted run leave nothing behind.
func stopOnSignal() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE) // PIPE: whoever read the table is gone
	go func() {                                                                              // lives as long as the program
		<-signals
		children.Lock()
		for _, c := range children.all {
			c.end()
		}
		os.Exit(130)
	}()
}

func start(path string, args ...string) *child { return startIn("", path, args...) }

// startIn starts a server that keeps everything in a directory, which is removed with it.
func startIn(dir, path string, args ...string) *child {
	cmd := exec.Command(path, args...)
	if dir != "" {
		cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	}
	out := must(cmd.StdoutPipe())
	c := launch(cmd, dir)
	f := strings.Fields(must(bufio.NewReader(out).ReadString('\n')))
	c.addr = strings.Replace(f[len(f)-1], "http", "ws", 1)
	return c
}

// launch starts a program. Its dir, which may be "", is removed after its end.
func launch(cmd *exec.Cmd, dir string) *child {
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us, and we pass it on
	check(cmd.Start())
	c := &child{cmd: cmd, dir: dir}
	children.Lock()
	children.all = append(children.all, c)
	children.Unlock()
	return c
}

func (c *child) stop() {
	children.Lock()
	defer children.Unlock()
	if i := slices.Index(children.all, c); i >= 0 {
		children.all = slices.Delete(children.all, i, i+1)
		c.end()
	}
}

func (c *child) end() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	_ = c.cmd.Wait()
	if c.dir != "" {
		os.RemoveAll(c.dir)
	}
}

// gateway starts trl with its state in a directory that is removed with it.
func gateway(flags ...string) *child {
	dir := must(os.MkdirTemp("", "trl-bench-"))
	return startIn(dir, *trl, append([]string{"serve", "--listen", "127.0.0.1:0", "--auth", "none", "--state-dir", dir, "--max-sessions", "5000", "--log-level", "error"}, flags...)...)
}

func dial(url string, protocols ...string) *websocket.Conn {
	c, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: protocols})
	check(err)
	c.SetReadLimit(1 << 30)
	return c
}

func roundTrip(c *websocket.Conn, m []byte) []byte {
	check(c.Write(ctx, websocket.MessageText, m))
	_, b, err := c.Read(ctx)
	check(err)
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
	check(json.Unmarshal(answer, &m))
	return m.Data.ID
}

func session(c *websocket.Conn, shell string) string {
	var made struct {
		ID string `json:"session_id"`
	}
	ask(c, "session.create", map[string]any{"shell": shell}, &made)
	return made.ID
}

// request is one frame.
func request(id int, method string, params any) []byte {
	return must(json.Marshal(map[string]any{"id": id, "method": method, "params": params}))
}

// ask calls a method and decodes its answer into into, which may be nil.
func ask(c *websocket.Conn, method string, params, into any) {
	answer := ok(roundTrip(c, request(1, method, params)))
	if into != nil {
		check(json.Unmarshal(answer, &struct{ Data any }{into}))
	}
}

// tier is the gateway's tier of containment.
func tier(c *websocket.Conn) string {
	var caps protocol.Capabilities
	ask(c, "system.capabilities", nil, &caps)
	return caps.Isolation.Tier
}
