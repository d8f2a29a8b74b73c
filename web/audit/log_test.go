package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trl/internal/testkit"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("TRL_TEST_AUDIT"); path != "" {
		writeUntilKilled(path)
	}
	testkit.Main(m)
}

func open(t testing.TB, c Config) *Log {
	t.Helper()
	if c.Path == "" {
		c.Path = filepath.Join(t.TempDir(), "audit.log")
	}
	l, err := Open(c, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func closeLog(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func verify(t testing.TB, path string, anchors ...string) Report {
	t.Helper()
	files, err := Files(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Verify(files, anchors...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestChainGoesOnAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for i := range 3 {
		l := open(t, Config{Path: path})
		for range 10 {
			l.Append(Entry{Action: "session.create", Outcome: "ok", Principal: fmt.Sprint("p", i)})
		}
		closeLog(t, l)
	}
	if r := verify(t, path); r.Lines != 30 || r.First != 1 || r.Last != 30 || r.Lost+uint64(r.Torn+r.Cut) != 0 {
		t.Errorf("%+v", r)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestTwoCannotWriteOneLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	first := open(t, Config{Path: path})
	if l, err := Open(Config{Path: path}, zerolog.Nop()); err == nil {
		l.Close()
		t.Fatal("opened twice")
	}
	closeLog(t, first)
	closeLog(t, open(t, Config{Path: path}))
}

func TestOpenRefusesWhatOthersMayRead(t *testing.T) {
	dir := t.TempDir()
	for name, make := range map[string]func(string) error{
		"open":    func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o600), os.Chmod(p, 0o644)) },
		"symlink": func(p string) error { return os.Symlink("/dev/null", p) },
		"fifo":    func(p string) error { return syscall.Mkfifo(p, 0o600) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if l, err := Open(Config{Path: path}, zerolog.Nop()); err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

// Every way to touch a log, and what verify says of it: the table of docs/hardening.md.
func TestTamperingIsSeen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	l := open(t, Config{Path: path})
	for i := range 20 {
		l.Append(Entry{Action: "exec.run", Outcome: "ok", Session: fmt.Sprint("s-", i)})
	}
	closeLog(t, l)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, err := ReadHead(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := func() [][]byte {
		return bytes.SplitAfter(bytes.Clone(bytes.TrimSuffix(whole, []byte("\n"))), []byte("\n"))
	}
	join := func(lines [][]byte) []byte {
		return append(bytes.TrimSuffix(bytes.Join(lines, nil), []byte("\n")), '\n')
	}
	// anew is what somebody makes who may write the file and knows how: a chain of its own from line n on.
	anew := func(n int, change func(*Entry)) []byte {
		ls := lines()
		_, h, _, err := readLine(bytes.TrimSpace(ls[n-2]))
		if err != nil {
			t.Fatal(err)
		}
		out := bytes.Join(ls[:n-1], nil)
		for i := n - 1; i < len(ls); i++ {
			e, _, _, _ := readLine(bytes.TrimSpace(ls[i]))
			change(&e)
			out, _ = appendLine(out, &e, &h)
		}
		return out
	}
	for _, try := range []struct {
		name    string
		text    []byte
		line    int    // that verify names; 0: it finds nothing
		why     string // part of what it says
		anchors []string
	}{
		{"untouched", whole, 0, "", nil},
		{"untouched, with its head", whole, 0, "", []string{head}},
		{"a word changed", bytes.Replace(whole, []byte(`"s-6"`), []byte(`"s-7"`), 1), 7, "changed", nil},
		{"a time changed", bytes.Replace(whole, []byte(`"seq":9,"time":"2`), []byte(`"seq":9,"time":"1`), 1), 9, "changed", nil},
		{"a hash changed", bytes.Replace(whole, []byte(`"hash":"`+field(t, lines()[4], "hash")), []byte(`"hash":"`+strings.Repeat("0", 64)), 1), 5, "changed", nil},
		{"a line removed", join(slices.Delete(lines(), 9, 10)), 10, "removed before it: lines number 10 to 10", nil},
		{"the first ones removed", join(slices.Delete(lines(), 0, 5)), 0, "", nil}, // as after a rotation: Report.First tells
		{"two lines swapped", func() []byte { ls := lines(); ls[3], ls[4] = ls[4], ls[3]; return join(ls) }(), 4, "removed before it", nil},
		{"a line twice", func() []byte { return join(slices.Insert(lines(), 6, lines()[5])) }(), 7, "out of order", nil},
		{"a line of one's own put in", func() []byte {
			e, h := Entry{Action: "login"}, headAt(t, lines()[7])
			line, _ := appendLine(nil, &e, &h)
			return join(slices.Insert(lines(), 8, line))
		}(), 10, "out of order", nil},
		{"a line replaced", func() []byte {
			ls := lines()
			e, h := Entry{Action: "login"}, headAt(t, ls[7])
			ls[8], _ = appendLine(nil, &e, &h)
			return join(ls)
		}(), 10, "not bound to the line before it", nil},
		{"text in between", func() []byte { return join(slices.Insert(lines(), 8, []byte("hello\n"))) }(), 9, "no line", nil},
		{"cut off within a line, later ones there", bytes.Replace(whole, []byte(`"seq":9`), []byte("\n"), 1), 9, "no line", nil},
		{"the last line cut in the middle", whole[:len(whole)-30], 0, "", nil}, // Report.Cut tells: a crash does it, too
		{"the last lines cut off", join(lines()[:15]), 0, "", nil},             // what a chain cannot see …
		{"the last lines cut off", join(lines()[:15]), 15, "cut off", []string{head}},
		{"written anew from line 5 on", anew(5, func(e *Entry) { e.Principal = "mallory" }), 0, "", nil}, // … and neither this
		{"written anew from line 5 on", anew(5, func(e *Entry) { e.Principal = "mallory" }), 20, "written anew", []string{head}},
	} {
		if try.line != 0 && bytes.Equal(try.text, whole) {
			t.Fatalf("%s: nothing was changed", try.name)
		}
		if err := os.WriteFile(path, try.text, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Verify([]string{path}, try.anchors...)
		var fault *Fault
		switch errors.As(err, &fault); {
		case try.line == 0 && err != nil:
			t.Errorf("%s: %v", try.name, err)
		case try.line != 0 && (fault == nil || fault.Line != try.line || !strings.Contains(fault.Why, try.why)):
			t.Errorf("%s: %v, want line %d, %s", try.name, err, try.line, try.why)
		}
		if strings.Contains(try.name, "in the middle") && r.Cut == 0 || strings.Contains(try.name, "first ones") && r.First != 6 {
			t.Errorf("%s: %+v", try.name, r)
		}
	}
}

func field(t *testing.T, line []byte, name string) string {
	_, h, prev, err := readLine(bytes.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if name == "hash" {
		return h.hash
	}
	return prev
}

func headAt(t *testing.T, line []byte) chainHead {
	_, h, _, err := readLine(bytes.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestCommandsAreHidden(t *testing.T) {
	const secret, short = "curl -H 'X-Key: hunter2hunter2'", "ls"
	for policy, want := range map[CommandPolicy]bool{HashCommands: false, RedactCommands: false, KeepCommands: true} {
		path := filepath.Join(t.TempDir(), "audit.log")
		l := open(t, Config{Path: path, Commands: policy})
		for _, text := range []string{secret, short, short} {
			l.Append(Entry{Action: "exec.run", Text: text})
		}
		closeLog(t, l)
		text, _ := os.ReadFile(path)
		if got := bytes.Contains(text, []byte("hunter2")); got != want {
			t.Errorf("%s: the text is there: %v", policy, got)
		}
		if plain := hashOf([]byte(short)); bytes.Contains(text, []byte(plain)) {
			t.Errorf("%s: a hash that anybody can make is there", policy)
		}
		if !bytes.Contains(text, []byte(`"command_bytes":2`)) {
			t.Errorf("%s: no length: %s", policy, text)
		}
		if policy != HashCommands {
			continue
		}
		key, err := ReadHashKey(HashKeyFile(path))
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte(key.Hash(short))); n != 2 {
			t.Errorf("who has the key finds the command %d times", n)
		}
		if info, err := os.Stat(HashKeyFile(path)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("key: %v, %v", info.Mode(), err)
		}
	}
}

func TestRotationCarriesTheChainUnderLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, Config{Path: path, MaxBytes: 20 << 10, maxWaiting: 1 << 20})
	const writers, each = 8, 500
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				l.Append(Entry{Action: "exec.run", Outcome: "ok", Session: fmt.Sprint("s-", w, "-", i)})
			}
		})
	}
	wg.Wait()
	closeLog(t, l)
	files, _ := Files(path)
	if r := verify(t, path); r.Lines != writers*each || r.First != 1 || len(files) < 20 {
		t.Errorf("%+v in %d files", r, len(files))
	}
	for _, f := range files {
		if info, _ := os.Stat(f); info.Size() > 21<<10 || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %d bytes, %v", f, info.Size(), info.Mode())
		}
	}
	// A file missing in the middle is lines missing.
	var fault *Fault
	if _, err := Verify(slices.Delete(slices.Clone(files), 3, 4)); !errors.As(err, &fault) || fault.Line != 1 || fault.File != files[4] {
		t.Errorf("a file removed: %v", err)
	}
	text, err := os.ReadFile(files[3])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[3], bytes.Replace(text, []byte("exec.run"), []byte("exec.ran"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(slices.Clone(files)); !errors.As(err, &fault) || fault.Line != 1 || fault.File != files[3] || !strings.Contains(fault.Why, "changed") {
		t.Errorf("the first line of a file changed: %v", err)
	}
	if r, err := Verify([]string{files[2], files[1], files[0]}); err != nil || r.First != 1 {
		t.Errorf("in any order: %+v, %v", r, err)
	}
}

func TestRotationKeepsSoMany(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, Config{Path: path, MaxAge: time.Nanosecond, Keep: 3})
	for i := range 20 {
		l.Append(Entry{Action: "login"})
		testkit.Eventually(t, "line", func() bool { h, err := chainHeadOf(path); return err == nil && h.seq == uint64(i+1) })
	}
	closeLog(t, l)
	files, _ := Files(path)
	if r := verify(t, path); len(files) != 4 || r.First != 17 || r.Last != 20 {
		t.Errorf("%v, %+v", files, r)
	}
	l = open(t, Config{Path: path}) // goes on from what is left
	l.Append(Entry{Action: "login"})
	closeLog(t, l)
	os.Remove(path) // also when the last rotation was all that there was time for
	l = open(t, Config{Path: path})
	l.Append(Entry{Action: "login"})
	closeLog(t, l)
	if r := verify(t, path); r.Last != 20 {
		t.Errorf("%+v", r)
	}
}

// writeUntilKilled is the test binary as a gateway that writes for as long as it is let.
func writeUntilKilled(path string) {
	l, err := Open(Config{Path: path, MaxBytes: 50 << 10}, zerolog.Nop())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("writes")
	for i := 0; ; i++ {
		for l.Append(Entry{Action: "exec.run", Session: fmt.Sprint("s-", i)}); ; {
			l.mu.Lock()
			n := len(l.waiting)
			l.mu.Unlock()
			if n < 100 {
				break
			}
		}
	}
}

func TestChainOutlivesKills(t *testing.T) {
	testkit.StartsProcesses(t)
	path := filepath.Join(t.TempDir(), "audit.log")
	var last uint64
	for range 5 {
		cmd := exec.Command(os.Args[0], "-test.run", "^$")
		cmd.Env = append(os.Environ(), "TRL_TEST_AUDIT="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 7)); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "another 200 lines", func() bool { h, _ := chainHeadOf(path); return h.seq >= last+200 })
		cmd.Process.Kill()
		cmd.Wait()
		r := verify(t, path)
		if r.Last <= last || r.Lines != int(r.Last) {
			t.Fatalf("%+v after %d", r, last)
		}
		last = r.Last
	}
}

func TestATornLineIsMarked(t *testing.T) {
	for name, tail := range map[string]string{
		"half a line": `{"seq":4,"time":"2026-`, "with a newline": "{\"seq\":4\n", "zeros": "\x00\x00\x00\x00\n\x00\x00", "two halves": "{\"se\n{\"seq\"",
	} {
		path := filepath.Join(t.TempDir(), "audit.log")
		l := open(t, Config{Path: path})
		for range 3 {
			l.Append(Entry{Action: "login"})
		}
		closeLog(t, l)
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(f, tail)
		f.Close()
		l = open(t, Config{Path: path})
		l.Append(Entry{Action: "login"})
		closeLog(t, l)
		if r := verify(t, path); r.Torn != 1 || r.Lines != 5 || r.Last != 5 {
			t.Errorf("%s: %+v", name, r)
		}
		text, _ := os.ReadFile(path)
		if err := os.WriteFile(path, bytes.Replace(text, []byte(tail), []byte(strings.ToUpper(tail)+"x"), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		var fault *Fault
		if _, err := Verify([]string{path}); !errors.As(err, &fault) || fault.Line != 4 {
			t.Errorf("%s: changed after it was marked: %v", name, err)
		}
	}
	// The very first line, torn.
	path := filepath.Join(t.TempDir(), "audit.log")
	os.WriteFile(path, []byte(`{"se`), 0o600)
	l := open(t, Config{Path: path})
	l.Append(Entry{Action: "login"})
	closeLog(t, l)
	if r := verify(t, path); r.Torn != 1 || r.Last != 2 {
		t.Errorf("%+v", r)
	}
}

func TestAFullDiskIsSaidAndCounted(t *testing.T) {
	for _, required := range []bool{false, true} {
		c := Config{Path: filepath.Join(t.TempDir(), "audit.log"), Required: required, maxWaiting: 100,
			Lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "lost"}), Failing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "failing"})}
		var mu sync.Mutex
		room := 1000
		c.written = func(f *file, p []byte) (int, error) { // a disk with so much room, as write(2) tells
			mu.Lock()
			defer mu.Unlock()
			n := min(room, len(p))
			room -= n
			if n, err := f.Write(p[:n]); n < len(p) {
				return n, errors.Join(err, syscall.ENOSPC)
			}
			return len(p), nil
		}
		var said bytes.Buffer
		l, err := Open(c, zerolog.New(&said))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 10 {
			l.Append(Entry{Action: "exec.run"})
		}
		testkit.Eventually(t, "the disk is full", func() bool { return testutil.ToFloat64(c.Failing) == 1 })
		if err := l.Admit(); (err != nil) != required {
			t.Errorf("required %v, admitted: %v", required, err)
		}
		for range 300 {
			l.Append(Entry{Action: "exec.end"})
		}
		lost := testutil.ToFloat64(c.Lost)
		if lost < 150 || lost > 300 {
			t.Errorf("%v of 300 lost, with room for 100", lost)
		}
		mu.Lock()
		room = 1 << 30
		mu.Unlock()
		testkit.Eventually(t, "it goes on", func() bool { return testutil.ToFloat64(c.Failing) == 0 })
		if err := l.Admit(); err != nil {
			t.Error(err)
		}
		closeLog(t, l)
		if r := verify(t, c.Path); r.Lost != uint64(lost) || r.Torn != 0 || r.Lines != 10+300-int(lost)+1 {
			t.Errorf("%+v with %v lost", r, lost)
		}
		if n := strings.Count(said.String(), "audit log cannot be written"); n != 1 {
			t.Errorf("said %d times: %s", n, &said)
		}
	}
}

