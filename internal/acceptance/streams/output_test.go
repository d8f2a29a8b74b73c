package streams

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trl/internal/rig"
	"trl/internal/testkit"

	"github.com/coder/websocket"
)

// numbersText is what `seq 1 n` prints.
func numbersText(n int) string {
	var b strings.Builder
	for i := 1; i <= n; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

// throttle lets bytesPerSecond pass.
func throttle(bytesPerSecond int) func(int) {
	return func(n int) { time.Sleep(time.Duration(n) * time.Second / time.Duration(bytesPerSecond)) }
}

// bytesOfFiles is how many bytes lie in files under dir.
func bytesOfFiles(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				sum += i.Size()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// B1: A client slower than the command gets every byte, to the last.
func TestSlowClientGetsEveryByte(t *testing.T) {
	t.Parallel() // it mostly waits
	g := rig.Shared(t, "b")
	n, rounds := rig.Pick(200_000, 2_000_000), rig.Pick(1, 20)
	want := numbersText(n)
	rig.EachShell(t, func(t *testing.T, sh string) {
		for range rounds {
			c := g.DialPaced(t, throttle(1<<20))
			s := c.Session(object{"shell": sh})
			data, exit := c.Output(c.Stream(s, fmt.Sprint("seq 1 ", n)).Str("stream_id"), 0)
			if data != want {
				t.Errorf("got %s", rig.Brief(data))
			}
			if exit.Num("exit_code") != 0 || exit.Num("stdout_bytes") != len(want) {
				t.Errorf("exit %v", exit)
			}
			c.Call("session.destroy", object{"session_id": s})
		}
	})
}

// B4: What comes out is what went in, around every size at which something is cut.
func TestOutputIsExactAtEveryBufferSize(t *testing.T) {
	g := rig.Shared(t, "b")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		for _, n := range []int{0, 1, 4095, 4096, 4097, 32767, 32768, 32769, 65535, 65536, 65537, 70000, 1<<20 - 1, 1 << 20} {
			command := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n)
			rig.Expect(t, c.Run(s, command), 0, strings.Repeat("x", n), "")
			data, exit := c.Output(c.Stream(s, command+" >&2").Str("stream_id"), 0)
			if data != strings.Repeat("x", n) || exit.Num("stderr_bytes") != n || exit.Num("exit_code") != 0 {
				t.Errorf("%d bytes as a stream: %s, %v", n, rig.Brief(data), exit)
			}
		}
		// One more than may be returned is said.
		r := c.Run(s, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", 1<<20+1))
		if gone := r.Obj("omitted").Obj("stdout"); !r.Yes("truncated") || r.Num("stdout_bytes") != 1<<20+1 || len(r.Stdout())+gone.Num("bytes") != 1<<20+1 {
			t.Errorf("one byte too many: truncated %v, omitted %v, %d of %v bytes", r["truncated"], r["omitted"], len(r.Stdout()), r["stdout_bytes"])
		}
	})
}

// B6: Of a flood exec.run keeps head and tail and says what is missing; the gateway does not grow with it.
func TestFloodKeepsHeadAndTail(t *testing.T) {
	g := rig.Gateway(t)
	size := rig.Pick(30_000_000, 100_000_000)
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		command := fmt.Sprintf("echo HEAD; head -c %d /dev/zero | tr '\\0' x; echo; echo TAIL", size)
		limits := []int{0, 1000, 8 << 20}
		if sh != rig.Shells[0] && !testkit.Soak { // the limit is the gateway's, whatever the shell
			limits = limits[:1]
		}
		for _, limit := range limits {
			before := g.Rss(t)
			var r object
			if limit == 0 {
				limit = 1 << 20
				r = c.Run(s, command)
			} else {
				r = c.Run(s, command, object{"max_output_bytes": limit})
			}
			grown := g.Peak(t) - before
			out, gone, total := r.Stdout(), r.Obj("omitted").Obj("stdout"), size+len("HEAD\n\nTAIL\n")
			if r.Num("exit_code") != 0 || !r.Yes("truncated") || r.Num("stdout_bytes") != total || r.Obj("omitted").Has("stderr") {
				t.Errorf("exit %v, truncated %v, omitted %v, %v bytes of %d", r["exit_code"], r["truncated"], r["omitted"], r["stdout_bytes"], total)
			}
			if len(out) > limit || len(out) < limit-8 || len(out)+gone.Num("bytes") != total || gone.Num("at") < limit/3 || gone.Num("at") > len(out) {
				t.Errorf("limit %d: %d bytes, omitted %v", limit, len(out), gone)
			}
			if !strings.HasPrefix(out, "HEAD\nxx") || !strings.HasSuffix(out, "xx\nTAIL\n") {
				t.Errorf("limit %d: %s", limit, rig.Brief(out))
			}
			t.Logf("limit %d: the gateway grew by %d KiB", limit, grown>>10)
			// The answer exists about five times while it is put together (kept text, string, JSON, message), 16 MiB are for a
			// stream's ring and what a collected heap takes besides. It must not grow with the output.
			if grown > 7*limit+16<<20 {
				t.Errorf("limit %d: the gateway grew by %d MiB", limit, grown>>20)
			}
		}
	})
}

