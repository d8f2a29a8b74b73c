package streams

import (
	"context"
	"encoding/base64"
	varint "encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// Reconnecting to terminals, and replay: section I. What of it is about commands is in other packages (docs/ACCEPTANCE.md).

// followTerminal reads a terminal from its first byte to its end over as many connections as it takes, each dropped (RST) by lose.
func followTerminal(ctx context.Context, g *rig.Server, term string, lose func(a *rig.Again)) (text string, exit object, err error) {
	a := rig.Again{G: g}
	defer func() {
		if a.Ws != nil {
			a.Ws.CloseNow()
		}
	}()
	offset := 0
	var b strings.Builder
	for ctx.Err() == nil {
		var wrong error
		f, err := a.Ask(ctx, "term.attach", object{"term_id": term, "offset": offset, "mode": "control"}, func(name string, data object) bool {
			switch name {
			case "term.output":
				part := data.Str("data")
				if data.Str("encoding") == "base64" {
					raw, _ := base64.StdEncoding.DecodeString(part)
					part = string(raw)
				}
				if at := data.Num("offset"); at != offset || data.Yes("snapshot") {
					wrong = fmt.Errorf("a chunk at %d where %d was due: %v", at, offset, data)
					return false
				}
				offset += len(part)
				b.WriteString(part)
				if lose != nil {
					lose(&a)
				}
			case "stream.gap":
				wrong = fmt.Errorf("gap %v", data)
			case "term.exit":
				exit = data
				return false
			}
			return wrong == nil
		})
		switch {
		case wrong != nil:
			return b.String(), nil, wrong
		case err == nil && f.Error != nil:
			return b.String(), nil, fmt.Errorf("attach: %v", f.Error)
		case exit != nil:
			return b.String(), exit, nil
		}
	}
	return b.String(), nil, ctx.Err()
}

// checkLines checks that text is 1, 2, … n, each on its line of a terminal.
func checkLines(text string, n int) error {
	for i := 1; i <= n; i++ {
		line, rest, ok := strings.Cut(text, "\r\n")
		if !ok || line != strconv.Itoa(i) {
			return fmt.Errorf("%s where %d was due, in %s", rig.Brief(line), i, rig.Brief(text[:min(60, len(text))]))
		}
		text = rest
	}
	if text != "" {
		return fmt.Errorf("after the last line: %q", rig.Brief(text))
	}
	return nil
}

// I1.
func TestTerminalOutputArrivesOnceAfterADrop(t *testing.T) {
	g := rig.Shared(t, "h")
	c := g.Dial(t)
	s := c.Session()
	h := c.OpenTerminal(s, object{"command": "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo $i; sleep .002; done; exit 5"})
	c.Close() // nobody is attached for a while
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	drops := 0
	text, exit, err := followTerminal(ctx, g, h.Id, func(a *rig.Again) {
		if drops < 30 && (drops == 0 || rand.IntN(8) == 0) { // a busy machine may have all of it by now, in few pieces
			drops++
			a.Ws.CloseNow()
		}
	})
	if err == nil {
		err = checkLines(text, 1000)
	}
	if err != nil || exit.Num("exit_code") != 5 || drops == 0 {
		t.Errorf("%v, %d drops, exit %v", err, drops, exit)
	}
	// I5: it ended while nobody was there; all of it can still be had, with the exit.
	if text, exit, err = followTerminal(ctx, g, h.Id, nil); err != nil || checkLines(text, 1000) != nil || exit.Num("exit_code") != 5 {
		t.Errorf("afterwards: %v %v %v", err, checkLines(text, 1000), exit)
	}
}

// I2, I3: offsets count bytes; one that the ring no longer has is a gap, told, and then the screen.
func TestMissingOutputIsAGapThenTheScreen(t *testing.T) {
	g := rig.Shared(t, "h")
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"command": "stty -echo; head -n 1; printf 'ü\\n'; seq 1 700000; echo filled; exec cat", "on_slow": "skip"})
	c.Call("term.detach", object{"term_id": h.Id})
	h.Keys("é\r")
	h.Screen("filled")
	d := g.Dial(t)
	again := h.Attach(d, object{"offset": 2, "mode": "view"})
	again.Next = 2
	for again.Shots == 0 {
		if exit := again.NextOutput(); exit != nil {
			t.Fatal("ended")
		}
	}
	if !strings.Contains(again.Text, "699999") || !strings.Contains(again.Text, "filled") || again.Next < 2<<20 {
		t.Errorf("after a gap to %d the screen is %s", again.Next, rig.Brief(again.Text))
	}
	h.Keys("live\r")
	again.Expect("live")
	if f := d.Try("term.attach", object{"term_id": h.Id, "offset": 1 << 40}); f.Code() != "STREAM_NOT_FOUND" {
		t.Errorf("beyond the end: %s", f.Code())
	}
	if f := d.Try("term.attach", object{"term_id": "t-" + strings.Repeat("x", 40)}); f.Code() != "TERM_NOT_FOUND" {
		t.Errorf("no such: %s", f.Code())
	}
	e := g.Dial(t)
	whole := h.Attach(e) // from what is kept
	if whole.Next == 0 || whole.Next > 2<<20 {
		t.Errorf("what is kept begins at %d", whole.Next)
	}
	whole.Expect("live\r\n")
	// With history: what is kept comes before the screen, wherever the beginning is gone.
	last := "live"
	for n, from := range []object{{"offset": 2}, {}} {
		f := g.Dial(t)
		kept := h.Attach(f, from, object{"mode": "view", "history": true})
		if _, asked := from["offset"]; asked {
			kept.Next = 2
			if exit := kept.NextOutput(); exit != nil || kept.Next == 2 || kept.Next > 2<<20 {
				t.Fatalf("a gap to %d, exit %v", kept.Next, exit)
			}
		}
		history := ""
		for kept.Shots == 0 {
			history = kept.Text
			if exit := kept.NextOutput(); exit != nil {
				t.Fatal("ended")
			}
		}
		if !strings.HasSuffix(history, last+"\r\n") || len(history) < 3<<20 || !strings.Contains(kept.Text, last) {
			t.Errorf("from %v: %d bytes of history, which end with %q, then %s", from, len(history), rig.Brief(history), rig.Brief(kept.Text))
		}
		last = fmt.Sprint("more", n)
		h.Keys(last + "\r")
		kept.Expect(last)
		kept.Ask("term.detach")
	}
	if f := d.Try("term.attach", object{"term_id": h.Id, "snapshot": true, "history": true}); f.Code() != "INVALID_PARAMS" || f.Error.Details.Str("field") != "history" {
		t.Errorf("both: %s", f.Code())
	}
	h.Ask("term.close")
}

