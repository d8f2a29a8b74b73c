package rig

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Expect checks a result: an ordinary end with this code and these outputs.
func Expect(t testing.TB, r Object, code int, stdout, stderr string) {
	t.Helper()
	if r.Num("exit_code") != code || r.Stdout() != stdout || r.Stderr() != stderr {
		t.Errorf("exit %v, stdout %s, stderr %s; want %d, %s, %s", r["exit_code"], Brief(r.Stdout()), Brief(r.Stderr()), code, Brief(stdout), Brief(stderr))
	}
	if r.Yes("timed_out") || r.Yes("cancelled") || r.Has("error") || r.Yes("truncated") || r.Yes("running") {
		t.Errorf("no plain end: %v", Brief(fmt.Sprint(r)))
	}
}

// ExpectTyped fails for a refusal without a code, or with INTERNAL_ERROR.
func ExpectTyped(t *testing.T, what string, f *Frame) {
	t.Helper()
	if !f.OK && (f.Code() == "" || f.Code() == "INTERNAL_ERROR") {
		t.Errorf("%s: %+v", what, f.Error)
	}
}

// Brief quotes a text, and shortens it if it is long.
func Brief(s string) string {
	if len(s) > 400 {
		return fmt.Sprintf("%q…%q (%d bytes)", s[:150], s[len(s)-150:], len(s))
	}
	return strconv.Quote(s)
}

// Within checks the time since start against 10 times the limit, because the machine may be busy.
func Within(t testing.TB, what string, start time.Time, limit time.Duration) {
	t.Helper()
	if took := time.Since(start); took > 10*limit {
		t.Errorf("%s took %s, the limit is %s (10 times over here)", what, took.Round(time.Millisecond), limit)
	}
}

// Together runs n functions at once and returns when all have returned; t.Fatal ends one of them.
func Together(n int, f func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { f(i) })
	}
	all.Wait()
}

// BothShells runs f under both shells at once. It is for tests that mostly wait.
func BothShells(f func(shell string)) { Together(len(Shells), func(i int) { f(Shells[i]) }) }

func AwaitExit(c *Client, process string, more ...Object) Object {
	c.T.Helper()
	return c.Call("process.wait", With(Object{"process_id": process, "until": Object{"exit": true}}, With(more...)))
}

// ProcessLogs reads a process's output from offset on. It returns the text and the next offset.
func ProcessLogs(c *Client, process string, offset int) (text string, next int, eof bool) {
	c.T.Helper()
	l := c.Call("process.logs", Object{"process_id": process, "offset": offset})
	for _, ch := range l.Objs("chunks") {
		if ch.Num("offset") != offset+len(text) {
			c.T.Errorf("chunk at %d, want %d", ch.Num("offset"), offset+len(text))
		}
		text += ch.Text("data", "encoding")
	}
	if l.Num("next_offset") != offset+len(text) {
		c.T.Errorf("next_offset %d after %d bytes from %d", l.Num("next_offset"), len(text), offset)
	}
	return text, l.Num("next_offset"), l.Yes("eof")
}