// B7: A process that never stops printing fills its ring and no more.
func TestEndlessProcessFillsItsRingAndNoMore(t *testing.T) {
	const ring = 1 << 20
	g := rig.Shared(t, "b")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		before, files := g.Rss(t), bytesOfFiles(t, g.Dir)
		p := c.Call("process.start", object{"session_id": s, "command": "yes"}).Str("process_id")
		written := func() int { return c.Call("process.info", object{"process_id": p}).Num("output_bytes") }
		start := time.Now()
		testkit.Eventually(t, "it prints", func() bool { return written() > 20*ring && time.Since(start) > rig.Pick(time.Second, 60*time.Second) })
		if grown := g.Peak(t) - before; grown > 32<<20 { // before anybody asks for the logs: those answers are another's bytes
			t.Errorf("the gateway grew by %d MiB", grown>>20)
		}
		checkRing(t, c, p, ring)
		if grown := bytesOfFiles(t, g.Dir) - files; grown > ring {
			t.Errorf("files grew by %d bytes", grown)
		}
		c.Call("session.destroy", object{"session_id": s, "force": true})
		if f := c.Try("process.info", object{"process_id": p}); f.OK && f.Data.Str("state") != "exited" {
			t.Errorf("after the session: %v", f.Data)
		}
		if grown := bytesOfFiles(t, g.Dir) - files; grown > 0 {
			t.Errorf("files of %d bytes are left", grown)
		}
	})
}

// checkRing reads all logs of a process that prints "y\n" for ever, while it does and when it is stopped: they begin with a gap
// that accounts for what is not there, and the rest is whole.
func checkRing(t *testing.T, c *rig.Client, process string, ring int) {
	t.Helper()
	read := func() (kept, next int) {
		t.Helper()
		logs := c.Call("process.logs", object{"process_id": process, "max_bytes": 4 * ring})
		at := logs.Obj("gap").Num("to")
		if logs.Obj("gap").Num("from") != 0 || at <= 0 {
			t.Fatalf("gap %v, next %v", logs["gap"], logs["next_offset"])
		}
		for _, chunk := range logs.Objs("chunks") {
			if chunk.Num("offset") != at+kept {
				t.Fatalf("chunk at %d, want %d", chunk.Num("offset"), at+kept)
			}
			data := chunk.Text("data", "encoding")
			if strings.Trim(data, "y\n") != "" {
				t.Fatalf("data %s", rig.Brief(data))
			}
			kept += len(data)
		}
		if logs.Num("next_offset") != at+kept || logs.Yes("eof") || kept == 0 {
			t.Errorf("next %v after %d bytes at %d, eof %v", logs["next_offset"], kept, at, logs["eof"])
		}
		return kept, at + kept
	}
	for range 10 {
		read()
	}
	c.Call("process.kill", object{"process_id": process, "signal": "STOP"})
	var kept int
	testkit.Eventually(t, "what is kept ends at the last byte", func() bool { // what was in the pipe comes after the stop
		written := c.Call("process.info", object{"process_id": process}).Num("output_bytes")
		next := 0
		kept, next = read()
		return next == written
	})
	if kept < ring || kept > 2*ring { // the promise is at least the ring; twice of it is no longer a ring
		t.Errorf("%d bytes are kept, the ring has %d", kept, ring)
	}
	c.Call("process.kill", object{"process_id": process, "signal": "CONT"})
}