// I7: what was printed before a client came is marked, and the screen asks nothing; so no answer is typed for it.
func TestReplayIsMarkedAndAsksNothing(t *testing.T) {
	g := rig.Shared(t, "h")
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"command": `stty raw -echo; printf 'ask\033[6n\033[c\033]10;?\007\033]11;?\033\\ready'; exec od -An -tx1 -w1`})
	h.Expect("ready")
	replays := func(text, until string, c *rig.Client) (marked, live int) {
		for !strings.Contains(text, until) {
			f := c.Await(until, func(f *rig.Frame) bool { return f.Event == "term.output" })
			text += f.Data.Text("data", "encoding")
			if f.Data.Yes("replay") {
				marked++
			} else {
				live++
			}
		}
		return marked, live
	}
	d := g.Dial(t)
	h.Attach(d, object{"offset": 0, "mode": "view"})
	if marked, live := replays("", "ready", d); marked == 0 || live != 0 {
		t.Errorf("%d chunks are marked, %d are not", marked, live)
	}
	h.Keys("x")
	if marked, live := replays("", "78", d); marked != 0 || live == 0 {
		t.Errorf("live: %d chunks are marked, %d are not", marked, live)
	}
	e := g.Dial(t)
	shot := h.Attach(e, object{"snapshot": true})
	shot.NextOutput()
	for _, query := range []string{"\x1b[6n", "\x1b[c", "]10;?", "]11;?", "\x1b[5n"} {
		if strings.Contains(shot.Text, query) {
			t.Errorf("the screen has %q", query)
		}
	}
	if !strings.Contains(shot.Text, "ask") || shot.Shots != 1 {
		t.Errorf("the screen is %s", rig.Brief(shot.Text))
	}
	h.Ask("term.close", object{"kill_grace_s": 0.2})
}

