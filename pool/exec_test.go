package pool

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"trl/internal/testkit"
	"trl/pool/requestkey"
	"trl/pool/retained"
	"trl/protocol"
	"trl/runtime/journal"
	"trl/runtime/stream"
)

func TestResultText(t *testing.T) {
	r := newRig(t, Config{MaxOutput: 1 << 20})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		x := run(t, s, protocol.Exec{Command: "echo o; echo e >&2; printf tail; (exit 42)"})
		if x.Stdout != "o\ntail" || x.Stderr != "e\n" || *x.ExitCode != 42 || x.StdoutBytes != 6 || x.StderrBytes != 2 || x.Truncated || x.NextOffset != nil || x.Running {
			t.Errorf("%+v", x)
		}
		x = run(t, s, protocol.Exec{Command: `printf '\000\377\376abc\n'`})
		if b, _ := base64.StdEncoding.DecodeString(x.Stdout); x.StdoutEncoding != "base64" || string(b) != "\x00\xff\xfeabc\n" {
			t.Errorf("binary: %+v", x)
		}
		x = run(t, s, protocol.Exec{Command: "seq 300000", MaxOutputBytes: of(int64(1000))})
		total := int64(1988895)
		if o := x.Omitted.Stdout; !x.Truncated || x.StdoutBytes != total || o == nil || o.Bytes+int64(len(x.Stdout)) != total || o.At != 500 ||
			!strings.HasPrefix(x.Stdout, "1\n2\n") || !strings.HasSuffix(x.Stdout, "300000\n") || x.Omitted.Stderr != nil {
			t.Errorf("truncated: %d bytes of %d, omitted %+v", len(x.Stdout), x.StdoutBytes, x.Omitted.Stdout)
		}
		x = run(t, s, protocol.Exec{Command: "seq 300000", MaxOutputBytes: of(int64(1 << 40))}) // the server's maximum
		if int64(len(x.Stdout)) != 1<<20 || !x.Truncated {
			t.Errorf("clamped to %d", len(x.Stdout))
		}
		e := start(t, s, protocol.Exec{Command: `printf '\033[31m10%%\r100%%\n'`})
		if wait(t, "clean", e.Done()); e.Result(true).Stdout != "100%\n" || e.Result(false).Stdout == "100%\n" {
			t.Errorf("clean %q, as it came %q", e.Result(true).Stdout, e.Result(false).Stdout)
		}
		x = run(t, s, protocol.Exec{Command: "cat; read x; echo $?", Stdin: of("q'\"$x\n")})
		if x.Stdout != "q'\"$x\n1\n" {
			t.Errorf("stdin: %+v", x)
		}
		x = run(t, s, protocol.Exec{Command: "cat", Stdin: of(base64.StdEncoding.EncodeToString([]byte("\x00\xff"))), StdinEncoding: "base64"})
		if x.Stdout != base64.StdEncoding.EncodeToString([]byte("\x00\xff")) {
			t.Errorf("binary stdin: %+v", x)
		}
		_, err := s.Exec(&protocol.Exec{Command: "cat", Stdin: of("%%%"), StdinEncoding: "base64"})
		testkit.WantCode(t, err, protocol.InvalidParams)
	})
}

func TestOwnDirectoryAndEnvironment(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{WorkingDir: "/usr"})
	if x := run(t, s, protocol.Exec{Command: "pwd; echo $V", WorkingDir: "/tmp", Env: protocol.Env{"V": of("new")}}); x.Stdout != "/tmp\nnew\n" || x.WorkingDir != "/usr" {
		t.Errorf("%+v", x)
	}
	e := start(t, s, protocol.Exec{Command: "pwd", WorkingDir: "/no/such"})
	wait(t, "refusal", e.Done())
	testkit.WantCode(t, e.Err(), protocol.WorkingDirNotFound)
	if !e.Journal().Closed() || e.Exit().ExitCode != nil || e.Exit().Error == nil {
		t.Errorf("%+v", e.Exit())
	}
	want(t, s, "pwd", "/usr\n")
}

