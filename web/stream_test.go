package web

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

	"trl/internal/testkit"
)

func seq(n int) []byte {
	var b bytes.Buffer
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.Bytes()
}

func TestExitFollowsLastOutput(t *testing.T) { // A9
	g := start(t)
	c := g.dial()
	id := c.session()
	for i := range 50 {
		n := i * 997
		req := c.begin("exec.stream", object{"session_id": id, "command": fmt.Sprintf("head -c %d /dev/zero; echo e >&2; exit %d", n, i%7)})
		first := c.await("anything", func(*frame) bool { return true })
		if first.ID != float64(req) || first.Data.num("offset") != 0 {
			t.Fatalf("the answer was not first: %+v", first)
		}
		b, exit := c.output(first.Data.str("stream_id"), 0)
		if len(b) != n+2 || exit.num("exit_code") != i%7 || exit.num("stdout_bytes") != n || exit.num("stderr_bytes") != 2 {
			t.Fatalf("%d bytes of %d, %v", len(b), n+2, exit)
		}
	}
	c.call("system.ping", nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.came) != 0 {
		t.Fatalf("after the exit came %+v", c.came[0])
	}
}

func TestLateOutputBelongsToTheStream(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	s := c.call("exec.stream", object{"session_id": id, "command": "(sleep 0.4; echo late) & echo early"})
	b, _ := c.output(s.str("stream_id"), 0)
	if string(b) != "early\n" {
		t.Fatalf("%q", b)
	}
	testkit.Eventually(t, "the late output is replayed", func() bool {
		c.call("exec.attach", object{"exec_id": s.str("exec_id")})
		b, _ := c.output(s.str("stream_id"), 0)
		return string(b) == "early\nlate\n"
	})
}

func TestResume(t *testing.T) { // I1, I2, I5
	g := start(t)
	c := g.dial()
	id := c.session()
	s := c.call("exec.stream", object{"session_id": id, "command": "for i in $(seq 300); do echo line-é-$i; sleep 0.003; done"})
	stream, e := s.str("stream_id"), s.str("exec_id")
	var want bytes.Buffer
	for i := range 300 {
		fmt.Fprintf(&want, "line-é-%d\n", i+1)
	}
	var got []byte
	for round := 0; ; round++ {
		for range 20 {
			f := c.await("output", func(f *frame) bool { return f.Event == "exec.output" })
			if f.Data.num("offset") != len(got) {
				t.Fatalf("offset %d, want %d", f.Data.num("offset"), len(got))
			}
			got = append(got, f.Data.bytes("data", "encoding")...)
		}
		if round == 3 {
			break
		}
		c.close()
		c = g.dial()
		c.call("exec.attach", object{"exec_id": e, "offset": len(got)})
	}
	rest, exit := c.output(stream, len(got))
	if got = append(got, rest...); !bytes.Equal(got, want.Bytes()) || exit.num("exit_code") != 0 {
		t.Fatalf("%d bytes of %d", len(got), want.Len())
	}
	d := g.dial() // it has ended meanwhile
	d.call("exec.attach", object{"exec_id": e, "offset": 1000})
	if rest, _ := d.output(stream, 1000); !bytes.Equal(rest, want.Bytes()[1000:]) {
		t.Fatalf("%d bytes", len(rest))
	}
	if f := d.try("exec.attach", object{"exec_id": e, "offset": want.Len() + 1}); f.code() != "STREAM_NOT_FOUND" {
		t.Fatalf("%+v", f)
	}
}

func TestGapIsExplicit(t *testing.T) { // I3
	g := start(t)
	c := g.dial()
	id := c.session()
	r := c.call("exec.run", object{"session_id": id, "command": "seq 1000000"})
	c.call("exec.attach", object{"exec_id": r.str("exec_id")})
	gap := c.event("stream.gap")
	want := seq(1000000)
	if gap.num("from") != 0 || gap.num("to") < len(want)-(2<<20) || gap.num("to") > len(want)-(1<<20) {
		t.Fatalf("%v of %d", gap, len(want))
	}
	rest, _ := c.output(r.str("stream_id"), gap.num("to"))
	if !bytes.Equal(rest, want[gap.num("to"):]) {
		t.Fatalf("%d bytes", len(rest))
	}
	if g.metric("trl_stream_gaps_total") != 1 || g.metric("trl_stream_gap_bytes_total") != float64(gap.num("to")) {
		t.Error("not counted")
	}
}