// I8: the screen of a full-screen program that began long ago, and what is below it.
func TestReplayShowsTheScreenOfAFullScreenProgram(t *testing.T) {
	g := rig.Shared(t, "h")
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"on_slow": "skip", "command": `printf 'below\r\n\033[?1049h\033[?25l\033[?1000h\033[H\033[2J\033[1;1Htop line\033[24;1Hbottom line'
for i in $(seq 1 400); do printf '\033[10;10H%05d' $i; head -c 6000 /dev/zero | tr '\0' ' ' | fold -w 60 | sed 's/^/\x1b[12;1H/' | tr -d '\n'; done; printf '\033[5;5Hdone'; exec cat`})
	c.Call("term.detach", object{"term_id": h.Id})
	shot := h.Screen("done")
	lines := shot["lines"].([]any)
	if lines[0] != "top line" || lines[23] != "bottom line" || lines[9] != "         00400" || !shot.Yes("alternate") || shot.Obj("cursor").Yes("visible") || shot.Num("offset") < 2<<20 {
		t.Errorf("after %d bytes: %v", shot.Num("offset"), shot)
	}
	d := g.Dial(t)
	again := h.Attach(d, object{"snapshot": true})
	again.NextOutput()
	for _, part := range []string{"below", "\x1b[?1049h", "top line", "bottom line", "\x1b[?1000h", "\x1b[?25l"} {
		if !strings.Contains(again.Text, part) {
			t.Errorf("no %q in %s", part, rig.Brief(again.Text))
		}
	}
	h.Ask("term.close")
}

// A second attach on one connection takes the place of the first: no byte comes twice.
func TestSecondAttachOfAConnectionReplacesTheFirst(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session()
	h := c.OpenTerminal(s, object{"command": "stty -echo; echo first; exec cat"})
	h.Expect("first\r\n")
	d := c.Call("term.attach", object{"term_id": h.Id, "mode": "view", "offset": h.Next})
	if d.Str("mode") != "view" || d.Num("offset") != h.Next || d.Str("state") != "running" {
		t.Errorf("%v", d)
	}
	if f := c.Try("term.input", object{"term_id": h.Id, "data": "x"}); f.Code() != "FORBIDDEN" {
		t.Errorf("typing after it attached to view: %s", f.Code())
	}
	c.Call("term.attach", object{"term_id": h.Id, "offset": h.Next})
	h.Keys("second\r")
	h.Expect("second\r\n")
	c.Call("term.detach", object{"term_id": h.Id})
	c.Call("term.detach", object{"term_id": h.Id}) // twice is once
	h.Ask("term.close")
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, f := range c.Came {
		if f.Event == "term.output" || f.Event == "term.exit" {
			t.Errorf("after the detach: %v", f.Data)
		}
	}
}