// exec.run with yield_ms, then exec.wait: every byte once.
func TestPartialThenRest(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	for _, submit := range []func(*protocol.Exec) (*Exec, error){s.Exec, s.Stream} {
		e, err := submit(&protocol.Exec{Command: `printf 'one\303'; echo err >&2; read x; printf '\251two\303'; read x; printf '\251\n'`, InteractiveStdin: true})
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "stderr", func() bool { return e.Partial().Stderr == "err\n" })
		x := e.Partial()
		if !x.Running || x.ExitCode != nil || x.NextOffset == nil || x.ExecID != e.ID() || x.StreamID != "st-"+e.ID() {
			t.Fatalf("%+v", x)
		}
		offset, text := *x.NextOffset, x.Stdout
		if x.StdoutEncoding == "base64" { // stderr came after the first half of the character
			b, _ := base64.StdEncoding.DecodeString(x.Stdout)
			text = string(b)
		}
		if _, err := e.Input(stream.Anywhere, []byte("\n"), false); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "more", func() bool { x, _ = e.Since(offset); return e.Journal().Size() == offset+5 })
		x, err = e.Since(offset)
		if err != nil || x.StdoutEncoding != "base64" && x.Stdout != "two" { // the last half waits for its other half
			t.Fatalf("%+v %v", x, err)
		}
		b, _ := base64.StdEncoding.DecodeString(x.Stdout)
		text, offset = text+string(b), *x.NextOffset
		if _, err := e.Input(stream.Anywhere, []byte("\n"), true); err != nil {
			t.Fatal(err)
		}
		wait(t, "end", e.Done())
		x, err = e.Since(offset)
		if err != nil || x.Running || x.ExitCode == nil {
			t.Fatalf("%+v %v", x, err)
		}
		rest := x.Stdout
		if x.StdoutEncoding == "base64" {
			b, _ := base64.StdEncoding.DecodeString(rest)
			rest = string(b)
		}
		if text += rest; text != "oneétwoé\n" {
			t.Fatalf("text %q", text)
		}
		if got := e.Result(false).Stdout; submit != nil && got != "oneétwoé\n" && e.output.KeepsText {
			t.Fatalf("result %q", got)
		}
		_, err = e.Since(1 << 40)
		testkit.WantCode(t, err, protocol.StreamNotFound)
		_, err = e.Input(stream.Anywhere, []byte("x"), false)
		testkit.WantCode(t, err, protocol.StdinClosed)
	}
}

// The head is what an answer says it is, also when the ring has lost it, and each stream's numbers are its own.
func TestPartialSaysWhatTheRingLost(t *testing.T) {
	r := newRig(t, Config{RingBytes: 4096})
	s := r.create(protocol.SessionCreate{})
	const total = 588895
	for _, c := range []struct {
		submit func(*protocol.Exec) (*Exec, error)
		out    string
		at     int64
	}{{s.Exec, "out\n", 500}, {s.Stream, "", 0}} {
		e, err := c.submit(&protocol.Exec{Command: "echo out; seq 100000 >&2; read x", InteractiveStdin: true, MaxOutputBytes: of(int64(1000))})
		if err != nil {
			t.Fatal(err)
		}
		look := func() {
			t.Helper()
			x, err := e.Since(0)
			if err != nil || x.Stdout != c.out || (c.out == "") != (x.Omitted.Stdout != nil) || x.StdoutBytes != 4 || x.StderrBytes != total {
				t.Fatalf("%q %+v %v", x.Stdout, x, err)
			}
			o := x.Omitted.Stderr
			if !x.Truncated || o == nil || o.At != c.at || o.Bytes+int64(len(x.Stderr)) != total || *x.NextOffset != 4+total ||
				c.at > 0 && !strings.HasPrefix(x.Stderr, "1\n2\n") || !strings.HasSuffix(x.Stderr, "\n100000\n") {
				t.Fatalf("%d bytes, omitted %+v", len(x.Stderr), o)
			}
		}
		testkit.Eventually(t, "output", func() bool { return e.Journal().Size() == 4+total })
		look()
		if _, err := e.Input(stream.Anywhere, nil, true); err != nil {
			t.Fatal(err)
		}
		wait(t, "end", e.Done())
		look()
	}
}

