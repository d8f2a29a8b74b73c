package streams

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"trl/internal/rig"
	"trl/internal/testkit"
)

// Input in binary frames, and input with offsets.

// typist sends the input of one stream in frames.
type typist struct {
	c          *rig.Client
	no, offset int
}

func typistOf(c *rig.Client, opened object) *typist {
	c.T.Helper()
	if opened["input_offset"] == nil || opened.Num("stream_no") == 0 {
		c.T.Fatalf("no frames are taken: %v", opened)
	}
	return &typist{c, opened.Num("stream_no"), opened.Num("input_offset")}
}

func (y *typist) send(data string) {
	y.c.T.Helper()
	y.c.SendBinary(rig.InputFrame(4, y.no, y.offset, data))
	y.offset += len(data)
}

func (y *typist) end(data string) {
	y.c.T.Helper()
	y.c.SendBinary(rig.InputFrame(0x44, y.no, y.offset, data))
}

// refused waits for the refusal of the frame at offset.
func (y *typist) refused(offset int, code string) (details object) {
	y.c.T.Helper()
	data := y.c.Event("input.refused")
	e := data.Obj("error")
	if data.Num("stream_no") != y.no || data.Num("offset") != offset || e.Str("code") != code || e.Str("message") == "" {
		y.c.T.Errorf("refused %v, want %s at %d of %d", data, code, offset, y.no)
	}
	return e.Obj("details")
}

// output waits until the stream's output ends with what is wanted.
func (y *typist) output(want string) {
	y.c.T.Helper()
	var got strings.Builder
	for !strings.HasSuffix(got.String(), want) {
		got.WriteString(y.c.Await(fmt.Sprintf("%q after %q", want, got.String()), func(f *rig.Frame) bool {
			return f.Event == "binary" && f.Data.Num("stream_no") == y.no
		}).Data.Str("data"))
	}
}

// TestInputFrames: a command, a process and a terminal take input in frames, without an answer, in their order.
func TestInputFrames(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "h").DialBinary(t)
	s := c.Session(object{"shell": "/bin/bash"})
	opened := c.Stream(s, "cat; exit 7", object{"interactive_stdin": true, "stdin": "first "})
	y := typistOf(c, opened)
	if y.offset != len("first ") {
		t.Errorf("input begins at %d", y.offset)
	}
	y.send("a\xff\x00b")
	y.send("")
	if taken := c.Call("exec.input", object{"exec_id": opened.Str("exec_id"), "data": "c"}); taken.Num("input_offset") != y.offset+1 { // in order with frames
		t.Errorf("taken %v, want %d", taken, y.offset+1)
	}
	y.offset++
	y.end("d")
	y.output("first a\xff\x00bcd")
	if exit := c.Event("exec.exit"); exit.Num("exit_code") != 7 {
		t.Errorf("%v", exit)
	}

	p := c.Call("process.start", object{"session_id": s, "command": "cat", "stdin": "open"}).Str("process_id")
	y = typistOf(c, c.Call("process.logs", object{"process_id": p, "follow": true}))
	y.send("one")
	y.output("one")
	y.end("")
	c.Event("process.exit")

	h := c.OpenTerminal(s, object{"command": "stty -echo; echo ready; read a; read b; echo $b$a"})
	y = typistOf(c, c.Call("term.attach", object{"term_id": h.Id, "offset": 0}))
	y.output("ready\r\n")
	for _, key := range "one\rtwo\r" {
		y.send(string(key))
	}
	y.output("twoone\r\n")
	c.Event("term.exit")
	if n := len(c.Seen("input.refused")); n > 0 {
		t.Errorf("%d refused", n)
	}
}

