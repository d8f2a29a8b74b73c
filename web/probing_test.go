package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"trl/internal/rig"
	"trl/pool/events"
)

// came is a refusal in the page's words.
func came(f *rig.Frame) []string {
	if f.Error == nil {
		return []string{fmt.Sprintf("an answer: %.200v", f.Data)}
	}
	words := []string{"`" + f.Code() + "`"}
	if field := f.Error.Details.Str("field"); field != "" {
		words = append(words, "`"+field+"`")
	}
	return words
}

// refusedParams is a probe that sends requests, each of which is to be refused. The last one's answer counts; the others' are to have the same code.
func refusedParams(requests ...func() (string, object)) func(*testing.T) []string {
	return func(t *testing.T) (words []string) {
		c := start(t).dial()
		for _, q := range requests {
			method, params := q()
			if words = came(c.Try(method, params)); words[0] != "`INVALID_PARAMS`" {
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
	c := upgrade(t, start(t))
	go c.Write(send) // ends with the connection
	return []string{hear(c, 0)}
}

// sleeping begins a command that does not end, and returns its id.
func sleeping(c *rig.Client, session ...string) string {
	params := object{"command": "sleep 300"}
	if len(session) > 0 {
		params["session_id"] = session[0]
	}
	return c.Call("exec.stream", params).Str("exec_id")
}

// queued are commands that wait or sleep, in sessions of 64.
func queued(c *rig.Client, n int) (ids []string) {
	for len(ids) < n {
		s := c.Session()
		ids = append(ids, sleeping(c, s))
		for range min(63, n-len(ids)) {
			ids = append(ids, c.Call("exec.stream", object{"session_id": s, "command": ":"}).Str("exec_id"))
		}
	}
	return ids
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

// forgotten runs a command so many times that the first of them is not kept, and asks for that.
func forgotten(t *testing.T, command string, times int) []string {
	c := start(t).dial()
	s := c.Session()
	run := func() string {
		return c.Call("exec.run", object{"session_id": s, "command": command, "max_output_bytes": 1}).Str("exec_id")
	}
	first, last := run(), ""
	for range times - 1 {
		last = run()
	}
	c.Call("exec.wait", object{"exec_id": last})
	return came(c.Try("exec.wait", object{"exec_id": first}))
}

// large runs a command with 500,000 bytes of output, and returns its id.
func large(c *rig.Client, session string) string {
	return c.Call("exec.run", object{"session_id": session, "command": "head -c 500000 /dev/zero", "max_output_bytes": 1}).Str("exec_id")
}

// overflow has a watcher that takes nothing miss something, and returns what the web tells then.
func overflow(t *testing.T, command string, times int) []string {
	g := start(t)
	c := g.dial()
	id := c.Session()
	s, err := g.pool.Find("local", id, "")
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

// longLogs makes a process with a long output for each client, and returns a request for it.
func longLogs(clients ...*rig.Client) func(*rig.Client) int {
	ids := map[*rig.Client]string{}
	for _, c := range clients {
		p := c.Call("process.start", object{"command": "head -c 600000 /dev/zero"}).Str("process_id")
		c.Call("process.wait", object{"process_id": p, "until": object{"exit": true}})
		ids[c] = p
	}
	return func(c *rig.Client) int { return c.Begin("process.logs", object{"process_id": ids[c]}) }
}

// waits has a client ask for what there is no room for. Others are answered meanwhile, and it is when there is room again.
func waits(t *testing.T, g *gateway, c, other *rig.Client, ask func(*rig.Client) int, makeRoom func()) []string {
	t.Helper()
	id := ask(c)
	if other != nil {
		other.Answer(ask(other))
	}
	for range 20 {
		if other != nil {
			other.Call("system.ping", nil)
			continue
		}
		d := g.dial()
		d.Call("system.ping", nil)
		d.Close()
	}
	c.Mu.Lock()
	answered := slices.ContainsFunc(c.Came, func(f *rig.Frame) bool { return f.ID == float64(id) })
	c.Mu.Unlock()
	if answered {
		t.Error("it did not wait")
	}
	makeRoom()
	c.Answer(id)
	return []string{"more wait"}
}