func TestSecondAttachReplacesTheFirst(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	s := c.call("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	c.event("exec.output")
	c.call("exec.attach", object{"exec_id": s.str("exec_id")})
	c.call("exec.attach", object{"exec_id": s.str("exec_id"), "offset": 4})
	c.call("exec.input", object{"exec_id": s.str("exec_id"), "eof": true})
	// Before the second attach's answer anything of the first may have come; after it, each byte from 4 on once, and one exit.
	c.await("the exit", func(f *frame) bool { return f.Event == "exec.exit" })
	c.call("system.ping", nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	twos := 0
	for _, f := range c.came {
		twos += strings.Count(f.Data.str("data"), "two")
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
	c := g.dial()
	id := c.session()
	s := c.call("exec.stream", object{"session_id": id, "command": "yes"})
	c.event("exec.output")
	c.call("exec.detach", object{"exec_id": s.str("exec_id")})
	c.mu.Lock()
	c.came = nil
	c.mu.Unlock()
	c.call("exec.cancel", object{"exec_id": s.str("exec_id")})
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.came) != 0 {
		t.Fatalf("%+v", c.came[0])
	}
}

// TestLogsAreCutBetweenCharacters: also where not all of it is text.
func TestLogsAreCutBetweenCharacters(t *testing.T) {
	g := start(t)
	c := g.dial()
	p := c.call("process.start", object{"session_id": c.session(), "command": `printf '\377a\303\251\342\224\200\342\224\360\237\230\200z'`}).str("process_id")
	c.call("process.wait", object{"process_id": p, "until": object{"exit": true}, "timeout_s": 60})
	for limit, want := range map[int]string{
		1: "\xff|a|é|─|\xe2|\x94|😀|z",
		2: "\xffa|é|─|\xe2\x94|😀|z",
		3: "\xffa|é|─|\xe2\x94|😀|z",
		4: "\xffaé|─\xe2|\x94|😀|z",
		6: "\xffaé|─\xe2\x94|😀z",
	} {
		var pieces []string
		for at, eof := 0, false; !eof; {
			logs := c.call("process.logs", object{"process_id": p, "offset": at, "max_bytes": limit})
			for _, chunk := range logs["chunks"].([]any) {
				pieces = append(pieces, string(object(chunk.(map[string]any)).bytes("data", "encoding")))
			}
			at, eof = logs.num("next_offset"), logs["eof"] == true
		}
		if got := strings.Join(pieces, "|"); got != want {
			t.Errorf("%d bytes at a time: %q, want %q", limit, got, want)
		}
	}
}

// TestCharactersAreNotSplit: a character that is written in halves arrives whole, and one that never gets its end arrives at last (H5).
func TestCharactersAreNotSplit(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	c.call("exec.stream", object{"session_id": id, "command": `printf 'a\342'; sleep 0.3; printf '\224\200b'; printf '\377'; sleep 0.1; printf '\342\224'`})
	var b []byte
	for {
		f := c.await("output", func(f *frame) bool { return f.Event != "" })
		if f.Event == "exec.exit" {
			break
		}
		piece := f.Data.bytes("data", "encoding")
		if f.Data.str("encoding") != "base64" && strings.ContainsRune(f.Data.str("data"), utf8.RuneError) {
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
	raw := upgrade(t, g)
	raw.text(`{"id":1,"method":"exec.stream","params":{"command":"seq 500000"}}`)
	var got []byte
	slow := 0
	for {
		op, payload, err := readFrame(raw)
		if err != nil {
			t.Fatal(err)
		}
		if op != textFrame {
			continue
		}
		var f frame
		json.Unmarshal(payload, &f)
		if f.Event == "exec.exit" {
			break
		}
		if f.Event == "exec.output" {
			got = append(got, f.Data.str("data")...)
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
	g := start(t, func(c *Config) { c.SlowClient = 1500 * time.Millisecond })
	c := g.dial()
	id := c.session()
	raw := upgrade(t, g)
	done := filepath.Join(t.TempDir(), "done")
	before := rss(t)
	raw.text(`{"id":1,"method":"exec.stream","params":{"session_id":"` + id + `","command":"head -c 100000000 /dev/zero; echo x > ` + done + `"}}`)
	testkit.Eventually(t, "it runs", func() bool { return c.call("session.info", object{"session_id": id}).str("state") == "RUNNING" })
	other := c.session()
	for range 20 {
		if got := c.run(other, "echo hi"); got != "hi\n" {
			t.Fatalf("%q", got)
		}
	}
	if _, err := os.Stat(done); err == nil {
		t.Error("the command did not wait for its client")
	}
	raw.text(`{"id":2,"method":"exec.input","params":{"exec_id":"x","data":"` + strings.Repeat("y", 1000) + `"}}`) // it is still listened to
	testkit.Eventually(t, "the client is dropped", func() bool { return g.metric("trl_slow_clients_dropped_total") == 1 })
	testkit.Eventually(t, "the command goes on", func() bool { _, err := os.Stat(done); return err == nil })
	if grown := rss(t) - before; grown > 64<<20 {
		t.Errorf("grew by %d MiB", grown>>20)
	}
}

// TestViewerDoesNotHoldUpTheStarter: a second client that reads nothing, and did not ask to be waited for, is not (PROTOCOL.md §7).
func TestViewerDoesNotHoldUpTheStarter(t *testing.T) {
	g := start(t, func(c *Config) { c.SlowClient = 10 * patience }) // it is not dropped meanwhile
	c := g.dial()
	id := c.session()
	const n = 3_000_000 // some 24 MB: more than the kernel takes in its place
	for _, kind := range []string{"exec", "process"} {
		command := fmt.Sprintf("read x; seq %d", n)
		var s object
		if kind == "exec" {
			s = c.call("exec.stream", object{"session_id": id, "command": command, "interactive_stdin": true})
		} else {
			s = c.call("process.start", object{"session_id": id, "command": command, "stdin": "open"})
			c.call("process.logs", object{"process_id": s.str("process_id"), "follow": true, "on_slow": "block"})
		}
		viewer, attach := upgrade(t, g), map[string]string{"exec": `"method":"exec.attach","params":{`, "process": `"method":"process.logs","params":{"follow":true,`}[kind]
		viewer.text(`{"id":1,` + attach + `"` + kind + `_id":"` + s.str(kind+"_id") + `"}}`)
		if _, answer, err := readFrame(viewer); err != nil || !bytes.Contains(answer, []byte(`"ok":true`)) {
			t.Fatalf("%s %v", answer, err)
		}
		c.call(kind+".input", object{kind + "_id": s.str(kind + "_id"), "data": "\n"})
		if b, _ := c.output(s.str("stream_id"), 0); !bytes.Equal(b, seq(n)) {
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
	c := g.dial()
	id := c.session()
	raw := upgrade(t, g)
	raw.text(`{"id":1,"method":"exec.stream","params":{"session_id":"` + id + `","command":"yes"}}`)
	testkit.Eventually(t, "it runs", func() bool { return c.call("session.info", object{"session_id": id}).str("state") == "RUNNING" })
	raw.text(`{"id":2,"method":"system.ping"}`)
	raw.text(`{"id":3,"method":"exec.cancel","params":{"session_id":"` + id + `"}}`)
	testkit.Eventually(t, "it is cancelled", func() bool { return c.call("session.info", object{"session_id": id}).str("state") == "IDLE" })
}

func TestWatchTellsInOrder(t *testing.T) {
	g := start(t)
	c, w := g.dial(), g.dial()
	id := c.session()
	w.call("session.watch", object{"session_id": id})
	w.call("session.watch", object{"session_id": id}) // twice is once
	const n = 30
	for i := range n {
		c.begin("exec.run", object{"session_id": id, "command": fmt.Sprintf("echo out-%d; seq 2000", i)})
	}
	for i := range n {
		started := w.await("started", func(f *frame) bool {
			return f.Event == "exec.started" || f.Event == "exec.output" || f.Event == "exec.exit"
		})
		if started.Event != "exec.started" {
			t.Fatalf("%d: %+v", i, started)
		}
		var out []byte
		for {
			f := w.await("output", func(f *frame) bool {
				return f.Event == "exec.started" || f.Event == "exec.output" || f.Event == "exec.exit"
			})
			if f.Event == "exec.started" || f.Data.str("exec_id") != started.Data.str("exec_id") {
				t.Fatalf("%d: %+v in between", i, f)
			}
			if f.Event == "exec.exit" {
				break
			}
			if f.Data.num("offset") != len(out) {
				t.Fatalf("%d: offset %d, want %d", i, f.Data.num("offset"), len(out))
			}
			out = append(out, f.Data.bytes("data", "encoding")...)
		}
		if want := append([]byte(fmt.Sprintf("out-%d\n", i)), seq(2000)...); !bytes.Equal(out, want) {
			t.Fatalf("%d: %d bytes of %d", i, len(out), len(want))
		}
	}
	w.call("session.unwatch", object{"session_id": id})
	w.call("session.unwatch", object{"session_id": id})
	w.mu.Lock()
	w.came = nil
	w.mu.Unlock()
	c.run(id, "echo unseen")
	w.call("system.ping", nil)
	w.mu.Lock()
	if len(w.came) != 0 {
		t.Errorf("after unwatch: %+v", w.came[0])
	}
	w.mu.Unlock()
	w.call("session.watch", object{"session_id": id})
	p := c.call("process.start", object{"session_id": id, "command": "exit 3"}).str("process_id")
	if got := w.event("process.started"); got.str("process_id") != p {
		t.Errorf("%v", got)
	}
	if got := w.event("process.exit"); got.num("exit_code") != 3 {
		t.Errorf("%v", got)
	}
	c.call("session.destroy", object{"session_id": id})
	w.await("the end", func(f *frame) bool {
		return f.Event == "session.state" && f.Data.str("to") == "TERMINATED" && f.Data.str("reason") == "client"
	})
	if f := w.try("session.watch", object{"session_id": id}); f.code() != "SESSION_TERMINATED" {
		t.Errorf("%+v", f)
	}
}

// TestWatchAndStreamDoNotDouble: one connection gets each byte once, however many ways it asked for it.
func TestWatchAndStreamDoNotDouble(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	c.call("session.watch", object{"session_id": id})
	for i := range 40 {
		s := c.call("exec.stream", object{"session_id": id, "command": "seq 300"})
		b, _ := c.output(s.str("stream_id"), 0)
		if !bytes.Equal(b, seq(300)) {
			t.Fatalf("%d: %d bytes", i, len(b))
		}
	}
	s := c.call("exec.stream", object{"session_id": id, "command": "read x; echo end", "interactive_stdin": true})
	c.call("exec.detach", object{"exec_id": s.str("exec_id")}) // the watch still tells of the exit
	c.call("exec.input", object{"exec_id": s.str("exec_id"), "eof": true})
	c.await("exit", func(f *frame) bool { return f.Event == "exec.exit" && f.Data.str("exec_id") == s.str("exec_id") })

	d := g.dial()
	run := d.begin("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	s = d.answer(run).Data
	c.await("output", func(f *frame) bool { return f.Event == "exec.output" && f.Data.str("stream_id") == s.str("stream_id") })
	c.call("exec.attach", object{"exec_id": s.str("exec_id"), "offset": 4}) // takes over from the watch
	d.call("exec.input", object{"exec_id": s.str("exec_id"), "eof": true})
	if b, _ := c.output(s.str("stream_id"), 4); string(b) != "two\n" {
		t.Fatalf("%q", b)
	}
	c.call("session.unwatch", object{"session_id": id})
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.came {
		if f.Event == "exec.output" || f.Event == "exec.exit" {
			t.Errorf("also %+v", f)
		}
	}
}

// TestWatchAndLogsTellOneExit: it comes after the last byte, whichever was asked for first.
func TestWatchAndLogsTellOneExit(t *testing.T) {
	g := start(t)
	c := g.dial()
	const n = 300_000
	for _, first := range []string{"watch", "logs"} {
		id := c.session()
		p := c.call("process.start", object{"session_id": id, "command": fmt.Sprintf("read x; seq %d; exit 3", n), "stdin": "open"})
		logs := object{"process_id": p.str("process_id"), "follow": true, "on_slow": "block"}
		if first == "watch" {
			c.call("session.watch", object{"session_id": id})
			c.call("process.logs", logs)
		} else {
			c.call("process.logs", logs)
			c.call("session.watch", object{"session_id": id})
		}
		c.call("process.input", object{"process_id": p.str("process_id"), "data": "\n"})
		if b, exit := c.output(p.str("stream_id"), 0); !bytes.Equal(b, seq(n)) || exit.num("exit_code") != 3 {
			t.Errorf("%s first: %d bytes, then %v", first, len(b), exit)
		}
		next := c.call("process.start", object{"session_id": id, "command": "true"}).str("process_id")
		f := c.await("an exit", func(f *frame) bool { return f.Event == "process.exit" })
		if f.Data.str("process_id") != next {
			t.Errorf("%s first: also %v", first, f.Data)
		}
	}
}

func TestWatchFromTheMiddle(t *testing.T) {
	g := start(t)
	c, w := g.dial(), g.dial()
	id := c.session()
	s := c.call("exec.stream", object{"session_id": id, "command": "echo one; read x; echo two", "interactive_stdin": true})
	c.event("exec.output")
	w.call("session.watch", object{"session_id": id})
	if got := w.event("exec.output"); got.str("data") != "one\n" {
		t.Fatalf("%v", got)
	}
	c.call("exec.input", object{"exec_id": s.str("exec_id"), "eof": true})
	if b, _ := w.output(s.str("stream_id"), 4); string(b) != "two\n" {
		t.Fatalf("%q", b)
	}
}

func TestProcessLogs(t *testing.T) {
	g := start(t)
	c := g.dial()
	id := c.session()
	p := c.call("process.start", object{"session_id": id, "command": "echo é-one; sleep 0.2; echo err >&2; read x; echo $x; exit 4", "stdin": "open"})
	pid := p.str("process_id")
	c.call("process.wait", object{"process_id": pid, "until": object{"output": "err"}, "timeout_s": 60})
	logs := c.call("process.logs", object{"process_id": pid})
	chunks := logs["chunks"].([]any)
	if len(chunks) != 2 || object(chunks[1].(map[string]any)).str("stream") != "stderr" || logs.num("next_offset") != 11 || logs["eof"] != false {
		t.Fatalf("%v", logs)
	}
	logs = c.call("process.logs", object{"process_id": pid, "max_bytes": 1})
	if logs.num("next_offset") != 2 { // a whole character
		t.Fatalf("%v", logs)
	}
	follow := c.call("process.logs", object{"process_id": pid, "follow": true, "offset": 2})
	c.call("process.input", object{"process_id": pid, "data": "two\n"})
	b, exit := c.output(p.str("stream_id"), follow.num("next_offset"))
	if string(b) != "two\n" || exit.num("exit_code") != 4 || exit.str("state") != "exited" {
		t.Fatalf("%q %v", b, exit)
	}
	logs = c.call("process.logs", object{"process_id": pid, "offset": 11})
	if logs["eof"] != true || logs.num("next_offset") != 15 {
		t.Fatalf("%v", logs)
	}
	if f := c.try("process.logs", object{"process_id": pid, "offset": 16}); f.code() != "STREAM_NOT_FOUND" {
		t.Fatalf("%+v", f)
	}
	if f := c.try("process.input", object{"process_id": pid, "data": "x"}); f.code() != "STDIN_CLOSED" {
		t.Fatalf("%+v", f)
	}
	forever := c.call("process.start", object{"session_id": id, "command": "trap '' TERM; echo deaf; while :; do sleep 1; done"}).str("process_id")
	c.call("process.wait", object{"process_id": forever, "until": object{"output": "deaf"}, "timeout_s": 60})
	kill := c.call("process.kill", object{"process_id": forever, "kill_grace_s": 0.1})
	if kill.str("state") != "exited" || kill.str("signal") != "KILL" {
		t.Fatalf("%v", kill)
	}
}
