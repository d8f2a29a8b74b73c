package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"trl/internal/rig"
	"trl/internal/testkit"
)

func seq(n int) []byte {
	var b []byte // not through fmt, which takes seconds for a million lines with the race detector
	for i := range n {
		b = append(strconv.AppendInt(b, int64(i+1), 10), '\n')
	}
	return b
}

func TestExitFollowsLastOutput(t *testing.T) { // A9
	g := start(t)
	c := g.Dial()
	id := c.Session()
	for i := range 50 {
		n := i * 997
		req := c.Begin("exec.stream", object{"session_id": id, "command": fmt.Sprintf("head -c %d /dev/zero; echo e >&2; exit %d", n, i%7)})
		first := c.Await("anything", func(*rig.Frame) bool { return true })
		if first.ID != float64(req) || first.Data.Num("offset") != 0 {
			t.Fatalf("the answer was not first: %+v", first)
		}
		b, exit := c.Output(first.Data.Str("stream_id"), 0)
		if len(b) != n+2 || exit.Num("exit_code") != i%7 || exit.Num("stdout_bytes") != n || exit.Num("stderr_bytes") != 2 {
			t.Fatalf("%d bytes of %d, %v", len(b), n+2, exit)
		}
	}
	c.Call("system.ping", nil)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if len(c.Came) != 0 {
		t.Fatalf("after the exit came %+v", c.Came[0])
	}
}

func TestLateOutputBelongsToTheStream(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	proceed := filepath.Join(t.TempDir(), "go")
	s := c.Call("exec.stream", object{"session_id": id, "command": "(until [ -e " + proceed + " ]; do sleep 0.05; done; echo late) & echo early"})
	b, _ := c.Output(s.Str("stream_id"), 0)
	if string(b) != "early\n" {
		t.Fatalf("%q", b)
	}
	if err := os.WriteFile(proceed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the late output is replayed", func() bool {
		c.Call("exec.attach", object{"exec_id": s.Str("exec_id")})
		b, _ := c.Output(s.Str("stream_id"), 0)
		return string(b) == "early\nlate\n"
	})
}

func TestResume(t *testing.T) { // I1, I2, I5
	g := start(t)
	c := g.Dial()
	id := c.Session()
	// Each round cuts the connection while lines of its 75 may still come. The next 75 come in the next round.
	s := c.Call("exec.stream", object{"session_id": id, "command": "for i in $(seq 300); do echo line-é-$i; sleep 0.003; [ $((i % 75)) != 0 ] || read x; done", "interactive_stdin": true})
	stream, e := s.Str("stream_id"), s.Str("exec_id")
	var want bytes.Buffer
	var begins [4]int // of each round's lines
	for i := range 300 {
		if i%75 == 0 {
			begins[i/75] = want.Len()
		}
		fmt.Fprintf(&want, "line-é-%d\n", i+1)
	}
	var got []byte
	for round := 0; ; round++ {
		for len(got) <= begins[round]+100 {
			f := c.Await("output", func(f *rig.Frame) bool { return f.Event == "exec.output" })
			if f.Data.Num("offset") != len(got) {
				t.Fatalf("offset %d, want %d", f.Data.Num("offset"), len(got))
			}
			got = append(got, f.Data.Text("data", "encoding")...)
		}
		if round == 3 {
			break
		}
		c.Close()
		c = g.Dial()
		c.Call("exec.attach", object{"exec_id": e, "offset": len(got)})
		c.Call("exec.input", object{"exec_id": e, "data": "\n"})
	}
	c.Call("exec.input", object{"exec_id": e, "data": "\n"})
	rest, exit := c.Output(stream, len(got))
	if got = append(got, rest...); !bytes.Equal(got, want.Bytes()) || exit.Num("exit_code") != 0 {
		t.Fatalf("%d bytes of %d", len(got), want.Len())
	}
	d := g.Dial() // it has ended meanwhile
	d.Call("exec.attach", object{"exec_id": e, "offset": 1000})
	if rest, _ := d.Output(stream, 1000); rest != want.String()[1000:] {
		t.Fatalf("%d bytes", len(rest))
	}
	if f := d.Try("exec.attach", object{"exec_id": e, "offset": want.Len() + 1}); f.Code() != "STREAM_NOT_FOUND" {
		t.Fatalf("%+v", f)
	}
}