// No escape sequence shows that an answer begins, ends or was cut inside of.
func TestCleanTextWhereItWasCut(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	for _, c := range []struct{ print, text string }{
		{`ab\033[31mREDredredWXYZ`, "abWXYZ"},
		{`ab\033]0;title\007hello world more TAIL`, "abTAIL"},
		{`abcd...\033[31mTAI`, "abcdTAI"}, // the tail begins inside, in the next ones, too
		{`abcd...\033[0;31mT`, "abcdT"},
		{`abcd...\033]0;title\007T`, "abcdT"},
		{`abcd31mx`, "abcd31mx"},
	} {
		x := func() protocol.ExecResult {
			e := start(t, s, protocol.Exec{Command: "printf '" + c.print + "'", MaxOutputBytes: of(int64(8)), Clean: true})
			wait(t, c.print, e.Done())
			return e.Result(true)
		}()
		if x.Stdout != c.text {
			t.Errorf("%s: %q, want %q", c.print, x.Stdout, c.text)
		}
	}
	e := start(t, s, protocol.Exec{Command: `printf 'a\033['; echo err >&2; read x; printf '31mred\033[0m\n'`, InteractiveStdin: true, Clean: true})
	testkit.Eventually(t, "half of it", func() bool { return e.Journal().Size() == 7 })
	x := e.Partial()
	if x.Stdout != "a" || x.Stderr != "err\n" || *x.NextOffset != 7 {
		t.Errorf("%+v, next %d", x, *x.NextOffset)
	}
	if _, err := e.Input(stream.Anywhere, nil, true); err != nil {
		t.Fatal(err)
	}
	wait(t, "end", e.Done())
	for offset, text := range map[int64]string{0: "ared\n", 1: "red\n", 2: "red\n", 7: "red\n", 10: "red\n"} {
		x, err := e.Since(offset)
		if err != nil || x.Stdout != text {
			t.Errorf("from %d: %q, want %q; %v", offset, x.Stdout, text, err)
		}
	}
}

// What a job prints later belongs to its exec's stream and to no result.
func TestLateOutput(t *testing.T) {
	r := newRig(t, Config{})
	eachShell(t, func(t *testing.T, shell string) {
		s := r.create(protocol.SessionCreate{Shell: shell})
		proceed := filepath.Join(t.TempDir(), "go")
		e := start(t, s, protocol.Exec{Command: "(until [ -e " + proceed + " ]; do sleep 0.05; done; echo late) & echo hi"})
		wait(t, "end", e.Done())
		if x := e.Result(false); x.Stdout != "hi\n" || len(x.Background) == 0 {
			t.Fatalf("%+v", x)
		}
		want(t, s, ": >"+proceed+"; sleep 0.2; echo two", "two\n") // what is late comes meanwhile or afterwards
		testkit.Eventually(t, "late output", func() bool { return e.Journal().Closed() })
		if e.Journal().Size() != 8 || e.EndOffset() != 3 || e.Result(false).Stdout != "hi\n" {
			t.Fatalf("journal %d, end %d, result %q", e.Journal().Size(), e.EndOffset(), e.Result(false).Stdout)
		}
		if x, err := e.Since(0); err != nil || x.Stdout != "hi\n" {
			t.Fatalf("%+v %v", x, err)
		}
	})
}