// TestOldLogsVerify: a log of a version whose entries had fewer fields is as good as it was.
func TestOldLogsVerify(t *testing.T) {
	if r := verify(t, filepath.Join("testdata", "old.log")); r.Lines != 13 {
		t.Errorf("%+v", r)
	}
}

// TestNobodyFillsItByAsking: whoever it is, there is a bound; each has his own, and what has no line is counted.
func TestNobodyFillsItByAsking(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l := open(t, Config{Path: path})
	const tries = 20_000
	for range tries {
		l.AppendStranger(Entry{Action: ActionRefused, Remote: "192.0.2.1:1"})
		for _, who := range []string{"ann", "bob"} {
			l.AppendBounded(who, Entry{Action: "exec.run", Principal: who, Remote: "192.0.2.1:1", Text: "x"})
		}
	}
	l.AppendBounded("eve", Entry{Action: "exec.run", Principal: "eve", Remote: "192.0.2.1:1"})
	l.mu.Lock()
	l.dropQuietBucketsLocked(time.Now().Add(freeLines * knownEvery))
	if len(l.buckets) != 0 {
		t.Errorf("%d who have been quiet are remembered", len(l.buckets))
	}
	l.mu.Unlock()
	for range 2 * freeLines {
		l.AppendBounded("ann", Entry{Action: "exec.run", Principal: "ann", Remote: "192.0.2.1:1"})
	}
	for n := range 2 * maxBuckets {
		l.AppendBounded(fmt.Sprint(n), Entry{Action: "exec.run", Principal: "many", Remote: "192.0.2.1:1"})
	}
	l.mu.Lock()
	if len(l.buckets) > maxBuckets+1 {
		t.Errorf("%d are told apart", len(l.buckets))
	}
	l.mu.Unlock()
	closeLog(t, l)
	lines, withheld := map[string]int{}, map[string]int{}
	text, _ := os.ReadFile(path)
	for line := range bytes.Lines(text) {
		e, _, _, err := readLine(bytes.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		withheld[e.Principal] += int(e.Suppressed)
		if e.Action != ActionSuppressed {
			lines[e.Principal]++
		}
	}
	for who, want := range map[string]int{"ann": tries + 2*freeLines, "bob": tries, "eve": 1} {
		if n := lines[who]; n < min(freeLines, want) || n > want/10+1 || n+withheld[who] != want {
			t.Errorf("%q: %d lines, %d withheld", who, n, withheld[who])
		}
	}
	if n := lines["many"] + withheld["many"] + lines[""] + withheld[""]; lines[""] < freeLines || lines[""] > tries/10 || n != tries+2*maxBuckets {
		t.Errorf("strangers: %d lines, %d withheld; many: %d and %d", lines[""], withheld[""], lines["many"], withheld["many"])
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, policy := range []CommandPolicy{HashCommands, RedactCommands} {
		b.Run(string(policy), func(b *testing.B) {
			l := open(b, Config{Commands: policy, Sync: time.Second, maxWaiting: 1 << 30})
			for b.Loop() {
				l.Append(Entry{Action: "exec.run", Outcome: "ok", Principal: "alice", Session: "s-0123456789", Exec: "x-0123456789", Text: "make test"})
			}
		})
	}
}
