package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
)

// gotty is a common alternative: one PTY per WebSocket, and nothing that outlives it. It is built in a separate module, so that it is not a dependency
// of ours, and only on request.
const gottyVersion = "v1.5.0"

// besideGotty prints the rows of terminals with gotty in place of the floor.
func besideGotty(gw string) {
	dir := must(os.MkdirTemp("", "trl-bench-gotty-"))
	defer os.RemoveAll(dir)
	g := startGotty(dir)
	defer func() { _ = g.cmd.Process.Signal(syscall.SIGTERM); _ = g.cmd.Wait() }()
	fmt.Printf("\n%-34s %12s %12s %8s\n", "beside gotty "+gottyVersion, "gotty", "trl", "ratio")
	theirs, _ := g.dial("exec cat >/dev/null")
	for _, protocol := range []string{"trl.v1+bin", "trl.v1"} {
		k := newKeys(gw, protocol)
		f, o := turns(*rounds, func() { pressGotty(theirs) }, k.press)
		row("keystroke echo, "+protocol, f, o)
		k.c.CloseNow()
	}
	theirs.CloseNow()
	n := *stream << 20
	k := newKeys(gw, "trl.v1+bin")
	defer k.c.CloseNow()
	f, o := turns(3, func() { g.flood(n) }, func() { k.flood(n) })
	emit(rates(fmt.Sprintf("terminal, %d MiB of text", *stream), n, f, o))
}

type gotty struct {
	cmd  *exec.Cmd
	addr string
}

func startGotty(dir string) *gotty {
	write := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module scratch\n\ngo 1.26\n\nrequire github.com/sorenisanerd/gotty "+gottyVersion+"\n"), 0o600)
	if write != nil {
		panic(write)
	}
	build := exec.Command("go", "build", "-mod=mod", "-o", "gotty", "github.com/sorenisanerd/gotty")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build gotty: %v\n%s", err, out))
	}
	l := must(net.Listen("tcp", "127.0.0.1:0")) // gotty accepts no port 0
	addr := l.Addr().(*net.TCPAddr)
	l.Close()
	g := &gotty{addr: addr.String()}
	g.cmd = exec.Command(filepath.Join(dir, "gotty"), "--address", "127.0.0.1", "--port", strconv.Itoa(addr.Port), "--permit-write", "--permit-arguments", "--quiet", "/bin/bash", "-c")
	g.cmd.Env = append(os.Environ(), "HOME="+dir) // ignore the user's settings
	check(g.cmd.Start())
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", g.addr)
		if err == nil {
			c.Close()
			return g
		}
		if time.Now().After(end) {
			panic(err)
		}
	}
}

// dial starts a command on a terminal of gotty, and also returns how much of its output was read.
func (g *gotty) dial(command string) (c *websocket.Conn, read int) {
	c = dial("ws://"+g.addr+"/ws", "webtty")
	hello := must(json.Marshal(map[string]string{"Arguments": "?" + url.Values{"arg": {"echo ready; " + command}}.Encode(), "AuthToken": ""}))
	check(c.Write(ctx, websocket.MessageText, hello))
	const ready = "ready\r\n"
	all := ""
	for !strings.Contains(all, ready) {
		all += string(outputOfGotty(c))
	}
	return c, len(all) - len(ready)
}

// outputOfGotty returns the next piece of output: '1' and base64.
func outputOfGotty(c *websocket.Conn) []byte {
	for {
		_, b, err := c.Read(ctx)
		check(err)
		if len(b) > 0 && b[0] == '1' {
			return must(base64.StdEncoding.DecodeString(string(b[1:])))
		}
	}
}

func pressGotty(c *websocket.Conn) {
	check(c.Write(ctx, websocket.MessageText, []byte("1x")))
	outputOfGotty(c)
}

func (g *gotty) flood(n int) {
	// gotty closes as soon as the program has ended, even if output is unread; so the program waits.
	c, got := g.dial(flood + text(n) + "; sleep 60")
	defer c.CloseNow()
	for got < n {
		got += len(outputOfGotty(c))
	}
}