// TestRefusedInputFrames: a frame that is not taken is told of, and none behind it is taken that the client sent before it knew that.
func TestRefusedInputFrames(t *testing.T) {
	t.Parallel()
	g := rig.Shared(t, "h")
	c := g.DialBinary(t)
	s := c.Session()
	opened := c.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24, "command": "stty raw -echo; echo ready; exec cat"})
	y := typistOf(c, opened)
	y.output("ready\n")
	y.send("abc")
	y.output("abc")
	g.Dial(t).Call("term.input", object{"term_id": opened.Str("term_id"), "data": "X"}) // the owner types on another connection
	y.send("d")
	y.send("e")
	if at := y.refused(3, "OFFSET_MISMATCH").Num("input_offset"); at != 4 {
		t.Errorf("the input is at %d", at)
	}
	y.refused(4, "OFFSET_MISMATCH") // though the input ended there
	sync := func() {
		y.offset = c.Call("term.input", object{"term_id": opened.Str("term_id"), "data": ""}).Num("input_offset")
	}
	if f := c.Try("term.input", object{"term_id": opened.Str("term_id"), "data": "", "offset": 3}); f.Code() != "OFFSET_MISMATCH" {
		t.Errorf("%+v", f)
	}
	y.offset = 4
	y.send("d") // the client does not know of the refusals yet
	y.refused(4, "OFFSET_MISMATCH")
	sync()
	y.send("de")
	y.output("Xde")
	y.end("")
	y.refused(6, "INVALID_REQUEST")
	sync()
	y.send(strings.Repeat("z", 2<<20)) // more than waits for a program
	y.refused(6, "LIMIT_EXCEEDED")
	sync()
	y.send("f")
	y.output("f")

	elsewhere := &typist{c: c, no: y.no + 4096*1000}
	elsewhere.send("x")
	elsewhere.refused(0, "STREAM_NOT_FOUND")
	for _, frame := range []string{"", "\x04", "\x04\x01", "\x03\x01\x00x"} {
		c.SendBinary([]byte(frame))
		if f := c.Await("an error", func(f *rig.Frame) bool { return f.Event == "" }); f.Code() != "INVALID_REQUEST" {
			t.Errorf("%q: %+v", frame, f)
		}
	}
	d := g.DialBinary(t)
	watches := typistOf(d, d.Call("term.attach", object{"term_id": opened.Str("term_id"), "mode": "view"}))
	watches.send("y")
	watches.refused(7, "FORBIDDEN")
	d.Close()
	c.Call("term.close", object{"term_id": opened.Str("term_id")})
	c.Event("term.exit")
	y.send("g")
	y.refused(7, "STREAM_NOT_FOUND")
	if a := c.Call("term.attach", object{"term_id": opened.Str("term_id")}); a["input_offset"] != nil {
		t.Errorf("a terminal that has ended takes input at %v", a["input_offset"])
	}
	if a := c.Stream(s, "echo"); a["input_offset"] != nil {
		t.Errorf("a command without input takes some at %v", a["input_offset"])
	}
	plain := g.Dial(t)
	if a := plain.Call("term.open", object{"session_id": s, "cols": 80, "rows": 24}); a["input_offset"] != nil {
		t.Errorf("a connection without binary frames may send them: %v", a)
	}
	plain.SendBinary(rig.InputFrame(4, 1, 0, "x"))
	if f := plain.Await("an error", func(f *rig.Frame) bool { return f.Event == "" }); f.Code() != "INVALID_REQUEST" {
		t.Errorf("%+v", f)
	}
}

