package main

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"trl/protocol"
)

// Terminals: a keystroke's round trip, compared with a bare PTY behind a WebSocket, and a flood, compared with a bare read.

// terminals prints the rows of terminals.
func terminals(floor, gw string) {
	bare := dial(floor + "/pty")
	for _, protocol := range []string{"trl.v1+bin", "trl.v1"} {
		k := newKeys(gw, protocol)
		f, o := turns(*rounds, func() { roundTrip(bare, []byte("x")) }, k.press)
		row("keystroke echo, "+protocol, f, o)
		k.c.CloseNow()
	}
	bare.CloseNow()
	prompts(floor, gw)
	n := *stream << 20
	k := newKeys(gw, "trl.v1+bin")
	defer k.c.CloseNow()
	f, o := turns(3, func() { readPTY(n) }, func() { k.flood(n) })
	emit(rates(fmt.Sprintf("terminal, %d MiB of text", *stream), n, f, o))
}

// prompts measures the time from dialling to the prompt of an interactive bash: in a new session, and in one that exists.
func prompts(floor, gw string) {
	n := max(20, *rounds/10)
	bare := func() {
		c := dial(floor + "/prompt")
		awaitPrompt(c)
		c.CloseNow()
	}
	own := func(session string) func() {
		return func() {
			c := dial(gw+"/v1/ws", "trl.v1+bin")
			m := request(2, "term.open", map[string]any{"session_id": session, "cols": 80, "rows": 24})
			if session == "" {
				m = request(2, "session.create", map[string]any{"shell": "/bin/bash", "labels": promptLabels, "terminal": map[string]int{"cols": 80, "rows": 24}})
			}
			check(c.Write(ctx, websocket.MessageText, m))
			awaitPrompt(c)
			c.CloseNow()
		}
	}
	c := dial(gw + "/v1/ws")
	defer c.CloseNow()
	f, o := turns(n, bare, own(""), func() { endSessions(c) })
	row("connect to prompt, new session", f, o)
	in := newSession(c)
	f, o = turns(n, bare, own(in), func() { endTerminals(c, in) })
	row("connect to prompt, existing session", f, o)
	endSessions(c)
}

// promptLabel marks the sessions that prompts makes.
const promptLabel = "bench-prompt"

var promptLabels = map[string]string{promptLabel: "yes"}

func newSession(c *websocket.Conn) string {
	var made protocol.Session
	ask(c, "session.create", map[string]any{"shell": "/bin/bash", "labels": promptLabels}, &made)
	return made.SessionID
}

func endSessions(c *websocket.Conn) {
	var all protocol.Sessions
	ask(c, "session.list", map[string]any{"label": promptLabel}, &all)
	for _, s := range all.Sessions {
		ask(c, "session.destroy", map[string]any{"session_id": s.SessionID, "force": true}, nil)
	}
}

func endTerminals(c *websocket.Conn, session string) {
	var all protocol.Terminals
	ask(c, "term.list", map[string]any{"session_id": session}, &all)
	for _, t := range all.Terminals {
		if t.State == "running" {
			ask(c, "term.close", map[string]any{"term_id": t.TermID, "kill_grace_s": 0}, nil)
		}
	}
}

// awaitPrompt reads until bash asks for a line: it then sets bracketed paste, or prints its prompt's last characters.
func awaitPrompt(c *websocket.Conn) {
	for seen := []byte(nil); !bytes.Contains(seen, []byte("\x1b[?2004h")); {
		kind, b, err := c.Read(ctx)
		check(err)
		if kind == websocket.MessageBinary {
			seen = append(seen, b...)
		}
	}
}

// echoPrompt is the floor for a terminal's start: an interactive bash on a bare PTY behind a WebSocket.
func echoPrompt(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	master, cmd := ptyOf(append(os.Environ(), "TERM=xterm-256color"), "/bin/bash", "-i")
	done := relay(c, master, master)
	_ = cmd.Process.Kill()
	<-done
	_ = cmd.Wait()
	master.Close()
}