func TestGapIsExplicit(t *testing.T) { // I3
	g := start(t)
	c := g.Dial()
	id := c.Session()
	r := c.Call("exec.run", object{"session_id": id, "command": "seq 1000000"})
	c.Call("exec.attach", object{"exec_id": r.Str("exec_id")})
	gap := c.Event("stream.gap")
	want := seq(1000000)
	if gap.Num("from") != 0 || gap.Num("to") < len(want)-(2<<20) || gap.Num("to") > len(want)-(1<<20) {
		t.Fatalf("%v of %d", gap, len(want))
	}
	rest, _ := c.Output(r.Str("stream_id"), gap.Num("to"))
	if rest != string(want[gap.Num("to"):]) {
		t.Fatalf("%d bytes", len(rest))
	}
	if g.Metric("trl_stream_gaps_total") != 1 || g.Metric("trl_stream_gap_bytes_total") != float64(gap.Num("to")) {
		t.Error("not counted")
	}
}

func TestSecondAttachReplacesTheFirst(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	s := c.Call("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	c.Event("exec.output")
	c.Call("exec.attach", object{"exec_id": s.Str("exec_id")})
	c.Call("exec.attach", object{"exec_id": s.Str("exec_id"), "offset": 4})
	c.Call("exec.input", object{"exec_id": s.Str("exec_id"), "eof": true})
	// Before the second attach's answer anything of the first may have come; after it, each byte from 4 on once, and one exit.
	c.Await("the exit", func(f *rig.Frame) bool { return f.Event == "exec.exit" })
	c.Call("system.ping", nil)
	c.Mu.Lock()
	defer c.Mu.Unlock()
	twos := 0
	for _, f := range c.Came {
		twos += strings.Count(f.Data.Str("data"), "two")
		if f.Event != "exec.output" {
			t.Errorf("also came %+v", f)
		}
	}
	if twos != 1 {
		t.Errorf("the last line came %d times", twos)
	}
}

func TestDetach(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	s := c.Call("exec.stream", object{"session_id": id, "command": "yes"})
	c.Event("exec.output")
	c.Call("exec.detach", object{"exec_id": s.Str("exec_id")})
	c.Mu.Lock()
	c.Came = nil
	c.Mu.Unlock()
	c.Call("exec.cancel", object{"exec_id": s.Str("exec_id")})
	c.Mu.Lock()
	defer c.Mu.Unlock()
	if len(c.Came) != 0 {
		t.Fatalf("%+v", c.Came[0])
	}
}

// TestLogsAreCutBetweenCharacters: also where not all of it is text.
func TestLogsAreCutBetweenCharacters(t *testing.T) {
	g := start(t)
	c := g.Dial()
	p := c.Call("process.start", object{"session_id": c.Session(), "command": `printf '\377a\303\251\342\224\200\342\224\360\237\230\200z'`}).Str("process_id")
	c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
	for limit, want := range map[int]string{
		1: "\xff|a|é|─|\xe2|\x94|😀|z",
		2: "\xffa|é|─|\xe2\x94|😀|z",
		3: "\xffa|é|─|\xe2\x94|😀|z",
		4: "\xffaé|─\xe2|\x94|😀|z",
		6: "\xffaé|─\xe2\x94|😀z",
	} {
		var pieces []string
		for at, eof := 0, false; !eof; {
			logs := c.Call("process.logs", object{"process_id": p, "offset": at, "max_bytes": limit})
			for _, chunk := range logs["chunks"].([]any) {
				pieces = append(pieces, string(object(chunk.(map[string]any)).Text("data", "encoding")))
			}
			at, eof = logs.Num("next_offset"), logs["eof"] == true
		}
		if got := strings.Join(pieces, "|"); got != want {
			t.Errorf("%d bytes at a time: %q, want %q", limit, got, want)
		}
	}
}

// TestCharactersAreNotSplit: a character that is written in halves arrives whole, and one that never gets its end arrives at last (H5).
func TestCharactersAreNotSplit(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	c.Call("exec.stream", object{"session_id": id, "command": `printf 'a\342'; sleep 0.3; printf '\224\200b'; printf '\377'; sleep 0.1; printf '\342\224'`})
	var b []byte
	for {
		f := c.Await("output", func(f *rig.Frame) bool { return f.Event != "" })
		if f.Event == "exec.exit" {
			break
		}
		piece := f.Data.Text("data", "encoding")
		if f.Data.Str("encoding") != "base64" && strings.ContainsRune(f.Data.Str("data"), utf8.RuneError) {
			t.Errorf("torn: %v", f.Data)
		}
		b = append(b, piece...)
	}
	if string(b) != "a\xe2\x94\x80b\xff\xe2\x94" {
		t.Fatalf("%q", b)
	}
}

func TestThrottledClientGetsEveryByte(t *testing.T) { // B1, shortened
	g := start(t)
	raw := g.Raw()
	raw.Text(`{"id":1,"method":"exec.stream","params":{"command":"seq 500000"}}`)
	var got []byte
	slow := 0
	for {
		op, payload, err := raw.Next()
		if err != nil {
			t.Fatal(err)
		}
		if op != 0x1 {
			continue
		}
		var f rig.Frame
		json.Unmarshal(payload, &f)
		if f.Event == "exec.exit" {
			break
		}
		if f.Event == "exec.output" {
			got = append(got, f.Data.Str("data")...)
		}
		if slow += len(payload); slow > 200<<10 {
			slow = 0
			time.Sleep(20 * time.Millisecond)
		}
	}
	if !bytes.Equal(got, seq(500000)) {
		t.Fatalf("%d bytes", len(got))
	}
}

// TestClientThatNeverReads: the command waits for it, others do not, and when it is dropped the command goes on (B9).
func TestClientThatNeverReads(t *testing.T) {
	g := start(t, func(c *config) { c.SlowClient = 5 * time.Second })
	c := g.Dial()
	id := c.Session()
	raw := g.Raw()
	done := filepath.Join(t.TempDir(), "done")
	before := rss(t)
	raw.Text(`{"id":1,"method":"exec.stream","params":{"session_id":"` + id + `","command":"head -c 100000000 /dev/zero; echo x > ` + done + `"}}`)
	testkit.Eventually(t, "it runs", func() bool { return c.Call("session.info", object{"session_id": id}).Str("state") == "RUNNING" })
	other := c.Session()
	for range 20 {
		if got := c.Run(other, "echo hi").Stdout(); got != "hi\n" {
			t.Fatalf("%q", got)
		}
	}
	if _, err := os.Stat(done); err == nil && g.Metric("trl_slow_clients_dropped_total") == 0 { // a busy machine may take longer than SlowClient for all this
		t.Error("the command did not wait for its client")
	}
	raw.Text(`{"id":2,"method":"exec.input","params":{"exec_id":"x","data":"` + strings.Repeat("y", 1000) + `"}}`) // it is still listened to
	testkit.Eventually(t, "the client is dropped", func() bool { return g.Metric("trl_slow_clients_dropped_total") == 1 })
	testkit.Eventually(t, "the command goes on", func() bool { _, err := os.Stat(done); return err == nil })
	if grown := rss(t) - before; grown > 64<<20 {
		t.Errorf("grew by %d MiB", grown>>20)
	}
}

// TestViewerDoesNotHoldUpTheStarter: a second client that reads nothing, and did not ask for `block`, does not hold up the command.
func TestViewerDoesNotHoldUpTheStarter(t *testing.T) {
	g := start(t, func(c *config) { c.SlowClient = 10 * testkit.Patience }) // it is not dropped meanwhile
	c := g.Dial()
	id := c.Session()
	const n = 1_500_000 // 11 MB: more than the kernel, which takes 4 MB, and trl hold for a viewer that does not read
	for _, kind := range []string{"exec", "process"} {
		command := fmt.Sprintf("read x; seq %d", n)
		var s object
		if kind == "exec" {
			s = c.Call("exec.stream", object{"session_id": id, "command": command, "interactive_stdin": true})
		} else {
			s = c.Call("process.start", object{"session_id": id, "command": command, "stdin": "open"})
			c.Call("process.logs", object{"process_id": s.Str("process_id"), "follow": true, "on_slow": "block"})
		}
		viewer, attach := g.Raw(), map[string]string{"exec": `"method":"exec.attach","params":{`, "process": `"method":"process.logs","params":{"follow":true,`}[kind]
		viewer.Text(`{"id":1,` + attach + `"` + kind + `_id":"` + s.Str(kind+"_id") + `"}}`)
		if _, answer, err := viewer.Next(); err != nil || !bytes.Contains(answer, []byte(`"ok":true`)) {
			t.Fatalf("%s %v", answer, err)
		}
		c.Call(kind+".input", object{kind + "_id": s.Str(kind + "_id"), "data": "\n"})
		if b, _ := c.Output(s.Str("stream_id"), 0); b != string(seq(n)) {
			t.Fatalf("%s: %d bytes", kind, len(b))
		}
	}
}

func rss(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := strconv.Atoi(strings.Fields(string(b))[1])
	return pages * os.Getpagesize()
}

// TestCancelPassesBlockedOutput: while the Outbox waits for a client that reads nothing, its cancel is heard.
func TestCancelPassesBlockedOutput(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	raw := g.Raw()
	raw.Text(`{"id":1,"method":"exec.stream","params":{"session_id":"` + id + `","command":"yes"}}`)
	testkit.Eventually(t, "it runs", func() bool { return c.Call("session.info", object{"session_id": id}).Str("state") == "RUNNING" })
	raw.Text(`{"id":2,"method":"system.ping"}`)
	raw.Text(`{"id":3,"method":"exec.cancel","params":{"session_id":"` + id + `"}}`)
	testkit.Eventually(t, "it is cancelled", func() bool { return c.Call("session.info", object{"session_id": id}).Str("state") == "IDLE" })
}

func TestWatchTellsInOrder(t *testing.T) {
	g := start(t)
	c, w := g.Dial(), g.Dial()
	id := c.Session()
	w.Call("session.watch", object{"session_id": id})
	w.Call("session.watch", object{"session_id": id}) // twice is once
	const n = 30
	for i := range n {
		c.Begin("exec.run", object{"session_id": id, "command": fmt.Sprintf("echo out-%d; seq 2000", i)})
	}
	for i := range n {
		started := w.Await("started", func(f *rig.Frame) bool {
			return f.Event == "exec.started" || f.Event == "exec.output" || f.Event == "exec.exit"
		})
		if started.Event != "exec.started" {
			t.Fatalf("%d: %+v", i, started)
		}
		var out []byte
		for {
			f := w.Await("output", func(f *rig.Frame) bool {
				return f.Event == "exec.started" || f.Event == "exec.output" || f.Event == "exec.exit"
			})
			if f.Event == "exec.started" || f.Data.Str("exec_id") != started.Data.Str("exec_id") {
				t.Fatalf("%d: %+v in between", i, f)
			}
			if f.Event == "exec.exit" {
				break
			}
			if f.Data.Num("offset") != len(out) {
				t.Fatalf("%d: offset %d, want %d", i, f.Data.Num("offset"), len(out))
			}
			out = append(out, f.Data.Text("data", "encoding")...)
		}
		if want := append([]byte(fmt.Sprintf("out-%d\n", i)), seq(2000)...); !bytes.Equal(out, want) {
			t.Fatalf("%d: %d bytes of %d", i, len(out), len(want))
		}
	}
	w.Call("session.unwatch", object{"session_id": id})
	w.Call("session.unwatch", object{"session_id": id})
	w.Mu.Lock()
	w.Came = nil
	w.Mu.Unlock()
	c.Run(id, "echo unseen")
	w.Call("system.ping", nil)
	w.Mu.Lock()
	if len(w.Came) != 0 {
		t.Errorf("after unwatch: %+v", w.Came[0])
	}
	w.Mu.Unlock()
	w.Call("session.watch", object{"session_id": id})
	p := c.Call("process.start", object{"session_id": id, "command": "exit 3"}).Str("process_id")
	if got := w.Event("process.started"); got.Str("process_id") != p {
		t.Errorf("%v", got)
	}
	if got := w.Event("process.exit"); got.Num("exit_code") != 3 {
		t.Errorf("%v", got)
	}
	c.Call("session.destroy", object{"session_id": id})
	w.Await("the end", func(f *rig.Frame) bool {
		return f.Event == "session.state" && f.Data.Str("to") == "TERMINATED" && f.Data.Str("reason") == "client"
	})
	if f := w.Try("session.watch", object{"session_id": id}); f.Code() != "SESSION_TERMINATED" {
		t.Errorf("%+v", f)
	}
}

// TestWatchAndStreamDoNotDouble: one connection gets each byte once, however many ways it asked for it.
func TestWatchAndStreamDoNotDouble(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	c.Call("session.watch", object{"session_id": id})
	for i := range 40 {
		s := c.Call("exec.stream", object{"session_id": id, "command": "seq 300"})
		b, _ := c.Output(s.Str("stream_id"), 0)
		if b != string(seq(300)) {
			t.Fatalf("%d: %d bytes", i, len(b))
		}
	}
	s := c.Call("exec.stream", object{"session_id": id, "command": "read x; echo end", "interactive_stdin": true})
	c.Call("exec.detach", object{"exec_id": s.Str("exec_id")}) // the watch still tells of the exit
	c.Call("exec.input", object{"exec_id": s.Str("exec_id"), "eof": true})
	c.Await("exit", func(f *rig.Frame) bool { return f.Event == "exec.exit" && f.Data.Str("exec_id") == s.Str("exec_id") })

	d := g.Dial()
	run := d.Begin("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	s = d.Answer(run).Data
	c.Await("output", func(f *rig.Frame) bool {
		return f.Event == "exec.output" && f.Data.Str("stream_id") == s.Str("stream_id")
	})
	c.Call("exec.attach", object{"exec_id": s.Str("exec_id"), "offset": 4}) // takes over from the watch
	d.Call("exec.input", object{"exec_id": s.Str("exec_id"), "eof": true})
	if b, _ := c.Output(s.Str("stream_id"), 4); string(b) != "two\n" {
		t.Fatalf("%q", b)
	}
	c.Call("session.unwatch", object{"session_id": id})
	c.Mu.Lock()
	defer c.Mu.Unlock()
	for _, f := range c.Came {
		if f.Event == "exec.output" || f.Event == "exec.exit" {
			t.Errorf("also %+v", f)
		}
	}
}

// TestWatchAndLogsTellOneExit: it comes after the last byte, whichever was asked for first.
func TestWatchAndLogsTellOneExit(t *testing.T) {
	g := start(t)
	c := g.Dial()
	const n = 300_000
	for _, first := range []string{"watch", "logs"} {
		id := c.Session()
		p := c.Call("process.start", object{"session_id": id, "command": fmt.Sprintf("read x; seq %d; exit 3", n), "stdin": "open"})
		logs := object{"process_id": p.Str("process_id"), "follow": true, "on_slow": "block"}
		if first == "watch" {
			c.Call("session.watch", object{"session_id": id})
			c.Call("process.logs", logs)
		} else {
			c.Call("process.logs", logs)
			c.Call("session.watch", object{"session_id": id})
		}
		c.Call("process.input", object{"process_id": p.Str("process_id"), "data": "\n"})
		if b, exit := c.Output(p.Str("stream_id"), 0); b != string(seq(n)) || exit.Num("exit_code") != 3 {
			t.Errorf("%s first: %d bytes, then %v", first, len(b), exit)
		}
		next := c.Call("process.start", object{"session_id": id, "command": "true"}).Str("process_id")
		f := c.Await("an exit", func(f *rig.Frame) bool { return f.Event == "process.exit" })
		if f.Data.Str("process_id") != next {
			t.Errorf("%s first: also %v", first, f.Data)
		}
	}
}

func TestWatchFromTheMiddle(t *testing.T) {
	g := start(t)
	c, w := g.Dial(), g.Dial()
	id := c.Session()
	s := c.Call("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	c.Event("exec.output")
	w.Call("session.watch", object{"session_id": id})
	if got := w.Event("exec.output"); got.Str("data") != "one\n" {
		t.Fatalf("%v", got)
	}
	c.Call("exec.input", object{"exec_id": s.Str("exec_id"), "eof": true})
	if b, _ := w.Output(s.Str("stream_id"), 4); string(b) != "two\n" {
		t.Fatalf("%q", b)
	}
}

func TestProcessLogs(t *testing.T) {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	p := c.Call("process.start", object{"session_id": id, "command": "echo é-one; read x; echo err >&2; read x; echo $x; exit 4", "stdin": "open"})
	pid := p.Str("process_id")
	c.Call("process.wait", object{"process_id": pid, "until": object{"output": "one"}, "timeout_s": 60})
	c.Call("process.input", object{"process_id": pid, "data": "\n"})
	c.Call("process.wait", object{"process_id": pid, "until": object{"output": "err"}, "timeout_s": 60})
	logs := c.Call("process.logs", object{"process_id": pid})
	chunks := logs["chunks"].([]any)
	if len(chunks) != 2 || object(chunks[1].(map[string]any)).Str("stream") != "stderr" || logs.Num("next_offset") != 11 || logs["eof"] != false {
		t.Fatalf("%v", logs)
	}
	logs = c.Call("process.logs", object{"process_id": pid, "max_bytes": 1})
	if logs.Num("next_offset") != 2 { // a whole character
		t.Fatalf("%v", logs)
	}
	follow := c.Call("process.logs", object{"process_id": pid, "follow": true, "offset": 2})
	c.Call("process.input", object{"process_id": pid, "data": "two\n"})
	b, exit := c.Output(p.Str("stream_id"), follow.Num("next_offset"))
	if string(b) != "two\n" || exit.Num("exit_code") != 4 || exit.Str("state") != "exited" {
		t.Fatalf("%q %v", b, exit)
	}
	logs = c.Call("process.logs", object{"process_id": pid, "offset": 11})
	if logs["eof"] != true || logs.Num("next_offset") != 15 {
		t.Fatalf("%v", logs)
	}
	if f := c.Try("process.logs", object{"process_id": pid, "offset": 16}); f.Code() != "STREAM_NOT_FOUND" {
		t.Fatalf("%+v", f)
	}
	if f := c.Try("process.input", object{"process_id": pid, "data": "x"}); f.Code() != "STDIN_CLOSED" {
		t.Fatalf("%+v", f)
	}
	forever := c.Call("process.start", object{"session_id": id, "command": "trap '' TERM; echo deaf; while :; do sleep 1; done"}).Str("process_id")
	c.Call("process.wait", object{"process_id": forever, "until": object{"output": "deaf"}, "timeout_s": 60})
	kill := c.Call("process.kill", object{"process_id": forever, "kill_grace_s": 0.1})
	if kill.Str("state") != "exited" || kill.Str("signal") != "KILL" {
		t.Fatalf("%v", kill)
	}
}