// TestFramesBehindOneAboveTheRate: a frame that comes too fast is refused, and so are those behind it, though others have typed as much meanwhile.
func TestFramesBehindOneAboveTheRate(t *testing.T) {
	t.Parallel()
	if os.Getenv("TRL_TEST_RELAY") != "" {
		t.Skip("a gateway does not remember the refusal of a frame for another node")
	}
	const slow, fast = "slow-token-00000000000000000000000000", "fast-token-00000000000000000000000000"
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(slow+" u user rate=2\n"+fast+" u user\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := rig.Gateway(t, "--auth", "token", "--token-file", tokens)
	dial := func(token string) *rig.Client {
		ws, err := g.Open(t, &websocket.DialOptions{Subprotocols: []string{"trl.v1+bin"}, HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
		if err != nil {
			t.Fatal(err)
		}
		return rig.NewClient(t, ws)
	}
	d := dial(fast)
	s := d.Session()
	p := d.Call("process.start", object{"session_id": s, "command": "cat", "stdin": "open"}).Str("process_id")
	c := dial(slow)
	y := typistOf(c, c.Call("process.logs", object{"process_id": p, "follow": true}))
	for range 50 {
		y.send("a")
	}
	refused := c.Event("input.refused")
	if code := refused.Obj("error").Str("code"); code != "RATE_LIMITED" {
		t.Fatalf("%v", refused)
	}
	y.offset = refused.Num("offset")
	d.Call("process.input", object{"process_id": p, "data": "X"})
	time.Sleep(2 * time.Second) // for several requests
	y.offset++
	y.send("b")
	c.Call("system.ping", nil) // the frame was read
	if end := d.Call("process.input", object{"process_id": p}).Num("input_offset"); end != y.offset-1 {
		t.Errorf("the input has %d bytes: one behind the refused one", end)
	}
}

// TestTakenInputIsNotJudgedAgain: input that is sent again was taken in another mode of the terminal.
func TestTakenInputIsNotJudgedAgain(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session()
	h := c.OpenTerminal(s, object{"command": "stty raw -echo; touch raw; head -c 5000 >/dev/null; stty sane; touch sane; sleep 60"})
	text := object{"term_id": h.Id, "data": strings.Repeat("z", 5000), "offset": 0}
	c.Run(s, "until [ -e raw ]; do sleep 0.01; done")
	c.Call("term.input", text)
	c.Run(s, "until [ -e sane ]; do sleep 0.01; done")
	if f := c.Try("term.input", text); f.Code() != "OFFSET_MISMATCH" || f.Error.Details.Num("input_offset") != 5000 {
		t.Errorf("%+v", f)
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
}

// TestWhoFollowsGivesNoInput: a client that could send frames does not keep its session from being idle by that.
func TestWhoFollowsGivesNoInput(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "h").DialBinary(t)
	s := c.Session()
	p := c.Call("process.start", object{"session_id": s, "command": "cat", "stdin": "open"}).Str("process_id")
	h := c.OpenTerminal(s, object{"command": "cat"})
	x := c.Stream(s, "cat", object{"interactive_stdin": true}).Str("exec_id")
	since := c.Info(s).Str("last_active_at")
	c.Call("process.logs", object{"process_id": p, "follow": true})
	c.Call("term.attach", object{"term_id": h.Id, "mode": "view"})
	c.Call("exec.attach", object{"exec_id": x})
	if now := c.Info(s).Str("last_active_at"); now != since {
		t.Errorf("active at %s, was at %s", now, since)
	}
	c.Call("session.destroy", object{"session_id": s, "force": true})
}

// TestInputWithOffsetIsTakenOnce: a request with input can be sent again, and so can the end of the input.
func TestInputWithOffsetIsTakenOnce(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session()
	again := func(method string, ref object, ends bool) {
		t.Helper()
		send := func(offset int, more object) *rig.Frame {
			return c.Try(method, rig.With(ref, object{"offset": offset}, more))
		}
		if f := send(0, object{"data": "ab\n"}); f.Data.Num("input_offset") != 3 {
			t.Errorf("%s: %+v", method, f)
		}
		for _, at := range []int{0, 2, 4} {
			if f := send(at, object{"data": "ab\n"}); f.Code() != "OFFSET_MISMATCH" || f.Error.Details.Num("input_offset") != 3 || f.Error.Details.Str("field") != "offset" {
				t.Errorf("%s at %d: %+v", method, at, f)
			}
		}
		if f := send(-1, object{"data": "x"}); f.Code() != "INVALID_PARAMS" || f.Error.Details.Str("field") != "offset" {
			t.Errorf("%s at -1: %+v", method, f)
		}
		if !ends {
			return
		}
		for range 2 {
			if f := send(3, object{"eof": true}); f.Data.Num("input_offset") != 3 {
				t.Errorf("%s, the end: %+v", method, f)
			}
		}
		if f := send(3, object{"data": "c"}); f.Code() != "STDIN_CLOSED" {
			t.Errorf("%s after the end: %+v", method, f)
		}
	}
	x := c.Stream(s, "cat; sleep 60", object{"interactive_stdin": true})
	again("exec.input", object{"exec_id": x.Str("exec_id")}, true)
	p := c.Call("process.start", object{"session_id": s, "command": "cat; sleep 60", "stdin": "open"})
	again("process.input", object{"process_id": p.Str("process_id")}, true)
	again("term.input", object{"term_id": c.OpenTerminal(s, object{"command": "cat"}).Id}, false)
	c.Call("session.destroy", object{"session_id": s, "force": true})
}

// TestInputFramesSurviveKilledGateways: gateways are killed and upgraded while a client sends input in frames. Each attach says how much was taken, so
// every byte arrives once.
func TestInputFramesSurviveKilledGateways(t *testing.T) {
	t.Parallel()
	g := rig.Gateway(t)
	c := g.Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	p := c.Call("process.start", object{"session_id": s, "command": "cksum", "stdin": "open"}).Str("process_id")
	var text strings.Builder
	for i := range rig.Pick(300_000, 3_000_000) {
		fmt.Fprintln(&text, i)
	}
	all := text.String()
	want := c.Run(s, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); done | cksum", strings.Count(all, "\n"))).Str("stdout")
	c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*testkit.Patience)
	defer cancel()
	kills := rig.Pick(6, 40)
	killed := make(chan struct{})
	go func() { // ends after the last kill; waited for below
		defer close(killed)
		killGateways(g, kills)
	}()
	lives := 0
	for taken := 0; ctx.Err() == nil && taken <= len(all); lives++ {
		taken = sendFrames(ctx, g, p, all, killed)
	}
	<-killed
	d := g.Redial(t)
	if got := d.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60}); !got.Yes("met") {
		t.Errorf("%v", got)
	}
	got := ""
	for _, chunk := range d.Call("process.logs", object{"process_id": p}).Objs("chunks") {
		got += chunk.Str("data")
	}
	if got != want {
		t.Errorf("%q, want %q", got, want)
	}
	t.Logf("%d gateways killed, %d connections", kills, lives)
}