// keys is a client of a trl terminal in which cat runs.
type keys struct {
	c       *websocket.Conn
	session string
	press1  []byte              // a request that types; nil: frame does
	frame   protocol.InputFrame // types the next character
}

func newKeys(gw, framing string) *keys {
	c := dial(gw+"/v1/ws", framing)
	return keysIn(c, session(c, "/bin/bash"))
}

// keysIn opens a terminal in a session.
func keysIn(c *websocket.Conn, session string) *keys {
	k := &keys{c: c, session: session}
	var opened protocol.TermOpened
	ask(c, "term.open", map[string]any{"session_id": k.session, "cols": 1000, "rows": 24, "command": "echo ready; exec cat >/dev/null"}, &opened)
	if opened.InputOffset != nil {
		k.frame = protocol.InputFrame{StreamNo: opened.StreamNo, Offset: *opened.InputOffset, Data: []byte("x")}
	} else {
		k.press1 = request(2, "term.input", map[string]any{"term_id": opened.TermID, "data": "x"})
	}
	for seen := false; !seen; {
		_, b, err := c.Read(ctx)
		check(err)
		seen = bytes.Contains(b, []byte("ready"))
	}
	return k
}

// press types a character and waits for its echo, and for the answer if there is one.
func (k *keys) press() {
	if k.press1 != nil {
		check(k.c.Write(ctx, websocket.MessageText, k.press1))
	} else {
		check(k.c.Write(ctx, websocket.MessageBinary, protocol.AppendInput(nil, &k.frame)))
		k.frame.Offset++
	}
	for answered, echoed := k.press1 == nil, false; !answered || !echoed; {
		kind, b, err := k.c.Read(ctx)
		check(err)
		switch {
		case kind == websocket.MessageBinary, bytes.HasPrefix(b, []byte(`{"event":"term.output"`)):
			echoed = true
		case bytes.HasPrefix(b, []byte(`{"id"`)):
			ok(b)
			answered = true
		case bytes.HasPrefix(b, []byte(`{"event":"input.refused"`)):
			panic(string(b))
		}
	}
}

const flood = "stty raw -echo; "

// flood prints n bytes on a terminal.
func (k *keys) flood(n int) {
	m := request(3, "term.open", map[string]any{"session_id": k.session, "cols": 80, "rows": 24, "command": flood + text(n)})
	check(k.c.Write(ctx, websocket.MessageText, m))
	for got := 0; ; {
		kind, b, err := k.c.Read(ctx)
		switch {
		case err != nil:
			panic(err)
		case kind == websocket.MessageBinary:
			got += len(b)
		case bytes.HasPrefix(b, []byte(`{"event":"term.exit"`)):
			if got < n {
				panic(fmt.Sprintf("%d bytes of %d", got, n))
			}
			return
		}
	}
}

// pty starts a command on a new PTY and returns the master.
func pty(command string) (*os.File, *exec.Cmd) {
	return ptyOf(nil, "/bin/bash", "-c", command)
}

func ptyOf(env []string, argv ...string) (*os.File, *exec.Cmd) {
	fd := must(unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0))
	check(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	slave, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		panic(errno)
	}
	tty := os.NewFile(slave, "tty")
	defer tty.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	check(cmd.Start())
	return os.NewFile(uintptr(fd), "ptmx"), cmd
}

// readPTY reads n bytes of a flood from a bare PTY.
func readPTY(n int) {
	master, cmd := pty(flood + text(n))
	buf := make([]byte, 64<<10)
	for {
		k, err := master.Read(buf)
		if n -= k; err != nil {
			break
		}
	}
	if n > 0 {
		panic(fmt.Sprintf("%d bytes are missing", n))
	}
	_ = cmd.Wait()
	master.Close()
}

// echoPTY is the floor for keystrokes: it copies messages to a bare PTY and the PTY's output to messages.
func echoPTY(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	master, cmd := pty("stty -F /dev/stdin cols 1000; exec cat >/dev/null")
	time.Sleep(100 * time.Millisecond) // stty
	relay(c, master, master)           // the copying ends with the master, which is closed below
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	master.Close()
}