// B8: The client is gone: the bound holds all the same, and the policy of the session decides what becomes of the process.
func TestRingIsBoundedWithoutAClient(t *testing.T) {
	t.Parallel() // it mostly waits
	const ring = 1 << 20
	g := rig.Gateway(t)
	rig.EachShell(t, func(t *testing.T, sh string) {
		other := g.Dial(t)
		for _, policy := range []string{"keep", "destroy"} {
			c := g.Dial(t)
			s := c.Session(object{"shell": sh, "on_disconnect": policy})
			before := g.Rss(t)
			// With follow the client was a reader who is waited for, when it goes away.
			p := c.Call("process.start", object{"session_id": s, "command": "yes"})
			c.Call("process.logs", object{"process_id": p.Str("process_id"), "follow": true, "on_slow": "block"})
			pid := p.Num("pid")
			c.Close()
			if policy == "destroy" {
				testkit.Eventually(t, "the session ends", func() bool { return other.State(s) == "TERMINATED" })
				if reason := other.Info(s).Str("reason"); reason != "disconnect" {
					t.Errorf("reason %q", reason)
				}
			} else {
				testkit.Eventually(t, "it goes on", func() bool {
					return other.Call("process.info", object{"process_id": p.Str("process_id")}).Num("output_bytes") > 20*ring
				})
				if grown := g.Peak(t) - before; grown > 32<<20 {
					t.Errorf("the gateway grew by %d MiB", grown>>20)
				}
				checkRing(t, other, p.Str("process_id"), ring)
				other.Call("session.destroy", object{"session_id": s})
			}
			if cmd := rig.Cmdline(pid); cmd != "" {
				t.Errorf("%s: pid %d is still there: %s", policy, pid, cmd)
			}
		}
	})
	// An idle timeout does not take a session whose process lives, but the one whose process has ended.
	t.Run("idle", func(t *testing.T) {
		c := g.Dial(t)
		nap := rig.Sleeper()
		var s, p string
		testkit.Eventually(t, "a process runs in a session that is not idle yet", func() bool {
			s = c.Session(object{"idle_timeout_s": 0.5})
			f := c.Try("process.start", object{"session_id": s, "command": nap})
			if !f.OK && f.Code() != "SESSION_TERMINATED" {
				t.Fatalf("%+v", f.Error)
			}
			p = f.Data.Str("process_id")
			return f.OK
		})
		time.Sleep(1500 * time.Millisecond) // three times its idle timeout
		if state := c.State(s); state != "IDLE" || len(rig.Running(nap)) != 1 {
			t.Errorf("state %s, running %v", state, rig.Running(nap))
		}
		c.Call("process.kill", object{"process_id": p})
		testkit.Eventually(t, "the idle session ends", func() bool { return c.State(s) == "TERMINATED" })
		if reason := c.Info(s).Str("reason"); reason != "idle" {
			t.Errorf("reason %q", reason)
		}
	})
}

// B9: Nobody reads: the command waits, the gateway does not grow, the client is dropped in the end, and the command goes on.
func TestClientThatNeverReadsIsDropped(t *testing.T) {
	t.Parallel() // it mostly waits
	size := rig.Pick(50_000_000, 200_000_000)
	g := rig.Gateway(t, "--slow-client", "5s")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		before, dropped := g.Rss(t), g.Front().Metric(t, "trl_slow_clients_dropped_total")
		deaf, err := g.Open(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		request := fmt.Sprintf(`{"id":1,"method":"exec.stream","params":{"session_id":%q,"command":"cat /dev/zero | head -c %d"}}`, s, size)
		if err := deaf.Write(context.Background(), websocket.MessageText, []byte(request)); err != nil {
			t.Fatal(err)
		}
		var id string
		testkit.Eventually(t, "it runs, or has run", func() bool {
			all := c.Call("exec.list", object{"session_id": s}).Objs("execs")
			if len(all) > 0 && all[0].Str("state") != "queued" {
				id = all[0].Str("exec_id")
			}
			return id != ""
		})
		// Others are not held up.
		other := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(other, "echo other"), 0, "other\n", "")
		if state := c.State(s); state != "RUNNING" && time.Since(start) < 4*time.Second { // the client is not dropped yet
			t.Errorf("it did not wait for its reader: %v", c.Info(s))
		}
		testkit.Eventually(t, "the slow client is dropped, and counted", func() bool { return g.Front().Metric(t, "trl_slow_clients_dropped_total") == dropped+1 })
		testkit.Eventually(t, "the command goes on to its end", func() bool { return c.State(s) == "IDLE" })
		if grown := g.Peak(t) - before; grown > 32<<20 {
			t.Errorf("the gateway grew by %d MiB", grown>>20)
		}
		// What the ring no longer has is a gap, and the totals are true.
		st := c.Call("exec.attach", object{"exec_id": id}).Str("stream_id")
		gap := c.Event("stream.gap")
		data, exit := c.Output(st, gap.Num("to"))
		if gap.Num("from") != 0 || gap.Num("to")+len(data) != size || len(data) < 1<<20 || exit.Num("stdout_bytes") != size || exit.Num("exit_code") != 0 {
			t.Errorf("gap %v, then %d bytes, exit %v", gap, len(data), exit)
		}
	})
}