// D15: whoever asks again with the same key gets the one run's result.
func TestRequestKeyRunsOnce(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{WorkingDir: t.TempDir()})
	q := protocol.Exec{Command: "echo x >>f; cat f; sleep 0.1", RequestKey: "k", SessionRef: protocol.SessionRef{SessionID: s.ID()}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if x := run(t, s, q); x.Stdout != "x\n" {
				t.Errorf("%+v", x)
			}
		})
	}
	all.Wait()
	q.SessionRef = protocol.SessionRef{Session: "by another name"}
	if x := run(t, s, q); x.Stdout != "x\n" {
		t.Errorf("after the end: %+v", x)
	}
	other := q
	other.Command = "true"
	_, err := s.Exec(&other)
	if d := testkit.WantCode(t, err, protocol.InvalidParams).Details; d["field"] != "request_key" {
		t.Errorf("details %v", d)
	}
	_, err = s.Stream(&q)
	testkit.WantCode(t, err, protocol.InvalidParams)
	if x := run(t, r.create(protocol.SessionCreate{WorkingDir: t.TempDir()}), q); x.Stdout == "x\n" && x.ExecID == "" {
		t.Errorf("another session: %+v", x)
	}

	q = protocol.Exec{Command: "pwd", WorkingDir: "/tmp/trl-no-such", RequestKey: "failed"} // what never ran is not remembered
	first := start(t, s, q)
	wait(t, "refusal", first.Done())
	if again := start(t, s, q); again == first {
		t.Error("a refusal is remembered")
	}

	// The output goes before the key: the command must not run again for that.
	q = protocol.Exec{Command: "echo x >>g; cat g", RequestKey: "heavy"}
	id := run(t, s, q).ExecID
	s.forget(time.Now(), time.Now().Add(time.Hour))
	if _, err := r.FindExec(me, id); err == nil {
		t.Error("retained for ever")
	}
	if x := run(t, s, q); x.ExecID != id || *x.ExitCode != 0 || !x.Truncated || x.Stdout != "" || x.Omitted.Stdout.Bytes != 2 {
		t.Errorf("tombstone: %+v", x)
	}
	r.DropExpired(time.Now().Add(requestkey.Retention + time.Minute))
	if x := run(t, s, q); x.Stdout != "x\nx\n" {
		t.Errorf("after its time: %+v", x)
	}

	if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{}); err != nil {
		t.Fatal(err)
	}
	if x := run(t, s, q); x.Stdout != "x\nx\n" { // also when the session ended meanwhile
		t.Errorf("after the session: %q", x.Stdout)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	first := run(t, s, protocol.Exec{Command: "echo first"}).ExecID
	last := ""
	for range 12 { // 2 MiB each: the ring and the result
		last = run(t, s, protocol.Exec{Command: "head -c 1048576 /dev/zero"}).ExecID
	}
	if _, err := r.FindExec(me, first); err == nil {
		t.Error("the oldest is still there")
	}
	if _, err := r.FindExec(me, last); err != nil {
		t.Error(err)
	}
	s.mu.Lock()
	if s.retained.Weight() > retained.MaxBytes {
		t.Errorf("%d bytes retained", s.retained.Weight())
	}
	s.mu.Unlock()
	for range retained.MaxWork + 50 {
		last = run(t, s, protocol.Exec{Command: ":"}).ExecID
	}
	s.mu.Lock()
	if n := len(s.endedExecs); n != retained.MaxWork {
		t.Errorf("%d execs known", n)
	}
	s.mu.Unlock()
	r.DropExpired(time.Now().Add(2 * time.Minute))
	if _, err := r.FindExec(me, last); err == nil {
		t.Error("retained beyond the retention time")
	}
}