// sendFrames sends what was not taken yet, until the connection is lost. It holds the last frame back until hold is closed, and returns more than all when
// the end was taken.
func sendFrames(ctx context.Context, g *rig.Server, process, all string, hold <-chan struct{}) (taken int) {
	a := rig.Again{G: g, Subprotocol: "trl.v1+bin"}
	opened, err := a.Ask(ctx, "process.logs", object{"process_id": process, "follow": true}, nil)
	if err != nil || opened.Error != nil {
		time.Sleep(20 * time.Millisecond) // between attempts
		return 0
	}
	defer a.Ws.CloseNow()
	if opened.Data["input_offset"] == nil { // the end was taken
		return len(all) + 1
	}
	no, at := opened.Data.Num("stream_no"), opened.Data.Num("input_offset")
	sync := func() bool { // all frames so far were taken
		f, err := a.Ask(ctx, "process.input", object{"process_id": process}, nil)
		return err == nil && f.Error == nil && f.Data.Num("input_offset") == at
	}
	for since := 0; at < len(all); {
		piece := all[at:min(at+1+rand.IntN(2000), len(all))]
		if at+len(piece) == len(all) {
			select {
			case <-hold:
			case <-time.After(50 * time.Millisecond): // another connection goes on
				return at
			}
		}
		if a.Ws.Write(ctx, websocket.MessageBinary, rig.InputFrame(4, no, at, piece)) != nil {
			return at
		}
		at += len(piece)
		if since += len(piece); since > 200_000 { // less than may wait for a program
			if since = 0; !sync() {
				return at
			}
		}
	}
	_ = a.Ws.Write(ctx, websocket.MessageBinary, rig.InputFrame(0x44, no, at, ""))
	_, _ = a.Ask(ctx, "system.ping", nil, nil)
	return at
}