func parseBinary(t *testing.T, text []byte) (f rig.Frame) {
	t.Helper()
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// Binary frames: all output, of commands, processes and terminals.
func TestBinaryFramesCarryAllOutput(t *testing.T) {
	g := rig.Shared(t, "h")
	ws, err := g.Open(t, &websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}})
	if err != nil {
		t.Fatal(err)
	}
	if ws.Subprotocol() != "trl.v1+bin" {
		t.Fatalf("subprotocol %q", ws.Subprotocol())
	}
	s := g.Dial(t).Session(object{"shell": "/bin/bash"})
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	request := func(id int, method string, params object) {
		t.Helper()
		text, err := json.Marshal(object{"id": id, "method": method, "params": params})
		if err == nil {
			err = ws.Write(ctx, websocket.MessageText, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// read returns the stream's bytes up to its exit event.
	read := func(exit string) (bytes [4]string, answer object) {
		t.Helper()
		var no uint64
		next := uint64(0)
		for {
			kind, p, err := ws.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if kind == websocket.MessageText {
				f := parseBinary(t, p)
				switch {
				case f.Event == "":
					if !f.OK {
						t.Fatalf("%+v", f.Error)
					}
					answer = f.Data
					no = uint64(f.Data.Num("stream_no"))
					if no == 0 {
						t.Errorf("no stream_no in %v", f.Data)
					}
				case f.Event == exit:
					return bytes, answer
				case strings.HasSuffix(f.Event, ".output"):
					t.Errorf("output as JSON: %v", f.Data)
				}
				continue
			}
			n, a := varint.Uvarint(p[1:])
			at, b := varint.Uvarint(p[1+a:])
			data := p[1+a+b:]
			if n != no || at != next || p[0]&0xf == 0 || p[0]&0xf > 3 {
				t.Errorf("frame % x, want stream %d at %d", p[:1+a+b], no, next)
			}
			bytes[p[0]&0xf] += string(data)
			next = at + uint64(len(data))
		}
	}
	request(1, "exec.stream", object{"session_id": s, "command": `printf 'a\xff\0b'; sleep .1; echo err >&2`})
	if b, _ := read("exec.exit"); b[1] != "a\xff\x00b" || b[2] != "err\n" {
		t.Errorf("command: %q", b)
	}
	request(2, "term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": `printf '\xe2'; sleep .1; printf '\x94\x80'; printf '\xff'; seq 1 50000`})
	b, opened := read("term.exit")
	if !strings.HasPrefix(b[3], "─\xff1\r\n2\r\n") || !strings.HasSuffix(b[3], "\r\n50000\r\n") {
		t.Errorf("terminal: %s", rig.Brief(b[3]))
	}
	request(3, "term.attach", object{"term_id": opened.Str("term_id"), "offset": 0})
	if again, a := read("term.exit"); again[3] != b[3] || a.Num("stream_no") == opened.Num("stream_no") {
		t.Errorf("again: %s, %v", rig.Brief(again[3]), a)
	}
	request(4, "session.watch", object{"session_id": s})
	request(5, "exec.run", object{"session_id": s, "command": "echo watched"})
	for seen := 0; seen < 2; {
		kind, p, err := ws.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if kind == websocket.MessageBinary {
			if seen != 1 || !strings.HasSuffix(string(p), "watched\n") {
				t.Errorf("%q", p)
			}
			seen++
		} else if f := parseBinary(t, p); f.Event == "stream.started" {
			if f.Data.Num("stream_no") == 0 || f.Data.Str("exec_id") == "" {
				t.Errorf("%v", f.Data)
			}
			seen++
		}
	}
}

// killGateways kills the gateway so many times, now and then with an upgrade instead.
func killGateways(g *rig.Server, kills int) {
	for i := range kills {
		time.Sleep(time.Duration(100+rand.IntN(500)) * time.Millisecond)
		if i%4 == 3 {
			_ = syscall.Kill(g.Pid, syscall.SIGHUP)
		} else if pid := g.GatewayPid(); pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Gateways are killed and upgraded while a terminal prints at full speed and somebody types: no byte is missing or double,
// and every line typed and answered arrives once, in order.
func TestTerminalSurvivesKilledGateways(t *testing.T) {
	g := rig.Gateway(t)
	c := g.Dial(t)
	n, kills := rig.Pick(40_000, 400_000), rig.Pick(6, 40)
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"on_slow": "skip", "cols": 101, "rows": 37, "command": fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo $i; done; stty size; exit 9", n)})
	e := c.OpenTerminal(s, object{"on_slow": "skip", "command": "stty -echo; echo 0; exec cat"})
	e.Expect("0\r\n") // from here on it does not echo
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	killing, stop := context.WithCancel(ctx)
	go func() { // ends after the last kill; waited for below through killing
		defer stop()
		killGateways(g, kills)
	}()
	typed := make(chan int)
	go func() { // types line after line until the last kill
		a := rig.Again{G: g}
		sent, offset, taken := 0, 0, true
		for ctx.Err() == nil && (killing.Err() == nil || !taken) {
			line := fmt.Sprintf("%d\r", sent+1)
			f, err := a.Ask(ctx, "term.input", object{"term_id": e.Id, "data": line, "offset": offset}, nil)
			taken = err == nil && f.Error == nil || f.Code() == "OFFSET_MISMATCH" && f.Error.Details.Num("input_offset") == offset+len(line) // its answer was lost
			if taken {
				sent, offset = sent+1, offset+len(line)
			}
		}
		if a.Ws != nil {
			a.Ws.CloseNow()
		}
		typed <- sent
	}()
	text, exit, err := followTerminal(ctx, g, h.Id, nil)
	if err != nil {
		t.Errorf("follow: %v", err)
	}
	text, sized := strings.CutSuffix(text, "37 101\r\n")
	if err := checkLines(text, n); err != nil || !sized || exit.Num("exit_code") != 9 {
		t.Errorf("%v; size %v; exit %v", err, sized, exit)
	}
	sent := <-typed
	d := g.Dial(t)
	back := e.Attach(d, object{"offset": 0})
	d.Call("term.input", object{"term_id": e.Id, "data": "\x04"})
	got, _ := back.End()
	if err := checkLines(strings.TrimPrefix(got, "0\r\n"), sent); err != nil {
		t.Errorf("%d lines were typed: %v", sent, err)
	}
	t.Logf("%d gateways killed, %d lines typed", kills, sent)
}