// A beat of the reaper weighs what a job still writes to, and nothing else of what is retained: that may be a thousand
// commands a session.
func TestOnlyWhatGrowsIsWeighedAgain(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	open := func() (n int, weight int64) {
		r.DropExpired(time.Now())
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.retained.Growing(), s.retained.Weight()
	}
	for range 20 {
		run(t, s, protocol.Exec{Command: "echo done"})
	}
	if n, _ := open(); n != 0 {
		t.Errorf("%d of what has ended are weighed again", n)
	}
	flag := filepath.Join(t.TempDir(), "flag")
	run(t, s, protocol.Exec{Command: "{ until [ -e " + flag + " ]; do sleep 0.01; done; head -c 5000 /dev/zero; } &"})
	n, before := open()
	if n != 1 {
		t.Errorf("%d are weighed again, one has a job", n)
	}
	if err := os.WriteFile(flag, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the job's output is weighed, and it is over", func() bool {
		n, now := open()
		return n == 0 && now >= before+5000
	})
}

// What has ended and is no longer retained holds none of its output, also where it stands behind a request_key: a tombstone must
// not keep what it was made from.
func TestOutputIsLetGo(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	journals := map[string]weak.Pointer[journal.Journal]{}
	func() { // whose stack goes with it
		e, err := s.Stream(&protocol.Exec{Command: "seq 1000", RequestKey: "exec"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "its end", e.Done())
		p := r.process(s, protocol.ProcessStart{Command: "seq 1000", RequestKey: "process"})
		wait(t, "its exit", p.Done())
		term, err := s.OpenTerminal(t.Context(), &protocol.TermOpen{Cols: 80, Rows: 24, Command: "seq 1000"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "its end", term.Done())
		journals["exec"], journals["process"], journals["terminal"] = weak.Make(e.journal), weak.Make(p.journal), weak.Make(term.journal)
	}()
	run(t, s, protocol.Exec{Command: ":"}) // nothing of the session is about the ones before
	s.forget(time.Now(), time.Now().Add(time.Hour))
	for of, j := range journals {
		testkit.Eventually(t, "the "+of+"'s output is freed", func() bool { runtime.GC(); return j.Value() == nil })
	}
	x, err := s.Stream(&protocol.Exec{Command: "seq 1000", RequestKey: "exec"})
	if err != nil || !x.isTombstone || *x.exit.ExitCode != 0 || x.EndOffset() != 3893 {
		t.Fatalf("%+v %v", x, err)
	}
	missed, err := x.Journal().Attach(0, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer missed.Close()
	if c, _, err := missed.TryNext(); err != nil || c.Gap != 3893 {
		t.Errorf("gap %d of 3893 bytes, %v", c.Gap, err)
	}
}

// A session that is forgotten is not held by the keys of what ran in it.
func TestKeysGoWithTheirSession(t *testing.T) {
	r := newRig(t, Config{Retention: time.Second})
	var gone weak.Pointer[Session]
	func() { // whose stack goes with it
		s := r.create(protocol.SessionCreate{})
		e, err := s.Stream(&protocol.Exec{SessionRef: protocol.SessionRef{SessionID: s.id}, Command: "seq 1000", RequestKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "its end", e.Done())
		if _, err := s.Destroy(t.Context(), &protocol.SessionDestroy{Force: true}); err != nil {
			t.Fatal(err)
		}
		gone = weak.Make(s)
	}()
	r.DropExpired(time.Now().Add(2 * time.Minute))
	testkit.Eventually(t, "the session is freed", func() bool { runtime.GC(); return gone.Value() == nil })
}

func TestStreamTakesNoText(t *testing.T) {
	r := newRig(t, Config{})
	s := r.create(protocol.SessionCreate{})
	e, err := s.Stream(&protocol.Exec{Command: "echo o; echo e >&2"})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := e.Journal().Attach(0, journal.Options{Block: true})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	wait(t, "end", e.Done())
	if x := e.Exit(); x.StdoutBytes != 2 || x.StderrBytes != 2 || e.EndOffset() != 4 || e.output.IsNeeded() {
		t.Fatalf("%+v", x)
	}
	if x := e.Result(false); x.Stdout != "o\n" || x.Stderr != "e\n" {
		t.Fatalf("from the journal: %+v", x)
	}
}
