package web

import (
	"fmt"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/internal/testkit/limits"
	"trl/pool/events"
)

// refusedParams is a probe whose requests must all be refused with the same code. It returns the last answer.
func refusedParams(requests ...func() (string, object)) func(*testing.T) []string {
	return func(t *testing.T) (words []string) {
		c := start(t).Dial()
		for _, q := range requests {
			method, params := q()
			if words = limits.Came(c.Try(method, params)); words[0] != "`INVALID_PARAMS`" {
				t.Errorf("%s: %s", method, words)
			}
		}
		c.Call("system.ping", nil)
		return words
	}
}

func request(method string, params object) func() (string, object) {
	return func() (string, object) { return method, params }
}

func xs(n int) string { return strings.Repeat("x", n) }

func many(n int, value string) object {
	o := object{}
	for i := range n {
		o[fmt.Sprint("k", i)] = value
	}
	return o
}

func untilIs(condition string, value any) func() (string, object) {
	return request("process.wait", object{"process_id": "p", "until": object{condition: value}})
}

func rawAnswer(t *testing.T, send []byte) []string {
	c := start(t).Raw()
	go c.Write(send) // ends with the connection
	return []string{hear(c, 0)}
}

// cut says what an answer says whose text is about as long as most.
func cut(t *testing.T, r object, most int) (words []string) {
	t.Helper()
	o, _ := r["omitted"].(map[string]any)
	out, _ := o["stdout"].(map[string]any)
	if n := len(r.Str("stdout")); r["truncated"] != true || n > most || n < most/4 || n+object(out).Num("bytes") != r.Num("stdout_bytes") {
		t.Errorf("%d bytes, omitted %v of %d", n, o, r.Num("stdout_bytes"))
	}
	return []string{"`truncated`", "`omitted`"}
}

// forgotten runs more commands than the server keeps and requests the first one.
func forgotten(t *testing.T, command string, times int) []string {
	c := start(t).Dial()
	s := c.Session()
	run := func() string {
		return c.Call("exec.run", object{"session_id": s, "command": command, "max_output_bytes": 1}).Str("exec_id")
	}
	first, last := run(), ""
	for range times - 1 {
		last = run()
	}
	c.Call("exec.wait", object{"exec_id": last})
	return limits.Came(c.Try("exec.wait", object{"exec_id": first}))
}

// large runs a command with 500,000 bytes of output, and returns its id.
func large(c *rig.Client, session string) string {
	return c.Call("exec.run", object{"session_id": session, "command": "head -c 500000 /dev/zero", "max_output_bytes": 1}).Str("exec_id")
}

// overflow makes a watcher that reads nothing miss events, and returns the event that reports it.
func overflow(t *testing.T, command string, times int) []string {
	g := start(t)
	c := g.Dial()
	id := c.Session()
	s, err := g.Pool.Find("local", id, "")
	if err != nil {
		t.Fatal(err)
	}
	w := s.Watch()
	defer w.Close()
	for range times {
		c.Run(id, command)
	}
	if _, err := w.Next(t.Context()); err != events.ErrOverflow {
		t.Error(err)
	}
	return []string{"the current `session.state`"}
}