// B10: stdout and stderr are apart. (Merged they are in a terminal: a later issue.)
func TestStdoutAndStderrAreApart(t *testing.T) {
	g := rig.Shared(t, "b")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		rig.Expect(t, c.Run(s, "sh -c 'echo o; echo e >&2'"), 0, "o\n", "e\n")
		rig.Expect(t, c.Run(s, "echo o; echo e >&2; echo o2"), 0, "o\no2\n", "e\n")
		rig.Expect(t, c.Run(s, "{ echo o; echo e >&2; } 2>&1"), 0, "o\ne\n", "")
		stream := c.Stream(s, "sh -c 'echo o; echo e >&2'").Str("stream_id")
		got := map[string]string{}
		for len(got["stdout"])+len(got["stderr"]) < 4 {
			e := c.Event("exec.output")
			got[e.Str("stream")] += e.Text("data", "encoding")
		}
		if got["stdout"] != "o\n" || got["stderr"] != "e\n" {
			t.Errorf("stream %s: %v", stream, got)
		}
		p := c.Call("process.start", object{"session_id": s, "command": "echo o; echo e >&2"}).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
		got = map[string]string{}
		for _, chunk := range c.Call("process.logs", object{"process_id": p}).Objs("chunks") {
			got[chunk.Str("stream")] += chunk.Text("data", "encoding")
		}
		if got["stdout"] != "o\n" || got["stderr"] != "e\n" {
			t.Errorf("process: %v", got)
		}
	})
	isDocumented(t, "stdout and stderr are separate")
}

func isDocumented(t *testing.T, words ...string) {
	t.Helper()
	b, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range words {
		if !strings.Contains(string(b), w) {
			t.Errorf("docs/operations.md does not say %q", w)
		}
	}
}

// B11: The bounds are documented, told by the server, and in force; where the rest is, it is.
func TestOutputLimitsAreDocumentedAndInForce(t *testing.T) {
	isDocumented(t, "max_output_bytes", "--max-output-bytes", "--ring-bytes", "--max-frame-bytes", "stream.gap", "exec.attach", "next_offset", "`truncated`", "`omitted")
	g := rig.Shared(t, "b")
	limits := g.Dial(t).Call("system.capabilities", nil).Obj("limits")
	for key, want := range map[string]int{"max_output_bytes": 64 << 20, "ring_bytes": 1 << 20, "max_frame_bytes": 4 << 20} {
		if limits.Num(key) != want {
			t.Errorf("capabilities: %s is %v, documented is %d; all: %v", key, limits[key], want, limits)
		}
	}
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		want := numbersText(20_000)
		r := c.Run(s, "seq 1 20000", object{"max_output_bytes": 1000})
		gone := r.Obj("omitted").Obj("stdout")
		if !r.Yes("truncated") || len(r.Stdout()) > 1000 || len(r.Stdout())+gone.Num("bytes") != len(want) {
			t.Fatalf("truncated %v, %d bytes, omitted %v", r["truncated"], len(r.Stdout()), gone)
		}
		if at := gone.Num("at"); r.Stdout()[:at]+want[at:at+gone.Num("bytes")]+r.Stdout()[at:] != want {
			t.Errorf("omitted %v does not say what is missing in %s", gone, rig.Brief(r.Stdout()))
		}
		if data, _ := c.Output(c.Call("exec.attach", object{"exec_id": r.Str("exec_id")}).Str("stream_id"), 0); data != want {
			t.Errorf("the rest is not in the stream: %s", rig.Brief(data))
		}
		if f := c.Try("exec.run", object{"session_id": s, "command": "true", "max_output_bytes": -1}); f.Code() != "INVALID_PARAMS" {
			t.Errorf("max_output_bytes -1: %+v", f)
		}
		rig.Expect(t, c.Run(s, "echo hi", object{"max_output_bytes": 1 << 40}), 0, "hi\n", "") // clamped
	})
}

// B12: Bytes are bytes.
func TestBinaryOutputIsExact(t *testing.T) {
	g := rig.Shared(t, "b")
	rig.EachShell(t, func(t *testing.T, sh string) {
		c := g.Dial(t)
		s := c.Session(object{"shell": sh})
		file := filepath.Join(g.Home, "b12")
		for _, make := range []string{
			"head -c 4096 /dev/urandom", "head -c 300000 /dev/urandom", "head -c 100 /dev/zero", `printf '\303\050\240\241\377'`, `printf 'caf\303\251 \342\202\254 \360\237\220\247'`,
			`printf '\342\224'`, `i=0; while [ $i -lt 50000 ]; do echo "\342\224\200$i"; i=$((i+1)); done`, `printf '\033[31mred\033[0m\r\n\t\b\001\177'`, `printf '\355\240\200\364\220\200\200\300\200'`,
		} {
			r := c.Run(s, make+" | tee b12")
			b, err := os.ReadFile(file)
			if err != nil || len(b) == 0 {
				t.Fatal(err)
			}
			rig.Expect(t, r, 0, string(b), "")
			rig.Expect(t, c.Run(s, "cat b12 >&2"), 0, "", string(b))
			if data, _ := c.Output(c.Stream(s, "cat b12; sleep 0.05; cat b12").Str("stream_id"), 0); data != string(b)+string(b) {
				t.Errorf("%s: the stream gives %s, want twice %s", make, rig.Brief(data), rig.Brief(string(b)))
			}
		}
	})
}
